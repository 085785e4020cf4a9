package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/pquerna/otp"
)

// samlRenewal: what the role says now counts.
func (x *tour) samlRenewal(t *testing.T, s *sso) {
	role := func(more map[string]any) {
		t.Helper()
		done(t)(x.root.write(s.at+"role/renewed", more))
	}
	role(map[string]any{"bound_subjects": carol.Subject, "token_policies": "dev", "token_ttl": "10m", "token_max_ttl": "1h"})
	a := s.login(t, "renewed", carol)
	me := x.root.as(a.ClientToken)
	same(t, "ttl", a.LeaseDuration, 600)
	role(map[string]any{"token_ttl": "30m"})
	same(t, "renewed", auth(t)(me.renewSelf(0)).LeaseDuration, 1800)
	role(map[string]any{"token_ttl": "5m", "token_max_ttl": "15m"})
	if ttl := auth(t)(me.renewSelf(7200)).LeaseDuration; ttl > 900 || ttl < 840 {
		t.Errorf("renewed for %d s, the role ends it after 900 s", ttl)
	}
	role(map[string]any{"token_policies": "dev,ops"}) // is for new tokens
	same(t, "policies", auth(t)(me.renewSelf(0)).TokenPolicies, []string{"default", "dev"})
	done(t)(x.root.remove(s.at + "role/renewed"))
	_, err := me.renewSelf(0)
	says(t, err, 400, "role")
	same(t, "alive", x.alive(t, me), true)
}

// samlGroups: values of the groups attribute name aliases of external groups, which give their policies, as long as the
// identity provider says so.
func (x *tour) samlGroups(t *testing.T, s *sso, accessor string) {
	x.kv(t, x.root, x.my("ledger"))
	done(t)(x.root.write(x.my("ledger")+"/a", map[string]any{"x": "1"}))
	noErr(t, x.root.putPolicy(x.my("ledger"), `path "`+x.my("ledger")+`/*" { capabilities = ["read"] }`))
	d := data(t)(x.root.write("identity/group", map[string]any{"name": x.my("auditors"), "type": "external", "policies": []string{x.my("ledger")}}))
	id := d["id"].(string)
	t.Cleanup(func() { done(t)(x.root.remove("identity/group/id/" + id)) })
	done(t)(x.root.write("identity/group-alias", map[string]any{"name": "auditors", "mount_accessor": accessor, "canonical_id": id}))
	a := s.login(t, "dev", carol)
	same(t, "policies", [][]string{a.TokenPolicies, a.IdentityPolicies}, [][]string{{"default", "dev"}, {x.my("ledger")}})
	same(t, "data", data(t)(x.root.as(a.ClientToken).read(x.my("ledger")+"/a")), map[string]any{"x": "1"})
	fields(t, data(t)(x.root.read("identity/group/id/"+id)), map[string]any{"member_entity_ids": []string{a.EntityID}})
	a = s.login(t, "dev", samltest.User{Subject: carol.Subject, Attributes: map[string][]string{"groups": {"staff"}}})
	_, err := x.root.as(a.ClientToken).read(x.my("ledger") + "/a")
	refused(t, err, 403)
}

// samlTemplate: the alias is named after the subject and has the role's metadata, for policies to refer to.
func (x *tour) samlTemplate(t *testing.T, s *sso, accessor string) {
	x.kv(t, x.root, x.my("desks"))
	at := "{{identity.entity.aliases." + accessor + "."
	noErr(t, x.root.putPolicy("dev", `path "`+x.my("desks")+`/`+at+`metadata.office}}/`+at+`name}}" { capabilities = ["create", "update"] }`))
	t.Cleanup(func() { done(t)(x.root.remove("sys/policies/acl/dev")) })
	a := s.login(t, "dev", carol)
	done(t)(x.root.as(a.ClientToken).write(x.my("desks")+"/"+x.my("north")+"/"+carol.Subject, map[string]any{"x": "1"}))
	_, err := x.root.as(a.ClientToken).write(x.my("desks")+"/south/"+carol.Subject, map[string]any{"x": "1"})
	refused(t, err, 403)
	d := data(t)(x.root.write("identity/lookup/entity", map[string]any{"alias_name": carol.Subject, "alias_mount_accessor": accessor}))
	same(t, "entity", d["id"], any(a.EntityID))
	fields(t, d["aliases"].([]any)[0].(map[string]any), map[string]any{
		"name": carol.Subject, "mount_accessor": accessor, "mount_type": "saml", "metadata": map[string]any{"office": x.my("north")},
	})
}

