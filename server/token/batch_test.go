package token_test

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// batchKey is token.BatchKeys.
type batchKey string

func (k batchKey) Batch() ([]byte, error) { return []byte(k), nil }

const aBatchKey batchKey = "a key of thirty-two bytes, no mo"

func withBatch(o *token.Options) { o.BatchKeys = aBatchKey }

func TestBatchToken(t *testing.T) {
	w := newWorld(t, withBatch)
	stop := w.mem.OnChange(func(storage.Change) { t.Error("something was written") })
	c := w.create(token.Params{
		Type: "batch", Policies: []string{"B", "a"}, Meta: map[string]string{"k": "v"}, DisplayName: "userpass-bob", TTL: 10 * time.Hour,
		ExplicitMaxTTL: time.Hour, EntityID: "e", Namespace: "ns1", BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Path: "auth/userpass/login/bob", Mount: "m1", Role: "bob", Internal: []byte(`{"secret":1}`),
	})
	stop()
	if c.Entry.Internal != nil || c.Entry.ExplicitMaxTTL != 0 {
		t.Errorf("the new entry says more than the token holds: %+v", c.Entry)
	}
	tok := c.Token.Reveal()
	if !regexp.MustCompile(`^hvb\.[A-Za-z0-9_-]{90,}$`).MatchString(tok) {
		t.Error("the token does not look like one")
	}
	for what, s := range map[string]*token.Store{"the node": w.Store, "another node": w.node(token.Options{BatchKeys: aBatchKey})} {
		for range 2 { // opened, and remembered
			e, err := s.Lookup(t.Context(), tok)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if !e.Batch() || e.Key != c.Entry.Key || !slices.Equal(e.Policies, []string{"a", "b"}) || e.Meta["k"] != "v" || e.DisplayName != "userpass-bob" ||
				e.TTL != time.Hour || !e.CreatedAt.Equal(w.now()) || !e.ExpiresAt.Equal(w.now().Add(time.Hour)) || e.EntityID != "e" || e.Namespace != "ns1" ||
				e.Path != "auth/userpass/login/bob" || e.Mount != "m1" || e.Role != "bob" || e.Internal != nil ||
				e.Renewable || e.Accessor != "" || e.NumUses != 0 || !e.Orphan() || e.AllowsIP(netip.MustParseAddr("11.0.0.1")) {
				t.Errorf("%s: Lookup = %+v", what, e)
			}
		}
	}
	if n := w.Numbers(); n["tokens_batch_created_total"] != 1 || n["tokens_created_total"] != 0 {
		t.Errorf("numbers = %v", n)
	}
	// The Key names it, but does not lead to it.
	for name, err := range map[string]error{
		"Renew": second(w.Renew(t.Context(), c.Entry.Key, 0)), "Revoke": w.Revoke(t.Context(), c.Entry.Key), "RevokeOrphan": w.RevokeOrphan(t.Context(), c.Entry.Key),
	} {
		if !isInvalidInput(err) || !strings.Contains(err.Error(), "batch tokens cannot be") {
			t.Errorf("%s = %v", name, err)
		}
	}
	if _, err := w.LookupKey(t.Context(), c.Entry.Key); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("LookupKey = %v", err)
	}
	if _, err := w.Create(t.Context(), token.Params{Parent: c.Entry.Key}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create of a child = %v", err)
	}
	w.pass(time.Hour - 1)
	if _, err := w.Lookup(t.Context(), tok); err != nil {
		t.Errorf("a moment before its end: %v", err)
	}
	w.pass(1)
	if _, err := w.Lookup(t.Context(), tok); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("at its end: %v", err)
	}
	w.Clear()
	if _, err := w.Lookup(t.Context(), tok); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("at its end, opened again: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestBatchTokenEndsWithItsParent(t *testing.T) {
	w := newWorld(t, withBatch)
	top := w.create(token.Params{})
	parent := w.child(top)
	c := w.create(token.Params{Type: "batch", Parent: parent.Entry.Key})
	if e, err := w.Lookup(t.Context(), c.Token.Reveal()); err != nil || e.Orphan() {
		t.Fatalf("Lookup = %+v, %v", e, err)
	}
	if err := w.Revoke(t.Context(), top.Entry.Key); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Lookup(t.Context(), c.Token.Reveal()); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("after its parent: %v", err)
	}
	if _, err := w.Create(t.Context(), token.Params{Type: "batch", Parent: parent.Entry.Key}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create below a revoked token = %v", err)
	}
	limited := w.create(token.Params{NumUses: 2})
	if _, err := w.Create(t.Context(), token.Params{Type: "batch", Parent: limited.Entry.Key}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create below a token of limited use = %v", err)
	}
}

