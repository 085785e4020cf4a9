package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/storage"
)

// An Init that is interrupted, at whichever write, leaves a node that can be initialised again, and of the
// first attempt nothing stays.
func TestInitInterrupted(t *testing.T) {
	clean := lifecycletest.NewState()
	newNode(t, "clean", clean, nil).init(3, 2)
	want := len(keysOf(t, clean))
	for step := 1; ; step++ {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		commits := 0
		n.onCommit = func(storage.Batch) error {
			if commits++; commits == step {
				return errTest
			}
			return nil
		}
		_, err := n.Init(t.Context(), 3, 2)
		if err == nil {
			if step < 4 {
				t.Errorf("only %d writes", step-1)
			}
			return
		}
		if !errors.Is(err, errTest) {
			t.Fatal(err)
		}
		if s := n.Status(t.Context()); s.Initialized || !s.Sealed || !n.barrier.Sealed() {
			t.Errorf("interrupted at write %d: %+v, barrier sealed %v", step, s, n.barrier.Sealed())
		}
		n.onCommit = nil
		keys := n.init(3, 2)
		n.unseal(keys[0], keys[2])
		if got := keysOf(t, n.state); len(got) != want {
			t.Errorf("interrupted at write %d and done again: %q, want %d entries", step, got, want)
		}
		if e, err := n.barrier.Get(t.Context(), dataKey); err != nil || string(e.Value) != "1" {
			t.Errorf("interrupted at write %d and done again: %v", step, err)
		}
	}
}

func keysOf(t *testing.T, m *lifecycletest.State) (keys []string) {
	t.Helper()
	entries, err := m.Scan(context.Background(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		keys = append(keys, string(e.Key))
	}
	return keys
}

// Once a cluster counts as initialised its keys go out, whatever else fails: they exist nowhere else.
func TestInitHandsOutItsKeys(t *testing.T) {
	t.Run("leaving fails", func(t *testing.T) {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		n.closing = errTest
		keys := n.init(1, 1)
		n.closing = nil
		n.unseal(keys...)
	})
	t.Run("the client goes during the last write", func(t *testing.T) {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		ctx, gone := context.WithCancel(t.Context())
		n.onCommit = func(b storage.Batch) error {
			for _, p := range b.Puts {
				if p.Key == "l/seal/config" {
					gone()
				}
			}
			return nil
		}
		if result, err := n.Init(ctx, 1, 1); err != nil || len(result.KeyShares) != 1 || result.RootToken == "" {
			t.Errorf("Init = %v, %d keys", err, len(result.KeyShares))
		}
	})
	t.Run("loading fails", func(t *testing.T) {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		n.loading = errTest
		keys := n.init(1, 1)
		n.loading = nil
		n.unseal(keys...)
	})
	t.Run("the client goes before", func(t *testing.T) {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		ctx, gone := context.WithCancel(t.Context())
		n.onToken = gone
		if _, err := n.Init(ctx, 1, 1); err == nil || n.Initialized(t.Context()) {
			t.Errorf("Init = %v, initialized %v", err, n.Initialized(t.Context()))
		}
	})
}

func TestInitRefused(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), nil)
	for _, bad := range [][2]int{{0, 0}, {1, 2}, {5, 1}, {256, 3}, {-1, -1}} {
		if _, err := n.Init(t.Context(), bad[0], bad[1]); err == nil || n.Initialized(t.Context()) {
			t.Errorf("Init(%v) = %v", bad, err)
		}
	}
	n.init(1, 1)
	if _, err := n.Init(t.Context(), 1, 1); !errors.Is(err, lifecycle.ErrInitialized) {
		t.Errorf("a second Init = %v", err)
	}
	closed := newNode(t, "n3", lifecycletest.NewState(), nil)
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := closed.Init(t.Context(), 1, 1); err == nil || closed.Initialized(t.Context()) {
		t.Errorf("Init after Close = %v", err)
	}
}

func TestUnseal(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), nil)
	if _, err := n.Unseal(t.Context(), "x", false); !errors.Is(err, lifecycle.ErrNotInitialized) {
		t.Errorf("before Init: %v", err)
	}
	keys := n.init(5, 3)
	other := newNode(t, "other", lifecycletest.NewState(), nil).init(5, 3)
	submit := func(key string, wantErr string, progress int) {
		t.Helper()
		s, err := n.Unseal(t.Context(), key, false)
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("a share: %v, want %q", err, wantErr)
		}
		if err == nil && s.Progress != progress || !s.Sealed && err == nil && progress != 0 {
			t.Errorf("status = %+v, want progress %d", s, progress)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Error("the error repeats the share")
		}
	}
	submit("nonsense", "share", 0)
	submit(keys[0], "", 1)
	submit(keys[0], "", 1)
	submit(keys[1], "", 2)
	if s, err := n.Unseal(t.Context(), "", true); err != nil || s.Progress != 0 {
		t.Errorf("reset: %+v, %v", s, err)
	}
	submit(keys[0], "", 1)
	submit(keys[1], "", 2)
	submit(anotherNumber(other, keys[0], keys[1]), "do not open", 0)
	if !n.barrier.Sealed() || n.Status(t.Context()).Progress != 0 {
		t.Error("a wrong share left something behind")
	}
	n.unseal(keys[4], keys[0], keys[2])
	if s, err := n.Unseal(t.Context(), "anything", false); err != nil || s.Sealed {
		t.Errorf("unsealing an unsealed node: %+v, %v", s, err)
	}
	n.until(n.Active, "not active")
}

func TestSealEndsEverything(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), nil)
	keys := n.init(1, 1)
	for range 3 {
		n.unseal(keys...)
		n.until(func() bool { return n.Active() && n.turns.Load() == 1 }, "not active")
		unloads := n.unloads.Load()
		if err := n.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n.turns.Load() != 0 || n.unloads.Load() != unloads+1 || !n.barrier.Sealed() || n.Cluster() != nil || n.Active() {
			t.Errorf("after Seal: %d turns, barrier sealed %v, cluster %v", n.turns.Load(), n.barrier.Sealed(), n.Cluster())
		}
		if err := n.Seal(t.Context()); err != nil {
			t.Errorf("sealing again: %v", err)
		}
	}
}

// What fails on the way up leaves a sealed node that can be unsealed.
func TestUnsealFails(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), nil)
	keys := n.init(1, 1)
	for name, set := range map[string]func(error){
		"loading": func(err error) { n.loading = err },
		"opening": func(err error) { n.onOpen = func(context.Context, passport.Passport) error { return err } },
	} {
		set(errTest)
		if _, err := n.Unseal(t.Context(), keys[0], false); !errors.Is(err, errTest) {
			t.Errorf("%s fails: Unseal = %v", name, err)
		}
		if !n.Sealed() || !n.barrier.Sealed() {
			t.Errorf("%s fails: sealed %v, barrier sealed %v", name, n.Sealed(), n.barrier.Sealed())
		}
		if _, err := n.barrier.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: dataKey}}}); !errors.Is(err, storage.ErrSealed) {
			t.Errorf("%s fails: a write = %v, want ErrSealed", name, err)
		}
		set(nil)
	}
	n.unseal(keys...)
}
