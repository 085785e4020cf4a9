package upgrade_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// as sends a request with one of the old tokens and wants a status.
func (u *upgraded) as(t *testing.T, n *harness.Node, token string, want int, method, path string, body any) harness.Answer {
	t.Helper()
	a := do(t, n, method, "/v1/"+path, u.was.Tokens[token].ID, body)
	if a.Status != want {
		t.Errorf("%s %s as %s: status %d, want %d: %.300s", method, path, token, a.Status, want, a.Body)
	}
	return a
}

// work goes on with what the old server left: it changes data, renews and revokes.
func (u *upgraded) work(t *testing.T, n *harness.Node) {
	t.Helper()
	var made struct{ Data struct{ Version int } }
	u.as(t, n, "root", 200, "POST", "kv2/data/app/many", map[string]any{"data": map[string]any{"v": "new"}}).Decode(t, &made)
	if made.Data.Version != 13 {
		t.Errorf("the thirteenth version of a secret is number %d", made.Data.Version)
	}
	u.as(t, n, "root", 204, "POST", "kv2/undelete/app/deleted", map[string]any{"versions": []int{1}})
	if a := u.as(t, n, "root", 200, "GET", "kv2/data/app/deleted", nil); !strings.Contains(string(a.Body), "it can come back") {
		t.Errorf("an undeleted version is not what it was: %s", a.Body)
	}
	u.as(t, n, "root", 400, "POST", "kv2/data/app/kept", map[string]any{"data": map[string]any{"v": "2"}}) // cas is required
	u.as(t, n, "root", 204, "POST", "kv1/later", map[string]any{"v": "changed"})
	u.as(t, n, "root", 204, "POST", "sys/policies/acl/app", map[string]any{"policy": `path "kv1/later" { capabilities = ["read"] }`})
	u.as(t, n, "app", 200, "GET", "kv1/later", nil)
	u.as(t, n, "app", 403, "GET", "kv2/data/app/one", nil)
	u.as(t, n, "bounded", 204, "POST", "kv1/params", map[string]any{"a": "1", "b": "x"})
	u.as(t, n, "bounded", 403, "POST", "kv1/params", map[string]any{"a": "3"})
	u.as(t, n, "cut", 200, "GET", "kv1/cut", nil) // a policy means what it meant, also if it could not be written today
	u.as(t, n, "cut", 403, "GET", "kv1/later", nil)
	u.lifetimes(t, n)
	u.revoke(t, n)
	u.audited(t)
}

// lifetimes checks that tokens end when they were to end, whenever the test runs.
func (u *upgraded) lifetimes(t *testing.T, n *harness.Node) {
	t.Helper()
	want, reader := 200, u.was.Tokens["reader"]
	if reader.Expires.IsZero() {
		t.Fatal("no token of the inventory has the ordinary lifetime")
	}
	if time.Now().After(reader.Expires) {
		want = 403
	}
	u.as(t, n, "reader", want, "GET", "auth/token/lookup-self", nil)
	var renewed struct {
		Auth struct {
			Seconds int64 `json:"lease_duration"`
		}
	}
	u.as(t, n, "periodic", 200, "POST", "auth/token/renew-self", nil).Decode(t, &renewed)
	if renewed.Auth.Seconds != 400_000*3600 {
		t.Errorf("a periodic token was renewed for %d s", renewed.Auth.Seconds)
	}
	u.as(t, n, "named", 200, "POST", "auth/token/renew-self", nil)
	for _, want := range []int{200, 200, 403} { // it was good for two
		u.as(t, n, "limited", want, "GET", "kv1/later", nil)
	}
}

// revoke ends a tree of tokens, with the cubbyholes.
func (u *upgraded) revoke(t *testing.T, n *harness.Node) {
	t.Helper()
	u.as(t, n, "grandchild", 200, "GET", "kv1/later", nil)
	var fresh struct {
		Auth struct {
			ID string `json:"client_token"`
		}
	}
	u.as(t, n, "grandchild", 200, "POST", "auth/token/create", nil).Decode(t, &fresh)
	u.was.Tokens["fresh"] = oldToken{ID: fresh.Auth.ID}
	u.as(t, n, "fresh", 200, "GET", "kv1/later", nil)
	u.as(t, n, "root", 204, "POST", "auth/token/revoke", map[string]any{"token": u.was.Tokens["parent"].ID})
	u.revoked(t, n)
	u.as(t, n, "orphan", 200, "GET", "kv1/json", nil)
}

func (u *upgraded) revoked(t *testing.T, n *harness.Node) {
	t.Helper()
	for _, token := range []string{"parent", "child", "grandchild", "fresh"} {
		u.as(t, n, token, 403, "GET", "kv1/later", nil)
	}
}

// audited checks that the trail goes on: in the same file if it came along, in the same format in any case.
func (u *upgraded) audited(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(auditFile[len("/proc/self/cwd/"):])
	if err != nil {
		t.Fatal(err)
	}
	accessors := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Type string
			Auth struct{ Accessor string }
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Type == "" {
			t.Fatalf("a line of the audit file: %v: %.200s", err, line)
		}
		accessors[entry.Auth.Accessor]++
	}
	if len(accessors) < 5 {
		t.Errorf("%d accessors are in the audit file", len(accessors))
	}
	for name, token := range u.was.Tokens {
		if strings.Contains(string(text), token.ID) {
			t.Errorf("the audit file has the token %q in plain text", name)
		}
	}
}

