package cubbyhole_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cubbyhole"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

func TestCubbyhole(t *testing.T) {
	m := enginetest.New(t, cubbyhole.New, enginetest.Options{Type: "cubbyhole"})
	m.Must(engines.Update, "a/b", `{"k": "v"}`)
	if !m.Exists("a/b") || m.Exists("a") {
		t.Error("only a/b exists")
	}
	if got := m.Data(m.Must(engines.Read, "a/b", nil)); got["k"] != "v" {
		t.Errorf("read = %v", got)
	}
	for path, want := range map[string][]any{"": {"a/"}, "a": {"b"}} {
		if got := m.Data(m.Must(engines.List, path, nil))["keys"]; !reflect.DeepEqual(got, want) {
			t.Errorf("list %q = %v, want %v", path, got, want)
		}
	}
	for key := range m.Snapshot() {
		if key.Class() != storage.Local || !strings.HasPrefix(key.Path(), string(cubbyhole.Prefix("token-key-1"))) {
			t.Errorf("stored as %q, want class l below the token's prefix", key)
		}
	}

	m.Caller = engines.Caller{TokenKey: "token-key-2", Root: true}
	if m.Exists("a/b") {
		t.Error("another token learns what exists")
	}
	m.Fails(engines.KindNotFound, engines.Read, "a/b", nil)
	m.Fails(engines.KindNotFound, engines.List, "", nil)
	m.Must(engines.Delete, "a/b", nil)

	m.Caller = engines.Caller{TokenKey: "token-key-1"}
	m.Must(engines.Read, "a/b", nil)
	m.Must(engines.Delete, "a/b", nil)
	m.Fails(engines.KindNotFound, engines.Read, "a/b", nil)
}

func TestWithoutToken(t *testing.T) {
	m := enginetest.New(t, cubbyhole.New, enginetest.Options{Type: "cubbyhole"})
	for _, key := range []string{"", "a/b"} {
		m.Caller = engines.Caller{TokenKey: key}
		m.Fails(engines.KindDenied, engines.Read, "a", nil)
		m.Fails(engines.KindDenied, engines.List, "", nil)
		m.Fails(engines.KindDenied, engines.Update, "a", `{"k":"v"}`)
		m.Fails(engines.KindDenied, engines.Delete, "a", nil)
	}
}

func TestRefuses(t *testing.T) {
	m := enginetest.New(t, cubbyhole.New, enginetest.Options{Type: "cubbyhole"})
	m.Fails(engines.KindInvalid, engines.Update, "a", nil)
	m.Fails(engines.KindInvalid, engines.Update, "a", `{ }`)
	m.Fails(engines.KindInvalid, engines.Update, "", `{"k":"v"}`)
	m.Fails(engines.KindInvalid, engines.Update, "a/", `{"k":"v"}`)
	m.Fails(engines.KindTooLarge, engines.Update, "a", `{"k":"`+strings.Repeat("v", storage.MaxValueBytes)+`"}`)
}

func TestHostile(t *testing.T) {
	m := enginetest.New(t, cubbyhole.New, enginetest.Options{Type: "cubbyhole"})
	m.Must(engines.Update, "x", `{"k":"v"}`)
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}
