package approle

import (
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

func TestStoredPath(t *testing.T) {
	e := newEngine()
	for path, want := range map[string]string{
		"role/App":                "role/app",
		"role/App/secret-id":      "role/app/secret-id",
		"role/APP/Unknown":        "role/app/Unknown",
		"role/":                   "role/",
		"role":                    "role",
		"login":                   "login",
		"tidy/Secret-id":          "tidy/Secret-id",
		"role/app/secret-id/":     "role/app/secret-id/",
		"roles/App":               "roles/App",
		"role/\u212aelvin/tokens": "role/kelvin/tokens", // as normalName does, which then takes it
	} {
		if got := e.StoredPath(path); got != want {
			t.Errorf("StoredPath(%q) = %q, want %q", path, got, want)
		}
	}
	if name, err := normalName("\u212aelvin"); err != nil || name != "kelvin" {
		t.Errorf("normalName = %q, %v", name, err)
	}
}

// TestLoginRoleIsThatOfTheLogin: quotas must not be told another role than the one that logs in.
func TestLoginRoleIsThatOfTheLogin(t *testing.T) {
	m := enginetest.New(t, New, enginetest.Options{Type: "approle", Path: "auth/approle/"})
	named := m.Engine.(engines.RoleNamer)
	m.Must(engines.Update, "role/web", `{"bind_secret_id":false,"token_bound_cidrs":"0.0.0.0/0,::/0","role_id":"12"}`)
	m.Must(engines.Update, "role/other", `{"role_id":"34"}`)
	for _, body := range []string{
		`{"role_id":"12"}`, `{"role_id":12}`, `{"role_id":"12","ROLE_ID":"34"}`, `{"role_id":"12","Role_ID":null}`, `{"role_id":"12","x":{}}`,
	} {
		r := m.Must(engines.Update, "login", body)
		if got, want := named.LoginRole(t.Context(), m.Request(engines.Update, "login", body)), r.Auth.Login.Role; got != want {
			t.Errorf("%s is a login of role %q, quotas are told %q", body, want, got)
		}
	}
	for _, body := range []string{``, `{}`, `[]`, `{"role_id":"nobody"}`, `{"ROLE_ID":"12"}`, `{"role_id":null}`} {
		if got := named.LoginRole(t.Context(), m.Request(engines.Update, "login", body)); got != "" {
			t.Errorf("%s: role %q", body, got)
		}
	}
}
