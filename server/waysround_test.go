package server_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/pquerna/otp/totp"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pipeline"
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

// TestPoliciesInAnotherCase: the same for names that the policy spells with capitals.
func TestPoliciesInAnotherCase(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/policies/acl/helpdesk", `{"policy":"path \"identity/entity/name/*\" { capabilities = [\"read\"] }\npath \"identity/entity/name/Admin\" { capabilities = [\"deny\"] }\npath \"identity/group/name/Staff\" { capabilities = [\"read\"] }"}`)
	in.must(in.root, engines.Update, "identity/entity", `{"name":"Admin"}`)
	in.must(in.root, engines.Update, "identity/entity", `{"name":"Bob"}`)
	in.must(in.root, engines.Update, "identity/group", `{"name":"Staff"}`)
	tok := in.token("helpdesk")
	in.must(tok, engines.Read, "identity/entity/name/Bob", "")
	in.must(tok, engines.Read, "identity/group/name/Staff", "")
	for _, name := range []string{"Admin", "admin", "ADMIN"} {
		in.refused(engines.KindDenied, "", tok, engines.Read, "identity/entity/name/"+name, "")
	}
}

// TestAliasTakeover: permission to write aliases does not give every entity.
func TestAliasTakeover(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	accessor := data(t, in.must(in.root, engines.Read, "sys/auth/userpass", ""))["accessor"].(string)
	admin := data(t, in.must(in.root, engines.Update, "identity/entity", `{"name":"admin","policies":"root-like"}`))["id"].(string)
	alias := data(t, in.must(in.root, engines.Update, "identity/entity-alias", `{"name":"boss","mount_accessor":"`+accessor+`","canonical_id":"`+admin+`"}`))["id"].(string)
	in.must(in.root, engines.Update, "sys/policies/acl/aliases", `{"policy":"path \"identity/entity-alias*\" { capabilities = [\"read\",\"update\"] }"}`)
	in.must(in.root, engines.Update, "sys/policies/acl/entities", `{"policy":"path \"identity/entity/id/`+admin+`\" { capabilities = [\"update\"] }"}`)
	tok := in.token("aliases")
	for _, body := range []string{
		`{"name":"eve","mount_accessor":"` + accessor + `","canonical_id":"` + admin + `"}`, // a login of one's own
		`{"id":"` + alias + `","name":"eve","mount_accessor":"` + accessor + `"}`,           // another name for theirs
	} {
		in.refused(engines.KindDenied, "", tok, engines.Update, "identity/entity-alias", body)
	}
	in.must(tok, engines.Update, "identity/entity-alias", `{"name":"eve","mount_accessor":"`+accessor+`"}`) // an entity of her own
	in.must(tok, engines.Update, "identity/entity-alias/id/"+alias, `{"custom_metadata":{"a":"b"}}`)
	both := in.must(in.root, engines.Update, "auth/token/create", `{"policies":["aliases","entities"]}`).Auth.ClientToken
	in.must(both, engines.Update, "identity/entity-alias/id/"+alias, `{"name":"chief","mount_accessor":"`+accessor+`"}`)
}

// TestOtherLeaseInTheBody: a policy about the path of a lease holds, whatever the body names.
func TestOtherLeaseInTheBody(t *testing.T) {
	in := start(t)
	user := in.leaseUser("")
	a := in.mustIn("", user, engines.Read, "leases/creds/app", "")
	in.must(in.root, engines.Update, "sys/policies/acl/mine", `{"policy":"path \"sys/leases/revoke/mine/*\" { capabilities = [\"update\"] }\npath \"sys/leases/renew/mine/*\" { capabilities = [\"update\"] }"}`)
	tok := in.token("mine")
	for _, path := range []string{"sys/leases/revoke/mine/x", "sys/leases/renew/mine/x"} {
		in.refused(engines.KindInvalid, "", tok, engines.Update, path, `{"lease_id":"`+a.lease.ID+`","sync":true}`)
	}
	if len(in.leases.Outstanding()) != 1 {
		t.Error("the lease was revoked")
	}
}

// TestLoginsInAnotherCase: neither does another spelling lead round a quota or a revocation of a user's logins.
func TestLoginsInAnotherCase(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	in.must(in.root, engines.Update, "auth/userpass/users/bob", `{"password":"p"}`)
	tok := in.must("", engines.Update, "auth/userpass/login/BOB", `{"password":"p"}`).Auth.ClientToken
	in.must(tok, engines.Read, "auth/token/lookup-self", "")
	in.must(in.root, engines.Update, "sys/leases/revoke-prefix/auth/userpass/login/Bob", "")
	in.refused(engines.KindDenied, "", tok, engines.Read, "auth/token/lookup-self", "")

	in.must(in.root, engines.Update, "sys/quotas/rate-limit/bob", `{"path":"auth/userpass/login/bob","rate":1,"interval":3600}`)
	in.must("", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`)
	in.refused(engines.KindLimited, "", "", engines.Update, "auth/userpass/login/Bob", `{"password":"p"}`)
}