// samlFactor: the login is redeemed for a question, which its code answers.
func (x *tour) samlFactor(t *testing.T, s *sso, accessor string) {
	at := "identity/mfa/method/totp"
	method, _ := data(t)(x.root.write(at, map[string]any{"method_name": x.my("saml-app"), "issuer": "coffer", "period": 120}))["method_id"].(string)
	entity := s.login(t, "dev", carol).EntityID
	key, err := otp.NewKeyFromURL(data(t)(x.root.write(at+"/admin-generate", map[string]any{"method_id": method, "entity_id": entity}))["url"].(string))
	noErr(t, err)
	enforcement := "identity/mfa/login-enforcement/" + x.my("saml")
	done(t)(x.root.write(enforcement, map[string]any{"mfa_method_ids": []string{method}, "auth_method_accessors": []string{accessor}}))
	t.Cleanup(func() {
		done(t)(x.root.remove(enforcement))
		done(t)(x.root.remove(at + "/" + method))
	})
	ssoURL, pollID := s.start(t, "dev", "browser")
	s.confirm(t, ssoURL, carol)
	need := auth(t)(s.redeem(x.root.as(""), pollID))
	if need.ClientToken != "" || need.MFARequirement == nil || need.MFARequirement.MFARequestID == "" {
		t.Fatalf("a login without a code got a token or no question: %+v", need.MFARequirement)
	}
	same(t, "methods", need.MFARequirement.MFAConstraints[x.my("saml")].Any[0].ID, method)
	_, err = s.redeem(x.root.as(""), pollID) // it is spent
	refused(t, err, 400)
	phone := &app{key: key}
	a := auth(t)(x.root.as("").mfaValidate(need.MFARequirement.MFARequestID, map[string]any{method: []string{phone.code(t)}}))
	same(t, "entity, role", []any{a.EntityID, a.Metadata}, []any{entity, map[string]string{"role": "dev"}})
	same(t, "alive", x.alive(t, x.root.as(a.ClientToken)), true)
	ssoURL, pollID = s.start(t, "dev", "cli")
	s.confirm(t, ssoURL, carol)
	one := auth(t)(s.redeem(x.root.as("").with("X-Vault-MFA", x.my("saml-app")+":"+phone.code(t)), pollID))
	same(t, "alive", x.alive(t, x.root.as(one.ClientToken)), true)
}

// samlNamespace: the namespace is in the header of the client's requests and in the path of the ACS URL.
func (x *tour) samlNamespace(t *testing.T) {
	ns := x.my("tenant")
	x.namespace(t, x.root, ns)
	in := x.root.in(ns)
	noErr(t, in.enableAuth("saml", "saml"))
	s := x.sso(t, in, ns+"/", "saml")
	s.configure(t, nil)
	done(t)(in.write(s.at+"role/dev", map[string]any{"bound_subjects": carol.Subject, "token_policies": "mine"}))
	noErr(t, in.putPolicy("mine", `path "sys/mounts" { capabilities = ["read"] }`))
	a := s.login(t, "dev", carol)
	me := x.root.as(a.ClientToken)
	fields(t, data(t)(me.in(ns).lookupSelf()), map[string]any{"path": "auth/saml/token", "namespace_path": ns + "/", "meta": map[string]any{"role": "dev"}})
	_, err := me.in(ns).read("sys/mounts")
	noErr(t, err)
	_, err = me.read("sys/mounts")
	refused(t, err, 403)
	// The namespace in the path instead of the header is the same.
	ssoURL, pollID := s.start(t, "dev", "cli")
	s.confirm(t, ssoURL, carol)
	auth(t)(x.root.as("").write(ns+"/auth/saml/token", map[string]any{"client_verifier": verifierOf, "token_poll_id": pollID}))
	// The same login does not exist outside of it.
	noErr(t, x.root.enableAuth(x.my("outer"), "saml"))
	t.Cleanup(func() { noErr(t, x.root.disableAuth(x.my("outer"))) })
	outer := x.sso(t, x.root, "", x.my("outer"))
	outer.configure(t, nil)
	_, pollID = s.start(t, "dev", "cli")
	_, err = outer.redeem(x.root.as(""), pollID)
	refused(t, err, 400)
}

// samlDocumented: the OpenAPI document has every path.
func (x *tour) samlDocumented(t *testing.T, s *sso) {
	var doc struct{ Paths map[string]map[string]any }
	x.raw(t, x.node(), "GET", "/v1/sys/internal/specs/openapi", x.RootToken, nil).Decode(t, &doc)
	got := map[string][]string{}
	for path, methods := range doc.Paths {
		if rest, ok := strings.CutPrefix(path, "/"+s.at); ok {
			for method := range methods {
				if method == "get" || method == "post" || method == "delete" {
					got[rest] = append(got[rest], method)
				}
			}
			slices.Sort(got[rest])
		}
	}
	same(t, "paths", fmt.Sprint(got), fmt.Sprint(map[string][]string{
		"config": {"get", "post"}, "config/verify": {"post"}, "config/rotate-signing-key": {"post"}, "metadata": {"get"},
		"role/": {"get"}, "role/{name}": {"delete", "get", "post"}, "role/{name}/explain": {"post"},
		"sso_service_url": {"post"}, "callback": {"post"}, "token": {"post"}, "go/{code}": {"get", "post"},
	}))
}
