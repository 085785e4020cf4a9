package storage_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/coffer-project/coffer/storage"
)

func TestTxn(t *testing.T) {
	ctx := t.Context()
	var mem storage.Memory
	first := mustCommit(t, &mem, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: []byte("1")}, {Key: "s/m/b", Value: []byte("1")}}})
	txn := storage.Begin(&mem)
	if e, err := txn.Get(ctx, "s/m/a"); err != nil || string(e.Value) != "1" {
		t.Fatalf("Get = %q, %v", e.Value, err)
	}
	if _, err := txn.Get(ctx, "s/m/absent"); !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("Get of an absent key = %v", err)
	}

	// What others do meanwhile changes neither the answers nor the preconditions.
	mustCommit(t, &mem, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: []byte("2")}, {Key: "s/m/absent", Value: []byte("2")}}})
	if e, err := txn.Get(ctx, "s/m/a"); err != nil || string(e.Value) != "1" || e.Version != first {
		t.Errorf("second Get = %q version %d, %v; want the answer of the first", e.Value, e.Version, err)
	}
	if _, err := txn.Get(ctx, "s/m/absent"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("second Get of an absent key = %v, want the answer of the first", err)
	}

	// It sees what it wrote itself, and that adds no precondition.
	txn.Put("s/m/new", []byte("n"))
	txn.Delete("s/m/b")
	if e, err := txn.Get(ctx, "s/m/new"); err != nil || string(e.Value) != "n" || e.Key != "s/m/new" {
		t.Errorf("Get of its own put = %q, %v", e.Value, err)
	}
	if _, err := txn.Get(ctx, "s/m/b"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Get of its own delete = %v", err)
	}
	txn.Put("s/m/c", nil)
	txn.Delete("s/m/c")
	txn.Delete("s/m/a")
	txn.Put("s/m/a", []byte("3"))

	b := txn.Batch()
	if want := []storage.Read{{Key: "s/m/a", Version: first}, {Key: "s/m/absent"}}; !slices.Equal(b.Reads, want) {
		t.Errorf("Reads = %v, want %v", b.Reads, want)
	}
	if want := []storage.Key{"s/m/b", "s/m/c"}; !slices.Equal(b.Deletes, want) {
		t.Errorf("Deletes = %q, want %q", b.Deletes, want)
	}
	if len(b.Puts) != 2 || b.Puts[0].Key != "s/m/a" || string(b.Puts[0].Value) != "3" || b.Puts[1].Key != "s/m/new" {
		t.Errorf("Puts = %v", b.Puts)
	}
	if _, err := mem.Commit(ctx, b); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("Commit = %v, want ErrConflict", err)
	}
}

// TestTxnExpects: what is expected is a precondition, and is not read.
func TestTxnExpects(t *testing.T) {
	ctx := t.Context()
	var mem storage.Memory
	at := mustCommit(t, &mem, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: []byte("1")}, {Key: "s/m/b", Value: []byte("1")}}})
	for name, c := range map[string]struct {
		expect func(*storage.Txn)
		want   error
	}{
		"what is there":             {func(tx *storage.Txn) { tx.Expect("s/m/a", at); tx.Expect("s/m/absent", 0) }, nil},
		"another version":           {func(tx *storage.Txn) { tx.Expect("s/m/a", at-1) }, storage.ErrConflict},
		"what is absent":            {func(tx *storage.Txn) { tx.Expect("s/m/absent", at) }, storage.ErrConflict},
		"nothing where there is":    {func(tx *storage.Txn) { tx.Expect("s/m/b", 0) }, storage.ErrConflict},
		"another than what is read": {func(tx *storage.Txn) { tx.Expect("s/m/a", at-1); tx.Get(ctx, "s/m/a") }, storage.ErrConflict}, //nolint:errcheck // it is there
	} {
		tx := storage.Begin(&mem)
		c.expect(tx)
		if e, err := tx.Get(ctx, "s/m/a"); err != nil || string(e.Value) != "1" {
			t.Errorf("%s: Get = %q, %v", name, e.Value, err)
		}
		tx.Put("s/m/new", []byte(name))
		if _, err := mem.Commit(ctx, tx.Batch()); !errors.Is(err, c.want) {
			t.Errorf("%s: Commit = %v, want %v", name, err, c.want)
		}
	}
}

