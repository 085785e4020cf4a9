package saml_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestSAMLToken is about the token_ fields of a role: what each does to tokens, when they are made and when they are renewed.
func TestSAMLToken(t *testing.T) {
	t.Parallel()
	m := ready(t, alone(t, "token", ""), "saml")
	m.node.MustDo("POST", "/v1/sys/policies/acl/dev", object{"policy": `path "auth/token/create" { capabilities = ["create", "update"] }`})
	for _, rule := range []struct {
		name string
		run  func(*testing.T, *method)
	}{
		{"token_ttl", tokenTTL},
		{"token_max_ttl", tokenMaxTTL},
		{"token_policies", tokenPolicies},
		{"policies", olderPolicies},
		{"token_bound_cidrs: at the login", boundAtLogin},
		{"token_bound_cidrs: on use", boundOnUse},
		{"token_explicit_max_ttl", tokenExplicitMaxTTL},
		{"token_no_default_policy", tokenNoDefaultPolicy},
		{"token_num_uses", tokenNumUses},
		{"token_period", tokenPeriod},
		{"token_type", tokenType},
		{"a role that is gone renews nothing", roleIsGone},
		{"defaults", tokenDefaults},
	} {
		t.Run(rule.name, func(t *testing.T) { rule.run(t, m.in(t)) })
	}
}

// lasts wants a lifetime of at most that many seconds, and not much less: some may have passed.
func lasts(t *testing.T, what string, got, want int) {
	t.Helper()
	if got > want || got < want-60 {
		t.Errorf("%s: %d s, want %d", what, got, want)
	}
}

// renewed returns how long a token lasts when that many seconds are asked for, 0 for what the role gives.
func (m *method) renewed(token string, seconds int) int {
	m.t.Helper()
	return tokenOf(m.t, m.renew(token, seconds)).TTL
}

// tokenTTL: an integer or a text, of new tokens and, as it is then, of renewed ones.
func tokenTTL(t *testing.T, m *method) {
	for _, ttl := range []any{1200, "1200", "20m", "1200s"} {
		m.role("ttl", object{"token_ttl": ttl})
		wantData(t, m.read("role/ttl"), object{"token_ttl": 1200})
	}
	got := m.login("ttl", alice)
	lasts(t, "new", got.TTL, 1200)
	m.role("ttl", object{"token_ttl": "50m"})
	lasts(t, "renewed", m.renewed(got.Token, 0), 3000)
	m.role("ttl", object{"token_ttl": ""})
	wantData(t, m.read("role/ttl"), object{"token_ttl": 0})
	lasts(t, "new, without one", m.login("ttl", alice).TTL, 768*3600)
}

// tokenMaxTTL: no token lives longer, whatever is asked for. What counts is the value at renewal.
func tokenMaxTTL(t *testing.T, m *method) {
	m.role("max", object{"token_ttl": 600, "token_max_ttl": "30m"})
	got := m.login("max", alice)
	lasts(t, "new", got.TTL, 600)
	lasts(t, "renewed for longer", m.renewed(got.Token, 7200), 1800)
	m.role("max", object{"token_max_ttl": 3600})
	lasts(t, "renewed when there is more", m.renewed(got.Token, 7200), 3600)
	m.role("max", object{"token_max_ttl": 900})
	lasts(t, "renewed when there is less", m.renewed(got.Token, 7200), 900)
	wantStatus(t, "a TTL above the maximum", m.admin("POST", "role/max", object{"token_ttl": 901}), 400, "token_ttl")
	m.role("max", object{"token_ttl": 0, "token_max_ttl": 500})
	lasts(t, "new, without a TTL", m.login("max", alice).TTL, 500)
}

func tokenPolicies(t *testing.T, m *method) {
	for _, policies := range []any{"b,A, b", []string{"b", "a"}} {
		m.role("pol", object{"token_policies": policies})
		wantData(t, m.read("role/pol"), object{"token_policies": []string{"a", "b"}})
		got := m.login("pol", alice)
		wantData(t, m.lookup(m.node, got.Token), object{"policies": []string{"a", "b", "default"}})
		if !slices.Equal(got.TokenPolicies, []string{"a", "b", "default"}) {
			t.Errorf("token_policies %q", got.TokenPolicies)
		}
	}
	// The token's policies are those of its login: more of them take another login.
	got := m.login("pol", alice)
	m.role("pol", object{"token_policies": "a,b,c"})
	if again := tokenOf(t, m.renew(got.Token, 0)); slices.Contains(again.Policies, "c") {
		t.Errorf("renewed with %q", again.Policies)
	}
	wantStatus(t, "root", m.admin("POST", "role/pol", object{"token_policies": "root"}), 400, "token_policies", "root")
}