// TestRevokingLoginsOfOne: a path stands for itself and what lies below it, not for names that begin alike.
func TestRevokingLoginsOfOne(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	in.must(in.root, engines.Update, "sys/auth/userpass2", `{"type":"userpass"}`)
	login := func(mount, name string) string {
		in.must(in.root, engines.Update, "auth/"+mount+"/users/"+name, `{"password":"p"}`)
		return in.must("", engines.Update, "auth/"+mount+"/login/"+name, `{"password":"p"}`).Auth.ClientToken
	}
	bob, bobby, other := login("userpass", "bob"), login("userpass", "bobby"), login("userpass2", "bob")
	in.must(in.root, engines.Update, "sys/leases/revoke-prefix/auth/userpass/login/bob", "")
	in.refused(engines.KindDenied, "", bob, engines.Read, "auth/token/lookup-self", "")
	in.must(bobby, engines.Read, "auth/token/lookup-self", "")
	in.must(in.root, engines.Update, "sys/leases/revoke-prefix/auth/userpass", "")
	in.refused(engines.KindDenied, "", bobby, engines.Read, "auth/token/lookup-self", "")
	in.must(other, engines.Read, "auth/token/lookup-self", "")
}

// TestLimitsOutsideOfNamespaces: a client without requests left has none for namespaces that are not there either.
func TestLimitsOutsideOfNamespaces(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/quotas/rate-limit/all", `{"rate":2,"interval":3600}`)
	in.refused(engines.KindNotFound, "nowhere", in.root, engines.Read, "secret/data/app", "")
	in.refused(engines.KindNotFound, "nowhere", "", engines.Read, "secret/data/app", "")
	in.refused(engines.KindLimited, "nowhere", "", engines.Read, "secret/data/app", "")
	in.refused(engines.KindLimited, "", in.root, engines.Read, "secret/data/app", "")
}

