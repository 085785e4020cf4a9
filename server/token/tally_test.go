package token_test

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
)

func TestCountLogins(t *testing.T) {
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
		n, err := w.CountLogins(t.Context(), func(ns, p, r string) bool {
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
		t.Errorf("counted anew: %d", got)
	}
}
