package token_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

func TestCount(t *testing.T) {
	w := newWorld(t)
	login := func(path, role string) string {
		t.Helper()
		m := engines.Mount{UUID: "m1", Path: "auth/userpass/", Type: "userpass", NamespaceID: "root", DefaultLeaseTTL: time.Hour, MaxLeaseTTL: time.Hour}
		c, err := w.CreateLogin(t.Context(), m, "", path, engines.Login{DisplayName: "x", Role: role}, "")
		if err != nil {
			t.Fatal(err)
		}
		return c.Entry.Key
	}
	count := func(path, role string) int {
		t.Helper()
		n, _, err := w.CountStored(t.Context(), func(ns, p, r string) bool {
			return ns == "root" && (path == "" || p == path) && (role == "" || r == role)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := login("auth/userpass/login/bob", "bob")
	if got := count("", ""); got != 1 { // read from storage
		t.Errorf("one login counts %d", got)
	}
	login("auth/userpass/login/bob", "bob")
	login("auth/userpass/login/eve", "eve")
	if got := count("auth/userpass/login/bob", ""); got != 2 {
		t.Errorf("bob's logins count %d", got)
	}
	if err := w.Revoke(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got := []int{count("", "bob"), count("", "")}; got[0] != 1 || got[1] != 2 {
		t.Errorf("after a revocation: %v", got)
	}
	w.Activated()
	if got := count("", ""); got != 2 {
		t.Errorf("counted again: %d", got)
	}
}

// silent is a store whose commits happen, and say nothing of it, once quiet has come down to 0.
type silent struct {
	storage.Store
	quiet int
}

func (s *silent) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	idx, err := s.Store.Commit(ctx, b)
	if s.quiet--; err == nil && s.quiet == 0 {
		return 0, storage.ErrOutcomeUnknown
	}
	return idx, err
}

// TestCountAfterUnknownOutcomes looks that a login, and an end of a token, with an unknown outcome
// are counted right in the end.
func TestCountAfterUnknownOutcomes(t *testing.T) {
	s := &silent{}
	w := newWorld(t, func(o *token.Options) { s.Store = o.Store; o.Store = s })
	m := engines.Mount{UUID: "m1", Path: "auth/userpass/", Type: "userpass", NamespaceID: "root", DefaultLeaseTTL: time.Hour, MaxLeaseTTL: time.Hour}
	login := func() (token.Created, error) {
		return w.CreateLogin(t.Context(), m, "", "auth/userpass/login/bob", engines.Login{DisplayName: "x", Role: "bob"}, "")
	}
	want := func(n int) {
		t.Helper()
		got, _, err := w.CountStored(t.Context(), func(string, string, string) bool { return true })
		if err != nil || got != n {
			t.Errorf("%d logins are counted, %v; want %d", got, err, n)
		}
	}
	first, err := login()
	if err != nil {
		t.Fatal(err)
	}
	want(1)
	s.quiet = 1
	if _, err := login(); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Fatalf("%v, want storage.ErrOutcomeUnknown", err)
	}
	w.pass(time.Minute)
	want(2)
	s.quiet = 2 // it is marked, and then removed
	if err := w.Revoke(t.Context(), first.Entry.Key); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Fatalf("%v, want storage.ErrOutcomeUnknown", err)
	}
	if err := w.Revoke(t.Context(), first.Entry.Key); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute)
	want(1)
}

// TestCountAfterRestore looks that logins are counted again when everything that is stored was replaced.
func TestCountAfterRestore(t *testing.T) {
	w := newWorld(t)
	m := engines.Mount{UUID: "m1", Path: "auth/userpass/", Type: "userpass", NamespaceID: "root", DefaultLeaseTTL: time.Hour, MaxLeaseTTL: time.Hour}
	all := func(string, string, string) bool { return true }
	if n, _, err := w.CountStored(t.Context(), all); n != 0 || err != nil {
		t.Fatalf("%d logins, %v", n, err)
	}
	other := w.node(token.Options{}) // it stands for the cluster that wrote the snapshot
	if _, err := other.CreateLogin(t.Context(), m, "", "auth/userpass/login/bob", engines.Login{DisplayName: "x", Role: "bob"}, ""); err != nil {
		t.Fatal(err)
	}
	w.Changed(storage.Change{Reset: true})
	if n, _, err := w.CountStored(t.Context(), all); n != 1 || err != nil {
		t.Errorf("%d logins after a restore, %v; want 1", n, err)
	}
}
