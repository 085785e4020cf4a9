package token_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

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
				if want := namespacePath(ns); data["namespace_path"] != want {
					t.Errorf("namespace_path = %v, want %q", data["namespace_path"], want)
				}
				d.Must(engines.Update, "lookup-accessor", accessor)
				d.Must(engines.Update, "renew", tok)
				d.Must(engines.Update, "renew-accessor", accessor)
				continue
			}
			d.Fails(engines.KindDenied, engines.Update, "lookup", tok)
			d.Fails(engines.KindDenied, engines.Update, "lookup-accessor", accessor)
			d.Fails(engines.KindDenied, engines.Update, "renew", tok)
			d.Fails(engines.KindDenied, engines.Update, "renew-accessor", accessor)
			d.Fails(engines.KindDenied, engines.Update, "revoke-accessor", accessor)
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

func TestTidyBelowMendsOwnTokensOnly(t *testing.T) {
	w := newWorld(t, func(o *token.Options) { o.Below = below })
	w.create(token.Params{Namespace: "a"})
	w.create(token.Params{Namespace: "c"})
	var lost []storage.Key
	for _, k := range w.left() {
		if strings.HasPrefix(string(k), "l/token/expiry/") {
			lost = append(lost, k)
		}
	}
	puts := []storage.Put{{Key: "l/token/expiry/00000000000000000001/nobody", Value: []byte("1")}}
	if _, err := w.mem.Commit(t.Context(), storage.Batch{Deletes: lost, Puts: puts}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		namespace string
		want      token.TidyResult
	}{
		{"a", token.TidyResult{Tokens: 1, Expiries: 1}},
		{"root", token.TidyResult{Tokens: 2, Expiries: 2}}, // of the other token, and what belongs to none
		{"root", token.TidyResult{Tokens: 2}},
	} {
		if r, err := w.TidyBelow(t.Context(), step.namespace); err != nil || r != step.want {
			t.Errorf("TidyBelow of %s = %+v, %v, want %+v", step.namespace, r, err, step.want)
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
			if data := d.lookup(a.ClientToken); data["namespace_path"] != namespacePath(tt.ns) {
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

func TestRevokeMany(t *testing.T) {
	fill := func(t *testing.T, w *world) map[string][]token.Created {
		all := map[string][]token.Created{}
		for i := range 100 {
			for _, p := range []token.Params{
				{Path: "auth/userpass/login/bob", Mount: "m1"},
				{Path: "auth/userpass2/login/bob", Mount: "m2"},
				{Path: "auth/userpass/login/bob", Mount: "m3", Namespace: "a"},
				{Path: "auth/token/create", Namespace: "a-b"},
			} {
				c := w.create(p)
				name := p.Path + " " + p.Namespace
				all[name] = append(all[name], c)
				if i < 10 {
					all[name] = append(all[name], w.child(c)) // goes with it, whatever its path
				}
			}
		}
		return all
	}
	tests := []struct {
		name string
		do   func(context.Context, *token.Store) (int, error)
		gone string
	}{
		{"path", func(ctx context.Context, s *token.Store) (int, error) {
			return s.RevokePath(ctx, "root", "auth/userpass/")
		}, "auth/userpass/login/bob "},
		{"path in a namespace", func(ctx context.Context, s *token.Store) (int, error) { return s.RevokePath(ctx, "a", "auth/") }, "auth/userpass/login/bob a"},
		{"mount", func(ctx context.Context, s *token.Store) (int, error) { return s.RevokeMount(ctx, "m2") }, "auth/userpass2/login/bob "},
		{"no mount", func(ctx context.Context, s *token.Store) (int, error) { return s.RevokeMount(ctx, "") }, ""},
		{"namespace", func(ctx context.Context, s *token.Store) (int, error) { return s.RevokeNamespace(ctx, "a-b") }, "auth/token/create a-b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			all := fill(t, w)
			n, err := tt.do(t.Context(), w.Store)
			if err != nil || (tt.gone == "") != (n == 0) || tt.gone != "" && n < 100 {
				t.Fatalf("revoked %d, %v", n, err)
			}
			for name, tokens := range all {
				for _, c := range tokens {
					if name == tt.gone {
						w.wantInvalid(name, c)
					} else {
						w.wantValid(name, c)
					}
				}
			}
			if r, err := w.Tidy(t.Context()); err != nil || r.Accessors+r.Children+r.Expiries+r.Revoked != 0 {
				t.Errorf("Tidy = %+v, %v", r, err)
			}
			if revoked := w.Numbers()["tokens_revoked_total"]; tt.gone == "" && revoked != 0 || tt.gone != "" && revoked != 110 {
				t.Errorf("%v counted", revoked)
			}
		})
	}
}

// One token that cannot be read, and one that cannot be removed, do not keep the others.
func TestRevokeManyGoesOn(t *testing.T) {
	w := newWorld(t)
	var all []token.Created
	for range 50 {
		all = append(all, w.create(token.Params{Path: "auth/userpass/login"}))
	}
	w.failing[all[7].Entry.Key] = true
	if _, err := w.mem.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "l/token/id/0", Value: []byte("?")}}}); err != nil {
		t.Fatal(err)
	}
	n, err := w.RevokePath(t.Context(), "root", "auth/")
	if n != 50 || !errors.Is(err, errOnRevoke) || !strings.Contains(err.Error(), "unknown format") {
		t.Errorf("RevokePath = %d, %v", n, err)
	}
	for _, c := range all {
		w.wantInvalid("revoked", c)
	}
	delete(w.failing, all[7].Entry.Key)
	if _, _, err := w.Sweep(t.Context(), 100); err != nil {
		t.Errorf("Sweep = %v", err)
	}
	if left := w.left(); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
}