// TestParametersSaidTwice: the policy looks at the value that the engine takes.
func TestParametersSaidTwice(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"old"}}`)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"new"}}`)
	in.must(in.root, engines.Update, "sys/policies/acl/newest", `{"policy":"path \"secret/data/app\" { capabilities = [\"read\"] denied_parameters = { \"version\" = [\"1\"] } }"}`)
	tok := in.token("newest")
	read := func(query url.Values, body string) error {
		req := &pipeline.Request{
			ID: "r", Op: engines.Read, Path: "secret/data/app", Token: engines.Sensitive(tok), Header: http.Header{}, Query: query,
		}
		if body != "" {
			req.Body = []byte(body)
		}
		_, err := in.Requests().Handle(context.Background(), req)
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

// TestLeasesOfBatchTokensGoWithTheParent: a batch token ends with its parent, and so does what it was given.
func TestLeasesOfBatchTokensGoWithTheParent(t *testing.T) {
	in := start(t)
	in.leaseUser("")
	parent := in.mustIn("", in.root, engines.Update, "auth/token/create", `{"policies":["creds","root"],"no_parent":true}`).token(in)
	batch := in.mustIn("", parent, engines.Update, "auth/token/create", `{"policies":["creds"],"type":"batch","ttl":"10m"}`).token(in)
	in.mustIn("", batch, engines.Read, "leases/creds/app", "")
	in.mustIn("", in.root, engines.Update, "auth/token/revoke", `{"token":"`+parent+`"}`)
	in.gone("the lease of a batch token outlived its parent")
}

// secondFactor makes the user bob of a userpass mount, whose logins need a code, and returns bob's code.
func (in *instance) secondFactor() (code func() string) {
	in.t.Helper()
	in.must(in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	in.must(in.root, engines.Update, "auth/userpass/users/bob", `{"password":"p"}`)
	entity := in.must("", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`).Auth.EntityID
	method := data(in.t, in.must(in.root, engines.Update, "identity/mfa/method/totp", `{"method_name":"app","issuer":"Coffer"}`))["method_id"].(string)
	made := data(in.t, in.must(in.root, engines.Update, "identity/mfa/method/totp/admin-generate", `{"method_id":"`+method+`","entity_id":"`+entity+`"}`))
	u, err := url.Parse(made["url"].(string))
	if err != nil {
		in.t.Fatal(err)
	}
	in.must(in.root, engines.Update, "identity/mfa/login-enforcement/bob", `{"mfa_method_ids":"`+method+`","identity_entity_ids":"`+entity+`"}`)
	return func() string {
		code, err := totp.GenerateCode(u.Query().Get("secret"), time.Now())
		if err != nil {
			in.t.Fatal(err)
		}
		return code
	}
}

// held logs bob in as far as the question for the code, and returns what to send to sys/mfa/validate.
func (in *instance) held(code string) string {
	in.t.Helper()
	auth := in.must("", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`).Auth
	if auth.MFARequirement == nil || auth.ClientToken != "" {
		in.t.Fatalf("the login asked for no code: %+v", auth)
	}
	id := data(in.t, &pipeline.Reply{Response: &engines.Response{Data: auth.MFARequirement}})["mfa_request_id"].(string)
	return `{"mfa_request_id":"` + id + `","mfa_payload":{"app":["` + code + `"]}}`
}

// TestHeldLoginEndsWithItsMount: from when a mount is being disabled, nothing comes of logins that wait for a code: their
// tokens would not be among those that are revoked.
func TestHeldLoginEndsWithItsMount(t *testing.T) {
	in := start(t)
	code := in.secondFactor()
	body := in.held(code())
	m, err := in.Mount("auth/userpass/")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Hold(); err != nil { // a request that takes its time
		t.Fatal(err)
	}
	disabled := make(chan error, 1)
	go func() {
		_, err := in.do(in.root, engines.Delete, "sys/auth/userpass", "")
		disabled <- err
	}()
	in.until(func() bool {
		if m.Hold() != nil {
			return true
		}
		m.Release()
		return false
	}, "the mount is not being disabled")
	in.refused(engines.KindNotFound, "", "", engines.Update, "sys/mfa/validate", body)
	m.Release()
	if err := <-disabled; err != nil {
		t.Error(err)
	}
	in.refused(engines.KindInvalid, "", "", engines.Update, "sys/mfa/validate", body)
}

func TestHeldLoginOfDisabledEntity(t *testing.T) {
	in := start(t)
	code := in.secondFactor()
	body := in.held(code())
	entities := data(t, in.must(in.root, engines.List, "identity/entity/id/", ""))["keys"].([]any)
	in.must(in.root, engines.Update, "identity/entity/id/"+entities[0].(string), `{"disabled":true}`)
	in.refused(engines.KindDenied, "", "", engines.Update, "sys/mfa/validate", body)
}

// TestHeldLoginOfDeletedUser, and of one who has other policies by now.
func TestHeldLoginOfDeletedUser(t *testing.T) {
	for _, change := range []func(*instance){
		func(in *instance) {
			in.must(in.root, engines.Update, "auth/userpass/users/bob/policies", `{"token_policies":"fewer"}`)
		},
		func(in *instance) { in.must(in.root, engines.Delete, "auth/userpass/users/bob", "") },
	} {
		in := start(t)
		body := in.held(in.secondFactor()())
		change(in)
		in.refused(engines.KindDenied, "", "", engines.Update, "sys/mfa/validate", body)
	}
}

func TestHeldLogin(t *testing.T) {
	in := start(t)
	code := in.secondFactor()
	in.must(in.root, engines.Update, "auth/userpass/users/bob", `{"token_policies":"b,A,default"}`)
	body := in.held(code())
	in.must("", engines.Update, "sys/mfa/validate", body)
	in.refused(engines.KindInvalid, "", "", engines.Update, "sys/mfa/validate", body)
}

// TestWrappingLeadsToNoOtherNode: what concerns one node is asked of that one, whatever is wished for the answer.
func TestWrappingLeadsToNoOtherNode(t *testing.T) {
	in := start(t)
	in.until(in.Node().Current, "the node did not catch up")
	in.state.lead(false)
	in.until(func() bool { return !in.Active() }, "still active")
	header := http.Header{"X-Vault-Wrap-Ttl": {"60s"}}
	for path, want := range map[string]pipeline.Place{"sys/seal": pipeline.Only, "sys/health": pipeline.Only, "secret/data/app": pipeline.Active} {
		op := engines.Read
		if path == "sys/seal" {
			op = engines.Update
		}
		if got, err := in.Requests().Place(context.Background(), &pipeline.Request{Op: op, Path: path, Header: header}); err != nil || got != want {
			t.Errorf("Place of %s, wrapped = %v, %v, want %v", path, got, err, want)
		}
	}
	_, err := in.doIn("", in.root, engines.Read, "sys/host-info", "", map[string]string{"X-Vault-Wrap-TTL": "60s"})
	if kind(err) != engines.KindInvalid {
		t.Errorf("sys/host-info of a standby, wrapped = %v", err)
	}
}

// TestSecondFactorSurvivesMerge: who is asked for a code stays so when the entity becomes part of another one.
func TestSecondFactorSurvivesMerge(t *testing.T) {
	in := start(t)
	in.secondFactor()
	from := data(t, in.must(in.root, engines.List, "identity/entity/id/", ""))["keys"].([]any)[0].(string)
	to := data(t, in.must(in.root, engines.Update, "identity/entity", `{"name":"robert"}`))["id"].(string)
	in.must(in.root, engines.Update, "identity/entity/merge", `{"from_entity_ids":"`+from+`","to_entity_id":"`+to+`"}`)
	if auth := in.must("", engines.Update, "auth/userpass/login/bob", `{"password":"p"}`).Auth; auth.ClientToken != "" {
		t.Error("after the merge the login needs no code")
	}
}

// TestLockNamesItsNamespaceInThePath: what a policy says of a path holds for what the path does.
func TestLockNamesItsNamespaceInThePath(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/namespaces/team", "")
	in.must(in.root, engines.Update, "sys/namespaces/team/prod", "")
	in.must(in.root, engines.Update, "sys/policies/acl/locker", `{"policy":"path \"sys/namespaces/api-lock/lock\" { capabilities = [\"update\",\"sudo\"] }"}`)
	tok := in.token("locker")
	if _, err := in.do(tok, engines.Update, "sys/namespaces/api-lock/lock", `{"path":"team/prod"}`); err == nil {
		t.Error("a token that may lock at one path has locked the namespace of another")
	}
	in.mustIn("team/prod", in.root, engines.Read, "sys/mounts", "")
	key := in.mustIn("team/prod", in.root, engines.Update, "sys/namespaces/api-lock/lock", "").data["unlock_key"].(string)
	in.refused(engines.KindUnavailable, "team/prod", in.root, engines.Read, "sys/mounts", "")
	in.mustIn("team/prod", in.root, engines.Update, "sys/namespaces/api-lock/unlock", `{"unlock_key":"`+key+`"}`)
	in.mustIn("team/prod", in.root, engines.Read, "sys/mounts", "")
}