const featurePolicy = `path "secret/data/{{identity.entity.name}}/*" { capabilities = ["create", "read", "update"] }`

// features uses what came after the old release.
func (u *upgraded) features(t *testing.T, n *harness.Node) {
	t.Helper()
	u.identity(t, n)
	u.as(t, n, "root", 200, "POST", "sys/namespaces/team", nil)
	u.as(t, n, "root", 204, "POST", "team/sys/mounts/secret", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	u.as(t, n, "root", 204, "POST", "team/sys/policies/acl/own", map[string]any{"policy": featurePolicy})
	u.as(t, n, "root", 204, "POST", "team/sys/auth/userpass", map[string]any{"type": "userpass"})
	u.as(t, n, "root", 204, "POST", "team/auth/userpass/users/ana", map[string]any{"password": "a-password", "token_policies": "own"})
	u.logIn(t, n)
	u.as(t, n, "ana", 200, "POST", "team/secret/data/anas/x", map[string]any{"data": map[string]any{"v": "her own"}})
	u.unwrap(t, n)
	// What is old can be wrapped, and the old tokens do not reach into namespaces.
	u.as(t, n, "app", 403, "GET", "team/secret/data/anas/x", nil)
	u.as(t, n, "root", 200, "POST", "auth/token/create", map[string]any{"type": "batch", "policies": []string{"app"}, "ttl": "1h"})
}

// identity wants the identity store to be mounted. Where an old mount has its path, that one works until it is
// moved, and the log says so.
func (u *upgraded) identity(t *testing.T, n *harness.Node) {
	t.Helper()
	kind := func() string {
		var mounts struct {
			Data map[string]struct{ Type string }
		}
		u.as(t, n, "root", 200, "GET", "sys/mounts", nil).Decode(t, &mounts)
		return mounts.Data["identity/"].Type
	}
	if kind() == "kv" {
		harness.Await(t, "the log to say that the identity store cannot be mounted", time.Minute, func() error {
			if !strings.Contains(n.Log(), "mount=identity/") {
				return errors.New("it does not")
			}
			return nil
		})
		u.as(t, n, "root", 200, "POST", "sys/remount", map[string]any{"from": "identity", "to": "moved"})
		harness.Await(t, "the move of the old mount", time.Minute, func() error {
			if a := do(t, n, "GET", "/v1/moved/x", u.RootToken, nil); a.Status != 200 || !strings.Contains(string(a.Body), "in the way") {
				return fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return nil
		})
		n.Stop()
		n.Start()
		u.serve(n)
	}
	harness.Await(t, "the identity store to be mounted", time.Minute, func() error { // soon after a node became active
		if got := kind(); got != "identity" {
			return fmt.Errorf("the mount at identity/ has the type %q", got)
		}
		return nil
	})
}

// logIn makes "ana" a token of a login, with an entity that has a name.
func (u *upgraded) logIn(t *testing.T, n *harness.Node) {
	t.Helper()
	var in struct {
		Auth struct {
			ID     string `json:"client_token"`
			Entity string `json:"entity_id"`
		}
	}
	u.as(t, n, "", 200, "POST", "team/auth/userpass/login/ana", map[string]any{"password": "a-password"}).Decode(t, &in)
	if in.Auth.Entity == "" {
		t.Fatal("a login has no entity")
	}
	u.was.Tokens["ana"] = oldToken{ID: in.Auth.ID}
	u.as(t, n, "root", 204, "POST", "team/identity/entity/id/"+in.Auth.Entity, map[string]any{"name": "anas"})
}

func (u *upgraded) unwrap(t *testing.T, n *harness.Node) {
	t.Helper()
	a := do(t, n, "GET", "/v1/kv1/later", u.RootToken, nil, "X-Vault-Wrap-TTL", "5m")
	var wrapped struct {
		Info struct{ Token string } `json:"wrap_info"`
	}
	a.Decode(t, &wrapped)
	if wrapped.Info.Token == "" {
		t.Fatalf("the answer is not wrapped: status %d", a.Status)
	}
	u.was.Tokens["wrapping"] = oldToken{ID: wrapped.Info.Token}
	if a := u.as(t, n, "wrapping", 200, "POST", "sys/wrapping/unwrap", nil); !strings.Contains(string(a.Body), "changed") {
		t.Errorf("what was unwrapped is not the secret: %s", a.Body)
	}
	u.as(t, n, "wrapping", 400, "POST", "sys/wrapping/unwrap", nil)
}

// worked checks that what work and features did is still there.
func (u *upgraded) worked(t *testing.T, n *harness.Node) {
	t.Helper()
	if a := u.as(t, n, "app", 200, "GET", "kv1/later", nil); !strings.Contains(string(a.Body), "changed") {
		t.Errorf("a changed secret is what it was before: %s", a.Body)
	}
	u.as(t, n, "root", 200, "GET", "kv2/data/app/many?version=13", nil)
	u.as(t, n, "limited", 403, "GET", "kv1/later", nil)
	u.revoked(t, n)
	u.as(t, n, "ana", 200, "GET", "team/secret/data/anas/x", nil)
	u.as(t, n, "", 200, "POST", "team/auth/userpass/login/ana", map[string]any{"password": "a-password"})
	u.as(t, n, "root", 400, "POST", "sys/mounts/team", map[string]any{"type": "kv"}) // there is a namespace
}
