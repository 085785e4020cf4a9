package barrier_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// TestTamper changes each bit of a stored value, and its length.
func TestTamper(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	const plain = "plaintext-that-must-not-leak"
	mustPut(t, b, "s/m/a", plain)
	rotate(t, b)
	stored, err := raw.Get(t.Context(), "s/m/a")
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, value []byte) {
		t.Helper()
		mustCommit(t, raw, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: value}}})
		e, err := b.Get(t.Context(), "s/m/a")
		if err == nil || e.Value != nil {
			t.Errorf("%s: Get = %d bytes, %v; want an error", name, len(e.Value), err)
			return
		}
		wantCorrupt(t, err, "s/m/a")
		if strings.Contains(err.Error(), plain[:9]) {
			t.Errorf("%s: the error holds plaintext", name)
		}
		_, err = b.Scan(t.Context(), "s/m/", "", 0)
		wantCorrupt(t, err, "s/m/a")
	}
	for bit := range len(stored.Value) * 8 {
		v := bytes.Clone(stored.Value)
		v[bit/8] ^= 1 << (bit % 8)
		try("flipped bit", v)
	}
	for n := range stored.Value {
		try("cut", stored.Value[:n])
	}
	try("longer", append(bytes.Clone(stored.Value), 0))
	try("plaintext", []byte(strings.Repeat(plain, 3)))

	mustCommit(t, raw, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: stored.Value}}})
	wantValue(t, b, "s/m/a", plain)
}

// TestMoved puts sealed values where they were not sealed for.
// OpenValue opens what the raw store holds, wherever it was kept meanwhile, and nothing else.
func TestOpenValue(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	ctx := t.Context()
	record := func(key storage.Key, value string) []byte {
		mustPut(t, b, key, value)
		e, err := raw.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return e.Value
	}
	first := record("s/a/k", "first")
	rotate(t, b)
	second := record("s/a/k", "")
	for _, tt := range []struct {
		sealed []byte
		want   string
	}{{first, "first"}, {second, ""}} {
		if got, err := b.OpenValue(ctx, "s/a/k", tt.sealed); err != nil || string(got) != tt.want {
			t.Errorf("OpenValue = %q, %v, want %q", got, err, tt.want)
		}
	}
	_, err := b.OpenValue(ctx, "s/a/l", first)
	wantCorrupt(t, err, "s/a/l")
	_, err = b.OpenValue(ctx, "s/a/k", first[:len(first)-1])
	wantCorrupt(t, err, "s/a/k")
	if _, err := b.OpenValue(ctx, ringKey, first); err == nil {
		t.Error("OpenValue took a key that is not behind the barrier")
	}
	b.Seal()
	if _, err := b.OpenValue(ctx, "s/a/k", first); !errors.Is(err, storage.ErrSealed) {
		t.Errorf("OpenValue of a sealed barrier = %v, want ErrSealed", err)
	}
}

func TestMoved(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	mustPut(t, b, "s/m/a", "v")
	stored, err := raw.Get(t.Context(), "s/m/a")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := b.SealBytes("s/m/bytes", []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	moves := map[storage.Key][]byte{
		"s/m/b": stored.Value, "l/m/a": stored.Value, "s/m2/a": stored.Value, "s/m/bytes": sealed,
	}
	for key, value := range moves {
		mustCommit(t, raw, storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}})
		_, err := b.Get(t.Context(), key)
		wantCorrupt(t, err, key)
	}
	for _, aad := range []string{"s/m/a", "", "\x00s/m/a"} {
		if _, err := b.OpenBytes(aad, stored.Value); !errors.Is(err, barrier.ErrForged) {
			t.Errorf("OpenBytes(%q) of an entry = %v, want ErrForged", aad, err)
		}
	}
}

func TestBytes(t *testing.T) {
	raw, root := newStore(t)
	b := open(t, raw, root)
	for _, plain := range []string{"", "v", strings.Repeat("long", 1000)} {
		sealed, err := b.SealBytes("purpose", []byte(plain))
		if err != nil || len(sealed) != len(plain)+barrier.Overhead {
			t.Fatalf("SealBytes = %d bytes, %v", len(sealed), err)
		}
		if got, err := b.OpenBytes("purpose", sealed); err != nil || string(got) != plain {
			t.Errorf("OpenBytes = %.20q, %v; want %.20q", got, err, plain)
		}
		if _, err := b.OpenBytes("another purpose", sealed); !errors.Is(err, barrier.ErrForged) {
			t.Errorf("OpenBytes with another aad = %v, want ErrForged", err)
		}
		sealed[len(sealed)-1] ^= 1
		if _, err := b.OpenBytes("purpose", sealed); !errors.Is(err, barrier.ErrForged) {
			t.Errorf("OpenBytes of changed bytes = %v, want ErrForged", err)
		}
	}
	raw2, root2 := newStore(t)
	foreign, err := open(t, raw2, root2).SealBytes("purpose", []byte("v"))
	if err != nil {
		t.Fatal(err)
	}
	for name, sealed := range map[string][]byte{
		"nothing": nil, "short": {1, 0, 0, 0, 0, 1}, "of another cluster": foreign,
		"of a later term": append([]byte{1, 0, 0, 0, 0, 9}, foreign[6:]...),
	} {
		if _, err := b.OpenBytes("purpose", sealed); !errors.Is(err, barrier.ErrForged) {
			t.Errorf("OpenBytes of bytes %s = %v, want ErrForged", name, err)
		}
	}
}
