package kv_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/kv"
	"github.com/coffer-project/coffer/storage"
)

func newV1(t testing.TB) *enginetest.Mount {
	return enginetest.New(t, kv.New, enginetest.Options{Type: "kv"})
}

func TestVersionOption(t *testing.T) {
	for version, ok := range map[string]bool{"": true, "1": true, "2": true, "3": false, "x": false} {
		_, err := kv.New(engines.Mount{Options: map[string]string{"version": version}})
		if (err == nil) != ok {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestV1(t *testing.T) {
	m := newV1(t)
	if m.Exists("a/b") {
		t.Error("a/b exists before it is written")
	}
	if resp := m.Must(engines.Update, "a/b", `{"user": "u", "n": 1.50, "deep":{"x":[null]}}`); resp != nil {
		t.Errorf("write answers %+v, want nothing", resp)
	}
	if !m.Exists("a/b") {
		t.Error("a/b does not exist after it was written")
	}
	resp := m.Must(engines.Read, "a/b", nil)
	want := map[string]any{"user": "u", "n": num("1.50"), "deep": map[string]any{"x": []any{nil}}}
	if got := m.Data(resp); !reflect.DeepEqual(got, want) {
		t.Errorf("read = %v, want %v", got, want)
	}
	if resp.Lease == nil || resp.Lease.TTL != 0 || resp.Lease.Renewable {
		t.Errorf("lease = %+v, want one of the mount's default, not renewable", resp.Lease)
	}

	m.Must(engines.Create, "c", `{"a":"b"}`)
	for path, want := range map[string][]any{"": {"a/", "c"}, "a": {"b"}, "a/": {"b"}} {
		if got := m.Data(m.Must(engines.List, path, nil))["keys"]; !reflect.DeepEqual(got, want) {
			t.Errorf("list %q = %v, want %v", path, got, want)
		}
	}
	if got := m.Data(m.Must(engines.List, "?after=a/&limit=1", nil))["keys"]; !reflect.DeepEqual(got, []any{"c"}) {
		t.Errorf("list after a/ = %v, want c", got)
	}

	m.Must(engines.Delete, "a/b", nil)
	m.Must(engines.Delete, "a/b", nil)
	for _, text := range []string{m.Fails(engines.KindNotFound, engines.Read, "a/b", nil), m.Fails(engines.KindNotFound, engines.List, "a/", nil)} {
		if text != "" {
			t.Errorf("a missing secret is explained: %q", text)
		}
	}
}

func TestV1Lease(t *testing.T) {
	m := newV1(t)
	for body, want := range map[string]time.Duration{ // 0: the mount's default
		`{"ttl":"2h"}`: 2 * time.Hour, `{"ttl":90}`: 90 * time.Second, `{"lease":"1d"}`: 24 * time.Hour, `{"ttl":"5m","lease":"1h"}`: 5 * time.Minute,
		`{"ttl":"never"}`: 0, `{"ttl":[1]}`: 0, `{"ttl":-5}`: 0, `{"ttl":null,"lease":60}`: time.Minute,
	} {
		m.Must(engines.Update, "a", body)
		if got := m.Must(engines.Read, "a", nil).Lease.TTL; got != want {
			t.Errorf("%s: TTL = %v, want %v", body, got, want)
		}
	}
}

func TestV1Refuses(t *testing.T) {
	m := newV1(t)
	for _, tt := range []struct {
		path, body string
		kind       engines.Kind
	}{
		{"a", ``, engines.KindInvalid},
		{"a", `{}`, engines.KindInvalid},
		{"", `{"a":"b"}`, engines.KindInvalid},
		{"a/", `{"a":"b"}`, engines.KindInvalid},
		{"a", `{"a":"` + strings.Repeat("x", storage.MaxValueBytes) + `"}`, engines.KindTooLarge},
	} {
		m.Fails(tt.kind, engines.Update, tt.path, tt.body)
	}
	m.Must(engines.Update, "a", `{"a":"`+strings.Repeat("x", storage.MaxValueBytes-20)+`"}`)
}

func TestV1Hostile(t *testing.T) {
	m := newV1(t)
	m.Must(engines.Update, "x", `{"a":"b"}`)
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}
