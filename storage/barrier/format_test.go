package barrier

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// What earlier versions stored must open for ever. These were sealed by format 1 of each; the ring holds
// testRing under testRoot.
const (
	storedRing = "434f464645522d4b455952494e470185f05123e61bc2b969ec35130839fc823e34f92c4bd8649b10cbe0a73f62d786" +
		"48eaa56a4a0a3878e266e42104925d22665e94da0240da0cad77721b50ccdc16bd1268bec837f6939ede525663544d4245" +
		"57c804b07bb74796fb05fbcc4d4c0bdb38276a39964822393fd8753613436616c7fda5"
	storedValue = "010000000005becc02cec4db9fdad9167b5d0ef44558f0f569355df75d012218505818337c7ace"
	storedEmpty = "010000000001d41b9046ec791c84452b9395e57ff0df251851a0a8869eaf750753cb"
	storedBytes = "0100000000059dbc1933f17d03d4a760fef8f25b613d04aa603f23d63236cd9c40ff9fd168bd04"
	derivedKey  = "7f845a693bbe4fe47e540cf1bf0e0d6a937b695a223bfc77a1dca39744b8ffd5"
)

var testRoot = bytes.Repeat([]byte{7}, RootKeyBytes)

// testRing has the keys of terms 1 and 5.
func testRing() ring {
	r := []ringEntry{{term: 1, installedAt: time.UnixMilli(1).UTC()}, {term: 5, installedAt: time.UnixMilli(1767225600000).UTC()}}
	for i := range r {
		for j := range r[i].key {
			r[i].key[j] = byte(16*i + j)
		}
	}
	return ring{bytes.Clone(testRoot), r}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStoredFormats(t *testing.T) {
	raw := &storage.Memory{}
	_, err := raw.Commit(t.Context(), storage.Batch{Puts: []storage.Put{
		{Key: ringKey, Value: unhex(t, storedRing)},
		{Key: "s/m/a", Value: unhex(t, storedValue)},
		{Key: "s/m/b", Value: unhex(t, storedEmpty)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b := New(raw)
	if err := b.Unseal(t.Context(), testRoot); err != nil {
		t.Fatal(err)
	}
	if info := b.KeyInfo(); info.Term != 5 || !info.InstalledAt.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("KeyInfo = %+v", info)
	}
	for key, want := range map[storage.Key]string{"s/m/a": "value", "s/m/b": ""} {
		if e, err := b.Get(t.Context(), key); err != nil || string(e.Value) != want {
			t.Errorf("Get(%q) = %q, %v; want %q", key, e.Value, err, want)
		}
	}
	if plain, err := b.OpenBytes("aad", unhex(t, storedBytes)); err != nil || string(plain) != "bytes" {
		t.Errorf("OpenBytes = %q, %v", plain, err)
	}
	if key, err := b.DeriveKey("audit"); err != nil || hex.EncodeToString(key) != derivedKey {
		t.Errorf("DeriveKey = %v, want the key of before", err)
	}
}

func TestDecodeRing(t *testing.T) {
	fine := testRing().encode(nil)
	swap := append(slices.Clone(fine[ringEntryBytes:]), fine[:ringEntryBytes]...)
	same := append(slices.Clone(fine[:ringEntryBytes]), fine[:ringEntryBytes]...)
	zero := slices.Clone(fine)
	clear(zero[:4])
	tests := []struct {
		name  string
		plain []byte
		terms int // 0: an error
	}{
		{"two keys", fine, 2},
		{"one key", fine[:ringEntryBytes], 1},
		{"nothing", nil, 0},
		{"cut", fine[:len(fine)-1], 0},
		{"too long", append(slices.Clone(fine), 0), 0},
		{"descending terms", swap, 0},
		{"the same term twice", same, 0},
		{"term zero", zero, 0},
	}
	for _, tt := range tests {
		r, err := decodeRing(tt.plain)
		if len(r) != tt.terms || (err == nil) != (tt.terms > 0) {
			t.Errorf("%s: decodeRing = %d keys, %v; want %d", tt.name, len(r), err, tt.terms)
		}
	}
}

// TestWipe looks for key material where it must not stay.
func TestWipe(t *testing.T) {
	r := testRing()
	r.wipe()
	for _, e := range r.entries {
		if e.key != [32]byte{} {
			t.Errorf("wipe left the key of term %d", e.term)
		}
	}
	raw := &storage.Memory{}
	put, err := KeyringPut(testRoot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Commit(t.Context(), storage.Batch{Puts: []storage.Put{put}}); err != nil {
		t.Fatal(err)
	}
	b := New(raw)
	if err := b.Unseal(t.Context(), testRoot); err != nil {
		t.Fatal(err)
	}
	first := b.root
	if err := b.Unseal(t.Context(), testRoot); err != nil {
		t.Fatal(err)
	}
	second := b.root
	b.Seal()
	for name, root := range map[string][]byte{"unsealing again": first, "sealing": second} {
		if len(root) != RootKeyBytes || !bytes.Equal(root, make([]byte, RootKeyBytes)) {
			t.Errorf("%s left the root key in memory", name)
		}
	}
	if b.root != nil || b.keys.Load() != nil {
		t.Error("a sealed barrier still holds keys")
	}
}

// TestReloadOfAnUnchangedRing keeps forged bytes cheap: they must not make the ring be opened again.
func TestReloadOfAnUnchangedRing(t *testing.T) {
	raw := &storage.Memory{}
	put, err := KeyringPut(testRoot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Commit(t.Context(), storage.Batch{Puts: []storage.Put{put}}); err != nil {
		t.Fatal(err)
	}
	b := New(raw)
	if err := b.Unseal(t.Context(), testRoot); err != nil {
		t.Fatal(err)
	}
	before := b.keys.Load().active
	if _, err := b.OpenBytes("aad", unhex(t, storedBytes)); !errors.Is(err, ErrForged) {
		t.Fatalf("OpenBytes = %v, want ErrForged", err)
	}
	b.Changed(storage.Change{Reset: true})
	if _, err := b.List(t.Context(), "s/m/", "", 0); err != nil {
		t.Fatal(err)
	}
	if b.keys.Load().active != before {
		t.Error("the ring was opened again although it had not changed")
	}
}

func FuzzDecodeRing(f *testing.F) {
	f.Add(testRing().encode(nil))
	f.Add(ring{entries: testRing().entries[:1]}.encode(nil))
	f.Add([]byte{})
	f.Add(make([]byte, ringEntryBytes))
	f.Fuzz(func(t *testing.T, plain []byte) {
		r, err := decodeRing(plain)
		if err != nil {
			return
		}
		if len(r) == 0 {
			t.Error("an empty ring was accepted")
		}
		if again := (ring{entries: r}).encode(nil); !bytes.Equal(again, plain) {
			t.Errorf("accepted %x, which encodes as %x", plain, again)
		}
	})
}

func FuzzOpenRing(f *testing.F) {
	f.Add(unhex(f, storedRing))
	f.Add([]byte(ringMagic))
	f.Add([]byte(ringMagic + "\x01"))
	f.Add([]byte(ringMagic + "\x02"))
	f.Fuzz(func(t *testing.T, sealed []byte) {
		r, err := openRing(testRoot, sealed)
		if (err == nil) != (len(r.entries) > 0) {
			t.Errorf("openRing = %d keys, %v", len(r.entries), err)
		}
		// No ring can be made without the root key: what opens is one that was sealed.
		if err == nil && !bytes.Equal(sealed, unhex(t, storedRing)) {
			t.Errorf("opened %x", sealed)
		}
	})
}

func FuzzOpenValue(f *testing.F) {
	k := newKeys(testRing(), storage.Entry{}, 0, nil)
	f.Add("s/m/a", unhex(f, storedValue), []byte("plain"))
	f.Add("s/m/b", unhex(f, storedEmpty), []byte{})
	f.Add("\x00aad", unhex(f, storedBytes), []byte("plain"))
	f.Add("s/m/a", []byte{1, 0, 0, 0, 0, 1}, []byte{})
	f.Fuzz(func(t *testing.T, name string, sealed, plain []byte) {
		if got, err := k.open(name, sealed); err == nil {
			if len(got) != len(sealed)-Overhead || !slices.Contains([]string{storedValue, storedEmpty, storedBytes}, hex.EncodeToString(sealed)) {
				t.Errorf("opened %x for %q", sealed, name)
			}
		} else if _, ok := errors.AsType[badValue](err); !ok || got != nil {
			t.Errorf("open = %d bytes, %T", len(got), err)
		}
		own := k.seal(name, plain)
		if got, err := k.open(name, own); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("open(seal(%x)) = %x, %v", plain, got, err)
		}
		if _, err := k.open(name+"x", own); err == nil {
			t.Error("opened for another name")
		}
	})
}
