package security_test

import (
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/pquerna/otp/totp"

	"github.com/coffer-project/coffer/test/harness"
)

// TestSecondFactor: a password alone gives no token, and a code gives one, once.
func TestSecondFactor(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "default")
	root.people("eve", "default")
	bob, eve := root.login("bob"), root.login("eve")
	method := dataOf(t, root.must("POST", "identity/mfa/method/totp", fields{"issuer": "test", "max_validation_attempts": 100}))["method_id"].(string)
	key := func(entity string) string {
		t.Helper()
		link := dataOf(t, root.must("POST", "identity/mfa/method/totp/admin-generate", fields{"method_id": method, "entity_id": entity}))["url"].(string)
		u, err := url.Parse(link)
		if err != nil || u.Query().Get("secret") == "" {
			t.Fatalf("no secret was generated: %v", err)
		}
		return u.Query().Get("secret")
	}
	bobs, eves := key(bob.Entity), key(eve.Entity)
	accessor := dataOf(t, root.must("GET", "sys/auth", nil))["people/"].(map[string]any)["accessor"]
	root.must("POST", "identity/mfa/login-enforcement/all", fields{"mfa_method_ids": method, "auth_method_accessors": accessor})
	code := func(secret string, periods int) string {
		t.Helper()
		c, err := totp.GenerateCode(secret, time.Now().Add(time.Duration(periods)*30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	nobody := root.nobody()
	password := fields{"password": "bob-password-1"}
	begin := func(path string, header ...string) string {
		t.Helper()
		var out struct {
			Auth struct {
				Token string `json:"client_token"`
				MFA   struct {
					ID string `json:"mfa_request_id"`
				} `json:"mfa_requirement"`
			}
		}
		nobody.must("POST", path, password, header...).Decode(t, &out)
		if out.Auth.Token != "" || out.Auth.MFA.ID == "" {
			t.Fatalf("%s with a password alone: a token %v, a request %q", path, out.Auth.Token != "", out.Auth.MFA.ID)
		}
		return out.Auth.MFA.ID
	}
	finish := func(id string, codes ...string) harness.Answer {
		return nobody.do("POST", "sys/mfa/validate", fields{"mfa_request_id": id, "mfa_payload": fields{method: codes}})
	}
	id := begin("auth/people/login/BOB")
	for what, codes := range map[string][]string{
		"nothing": {}, "an empty code": {""}, "eve's code": {code(eves, 0)}, "two codes": {code(bobs, 0), code(eves, 0)}, "a code of long ago": {code(bobs, -20)},
		"a code of the future": {code(bobs, 20)}, "a long code": {code(bobs, 0) + "0"}, "a cut code": {code(bobs, 0)[:5]}, "a sign": {"+" + code(bobs, 0)},
	} {
		if a := finish(id, codes...); a.Status < 400 {
			t.Errorf("%s finishes the login: %.200s", what, a.Body)
		}
	}
	for _, header := range []string{method, method + ":", ":", "x:" + code(bobs, 0), method + ":" + code(eves, 0), method + ":passcode=", method + ":passcode=000000"} {
		nobody.refused("header "+header, "POST", "auth/people/login/bob", password, "X-Vault-MFA", header)
	}
	// Several logins at once with the one right code: one of them is finished.
	ids := []string{id}
	for range 7 {
		ids = append(ids, begin("auth/people/login/bob"))
	}
	right := code(bobs, 0)
	answers := make([]harness.Answer, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { answers[i] = finish(id, right) })
	}
	all.Wait()
	finished := 0
	for i, a := range answers {
		if a.Status == 200 && authOf(t, a).Token != "" {
			finished++
			if again := finish(ids[i], code(bobs, 1)); again.Status < 400 {
				t.Errorf("a login was finished twice: %.200s", again.Body)
			}
		}
	}
	if finished != 1 {
		t.Errorf("one code finished %d logins", finished)
	}
	for _, spelled := range []string{right, " " + right, right + " ", "\t" + right, right + "\n", right + "\u00a0"} {
		nobody.refused("a used code", "POST", "auth/people/login/bob", password, "X-Vault-MFA", method+":"+url.QueryEscape(spelled))
		if a := finish(begin("auth/people/login/bob"), spelled); a.Status < 400 {
			t.Errorf("the used code %q is good again", spelled)
		}
	}
	if a := finish(begin("auth/people/login/bob"), code(bobs, 1)); a.Status != 200 || authOf(t, a).Token == "" {
		t.Errorf("the next code: status %d: %.200s", a.Status, a.Body)
	}
	// Who has the password only cannot replace the second factor.
	for _, path := range []string{"generate", "admin-generate", "admin-destroy"} {
		nobody.refused(path, "POST", "identity/mfa/method/totp/"+path, fields{"method_id": method, "entity_id": bob.Entity})
		root.with(bob.Token).refused(path+" with a default token", "POST", "identity/mfa/method/totp/"+path, fields{"method_id": method, "entity_id": eve.Entity})
	}
}
