package storage_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

func TestFileIdentity(t *testing.T) {
	a := storage.NewFileIdentity("a")
	b := a
	b.Cluster = "c1"
	text := b.Encode()
	if got, err := storage.DecodeFileIdentity(text); err != nil || got != b {
		t.Errorf("decoded %v, %v; want %v", got, err, b)
	}
	for i := range text[:len(text)-1] {
		bad := append([]byte(nil), text...)
		bad[i] ^= 1
		if got, err := storage.DecodeFileIdentity(bad); err == nil {
			t.Errorf("byte %d changed: decoded %v", i, got)
		}
	}
	if !a.Same(b) || a.Same(storage.NewFileIdentity("a")) || a.Same(storage.FileIdentity{Node: "b", Incarnation: a.Incarnation}) {
		t.Error("Same goes by something else than node and incarnation")
	}
	if incarnation, node := a.Mark(); incarnation == 0 || node == 0 || node == storage.NodeMark("b") {
		t.Errorf("mark = %x, %x", incarnation, node)
	}
	foreign := &storage.ForeignError{File: "/x/fsm.db", Is: storage.NewFileIdentity("other"), Want: b}
	for _, want := range []string{"/x/fsm.db", `node "other"`, `node "a" of cluster c1`, b.Incarnation} {
		if !strings.Contains(foreign.Error(), want) {
			t.Errorf("%q does not say %q", foreign, want)
		}
	}
}
