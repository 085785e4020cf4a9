package saml_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/pquerna/otp/totp"
)

// TestSAMLSecondFactor changes a role while a user looks for the code that the login still needs: it does not succeed by
// what it was before.
func TestSAMLSecondFactor(t *testing.T) {
	t.Parallel()
	c := alone(t, "factor", "")
	m := ready(t, c, "saml")
	entity := m.lookup(m.node, m.login("dev", alice).Token)["entity_id"]
	write := func(path string, body object) object {
		t.Helper()
		a := send(t, m.node, "POST", path, c.RootToken, body)
		if a.Status == 204 {
			return nil
		}
		return dataOf(t, a)
	}
	method := write("identity/mfa/method/totp", object{"method_name": "app", "issuer": "Coffer"})["method_id"]
	made, _ := write("identity/mfa/method/totp/admin-generate", object{"method_id": method, "entity_id": entity})["url"].(string)
	key, err := url.Parse(made)
	if err != nil {
		t.Fatal(err)
	}
	write("identity/mfa/login-enforcement/alice", object{"mfa_method_ids": []any{method}, "identity_entity_ids": []any{entity}})
	held := func() object {
		s := m.start(m.node, nil)
		m.confirm(m.node, s, alice)
		var out struct {
			Auth struct {
				Requirement struct {
					ID string `json:"mfa_request_id"`
				} `json:"mfa_requirement"`
			}
		}
		m.redeem(m.node, s.poll).Decode(t, &out)
		code, err := totp.GenerateCode(key.Query().Get("secret"), time.Now())
		if err != nil || out.Auth.Requirement.ID == "" {
			t.Fatalf("the login asks for no code (%v)", err)
		}
		return object{"mfa_request_id": out.Auth.Requirement.ID, "mfa_payload": object{"app": []string{code}}}
	}
	waiting := held()
	m.role("dev", object{"bound_subjects": "bob"})
	wantStatus(t, "a login that the role would not admit any more", send(t, m.node, "POST", "sys/mfa/validate", "", waiting), 403)
}
