package storage_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/storagetest"
)

func TestView(t *testing.T) {
	storagetest.RunView(t, func(testing.TB) storage.Store { return storage.NewView(&storage.Memory{}, "s/mount/") })
}

func TestViewOfView(t *testing.T) {
	storagetest.RunView(t, func(testing.TB) storage.Store {
		return storage.NewView(storage.NewView(&storage.Memory{}, "l/mount/"), "part/")
	})
}

// TestViewStaysInside tries every key and prefix that could lead out of a view.
func TestViewStaysInside(t *testing.T) {
	ctx := t.Context()
	outside := []storage.Key{"s/mount", "s/mount2/a", "s/mount-2/a", "s/other/a", "l/mount/a", "s/moun/t"}
	var mem storage.Memory
	var b storage.Batch
	for _, k := range outside[1:] { // the first is no valid key, but names the prefix without its slash
		b.Puts = append(b.Puts, storage.Put{Key: k, Value: []byte("outside")})
	}
	mustCommit(t, &mem, b)
	before := mustScan(t, &mem, "", "", 0)
	view := storage.NewView(&mem, "s/mount/")

	tries := []storage.Key{"", "/", ".", "..", "../", "../other/a", "../../l/mount/a", "/s/other/a", "//", "2/a", "a/../../other/a", "\x00"}
	tries = append(tries, outside...)
	for _, k := range tries {
		if e, err := view.Get(ctx, k); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Get(%q) = %q, %v; want ErrNotFound", k, e.Value, err)
		}
		if names, err := view.List(ctx, k, "", 0); err != nil || len(names) != 0 {
			t.Errorf("List(%q) = %q, %v; want nothing", k, names, err)
		}
		if names, err := view.List(ctx, "", string(k), 0); err != nil || len(names) != 0 {
			t.Errorf("List after %q = %q, %v; want nothing", k, names, err)
		}
		for _, after := range append([]storage.Key{""}, tries...) {
			if entries, err := view.Scan(ctx, k, after, 0); err != nil || len(entries) != 0 {
				t.Errorf("Scan(%q, %q) = %d entries, %v; want nothing", k, after, len(entries), err)
			}
		}
		// Whatever a commit does, it does below the prefix.
		_, _ = view.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: k, Value: []byte("inside")}}})
		_, _ = view.Commit(ctx, storage.Batch{Deletes: []storage.Key{k}})
		if after := mustScan(t, &mem, "", "", 0); !slices.EqualFunc(after, before, sameVersion) {
			t.Fatalf("writing and deleting %q through the view changed what is outside", k)
		}
		// A precondition looks inside as well: the key is absent there.
		if _, err := view.Commit(ctx, storage.Batch{Reads: []storage.Read{{Key: k, Version: 1}}}); err == nil {
			t.Errorf("a precondition on %q held for a key outside", k)
		}
	}
	if err := storage.DeletePrefix(ctx, view, ""); err != nil {
		t.Fatal(err)
	}
	if after := mustScan(t, &mem, "", "", 0); !slices.EqualFunc(after, before, sameVersion) {
		t.Error("deleting everything in the view changed what is outside")
	}
}

func TestViewKeys(t *testing.T) {
	var mem storage.Memory
	view := storage.NewView(&mem, "s/mount/")
	mustCommit(t, view, storage.Batch{Puts: []storage.Put{{Key: "a/b", Value: []byte("v")}}})
	if e, err := mem.Get(t.Context(), "s/mount/a/b"); err != nil || string(e.Value) != "v" {
		t.Errorf("below the view: %q, %v", e.Value, err)
	}
	if e, err := view.Get(t.Context(), "a/b"); err != nil || e.Key != "a/b" {
		t.Errorf("Get through the view has key %q, %v; want the relative one", e.Key, err)
	}
	if e, err := view.Get(t.Context(), "absent"); err == nil || e.Key != "" {
		t.Errorf("Get of nothing = %+v, %v", e, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("NewView took a prefix that does not end in a slash")
		}
	}()
	storage.NewView(&mem, "s/mount")
}

func mustCommit(t testing.TB, s storage.Committer, b storage.Batch) storage.Index {
	t.Helper()
	idx, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return idx
}

func mustScan(t testing.TB, s storage.Reader, prefix, after storage.Key, limit int) []storage.Entry {
	t.Helper()
	entries, err := s.Scan(t.Context(), prefix, after, limit)
	if err != nil {
		t.Fatalf("Scan: %v", err)
	}
	return entries
}

func sameVersion(a, b storage.Entry) bool { return a.Key == b.Key && a.Version == b.Version }
