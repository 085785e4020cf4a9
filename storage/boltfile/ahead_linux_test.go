//go:build amd64 || arm64

package boltfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReadAhead looks that the system takes the question, and that what cannot be read is no error here.
func TestReadAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 3*aheadStep+1), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if !ask(f, aheadStep, aheadStep) || cacheBytes() < 1<<20 {
		t.Errorf("asked, and half of the memory is %d bytes", cacheBytes())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if ask(f, 0, aheadStep) {
		t.Error("a closed file was read")
	}
	stopped := make(chan struct{})
	close(stopped)
	for _, p := range []string{path, filepath.Dir(path), path + "-missing"} {
		ReadAhead(p, nil)
		ReadAhead(p, stopped)
	}
}
