package server_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server"
)

// TestNamesInAnotherCase: where an engine takes names in any case, what policies say of one name holds for all its
// spellings.
func TestNamesInAnotherCase(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	in.must(in.root, engines.Update, "sys/policies/acl/helpdesk", `{"policy":"path \"auth/userpass/users/+/password\" { capabilities = [\"update\"] }\npath \"auth/userpass/users/admin/password\" { capabilities = [\"deny\"] }\npath \"auth/userpass/users/Carol\" { capabilities = [\"read\"] }\npath \"identity/group/name/*\" { capabilities = [\"read\",\"update\"] }\npath \"identity/group/name/admins\" { capabilities = [\"read\"] }"}`)
	for _, name := range []string{"admin", "bob", "carol"} {
		in.must(in.root, engines.Update, "auth/userpass/users/"+name, `{"password":"p"}`)
	}
	in.must(in.root, engines.Update, "identity/group/name/admins", `{"policies":"x"}`)
	tok := in.token("helpdesk")
	in.must(tok, engines.Update, "auth/userpass/users/Bob/password", `{"password":"q"}`)
	in.must(tok, engines.Read, "auth/userpass/users/Carol", "") // as the policy spells it
	in.must(tok, engines.Read, "identity/group/name/ADMINS", "")
	in.must(tok, engines.Update, "identity/group/name/Others", `{}`)
	in.must(in.root, engines.Update, "auth/userpass/users/Admin/password", `{"password":"p"}`)
	for _, path := range []string{
		"auth/userpass/users/admin/password", "auth/userpass/users/Admin/password", "auth/userpass/users/ADMIN/password",
		"identity/group/name/admins", "identity/group/name/Admins",
	} {
		in.refused(engines.KindDenied, "", tok, engines.Update, path, `{"password":"stolen"}`)
	}
}

// TestParametersSaidTwice: the policy looks at the value that the engine takes.
func TestParametersSaidTwice(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"old"}}`)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"new"}}`)
	in.must(in.root, engines.Update, "sys/policies/acl/newest", `{"policy":"path \"secret/data/app\" { capabilities = [\"read\"] denied_parameters = { \"version\" = [\"1\"] } }"}`)
	tok := in.token("newest")
	read := func(query url.Values, body string) error {
		req := &server.Request{
			ID: "r", Op: engines.Read, Path: "secret/data/app", Token: engines.Sensitive(tok), Header: http.Header{}, Query: query,
		}
		if body != "" {
			req.Body = []byte(body)
		}
		_, err := in.Handle(context.Background(), req)
		return err
	}
	for _, ok := range []url.Values{nil, {"version": {"2"}}} {
		if err := read(ok, ""); err != nil {
			t.Errorf("query %v: %v", ok, err)
		}
	}
	for _, c := range []struct {
		query url.Values
		body  string
	}{
		{url.Values{"version": {"1"}}, ""},
		{url.Values{"version": {"1", "2"}}, ""},
		{url.Values{"version": {"1"}}, `{"version":null}`},
		{url.Values{"version": {"1"}, "Version": {"2", "3"}}, ""},
	} {
		if err := read(c.query, c.body); kind(err) != engines.KindDenied {
			t.Errorf("query %v with body %q = %v, want denied", c.query, c.body, err)
		}
	}
}
