package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
)

// identities is token.Identity.
type identities struct{}

func (identities) IdentityPolicies(_ context.Context, e *token.Entry) ([]string, error) {
	return []string{"from-" + e.EntityID, "app"}, nil
}

func (identities) ExternalPolicies(context.Context, *token.Entry) (map[string][]string, error) {
	return map[string][]string{"a": {"x"}}, nil
}

// What an auth method calls its role, and what it keeps, is not shown.
func TestLookupOfLogin(t *testing.T) {
	d := newDesk(t, func(o *token.Options) {
		o.Identity = identities{}
	})
	l := engines.Login{Role: "bob", Internal: []byte(`"keep-this"`), Token: engines.TokenFields{TokenPolicies: engines.StringList{"app"}}}
	c, err := d.tokens.CreateLogin(t.Context(), userpass(), "", "auth/userpass/login/bob", l, "e1")
	if err != nil {
		t.Fatal(err)
	}
	data := d.lookup(c.Token.Reveal())
	for _, key := range []string{"role", "internal", "mount"} {
		if v, ok := data[key]; ok {
			t.Errorf("%s = %v, want it left out", key, v)
		}
	}
	want := map[string]any{"identity_policies": []any{"from-e1", "app"}, "external_namespace_policies": map[string]any{"a": []any{"x"}}}
	for key, v := range want {
		if !equalJSON(data[key], v) {
			t.Errorf("%s = %v, want %v", key, data[key], v)
		}
	}
	auth, err := d.tokens.AuthWithIdentity(t.Context(), c)
	if err != nil || !slices.Equal(auth.TokenPolicies, []string{"app", "default"}) || !slices.Equal(auth.IdentityPolicies, []string{"from-e1", "app"}) ||
		!slices.Equal(auth.Policies, []string{"app", "default", "from-e1"}) {
		t.Errorf("auth = %+v, %v", auth, err)
	}
	if data := d.lookup(d.root.Token.Reveal()); data["identity_policies"] != nil {
		t.Errorf("a token without entity has %v", data["identity_policies"])
	}
}
func equalJSON(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// Who sees what: tokens of the request's namespace and of those below it.
func TestVisibility(t *testing.T) {
	d := newDesk(t)
	admin := map[string]token.Created{}
	for _, ns := range []string{"root", "a", "a-b", "c"} {
		admin[ns] = d.issue(token.Params{Policies: []string{"admin"}, Namespace: ns})
	}
	tests := []struct {
		from    string
		visible []string
	}{
		{"root", []string{"root", "a", "a-b", "c"}},
		{"a", []string{"a", "a-b"}},
		{"a-b", []string{"a-b"}},
		{"c", []string{"c"}},
	}
	for _, tt := range tests {
		d.as(admin[tt.from])
		d.in(tt.from)
		for ns, c := range admin {
			tok, accessor := map[string]any{"token": c.Token.Reveal()}, map[string]any{"accessor": c.Entry.Accessor}
			if slices.Contains(tt.visible, ns) {
				data := d.Data(d.Must(engines.Update, "lookup", tok))
				if want := (spaces{}).Path(ns); data["namespace_path"] != want {
					t.Errorf("namespace_path = %v, want %q", data["namespace_path"], want)
				}
				d.Must(engines.Update, "lookup-accessor", accessor)
				d.Must(engines.Update, "renew", tok)
				d.Must(engines.Update, "renew-accessor", accessor)
				continue
			}
			d.Fails(engines.KindDenied, engines.Update, "lookup", tok)
			d.Fails(engines.KindInvalid, engines.Update, "lookup-accessor", accessor)
			d.Fails(engines.KindDenied, engines.Update, "renew", tok)
			d.Fails(engines.KindInvalid, engines.Update, "renew-accessor", accessor)
			d.Fails(engines.KindInvalid, engines.Update, "revoke-accessor", accessor)
			d.Fails(engines.KindInvalid, engines.Update, "revoke-orphan", tok)
			if d.Must(engines.Update, "revoke", tok); !d.valid(c) { // answers as if it were not there
				t.Errorf("a request in %s revoked a token of %s", tt.from, ns)
			}
		}
		want := len(tt.visible)
		if tt.from == "root" {
			want++ // the root token
		}
		if keys, _ := d.Data(d.Must(engines.List, "accessors/", nil))["keys"].([]any); len(keys) != want {
			t.Errorf("in %s: %d accessors, want %d", tt.from, len(keys), want)
		}
		if n, err := d.tokens.Count(t.Context(), tt.from); n != want || err != nil {
			t.Errorf("Count of %s = %d, %v, want %d", tt.from, n, err, want)
		}
		if r, err := d.tokens.TidyBelow(t.Context(), tt.from); err != nil || r != (token.TidyResult{Tokens: want}) {
			t.Errorf("TidyBelow of %s = %+v, %v", tt.from, r, err)
		}
	}
	// One's own token is seen from a namespace below its own, too.
	d.as(admin["a"])
	d.in("a-b")
	if data := d.Data(d.Must(engines.Read, "lookup-self", nil)); data["namespace_path"] != "a/" {
		t.Errorf("lookup-self = %v", data)
	}
	d.Must(engines.Update, "revoke-self", nil)
	if d.valid(admin["a"]) {
		t.Error("the token is still valid")
	}
}

// The limits of a request's mount are for the tokens of its namespace.
func TestRenewalLimitsOfNamespaces(t *testing.T) {
	d := newDesk(t)
	c := d.issue(token.Params{Policies: []string{"app"}, TTL: time.Hour, Namespace: "a"})
	for ns, want := range map[string]int64{"root": 768 * 3600, "a": 24 * 3600} {
		d.in(ns)
		r := d.Must(engines.Update, "renew", map[string]any{"token": c.Token.Reveal(), "increment": "1000h"})
		if r.Auth.LeaseDuration != want {
			t.Errorf("from %s: renewed for %d seconds, want %d", ns, r.Auth.LeaseDuration, want)
		}
	}
}

func (d *desk) valid(c token.Created) bool {
	d.t.Helper()
	_, err := d.tokens.Lookup(d.t.Context(), c.Token.Reveal())
	if err != nil && !errors.Is(err, token.ErrInvalid) {
		d.t.Fatal(err)
	}
	return err == nil
}

// Policies are those of the child's namespace, so the parent's of another one say nothing about them.
func TestCreateInNamespace(t *testing.T) {
	tests := []struct {
		name   string
		caller []string // policies, in namespace a
		ns     string   // of the request
		body   string
		want   string // policies, or "!" and the error
	}{
		{"same", []string{"default", "app"}, "a", `{}`, "app default"},
		{"below", []string{"default", "app"}, "a-b", `{"policies": "app"}`, "!sudo is needed"},
		{"below, nothing asked", []string{"default", "app"}, "a-b", `{}`, "!sudo is needed"},
		{"below by sudo", []string{"admin"}, "a-b", `{"policies": "app"}`, "app default"},
		{"below by sudo, nothing asked", []string{"admin"}, "a-b", `{}`, "default"},
		{"root below", []string{"admin"}, "a-b", `{"policies": "root"}`, "!root tokens may not be created"},
		{"above", []string{"admin"}, "root", `{"policies": "app"}`, "!in the namespace of its parent or below"},
		{"beside", []string{"admin"}, "c", `{"policies": "app"}`, "!in the namespace of its parent or below"},
		{"orphan beside", []string{"admin"}, "c", `{"policies": "app", "no_parent": true}`, "app default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t)
			parent := d.issue(token.Params{Policies: tt.caller, Namespace: "a"})
			d.as(parent)
			d.in(tt.ns)
			if text, refused := strings.CutPrefix(tt.want, "!"); refused {
				if got := d.Fails(engines.KindInvalid, engines.Update, "create", tt.body); !strings.Contains(got, text) {
					t.Errorf("error %q, want %q", got, text)
				}
				return
			}
			a := d.Must(engines.Update, "create", tt.body).Auth
			if got := strings.Join(a.Policies, " "); got != tt.want {
				t.Errorf("policies %q, want %q", got, tt.want)
			}
			if data := d.lookup(a.ClientToken); data["namespace_path"] != (spaces{}).Path(tt.ns) {
				t.Errorf("namespace_path = %v", data["namespace_path"])
			}
			if err := d.tokens.Revoke(t.Context(), parent.Entry.Key); err != nil {
				t.Fatal(err)
			}
			if _, err := d.tokens.Lookup(t.Context(), a.ClientToken); (err == nil) != a.Orphan {
				t.Errorf("after its parent: %v, orphan %v", err, a.Orphan)
			}
		})
	}
	d := newDesk(t)
	d.in("a")
	if got := d.Fails(engines.KindInvalid, engines.Update, "create", `{"policies": "root"}`); !strings.Contains(got, "outside the root namespace") {
		t.Errorf("root elsewhere: %q", got)
	}
	d.role("r", `{"allowed_policies": "ops"}`)
	d.as(d.issue(token.Params{Policies: []string{"app"}}))
	if a := d.Must(engines.Update, "create/r", `{}`).Auth; !slices.Equal(a.Policies, []string{"default", "ops"}) {
		t.Errorf("by a role of the namespace: %v", a.Policies)
	}
	d.role("r", `{"allowed_policies": [], "disallowed_policies": "ops"}`)
	if a := d.Must(engines.Update, "create/r", `{}`).Auth; !slices.Equal(a.Policies, []string{"default"}) {
		t.Errorf("nothing asked, by a role that forbids: %v", a.Policies)
	}
	d.Caller.Access = nil
	d.Caller.Root = true // says nothing about the token
	d.Fails(engines.KindInvalid, engines.Update, "create", `{"policies": "app"}`)
}

func userpass() engines.Mount {
	return engines.Mount{UUID: "m1", Path: "auth/userpass/", Type: "userpass", NamespaceID: "root", DefaultLeaseTTL: time.Hour, MaxLeaseTTL: 10 * time.Hour}
}