func TestAlso(t *testing.T) {
	w := newWorld(t)
	var calls []string
	c := w.create(token.Params{Also: func(key string) []storage.Put {
		calls = append(calls, key)
		return []storage.Put{{Key: "l/wrap/" + storage.Key(key), Value: []byte("wrapped")}}
	}})
	if len(calls) != 1 || calls[0] != c.Entry.Key {
		t.Errorf("called with %q", calls)
	}
	put, err := w.mem.Get(t.Context(), "l/wrap/"+storage.Key(c.Entry.Key))
	if err != nil || string(put.Value) != "wrapped" {
		t.Fatalf("Get = %q, %v", put.Value, err)
	}
	id, err := w.mem.Get(t.Context(), "l/token/id/"+storage.Key(c.Entry.Key))
	if err != nil || id.Version != put.Version {
		t.Errorf("the token was written at %d, what goes with it at %d (%v)", id.Version, put.Version, err)
	}
	also := func(string) []storage.Put { return []storage.Put{{Key: "l/wrap/lost", Value: []byte("x")}} }
	if _, err := w.Create(t.Context(), token.Params{Parent: "nobody", Also: also}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create = %v", err)
	}
	if _, err := w.mem.Get(t.Context(), "l/wrap/lost"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("something was written without its token: %v", err)
	}
}

func TestNumbers(t *testing.T) {
	w := newWorld(t)
	w.child(w.create(token.Params{TTL: 2 * time.Hour}))
	old := w.create(token.Params{TTL: time.Hour})
	w.child(old)
	w.create(token.Params{Type: "service"})
	w.pass(time.Hour)
	if n, _, err := w.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Fatalf("Sweep = %d, %v", n, err)
	}
	last := w.create(token.Params{})
	for range 2 {
		if err := w.Revoke(t.Context(), last.Entry.Key); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]float64{"tokens_created_total": 6, "tokens_batch_created_total": 0, "tokens_revoked_total": 2, "tokens_expired_total": 1}
	if got := w.Numbers(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("numbers = %v, want %v", got, want)
	}
}

// Tokens that the first release stored.
func TestOldRecords(t *testing.T) {
	w := newWorld(t)
	c := w.create(token.Params{})
	old := `{"format":1,"accessor":"` + c.Entry.Accessor + `","policies":["app","default"],"path":"auth/token/create","meta":{"k":"v"},"display_name":"token-x",` +
		`"num_uses":2,"ttl":3600000000000,"created_at":"2030-01-01T00:00:00Z","expires_at":"2030-01-01T01:00:00Z","renewable":true,"type":"service",` +
		`"namespace":"root","bound_cidrs":["10.0.0.0/8"]}`
	var accessor storage.Key
	for _, k := range w.left() {
		if strings.HasPrefix(string(k), "l/token/accessor/") {
			accessor = k
		}
	}
	if _, err := w.mem.Commit(t.Context(), storage.Batch{Puts: []storage.Put{
		{Key: "l/token/id/" + storage.Key(c.Entry.Key), Value: []byte(old)},
		{Key: accessor, Value: []byte(`{"format":1,"accessor":"` + c.Entry.Accessor + `","token":"` + c.Entry.Key + `"}`)},
	}}); err != nil {
		t.Fatal(err)
	}
	e, err := w.Lookup(t.Context(), c.Token.Reveal())
	if err != nil || e.NumUses != 2 || e.TTL != time.Hour || e.Namespace != "root" || e.Type != "service" || e.Mount != "" || len(e.BoundCIDRs) != 1 || e.Batch() {
		t.Errorf("Lookup = %+v, %v", e, err)
	}
	if e, err := w.LookupAccessor(t.Context(), c.Entry.Accessor); err != nil || e.Key != c.Entry.Key {
		t.Errorf("LookupAccessor = %+v, %v", e, err)
	}
	if all, err := w.AccessorsBelow(t.Context(), "root"); err != nil || !slices.Equal(all, []string{c.Entry.Accessor}) {
		t.Errorf("AccessorsBelow = %q, %v", all, err)
	}
}
