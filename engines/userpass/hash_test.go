package userpass

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

// TestEqualWork: the work of a login does not depend on what is wrong with it.
func TestEqualWork(t *testing.T) {
	var work []string
	m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) {
		e := newEngine()
		e.hasher.derive = func(password []byte, a argon) []byte {
			work = append(work, fmt.Sprint(a.memory, a.time, a.threads, len(a.salt)))
			return bytes.Repeat(password[:1], hashBytes)
		}
		return e, nil
	}, enginetest.Options{})
	m.Must(engines.Update, "users/bob", `{"password":"a"}`)
	want := fmt.Sprint(work)
	for _, name := range []string{"bob", "carol", "not a name"} {
		// "\x00" is what nobody's hash would accept.
		for _, password := range []string{"a", "b", `\u0000`} {
			work = nil
			_, err := m.Do(engines.Update, "login/"+name, `{"password":"`+password+`"}`)
			if got := fmt.Sprint(work); got != want {
				t.Errorf("login of %q: work %s, want %s", name, got, want)
			}
			if ok := name == "bob" && password == "a"; (err == nil) != ok {
				t.Errorf("login of %q with %q: %v", name, password, err)
			}
		}
	}
}

// TestBoundedWork: logins wait for a slot, and stop waiting when the client is gone.
func TestBoundedWork(t *testing.T) {
	for range cap(slots) {
		release, err := acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := enginetest.New(t, New, enginetest.Options{})
	for _, path := range []string{"login/bob", "users/bob"} {
		if _, err := m.Handle(ctx, m.Request(engines.Update, path, `{"password":"a"}`)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s without a free slot: %v", path, err)
		}
	}
}

func TestLockoutIsBounded(t *testing.T) {
	l := lockout{names: map[string]attempts{}}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for range maxFailures {
		l.fail("first", now)
	}
	for i := range maxCounted + 20 {
		l.fail(fmt.Sprint("name", i), now.Add(time.Second))
	}
	if len(l.names) > maxCounted {
		t.Errorf("%d names are counted, the limit is %d", len(l.names), maxCounted)
	}
	if l.locked("first", now) {
		t.Error("the name that failed the longest ago is not the one dropped")
	}
	l.fail("last", now.Add(lockDuration+time.Second))
	if len(l.names) != 1 {
		t.Errorf("%d names are counted after all others stopped counting", len(l.names))
	}
}

func FuzzParseArgon(f *testing.F) {
	f.Add(nobody)
	f.Add("$argon2id$v=19$m=19456,t=2,p=1$$")
	f.Add("$argon2id$v=19$m=1,t=0,p=256$AAAA$AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := parseArgon(text); err == nil && a.String() != text {
			t.Errorf("parseArgon(%q) is %q", text, a)
		}
	})
}

// FuzzCheckBcrypt: what is imported can be compared with.
func FuzzCheckBcrypt(f *testing.F) {
	f.Add("$2a$04$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy")
	f.Add("$2x$04$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy")
	f.Add("$2b$04$N9qo8uLOickgx2ZMRZoMye!")
	f.Fuzz(func(t *testing.T, hash string) {
		if checkBcrypt(hash) != nil {
			return
		}
		if cost, err := bcrypt.Cost([]byte(hash)); err != nil || cost > 5 {
			return // too slow for here
		}
		if _, err := newHasher().matches(hash, "p"); err != nil {
			t.Errorf("a hash that was accepted cannot be used: %v", err)
		}
	})
}