// olderPolicies: "policies" is the deprecated name of token_policies.
func olderPolicies(t *testing.T, m *method) {
	m.node.MustDo("POST", "/v1/auth/saml/role/older", object{"bound_subjects": alice.Subject, "policies": "a,b"})
	wantData(t, m.read("role/older"), object{"policies": []string{"a", "b"}, "token_policies": []string{"a", "b"}})
	if got := m.login("older", alice); !slices.Equal(got.Policies, []string{"a", "b", "default"}) {
		t.Errorf("policies %q", got.Policies)
	}
	m.node.MustDo("POST", "/v1/auth/saml/role/older", object{"policies": "x", "token_policies": "c"})
	if got := m.login("older", alice); !slices.Equal(got.Policies, []string{"c", "default"}) {
		t.Errorf("with both: policies %q", got.Policies)
	}
}

// boundAtLogin: who starts a login and who finishes it has one of the addresses. The browser may be elsewhere.
func boundAtLogin(t *testing.T, m *method) {
	m.role("bound", object{"token_bound_cidrs": "127.0.0.1/32,10.0.0.0/8"})
	var start, callback, redeem harness.Answer
	s := m.start(m.node, object{"role": "bound"})
	from(m.node, "127.0.0.2", func() {
		start = m.send(m.node, "POST", "sso_service_url", "", m.startBody(object{"role": "bound"}))
		callback = m.post(m.node, m.idp.Answer(s.url, alice))
		redeem = m.redeem(m.node, s.poll)
	})
	wantStatus(t, "start", start, 403)
	wantStatus(t, "callback", callback, 200)
	wantStatus(t, "token", redeem, 403)
	tokenOf(t, m.redeem(m.node, s.poll)) // nothing is lost
	wantStatus(t, "no network", m.admin("POST", "role/bound", object{"token_bound_cidrs": "here"}), 400, "token_bound_cidrs")
}

// boundOnUse: the token works from there only, also when it is to be renewed.
func boundOnUse(t *testing.T, m *method) {
	m.role("tied", object{"token_bound_cidrs": []string{"127.0.0.1"}})
	got := m.login("tied", alice)
	if me := m.lookup(m.node, got.Token); me == nil {
		t.Error("no good where it belongs")
	} else {
		wantData(t, me, object{"bound_cidrs": []string{"127.0.0.1/32"}})
	}
	from(m.node, "127.0.0.2", func() {
		if m.lookup(m.node, got.Token) != nil {
			t.Error("good elsewhere")
		}
		wantStatus(t, "renewed elsewhere", m.renew(got.Token, 0), 403)
	})
	wantStatus(t, "renewed", m.renew(got.Token, 0), 200)
	m.role("tied", object{"token_type": "batch"})
	got = m.login("tied", alice)
	from(m.node, "127.0.0.2", func() {
		if m.lookup(m.node, got.Token) != nil {
			t.Error("a batch token is good elsewhere")
		}
	})
}

// tokenExplicitMaxTTL: a hard end, even if token_ttl, token_max_ttl or token_period allow more, and also when the role does
// not say so any more.
func tokenExplicitMaxTTL(t *testing.T, m *method) {
	m.role("cap", object{"token_ttl": 600, "token_max_ttl": 7200, "token_explicit_max_ttl": "15m"})
	got := m.login("cap", alice)
	lasts(t, "new", got.TTL, 600)
	lasts(t, "renewed", m.renewed(got.Token, 7200), 900)
	wantData(t, m.lookup(m.node, got.Token), object{"explicit_max_ttl": 900})
	m.role("cap", object{"token_explicit_max_ttl": 0})
	lasts(t, "renewed when the role has none", m.renewed(got.Token, 7200), 900)
	m.role("cap", object{"token_ttl": 0, "token_max_ttl": 0, "token_period": 3600, "token_explicit_max_ttl": 900})
	lasts(t, "periodic", m.renewed(m.login("cap", alice).Token, 0), 900)
}

func tokenNoDefaultPolicy(t *testing.T, m *method) {
	for _, without := range []bool{false, true} {
		m.role("bare", object{"token_no_default_policy": without})
		if got := m.login("bare", alice); slices.Contains(got.Policies, "default") == without || !slices.Contains(got.Policies, "dev") {
			t.Errorf("token_no_default_policy=%v: %q", without, got.Policies)
		}
	}
}

