package mount_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// Requests that resolved their mount before it was disabled leave nothing behind.
func TestWritesDuringDisable(t *testing.T) {
	for range 20 {
		f := setup(t)
		f.must(f.enable("a/", "kv", false))
		m, err := f.Get(t.Context(), ns, "a/")
		f.must(err)
		ctx, disabled := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for j := 0; ctx.Err() == nil; j++ {
					b := storage.Batch{Puts: []storage.Put{{Key: storage.Key(fmt.Sprint("k/", i, "/", j)), Value: []byte("v")}}}
					if _, err := m.Mount.Storage.Commit(t.Context(), b); err != nil {
						return
					}
					if _, err := m.Mount.ClusterStorage.Commit(t.Context(), b); err != nil {
						return
					}
				}
			})
		}
		wg.Go(func() {
			if err := f.Disable(t.Context(), ns, "a/"); err != nil {
				t.Error(err)
			}
			disabled()
		})
		wg.Wait()
		if n := f.count(m.UUID); n != 0 {
			t.Fatalf("%d entries are left", n)
		}
	}
}

// A write whose outcome was unknown may be applied later, though in the order of the log.
func TestUnknownOutcomeDuringDisable(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	m, err := f.Get(t.Context(), ns, "a/")
	f.must(err)
	var late []storage.Batch // in the log, not applied
	f.refuse = func(b storage.Batch) error {
		if len(b.Puts) == 1 && b.Puts[0].Key.Path() == "a-late-one" {
			late = append(late, b)
			return storage.ErrOutcomeUnknown
		}
		for _, b := range late {
			_, err := f.memory.Commit(context.Background(), b)
			f.must(err)
		}
		late = nil
		return nil
	}
	hold := make(chan struct{}) // closed when the write has failed
	f.Table = newTable(f, func(o *mount.Options) {
		o.Dependents = dependents{disable: func(ctx context.Context, m *mount.Mounted) error {
			defer close(hold)
			_, err := m.Mount.Storage.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "a-late-one", Value: []byte("v")}}})
			if !errors.Is(err, storage.ErrOutcomeUnknown) {
				t.Errorf("the write = %v", err)
			}
			return nil
		}}
	})
	f.must(f.Disable(t.Context(), ns, "a/"))
	<-hold
	if n := f.count(m.UUID); n != 0 || late != nil {
		t.Errorf("%d entries are left, %d writes are still to come", n, len(late))
	}
}

// What a mount handed out is ended after the last request in it and before its data goes.
func TestDisableEndsDependents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures, calls := 2, 0
		var f *fixture
		f = setup(t, func(o *mount.Options) {
			o.Dependents = dependents{disable: func(ctx context.Context, m *mount.Mounted) error {
				calls++
				if r, _, err := f.Resolve(ctx, ns, m.Path+"x"); r != nil || err != nil {
					t.Errorf("it still answers: %v", err)
				}
				if there, err := f.ByUUID(ctx, m.UUID); there == nil || err != nil {
					t.Errorf("its engine is gone: %v", err)
				}
				if e, err := m.Mount.Storage.Get(ctx, "config"); err != nil || len(e.Value) == 0 {
					t.Errorf("its data is gone: %v", err)
				}
				if failures > 0 {
					failures--
					return storage.ErrUnavailable
				}
				_, err := m.Mount.Storage.Commit(ctx, storage.Batch{Deletes: []storage.Key{"lease"}})
				return err
			}}
		})
		f.must(f.enable("a/", "kv", false))
		m, err := f.Get(t.Context(), ns, "a/")
		f.must(err)
		f.must(m.Hold())
		var wg sync.WaitGroup
		var disabled error
		wg.Go(func() { disabled = f.Disable(t.Context(), ns, "a/") })
		synctest.Wait()
		if calls != 0 {
			t.Error("it did not wait for the request in the mount")
		}
		if err := m.Hold(); err == nil {
			t.Error("a request came in after the mount was disabled")
		}
		m.Release()
		wg.Wait()
		if !errors.Is(disabled, storage.ErrUnavailable) || f.count(m.UUID) == 0 {
			t.Errorf("Disable = %v", disabled)
		}
		ctx, stop := context.WithCancel(t.Context())
		wg.Go(func() { f.Run(ctx) })
		for i := 0; f.count(m.UUID) > 0 && i < 100; i++ { // of time that costs nothing
			pass(t, time.Second)
		}
		stop()
		wg.Wait()
		if n := f.count(m.UUID); n != 0 || calls != 3 {
			t.Errorf("%d entries are left after %d calls", n, calls)
		}
	})
}

// A request that never ends does not keep a mount from being disabled for ever.
func TestDisableDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.must(f.enable("a/", "kv", false))
		m, err := f.Get(t.Context(), ns, "a/")
		f.must(err)
		f.must(m.Hold())
		f.must(f.Disable(t.Context(), ns, "a/"))
		if n := f.count(m.UUID); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		if _, err := m.Mount.Storage.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "k", Value: []byte("v")}}}); err == nil {
			t.Error("the request could still write")
		}
		m.Release()
	})
}

// pass lets the bubble's clock run.
func pass(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// A snapshot may bring back a mount that was being disabled: it serves again, and is not wiped.
func TestRestoreDuringDisable(t *testing.T) {
	var f *fixture
	var before []storage.Entry
	f = setup(t, func(o *mount.Options) {
		o.Dependents = dependents{disable: func(ctx context.Context, _ *mount.Mounted) error {
			var b storage.Batch
			for _, e := range before {
				b.Puts = append(b.Puts, storage.Put{Key: e.Key, Value: e.Value})
			}
			_, err := f.memory.Commit(ctx, b)
			return err
		}}
	})
	f.must(f.enable("a/", "kv", false))
	var err error
	before, err = f.memory.Scan(t.Context(), "", "", 0)
	f.must(err)
	if err := f.Disable(t.Context(), ns, "a/"); err == nil {
		t.Error("Disable wiped what was restored")
	}
	m, err := f.Get(t.Context(), ns, "a/")
	f.must(err)
	f.must(m.Hold())
	m.Release()
	if _, err := m.Mount.Storage.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "k", Value: []byte("v")}}}); err != nil {
		t.Errorf("writing afterwards = %v", err)
	}
	if n := f.count(m.UUID); n != 3 {
		t.Errorf("%d entries, want the mount, its config and what was written", n)
	}
}
