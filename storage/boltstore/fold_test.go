package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/record"
)

func commit(t testing.TB, s *Store, index uint64, key, value string) {
	t.Helper()
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	w.Put(key, record.New(record.Header{Version: index}, []byte(value)))
	w.Commit(Position{Index: index, Term: 1})
}

// A commit becomes durable by itself, and a fold that failed is tried again until it succeeds.
func TestFoldByItself(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(filepath.Join(dir, "state.db"), "", Options{})
		if err != nil {
			t.Fatal(err)
		}
		attempts, broken := 0, errors.New("no space")
		s.fold = func(f *frozen) error {
			if attempts++; attempts > 1 && attempts < 8 {
				return broken
			}
			return s.write(f)
		}
		commit(t, s, 1, "k", "v")
		time.Sleep(s.opts.FoldInterval)
		synctest.Wait()
		if got := s.DurablePosition().Index; got != 1 {
			t.Errorf("durable position is %d one interval after the commit, want 1", got)
		}
		commit(t, s, 2, "k", "w")
		time.Sleep(s.opts.FoldInterval)
		synctest.Wait()
		if got := s.DurablePosition().Index; got != 1 || !errors.Is(s.Health(), broken) {
			t.Errorf("durable position is %d with health %v while folds fail, want 1 with the reason", got, s.Health())
		}
		time.Sleep(8 * maxRetry)
		synctest.Wait()
		if got := s.DurablePosition().Index; got != 2 || s.Health() != nil {
			t.Errorf("durable position is %d with health %v after the disk recovered, want 2 and none", got, s.Health())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

// A transaction whose last sync fails is completed by that sync, and nothing is written as long as the state before it is read: bbolt would take pages
// that only that state has.
func TestLastSyncFails(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "state.db"), "", Options{FoldInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit(t, s, 1, "k", "v")
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	before, err := s.DurableView()
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, 2, "k", "w")
	failing(s, func(f *frozen) error { return errors.Join(s.write(f), errors.New("the sync failed")) })
	if got := s.DurablePosition().Index; got != 1 {
		t.Fatalf("durable position is %d after a sync that failed, want 1", got)
	}
	if err := s.Flush(); err != nil || s.DurablePosition().Index != 2 {
		t.Fatalf("durable position is %d after the sync was done again, want 2: %v", s.DurablePosition().Index, err)
	}
	commit(t, s, 3, "k", "x")
	if s.Flush() == nil || s.DurablePosition().Index != 2 || s.Damage() != nil {
		t.Errorf("it was written while the state before the sync was read: position %d, damage %v", s.DurablePosition().Index, s.Damage())
	}
	before.Close()
	if err := s.Flush(); err != nil || s.DurablePosition().Index != 3 {
		t.Errorf("durable position is %d when that state is not read any more, want 3: %v", s.DurablePosition().Index, err)
	}
}

// Each commit writes the same value under two keys. Each reader sees both, whatever is folded meanwhile.
func TestConcurrentReaders(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "state.db"), "", Options{FoldInterval: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	done := make(chan struct{})
	for r := range 3 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				v, err := s.View()
				if err != nil {
					t.Error(err)
					return
				}
				key := fmt.Sprintf("%02d", (i*7+r)%50)
				a, err1 := v.Get("a/" + key)
				b, err2 := v.Get("b/" + key)
				if err := errors.Join(err1, err2); err != nil || string(a) != string(b) {
					t.Errorf("a view shows %q and %q, %v", a, b, err)
				}
				var scanned []string
				if err := v.Scan(context.Background(), "a/"+key, "a0", func(_ string, rec []byte) bool {
					scanned = append(scanned, string(rec))
					return len(scanned) < 5
				}); err != nil || a != nil && scanned[0] != string(a) {
					t.Errorf("a view scans %q and gets %q, %v", scanned, a, err)
				}
				v.Close()
			}
		})
	}
	for i := range uint64(400) {
		w, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		key, rec := fmt.Sprintf("%02d", i%50), record.New(record.Header{Version: i + 1}, []byte(fmt.Sprint(i)))
		w.Put("a/"+key, rec)
		w.Put("b/"+key, rec)
		w.Commit(Position{Index: i + 1, Term: 1})
		if i%20 == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(done)
	readers.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A file that shrinks under a running server is damage, not a crash of the process.
func TestFileShrinksWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(200) {
		commit(t, s, i+1, fmt.Sprintf("key %03d", i), string(make([]byte, 500)))
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	truncate(t, path)
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	_, err = v.Get("key 100")
	var bad *storage.CorruptError
	if !errors.As(err, &bad) || bad.File != path {
		t.Fatalf("Get = %v, want a CorruptError that names the file", err)
	}
	if _, err := s.Begin(); !errors.As(err, &bad) {
		t.Errorf("Begin = %v, want a CorruptError", err)
	}
	if err := s.Flush(); !errors.As(err, &bad) {
		t.Errorf("Flush = %v, want a CorruptError", err)
	}
	if err := s.Health(); !errors.As(err, &bad) {
		t.Errorf("Health = %v, want a CorruptError", err)
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = Open(path, "", Options{})
	var bad *storage.CorruptError
	if err == nil || errors.As(err, &bad) {
		t.Errorf("second Open = %v, want an error that is not damage", err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 2*pageSize); err != nil {
		t.Fatal(err)
	}
}

// What BeforeFold refuses does not become durable; how far the caller's log is does, with the data or without.
func TestBeforeFold(t *testing.T) {
	refused := errors.New("refused")
	var answer error
	asked := 0
	o := Options{FoldInterval: time.Hour, BeforeFold: func() error { asked++; return answer }}
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path, "", o)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, 1, "k", "v")
	answer = refused
	if err := s.Flush(); !errors.Is(err, refused) || s.DurablePosition().Index != 0 || !errors.Is(s.Health(), refused) {
		t.Errorf("Flush = %v with the durable position at %d, want it refused", err, s.DurablePosition().Index)
	}
	if s.Pending() == 0 {
		t.Error("nothing is pending after a refused fold")
	}
	answer = nil
	if err := s.Flush(); err != nil || s.DurablePosition().Index != 1 || asked != 2 {
		t.Errorf("Flush = %v with the durable position at %d after %d calls, want 1 after 2", err, s.DurablePosition().Index, asked)
	}
	if err := s.Flush(); err != nil || asked != 2 || s.Pending() != 0 {
		t.Errorf("Flush = %v with nothing to fold and %d bytes pending, after %d calls", err, s.Pending(), asked)
	}
	reopened := func(want uint64) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(path, "", o); err != nil {
			t.Fatal(err)
		}
		if got := s.Position(); got.Logged != want {
			t.Errorf("reopened with the log at %d, want %d", got.Logged, want)
		}
	}
	s.SetLogged(7)
	reopened(7)
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	w.Commit(Position{Index: 3, Term: 1, Logged: 9})
	s.Advance(Position{Index: 4, Term: 1})
	reopened(9)
	if got := s.Position(); got.Index != 4 {
		t.Errorf("reopened at %d, want 4", got.Index)
	}
	s.SetLogged(0)
	reopened(0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
