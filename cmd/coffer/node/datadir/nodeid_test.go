package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/storage"
)

func TestNodeIDIsKeptAndChecked(t *testing.T) {
	s := config.Storage{Path: t.TempDir()}
	id, err := NodeID(s)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := NodeID(s); err != nil || again != id {
		t.Errorf("the second start has id %q, %v, want %q", again, err, id)
	}
	path := filepath.Join(s.Path, "node-id")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := NodeID(s)
		var corrupt *storage.CorruptError
		if err == nil && got == id {
			return // what is left still says the same
		}
		if !errors.As(err, &corrupt) || corrupt.File != path {
			t.Errorf("from %q: id %q, %v, want a CorruptError that names the file", text, got, err)
		}
	}
	for i := range good {
		damaged(good[:i])
		for bit := range 8 {
			flipped := append([]byte(nil), good...)
			flipped[i] ^= 1 << bit
			damaged(flipped)
		}
	}
}
