package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/storage/boltpage"
)

// SetFree gives a file the list of free pages that bbolt would find itself, also one that is longer than a page says; ForgetFree takes it
// away. bbolt goes on with either.
func TestSetFree(t *testing.T) {
	for _, keys := range []int{1, 3000, 50_000} {
		path := filepath.Join(t.TempDir(), "f.db")
		o := Options(0)
		o.PageSize, o.NoSync, o.NoStatistics = 1024, true, false
		db, err := bbolt.Open(path, 0o600, o)
		if err != nil {
			t.Fatal(err)
		}
		fill := func(tx *bbolt.Tx, value byte) error {
			b, err := tx.CreateBucketIfNotExists([]byte("data"))
			for i := 0; err == nil && i < keys; i++ {
				err = b.Put(fmt.Appendf(nil, "%08d", i), append(make([]byte, 1000), value))
			}
			return err
		}
		if err := db.Update(func(tx *bbolt.Tx) error { return fill(tx, 1) }); err != nil {
			t.Fatal(err)
		}
		if err := db.Update(func(tx *bbolt.Tx) error { // most pages become free
			b := tx.Bucket([]byte("data"))
			for i := 1; i < keys; i++ {
				if err := b.Delete(fmt.Appendf(nil, "%08d", i)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		reopen := func() (free int) {
			db, err := bbolt.Open(path, 0o600, o)
			if err != nil {
				t.Fatal(err)
			}
			free = db.Stats().FreePageN
			for value := range byte(3) {
				if err := db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("data")).Put([]byte("00000000"), []byte{value}) }); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.View(func(tx *bbolt.Tx) error {
				for err := range tx.Check() {
					t.Error(err)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			return free
		}
		found := reopen() // bbolt looks for them
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		used := map[uint64]bool{}
		for id, seen := range usedIn(t, f) {
			used[uint64(id)] = seen
		}
		set := func() {
			t.Helper()
			isUsed := func(id uint64) bool { return used[id] }
			if err := SetFree(f, isUsed, isUsed); err != nil {
				t.Fatal(err)
			}
		}
		sizeOf := func() int64 {
			t.Helper()
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		before := sizeOf()
		set()
		if after := sizeOf(); keys > 1 && after != before {
			t.Errorf("%d keys: with the list, for which there are free pages, the file has %d bytes instead of %d", keys, after, before)
		}
		if err := ForgetFree(f); err != nil {
			t.Fatal(err)
		}
		if err := ForgetFree(f); err != nil { // there is none
			t.Fatal(err)
		}
		if m, err := newestMeta(f); err != nil || m.Freelist != boltpage.NoFreelist {
			t.Fatalf("after ForgetFree the list is at %d: %v", m.Freelist, err)
		}
		set()
		listed := reopen()
		if pages := 8*found/o.PageSize + 1; keys > 30_000 && listed < 0xffff || listed < found-pages { // that the list itself takes
			t.Errorf("%d keys: bbolt read %d free pages from the list, and found %d itself", keys, listed, found)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// SyncMetas writes what is there, and nothing where a meta page is damaged, which Settle leaves to others to find.
func TestSyncMetas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	if err := Settle(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is no file: %v", err)
	}
	db, err := bbolt.Open(path, 0o600, Options(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, flip := range []byte{0, 1} {
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before[boltpage.HeaderBytes+20] ^= flip
		if _, err := f.WriteAt(before, 0); err != nil {
			t.Fatal(err)
		}
		if err := SyncMetas(f); (err != nil) != (flip != 0) {
			t.Errorf("flip %d: %v", flip, err)
		}
		if err := Settle(path); err != nil {
			t.Errorf("flip %d: Settle: %v", flip, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("flip %d: it has changed the file: %v", flip, err)
		}
	}
}

// usedIn returns which pages of a closed file are in use.
func usedIn(t *testing.T, f *os.File) []bool {
	t.Helper()
	now, err := newestMeta(f)
	if err != nil {
		t.Fatal(err)
	}
	w := &walker{f: f, pageSize: int64(now.PageSize), high: now.HighWater, seen: make([]bool, now.HighWater)}
	err = w.bucket(now.Root, func(_ uint32, _, value []byte) error {
		outer := w.last
		defer func() { w.last = outer }()
		if root := native.Uint64(value); root != 0 {
			return w.bucket(root, func(uint32, []byte, []byte) error { return nil })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w.seen
}
