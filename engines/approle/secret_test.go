package approle

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// counting is a store that counts reads.
type counting struct {
	storage.Store
	gets *int
}

func (c counting) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	*c.gets++
	return c.Store.Get(ctx, key)
}

// TestEqualWork: a refused login makes the same hashes and the same reads whatever is wrong with it.
func TestEqualWork(t *testing.T) {
	hashes, gets := 0, 0
	m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) {
		e := newEngine()
		e.mac = func(key []byte, domain, text string) string {
			hashes++
			return mac(key, domain, text)
		}
		return e, nil
	}, enginetest.Options{})
	m.Mount.Storage = counting{m.Mount.Storage, &gets}
	m.Must(engines.Update, "role/a", `{"role_id":"a"}`)
	m.Must(engines.Update, "role/b", `{"role_id":"b"}`)
	m.Must(engines.Update, "role/b/custom-secret-id", `{"secret_id":"s"}`)
	want := ""
	for _, body := range []string{`{"role_id":"a","secret_id":"x"}`, `{"role_id":"a"}`, `{"role_id":"a","secret_id":"s"}`, `{"role_id":"none","secret_id":"s"}`} {
		hashes, gets = 0, 0
		m.Fails(engines.KindInvalid, engines.Update, "login", body)
		got := fmt.Sprintf("%d hashes, %d reads", hashes, gets)
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%s: %s, want %s as for the first", body, got, want)
		}
	}
}

func TestWithin(t *testing.T) {
	list := func(texts ...string) engines.StringList { return texts }
	for _, tt := range []struct {
		list, outer engines.StringList
		want        bool
	}{
		{nil, nil, true},
		{nil, list("10.0.0.0/8"), true},
		{list("10.0.0.0/8"), nil, true},
		{list("10.0.0.0/8"), list("10.0.0.0/8"), true},
		{list("10.0.0.0/7"), list("10.0.0.0/8"), false},
		{list("10.1.2.3"), list("192.0.2.0/24", "10.0.0.0/8"), true},
		{list("10.1.2.3", "11.0.0.1"), list("10.0.0.0/8"), false},
		{list("::1"), list("0.0.0.0/0"), false},
		{list("0.0.0.0/0"), list("::/0"), false},
		{list("x"), list("10.0.0.0/8"), false},
		{list("10.0.0.1"), list("x"), false},
	} {
		if got := within(tt.list, tt.outer); got != tt.want {
			t.Errorf("within(%v, %v) = %v", tt.list, tt.outer, got)
		}
	}
}

// FuzzNetworks: what is stored reads back as itself, and holds the address it was made of.
func FuzzNetworks(f *testing.F) {
	for _, text := range []string{"10.1.2.3/8", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "10.0.0.0/33", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		clean, err := networks("f", engines.StringList{text})
		if err != nil {
			return
		}
		again, err := networks("f", clean)
		if err != nil || again[0] != clean[0] || !within(clean, clean) {
			t.Errorf("networks(%q) = %q, and of that %q, %v", text, clean, again, err)
		}
		if addr, err := netip.ParseAddr(text); err == nil && !allows(clean, addr) {
			t.Errorf("%q is not within itself", text)
		}
	})
}

// FuzzMetadata: metadata that is accepted keeps to the limits, and reads back as itself.
func FuzzMetadata(f *testing.F) {
	for _, text := range []string{`{"a":"b"}`, `"{\"a\":\"b\"}"`, `"a=b,c=d"`, `""`, `"a"`, `null`, `{"a":null}`, `[]`, `"[]"`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMetadata(raw)
		if err != nil || m == nil {
			return
		}
		if checkMetadata(m) != nil {
			t.Fatalf("parseMetadata(%q) is beyond the limits", raw)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseMetadata(text)
		if err != nil || len(again) != len(m) {
			t.Errorf("parseMetadata(%q) = %v, and of that %v, %v", raw, m, again, err)
		}
	})
}