// No change of a token is another valid one, nor another spelling of the same.
func TestBatchTokenIsSealed(t *testing.T) {
	w := newWorld(t, withBatch)
	c := w.create(token.Params{Type: "batch", Policies: []string{"a"}})
	for name := "x"; len(c.Token)%4 == 0; name += "x" { // as long as the last character has no bits to spare
		c = w.create(token.Params{Type: "batch", Policies: []string{"a"}, DisplayName: name})
	}
	tok := c.Token.Reveal()
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	spare := alphabet[strings.IndexByte(alphabet, tok[len(tok)-1])|1]
	bad := map[string]string{
		"line break at the end": tok + "\n", "line break inside": tok[:40] + "\r\n" + tok[40:], "padding": tok + "=", "spare bits": tok[:len(tok)-1] + string(spare), "cut": tok[:len(tok)-4],
		"prefix only": "hvb.", "longer": tok + "AAAA", "service": "hvs." + tok[4:], "short": "hvb.AAAA", "huge": "hvb." + strings.Repeat("A", 9000),
	}
	raw, err := base64.RawURLEncoding.DecodeString(tok[4:])
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 11, 12, 23, 24, len(raw) / 2, len(raw) - 16, len(raw) - 1} {
		changed := slices.Clone(raw)
		changed[i] ^= 1
		bad[fmt.Sprint("byte ", i)] = "hvb." + base64.RawURLEncoding.EncodeToString(changed)
	}
	for name, tok := range bad {
		if _, err := w.Lookup(t.Context(), tok); !errors.Is(err, token.ErrInvalid) {
			t.Errorf("%s: Lookup = %v", name, err)
		}
	}
	other := w.node(token.Options{BatchKeys: batchKey(make([]byte, 32))})
	if _, err := other.Lookup(t.Context(), tok); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("with another key: %v", err)
	}
	none := w.node(token.Options{})
	if _, err := none.Lookup(t.Context(), tok); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("without a key: %v", err)
	}
	if c2 := w.create(token.Params{Type: "batch", Policies: []string{"a"}}); c2.Token == c.Token || c2.Entry.Key == c.Entry.Key {
		t.Error("two tokens are one")
	}
}

// batchKeyFunc is token.BatchKeys.
type batchKeyFunc func() ([]byte, error)

func (f batchKeyFunc) Batch() ([]byte, error) { return f() }

// What was opened, and the key, are forgotten when the server seals.
func TestBatchTokensAndSealing(t *testing.T) {
	errSealed := errors.New("sealed")
	var sealed atomic.Bool
	w := newWorld(t, func(o *token.Options) {
		o.BatchKeys = batchKeyFunc(func() ([]byte, error) {
			if sealed.Load() {
				return nil, errSealed
			}
			return aBatchKey.Batch()
		})
	})
	c := w.create(token.Params{Type: "batch"})
	if _, err := w.Lookup(t.Context(), c.Token.Reveal()); err != nil {
		t.Fatal(err)
	}
	sealed.Store(true)
	w.Clear()
	if _, err := w.Lookup(t.Context(), c.Token.Reveal()); !errors.Is(err, errSealed) {
		t.Errorf("Lookup while sealed = %v", err)
	}
	sealed.Store(false)
	if _, err := w.Lookup(t.Context(), c.Token.Reveal()); err != nil {
		t.Errorf("Lookup after unsealing = %v", err)
	}
	short := newWorld(t, func(o *token.Options) { o.BatchKeys = batchKey("short") })
	if _, err := short.Create(t.Context(), token.Params{Type: "batch"}); err == nil {
		t.Error("a short key was taken")
	}
}

func TestCreateBatchRefuses(t *testing.T) {
	w := newWorld(t, withBatch)
	meta := map[string]string{}
	for i := range 60 {
		meta[fmt.Sprint(i)] = strings.Repeat("x", 200)
	}
	for name, p := range map[string]token.Params{
		"root": {Policies: []string{"root"}}, "uses": {NumUses: 1}, "period": {Period: time.Hour}, "id": {ID: "mine"}, "much": {Meta: meta},
		"stored with": {Also: func(string) []storage.Put { return nil }},
	} {
		p.Type = "batch"
		if _, err := w.Create(t.Context(), p); !isInvalidInput(err) {
			t.Errorf("%s: Create = %v", name, err)
		}
	}
	if _, err := w.Create(t.Context(), token.Params{Type: "other"}); !isInvalidInput(err) {
		t.Errorf("unknown type: Create = %v", err)
	}
	none := newWorld(t)
	if _, err := none.Create(t.Context(), token.Params{Type: "batch"}); !isInvalidInput(err) {
		t.Errorf("without a key: Create = %v", err)
	}
}

// Lookup never panics, and what was never issued is never valid.
func FuzzLookupBatch(f *testing.F) {
	key := make([]byte, 32)
	rand.Read(key) // or the worker processes would take each other's seeds for their own tokens
	w := newWorld(f, func(o *token.Options) { o.BatchKeys = batchKey(key) })
	c := w.create(token.Params{Type: "batch"})
	for _, seed := range []string{"", "AAAA", c.Token.Reveal()[4:], c.Token.Reveal()[4:40], strings.Repeat("A", 100), "\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := w.Lookup(t.Context(), "hvb."+text)
		if err == nil && "hvb."+text != c.Token.Reveal() {
			t.Errorf("%+v is the entry of a token that was never issued", e)
		}
		if err != nil && !errors.Is(err, token.ErrInvalid) {
			t.Error(err)
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	w := newWorld(b, withBatch)
	c := w.create(token.Params{Type: "batch", Policies: []string{"default", "app"}, DisplayName: "userpass-bob", Path: "auth/userpass/login/bob"})
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			w.create(token.Params{Type: "batch", Policies: []string{"default", "app"}, DisplayName: "userpass-bob", Path: "auth/userpass/login/bob"})
		}
	})
	for _, remembered := range []bool{true, false} {
		b.Run(fmt.Sprintf("lookup/remembered=%v", remembered), func(b *testing.B) {
			for b.Loop() {
				if !remembered {
					w.Clear()
				}
				if _, err := w.Lookup(b.Context(), c.Token.Reveal()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