// flaky answers the first commits with errs.
type flaky struct {
	storage.Store
	errs    []error
	commits int
}

func (f *flaky) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	f.commits++
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return 0, err
	}
	return f.Store.Commit(ctx, b)
}

func TestUpdate(t *testing.T) {
	conflict := fmt.Errorf("committing: %w", storage.ErrConflict)
	tests := []struct {
		name    string
		errs    []error
		want    error
		commits int
	}{
		{"at once", nil, nil, 1},
		{"after conflicts", []error{conflict, conflict, conflict}, nil, 4},
		{"unknown outcome is not tried again", []error{storage.ErrOutcomeUnknown}, storage.ErrOutcomeUnknown, 1},
		{"not the leader", []error{storage.ErrReadOnly}, storage.ErrReadOnly, 1},
		{"endless conflicts", slices.Repeat([]error{conflict}, 1000), storage.ErrConflict, 64},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) { // the pauses cost nothing in a bubble
			s := &flaky{Store: &storage.Memory{}, errs: tt.errs}
			calls := 0
			idx, err := storage.Update(t.Context(), s, func(txn *storage.Txn) error {
				calls++
				txn.Put("s/m/a", []byte("x"))
				return nil
			})
			if !errors.Is(err, tt.want) || (idx != 0) != (tt.want == nil) {
				t.Errorf("%s: Update = %d, %v; want %v", tt.name, idx, err, tt.want)
			}
			if s.commits != tt.commits || calls != tt.commits {
				t.Errorf("%s: %d commits of %d calls, want %d", tt.name, s.commits, calls, tt.commits)
			}
		})
	}
}

func TestUpdateEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &flaky{Store: &storage.Memory{}, errs: slices.Repeat([]error{storage.ErrConflict}, 1000)}
		_, err := storage.Update(ctx, s, func(txn *storage.Txn) error {
			if s.commits == 3 {
				cancel()
			}
			txn.Put("s/m/a", []byte("x"))
			return nil
		})
		if !errors.Is(err, context.Canceled) || s.commits != 4 {
			t.Errorf("Update = %v after %d commits, want context.Canceled after 4", err, s.commits)
		}
	})
}

func TestUpdateWithoutWrites(t *testing.T) {
	s := &flaky{Store: &storage.Memory{}}
	idx, err := storage.Update(t.Context(), s, func(txn *storage.Txn) error {
		_, err := txn.Get(t.Context(), "s/m/a")
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		}
		return err
	})
	if idx != 0 || err != nil || s.commits != 0 {
		t.Errorf("Update = %d, %v with %d commits; want 0, nil, none", idx, err, s.commits)
	}
}

// failing cannot be read.
type failing struct{ storage.Store }

func (failing) Get(context.Context, storage.Key) (storage.Entry, error) {
	return storage.Entry{Version: 7}, storage.ErrSealed
}

func TestTxnReadError(t *testing.T) {
	txn := storage.Begin(failing{})
	if _, err := txn.Get(t.Context(), "s/m/a"); !errors.Is(err, storage.ErrSealed) {
		t.Errorf("Get = %v, want ErrSealed", err)
	}
	if b := txn.Batch(); len(b.Reads) != 0 {
		t.Errorf("a failed read became the precondition %v", b.Reads)
	}
}

// TestDeletePrefixOfLargeValues looks at how much is held at once.
func TestDeletePrefixOfLargeValues(t *testing.T) {
	var mem storage.Memory
	for i := range 40 {
		mustCommit(t, &mem, storage.Batch{Puts: []storage.Put{
			{Key: storage.Key(fmt.Sprintf("s/m/%02d", i)), Value: make([]byte, storage.MaxValueBytes)},
		}})
	}
	s := &scans{Store: &mem}
	if err := storage.DeletePrefix(t.Context(), s, "s/m/"); err != nil {
		t.Fatal(err)
	}
	if left := mustScan(t, &mem, "s/", "", 0); len(left) != 0 {
		t.Errorf("%d keys left", len(left))
	}
	if s.largest > 32 {
		t.Errorf("one scan returned %d values of 1 MiB, want at most 32", s.largest)
	}
}

// scans counts.
type scans struct {
	storage.Store
	largest int
}

func (s *scans) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	entries, err := s.Store.Scan(ctx, prefix, after, limit)
	s.largest = max(s.largest, len(entries))
	return entries, err
}