// tokenNumUses: so many uses, and none of them makes a child.
func tokenNumUses(t *testing.T, m *method) {
	m.role("few", object{"token_num_uses": 3})
	got := m.login("few", alice)
	if got.NumUses != 3 {
		t.Errorf("num_uses is %d", got.NumUses)
	}
	child := func(token string) harness.Answer {
		return send(t, m.node, "POST", "auth/token/create", token, object{"policies": []string{"dev"}})
	}
	if a := child(got.Token); a.Status < 400 {
		t.Errorf("a token of limited use made another: %d", a.Status)
	}
	for use := 2; use <= 4; use++ {
		if good := m.lookup(m.node, got.Token) != nil; good != (use <= 3) {
			t.Errorf("use %d: good is %v", use, good)
		}
	}
	m.role("few", object{"token_num_uses": 0})
	got = m.login("few", alice)
	wantStatus(t, "a child of a token without limit", child(got.Token), 200)
	for range 5 {
		if m.lookup(m.node, got.Token) == nil {
			t.Error("0 is not without limit")
		}
	}
	wantStatus(t, "less than none", m.admin("POST", "role/few", object{"token_num_uses": -1}), 400, "token_num_uses")
}

// tokenPeriod: each renewal gives the period that the role has then, and nothing but it. A period is at most the maximum, which
// the token never reaches otherwise.
func tokenPeriod(t *testing.T, m *method) {
	m.role("periodic", object{"token_period": "10m", "token_ttl": 300, "token_max_ttl": 1800})
	got := m.login("periodic", alice)
	lasts(t, "new", got.TTL, 600)
	lasts(t, "renewed for longer", m.renewed(got.Token, 7200), 600)
	wantData(t, m.lookup(m.node, got.Token), object{"period": 600})
	m.role("periodic", object{"token_period": 1200})
	lasts(t, "renewed with another period", m.renewed(got.Token, 0), 1200)
	m.role("periodic", object{"token_max_ttl": 900})
	lasts(t, "renewed with a lower maximum", m.renewed(got.Token, 0), 900)
	m.role("periodic", object{"token_period": 0})
	lasts(t, "renewed without a period", m.renewed(got.Token, 0), 300)
}

// tokenType: service, batch, or what the mount is tuned to.
func tokenType(t *testing.T, m *method) {
	kind := func(want, prefix string) {
		t.Helper()
		got := m.login("typed", alice)
		if got.Type != want || !strings.HasPrefix(got.Token, prefix) || m.lookup(m.node, got.Token)["type"] != any(want) {
			t.Errorf("a token %.4s… of type %q, want %s", got.Token, got.Type, want)
		}
		if status := m.renew(got.Token, 0).Status; (status == 200) != (want == "service") || got.Renewable != (want == "service") {
			t.Errorf("%s: renewable %v, renewing answers %d", want, got.Renewable, status)
		}
	}
	tune := func(mount string) {
		m.node.MustDo("POST", "/v1/sys/auth/saml/tune", object{"token_type": mount})
	}
	defer tune("default-service")
	m.role("typed", nil)
	wantData(t, m.read("role/typed"), object{"token_type": "default"})
	kind("service", "hvs.")
	tune("default-batch")
	for _, unset := range []string{"", "default"} {
		m.role("typed", object{"token_type": unset})
		kind("batch", "hvb.")
	}
	m.role("typed", object{"token_type": "service"})
	kind("service", "hvs.")
	tune("default-service")
	m.role("typed", object{"token_type": "batch"})
	kind("batch", "hvb.")
	for _, kind := range []string{"default-service", "default-batch", "other"} {
		wantStatus(t, kind, m.admin("POST", "role/typed", object{"token_type": kind}), 400, "token_type")
	}
}

func roleIsGone(t *testing.T, m *method) {
	m.role("gone", nil)
	got := m.login("gone", alice)
	m.admin("DELETE", "role/gone", nil)
	wantStatus(t, "renewed", m.renew(got.Token, 0), 400, "role")
	if m.lookup(m.node, got.Token) == nil {
		t.Error("the token is gone with its role")
	}
}

// tokenDefaults: what a role reads back that says nothing.
func tokenDefaults(t *testing.T, m *method) {
	m.node.MustDo("POST", "/v1/auth/saml/role/plain", object{"bound_subjects": alice.Subject})
	want := object{
		"bound_subjects": []string{alice.Subject}, "bound_subjects_type": "string", "bound_attributes": object{}, "bound_attributes_type": "string",
		"groups_attribute": "", "token_ttl": 0, "token_max_ttl": 0, "token_policies": []string{}, "token_bound_cidrs": []string{},
		"token_explicit_max_ttl": 0, "token_no_default_policy": false, "token_num_uses": 0, "token_period": 0, "token_type": "default",
		"alias_metadata": object{}, "require_same_address": false, "confirm": "cli", "authn_context_class_refs": []string{},
	}
	got := m.read("role/plain")
	if wantData(t, got, want); len(got) != len(want) {
		t.Errorf("a role reads back %v", got)
	}
	me := m.lookup(m.node, m.login("plain", alice).Token)
	wantData(t, me, object{
		"policies": []string{"default"}, "num_uses": 0, "explicit_max_ttl": 0, "orphan": true, "type": "service",
		"path": "auth/saml/token", "display_name": "saml-" + alice.Subject, "meta": object{"role": "plain"},
	})
}
