package saml_test

import (
	"maps"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// The rules of RULES.md, on real servers. Each test has one, and a method of its own for each subtest that changes one.

// TestSAMLConfig is about the configuration of a mount.
func TestSAMLConfig(t *testing.T) {
	t.Parallel()
	c := alone(t, "config", `log_level = "trace"`)
	m := enable(t, c, "saml")
	refused := func(t *testing.T, in object, words ...string) {
		t.Helper()
		wantStatus(t, "config", m.in(t).admin("POST", "config", in), 400, words...)
	}
	byURL := func(more object) object {
		all := object{"idp_metadata_url": "https://idp.example.com/metadata", "entity_id": entityID, "acs_urls": m.acs}
		maps.Copy(all, more)
		return all
	}
	explicit := func(more object) object { return m.settings(more) }
	t.Run("there is none at first", func(t *testing.T) {
		m := m.in(t)
		wantStatus(t, "read", m.admin("GET", "config", nil), 404)
		wantStatus(t, "start", m.send(m.node, "POST", "sso_service_url", "", m.startBody(nil)), 400, "not configured")
	})
	t.Run("idp_metadata_url is required without the explicit fields", func(t *testing.T) {
		refused(t, byURL(object{"idp_metadata_url": nil}), `"idp_metadata_url"`, "required")
	})
	t.Run("idp_metadata_url is a well-formed URL", func(t *testing.T) {
		for _, u := range []string{"idp", "/metadata", "ftp://idp.example.com/", "https://", "https://a b/"} {
			refused(t, byURL(object{"idp_metadata_url": u}), `"idp_metadata_url"`)
		}
	})
	t.Run("idp_metadata_url excludes the explicit fields", func(t *testing.T) {
		for _, field := range []string{"idp_sso_url", "idp_entity_id", "idp_cert"} {
			refused(t, byURL(object{field: explicit(nil)[field]}), "mutually exclusive", field)
		}
	})
	t.Run("idp_metadata_url excludes the name idp_issuer", func(t *testing.T) {
		refused(t, byURL(object{"idp_issuer": "https://idp.example.com/metadata"}), "mutually exclusive", "idp_issuer")
	})
	t.Run("idp_sso_url is required without idp_metadata_url", func(t *testing.T) {
		refused(t, explicit(object{"idp_sso_url": nil}), `"idp_sso_url"`, "required")
	})
	t.Run("idp_sso_url is a well-formed URL", func(t *testing.T) {
		for _, u := range []string{"idp", "javascript:alert(1)", "//idp.example.com/sso"} {
			refused(t, explicit(object{"idp_sso_url": u}), `"idp_sso_url"`)
		}
	})
	t.Run("idp_entity_id is required without idp_metadata_url", func(t *testing.T) {
		refused(t, explicit(object{"idp_entity_id": nil}), `"idp_entity_id"`, "required")
	})
	t.Run("idp_cert is required without idp_metadata_url", func(t *testing.T) {
		refused(t, explicit(object{"idp_cert": nil}), `"idp_cert"`, "required")
	})
	t.Run("idp_cert is a PEM certificate", func(t *testing.T) {
		for _, cert := range []string{"x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
			refused(t, explicit(object{"idp_cert": cert}), `"idp_cert"`)
		}
	})
	t.Run("entity_id is required", func(t *testing.T) {
		refused(t, explicit(object{"entity_id": nil}), `"entity_id"`, "required")
	})
	t.Run("acs_urls is required", func(t *testing.T) {
		refused(t, explicit(object{"acs_urls": nil}), `"acs_urls"`, "required")
		refused(t, explicit(object{"acs_urls": []string{}}), `"acs_urls"`, "required")
	})
	t.Run("acs_urls are well-formed URLs", func(t *testing.T) {
		refused(t, explicit(object{"acs_urls": []string{m.acs, "callback"}}), `"acs_urls"`, "element 2")
	})
	t.Run("all problems are named at once", func(t *testing.T) {
		refused(t, object{"idp_sso_url": "x"}, `"idp_sso_url"`, `"idp_entity_id"`, `"idp_cert"`, `"entity_id"`, `"acs_urls"`)
	})
	t.Run("nothing that is rejected is kept", func(t *testing.T) {
		wantStatus(t, "read", m.in(t).admin("GET", "config", nil), 404)
	})
	t.Run("acs_urls without TLS is accepted with a warning", func(t *testing.T) {
		m := m.in(t)
		plain := "http://127.0.0.1:8200/v1/auth/saml/callback"
		wantStatus(t, "config", m.configure(object{"acs_urls": m.acs + "," + plain}), 200, `"warnings":["acs_urls: `+plain, "TLS")
		wantData(t, m.read("config"), object{"acs_urls": []string{m.acs, plain}})
		wantStatus(t, "config", m.configure(), 204)
	})
	t.Run("created and updated by POST and PUT", func(t *testing.T) {
		m := m.in(t)
		for _, verb := range []string{"POST", "PUT"} {
			wantStatus(t, "create by "+verb, m.admin(verb, "config", explicit(object{"default_role": verb})), 200, "default_role")
			wantData(t, m.read("config"), object{"default_role": strings.ToLower(verb)})
			wantStatus(t, "update by "+verb, m.admin(verb, "config", object{"verbose_logging": verb == "POST"}), 200, "default_role")
			wantData(t, m.read("config"), object{"default_role": strings.ToLower(verb), "verbose_logging": verb == "POST"})
		}
		m.configure(object{"default_role": "", "verbose_logging": false})
	})
	t.Run("read answers what was set and the switches", func(t *testing.T) {
		m := m.in(t)
		want := object{
			"idp_sso_url": m.idp.SSOURL, "idp_entity_id": m.idp.EntityID, "idp_cert": m.idp.CertificatePEM(), "entity_id": entityID,
			"acs_urls": []string{m.acs}, "verbose_logging": false, "validate_response_signature": false, "validate_assertion_signature": false,
			"sign_authn_requests": false, "allow_idp_initiated": false,
			"name_id_format": "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified", "case_sensitive_names": false,
		}
		got := m.read("config")
		if wantData(t, got, want); len(got) != len(want) {
			t.Errorf("read answers %v", slices.Sorted(maps.Keys(got)))
		}
	})
	m.role("dev", nil)
	t.Run("default_role is for logins that name none", func(t *testing.T) {
		m := m.in(t)
		m.configure(object{"default_role": "dev"})
		for _, role := range []any{nil, ""} {
			s := m.start(m.node, object{"role": role})
			m.confirm(m.node, s, alice)
			wantData(t, object{"role": tokenOf(t, m.redeem(m.node, s.poll)).Metadata["role"]}, object{"role": "dev"})
		}
	})
	t.Run("a login with no role and no default_role is rejected", func(t *testing.T) {
		m := m.in(t)
		m.configure(object{"default_role": ""})
		for _, role := range []any{nil, ""} {
			wantStatus(t, "start", m.send(m.node, "POST", "sso_service_url", "", m.startBody(object{"role": role})), 400, "missing required 'role' parameter")
		}
	})
	t.Run("verbose_logging", func(t *testing.T) { verboseLogging(t, m.in(t)) })
	t.Run("idp_metadata_url is where the provider is known from", func(t *testing.T) { byMetadata(t, m.in(t)) })
	t.Run("the identity provider's certificate checks signatures", func(t *testing.T) { certificates(t, m.in(t)) })
	t.Run("entity_id is the audience", func(t *testing.T) {
		m := m.in(t)
		m.configure()
		s := m.start(m.node, nil)
		r, err := samltest.ParseRequest(s.url)
		if err != nil || r.Issuer != entityID {
			t.Errorf("the request is by %q, %v", r.Issuer, err)
		}
		wantStatus(t, "callback", m.post(m.node, m.idp.AnswerWith(s.url, samltest.Response{User: alice, Audience: "https://other.example.com/saml"})), 403)
		has(t, "log", c.Nodes[0].Log(), "reason=audience", true)
	})
}

func verboseLogging(t *testing.T, m *method) {
	const secret = "urn:what-only-the-log-shows"
	visitor := samltest.User{Subject: "visitor@example.com", Attributes: map[string][]string{"groups": {"staff"}, "floor": {secret}}}
	form := func() url.Values { return m.idp.Answer(m.start(m.node, nil).url, visitor) }
	m.configure()
	wantStatus(t, "callback", m.post(m.node, form()), 200)
	quiet := m.node.Log()
	for _, part := range []string{secret, visitor.Subject, "samlp:Response", "a SAML response"} {
		has(t, "log without verbose_logging", quiet, part, false)
	}
	m.configure(object{"verbose_logging": true})
	wantStatus(t, "callback", m.post(m.node, form()), 200)
	m.configure(object{"verbose_logging": false})
	var debug, trace string
	for line := range strings.Lines(strings.TrimPrefix(m.node.Log(), quiet)) {
		switch {
		case strings.Contains(line, "level=DEBUG ") && strings.Contains(line, "bound_attributes"):
			debug = line
		case strings.Contains(line, "a SAML response"):
			trace = line
		}
	}
	for _, part := range []string{secret, visitor.Subject, "bound_attributes=map[groups:[staff]]"} {
		has(t, "debug", debug, part, true)
	}
	for _, part := range []string{secret, "samlp:Response", "ds:SignatureValue"} {
		has(t, "trace", trace, part, true)
	}
	if !regexp.MustCompile(`level=(TRACE|DEBUG-4) `).MatchString(trace) {
		t.Errorf("the response is logged as %.100s", trace)
	}
}

// byMetadata serves the provider's metadata. Nothing is fetched before a login needs it.
func byMetadata(t *testing.T, m *method) {
	m.idp = samltest.New(t, samltest.WithECDSA(), samltest.WithEntityID("https://other-idp.example.com/"))
	server := httptest.NewServer(m.idp.Handler())
	defer server.Close()
	wantStatus(t, "config", m.admin("POST", "config", object{"idp_metadata_url": server.URL + "/metadata"}), 200, "TLS")
	got := m.read("config")
	for _, field := range []string{"idp_sso_url", "idp_entity_id", "idp_cert"} {
		if got[field] != nil {
			t.Errorf("the explicit fields are still there: %s", field)
		}
	}
	wantStatus(t, "verify", m.admin("POST", "config/verify", nil), 200, `"entity_id":"https://other-idp.example.com/"`, m.idp.SSOURL)
	m.login("dev", alice)
	server.Close()
	m.login("dev", alice) // by what is known of it
	wantStatus(t, "verify", m.admin("POST", "config/verify", nil), 502, "metadata")
	m.idp = samltest.New(t)
	m.configure() // the three others replace it
	m.login("dev", alice)
}

// certificates: only signatures with the key of a configured certificate are accepted.
func certificates(t *testing.T, m *method) {
	m.configure()
	own, other := m.idp, samltest.New(t, samltest.WithECDSA())
	refused := func(signer *samltest.IdP, change samltest.Response, status int) {
		t.Helper()
		change.User = alice
		s := m.start(m.node, nil)
		wantStatus(t, "callback", m.post(m.node, signer.AnswerWith(s.url, change)), status)
	}
	refused(other, samltest.Response{}, 400)
	refused(own, samltest.Response{Unsigned: true}, 400)
	m.configure(object{"idp_cert": own.CertificatePEM() + other.CertificatePEM()})
	for _, m.idp = range []*samltest.IdP{own, other} {
		for _, o := range []samltest.Response{{SignResponse: true}, {SignAssertion: true}, {SignResponse: true, SignAssertion: true}} {
			o.User = alice
			s := m.start(m.node, nil)
			wantStatus(t, "callback", m.post(m.node, m.idp.AnswerWith(s.url, o)), 200)
		}
	}
	m.idp = own
	m.configure(object{"validate_response_signature": true})
	refused(own, samltest.Response{SignAssertion: true}, 400)
	m.configure(object{"validate_response_signature": false, "validate_assertion_signature": true})
	refused(own, samltest.Response{SignResponse: true}, 400)
	m.configure(object{"validate_assertion_signature": false})
}

// TestSAMLRole is about who may log in. What tokens are like is TestSAMLToken's.
func TestSAMLRole(t *testing.T) {
	t.Parallel()
	m := ready(t, alone(t, "role", ""), "saml")
	bob := samltest.User{Subject: "bob@partner.example.org", Attributes: map[string][]string{"groups": {"Staff", "guests"}, "level": {"4"}}}
	for _, rule := range []struct {
		name string
		role object
		user samltest.User
		want bool
	}{
		{"bound_subjects: one of the values", object{"bound_subjects": "carol@example.com,alice@example.com"}, alice, true},
		{"bound_subjects: none of the values", object{"bound_subjects": []string{"carol@example.com", "Alice@example.com"}}, alice, false},
		{"bound_subjects: unset", object{"bound_subjects": ""}, bob, true},
		{"bound_subjects_type string: a direct match", object{"bound_subjects": "*@example.com", "bound_subjects_type": "string"}, alice, false},
		{"bound_subjects_type unset: a direct match", object{"bound_subjects": "*@example.com"}, alice, false},
		{"bound_subjects_type glob: a wildcard", object{"bound_subjects": "*@example.com", "bound_subjects_type": "glob"}, alice, true},
		{"bound_subjects_type glob: no match", object{"bound_subjects": "*@example.com", "bound_subjects_type": "glob"}, bob, false},
		{"bound_attributes: a single value", object{"bound_attributes": object{"groups": "admins"}}, alice, true},
		{"bound_attributes: values with commas", object{"bound_attributes": object{"groups": "ops,admins"}}, alice, true},
		{"bound_attributes: a list", object{"bound_attributes": object{"groups": []string{"ops", "admins"}}}, alice, true},
		{"bound_attributes: no expected value", object{"bound_attributes": object{"groups": "ops,staff"}}, bob, false},
		{"bound_attributes: the attribute is not there", object{"bound_attributes": object{"department": "engineering"}}, bob, false},
		{"bound_attributes: each attribute has to match", object{"bound_attributes": object{"groups": "staff", "department": "sales"}}, alice, false},
		{"bound_attributes: and the subject", object{"bound_attributes": object{"groups": "staff"}, "bound_subjects": "carol@example.com"}, alice, false},
		{"bound_attributes_type string: a direct match", object{"bound_attributes": object{"groups": "st*"}, "bound_attributes_type": "string"}, alice, false},
		{"bound_attributes_type is string by default", object{"bound_attributes": object{"groups": "st*"}}, alice, false},
		{"bound_attributes_type glob: a wildcard", object{"bound_attributes": object{"groups": "st*,x"}, "bound_attributes_type": "glob"}, alice, true},
		{"bound_attributes_type glob: no match", object{"bound_attributes": object{"groups": "st*"}, "bound_attributes_type": "glob"}, bob, false},
	} {
		t.Run(rule.name, func(t *testing.T) {
			m := m.in(t)
			whole := object{"bound_subjects": "", "bound_subjects_type": "string", "bound_attributes": object{}, "bound_attributes_type": "string", "token_policies": "dev", "confirm": "never"}
			maps.Copy(whole, rule.role)
			m.node.MustDo("POST", "/v1/auth/saml/role/bound", whole)
			if got := m.admits("bound", rule.user); got != rule.want {
				t.Errorf("%s is admitted: %v", rule.user.Subject, got)
			}
		})
	}
	t.Run("types are string or glob", func(t *testing.T) {
		for _, field := range []string{"bound_subjects_type", "bound_attributes_type"} {
			wantStatus(t, field, m.in(t).admin("POST", "role/bound", object{field: "regex"}), 400, field)
		}
	})
	t.Run("name is that in the URL", func(t *testing.T) {
		m := m.in(t)
		for _, verb := range []string{"POST", "PUT"} {
			wantStatus(t, verb, m.admin(verb, "role/Named", object{"name": "other", "bound_subjects": alice.Subject, "groups_attribute": verb}), 204)
			wantData(t, m.read("role/named"), object{"groups_attribute": verb, "bound_subjects": []string{alice.Subject}})
		}
		wantStatus(t, "the name in the body", m.admin("GET", "role/other", nil), 404)
	})
	t.Run("list and delete", func(t *testing.T) {
		m := m.in(t)
		list := func() any { return dataOf(t, m.send(m.node, "LIST", "role", m.c.RootToken, nil))["keys"] }
		wantData(t, object{"keys": list()}, object{"keys": []string{"bound", "dev", "named"}})
		wantStatus(t, "delete", m.admin("DELETE", "role/named", nil), 204)
		wantStatus(t, "read", m.admin("GET", "role/named", nil), 404)
		wantData(t, object{"keys": list()}, object{"keys": []string{"bound", "dev"}})
		wantStatus(t, "start", m.send(m.node, "POST", "sso_service_url", "", m.startBody(object{"role": "named"})), 400, `"role"`)
	})
	t.Run("groups_attribute", func(t *testing.T) { groupsAttribute(t, m.in(t)) })
	t.Run("alias_metadata", func(t *testing.T) {
		m := m.in(t)
		m.role("dev", object{"alias_metadata": object{"office": "north"}})
		id := m.login("dev", alice).EntityID
		entity := dataOf(t, send(t, m.node, "GET", "identity/entity/id/"+id, m.c.RootToken, nil))
		wantData(t, entity["aliases"].([]any)[0].(object), object{"name": alice.Subject, "metadata": object{"office": "north"}})
	})
	t.Run("require_same_address", func(t *testing.T) {
		m := m.in(t)
		m.role("here", object{"require_same_address": true})
		m.login("here", alice)
		s := m.start(m.node, object{"role": "here"})
		var elsewhere harness.Answer
		from(m.node, "127.0.0.2", func() { elsewhere = m.post(m.node, m.idp.Answer(s.url, alice)) })
		wantStatus(t, "a browser that is elsewhere", elsewhere, 403)
		wantStatus(t, "who waits", m.redeem(m.node, s.poll), 403, "address")
	})
}

// groupsAttribute: its values name the aliases of groups, at each login again.
func groupsAttribute(t *testing.T, m *method) {
	accessor := dataOf(t, send(t, m.node, "GET", "sys/auth", m.c.RootToken, nil))["saml/"].(object)["accessor"]
	group := dataOf(t, m.node.MustDo("POST", "/v1/identity/group", object{"name": "admins", "type": "external", "policies": []string{"admin"}}))
	m.node.MustDo("POST", "/v1/identity/group-alias", object{"name": "admins", "mount_accessor": accessor, "canonical_id": group["id"]})
	m.role("grouped", object{"groups_attribute": "groups"})
	if got := m.login("grouped", alice); !slices.Equal(got.Identity, []string{"admin"}) || !slices.Equal(got.Policies, []string{"admin", "default", "dev"}) {
		t.Errorf("%+v", got)
	}
	other := alice
	other.Attributes = map[string][]string{"groups": {"staff"}}
	if got := m.login("grouped", other); len(got.Identity) != 0 {
		t.Errorf("without the group: %+v", got)
	}
	m.role("grouped", object{"groups_attribute": ""})
	if got := m.login("grouped", alice); len(got.Identity) != 0 {
		t.Errorf("without groups_attribute: %+v", got)
	}
}
