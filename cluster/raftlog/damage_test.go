package raftlog

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// TestLogsDamagedWhileOpen flips bits in the file of an open log. A read, a write or Scrub never has another entry, never
// panics, and once damage is known nothing in the file is used.
func TestLogsDamagedWhileOpen(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	found := 0
	for round := range 16 {
		path := filepath.Join(logDir(t), FileName)
		l, s := mustOpenLogs(t, path)
		told := make(chan error, 1)
		l.OnDamage = func(err error) { told <- err }
		want := entries(1, 300, 3, 200)
		if err := l.StoreLogs(want); err != nil {
			t.Fatal(err)
		}
		if err := s.Set([]byte("vote"), []byte("v")); err != nil {
			t.Fatal(err)
		}
		if err := l.Scrub(func(int) error { return nil }); err != nil {
			t.Fatalf("Scrub of a whole log: %v", err)
		}
		if err := forget(l); err != nil {
			t.Fatal(err)
		}
		content := used(t, path)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + round%4*3 { // in all pages that may be in use
			at := rng.Int64N(min(30*4096, int64(len(content))))
			if _, err := f.WriteAt([]byte{content[at] ^ 1<<rng.IntN(8)}, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		corrupted := func(what string, err error) {
			if c, ok := errors.AsType[*storage.CorruptError](err); err != nil && (!ok || c.File != path) {
				t.Fatalf("%s: %v, want a CorruptError that names the file", what, err)
			}
		}
		for i := range 300 {
			var e raft.Log
			err := l.GetLog(uint64(i+1), &e)
			corrupted("GetLog", err)
			if err == nil && (e.Index != want[i].Index || string(e.Data) != string(want[i].Data)) {
				t.Fatalf("entry %d is another one", i+1)
			}
		}
		if round%2 == 0 {
			corrupted("StoreLogs", l.StoreLogs(entries(301, 310, 3, 200)))
		}
		err = l.Scrub(func(int) error { return nil })
		corrupted("Scrub", err)
		if err == nil {
			continue
		}
		found++
		if c := (*storage.CorruptError)(nil); !errors.As(<-told, &c) || c.File != path {
			t.Error("the damage was reported without the file")
		}
		if l.StoreLogs(entries(311, 312, 3, 200)) == nil || s.Set([]byte("vote"), []byte("w")) == nil {
			t.Error("a damaged log is written")
		}
	}
	if found < 5 {
		t.Errorf("damage was found in %d of 16 files", found)
	}
}
