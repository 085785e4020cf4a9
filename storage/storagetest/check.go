package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

func put(key storage.Key, value string) storage.Put {
	return storage.Put{Key: key, Value: []byte(value)}
}

func mustCommit(t testing.TB, s storage.Committer, b storage.Batch) storage.Index {
	t.Helper()
	idx, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return idx
}

func mustPut(t testing.TB, s storage.Committer, key storage.Key, value string) storage.Index {
	t.Helper()
	return mustCommit(t, s, storage.Batch{Puts: []storage.Put{put(key, value)}})
}

func mustGet(t testing.TB, s storage.Reader, key storage.Key) storage.Entry {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	return e
}

func mustScan(t testing.TB, s storage.Reader, prefix, after storage.Key, limit int) []storage.Entry {
	t.Helper()
	entries, err := s.Scan(t.Context(), prefix, after, limit)
	if err != nil {
		t.Fatalf("Scan(%q, %q, %d): %v", prefix, after, limit, err)
	}
	return entries
}

func wantValue(t testing.TB, s storage.Reader, key storage.Key, want string) {
	t.Helper()
	if got := string(mustGet(t, s, key).Value); got != want {
		t.Errorf("Get(%q) = %.40q (%d bytes), want %.40q (%d bytes)", key, got, len(got), want, len(want))
	}
}

func wantAbsent(t testing.TB, s storage.Reader, key storage.Key) {
	t.Helper()
	if e, err := s.Get(t.Context(), key); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Get(%q) = version %d, %v; want ErrNotFound", key, e.Version, err)
	}
}

// wantSame compares all of class s.
func wantSame(t testing.TB, s storage.Reader, want []storage.Entry) {
	t.Helper()
	if got := mustScan(t, s, "s/", "", 0); !slices.EqualFunc(got, want, sameEntry) {
		t.Errorf("the store holds %s, want %s", describe(got), describe(want))
	}
}

func describe(entries []storage.Entry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%q@%d=%.20q", e.Key, e.Version, e.Value)
		if !e.Origin.IsZero() {
			fmt.Fprintf(&b, " from %s", e.Origin)
		}
		b.WriteByte(' ')
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}
