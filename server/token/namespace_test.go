package token_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

func TestTidyBelowMendsOwnTokensOnly(t *testing.T) {
	w := newWorld(t, func(o *token.Options) { o.Namespaces = spaces{} })
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
	if n != 50 || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "unknown format") {
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

// below says which namespaces lie in others: their ids are paths with a dash for each slash.
// spaces are token.Namespaces: their ids are paths with a dash for each slash.
type spaces struct{}

func (spaces) Path(string) string { return "" }

func (spaces) Below(_ context.Context, ancestor, id string) bool {
	return ancestor == "root" || ancestor == id || strings.HasPrefix(id, ancestor+"-")
}
