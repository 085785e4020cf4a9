package mount_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// status returns what became of a migration.
func (f *fixture) status(id string) *mount.Migration {
	f.t.Helper()
	m, err := f.Migration(f.t.Context(), ns, id)
	f.must(err)
	return m
}

func TestMove(t *testing.T) {
	for name, tt := range map[string]struct {
		kind           string
		local          bool
		from, fromPath string
		to, toPath     string
		source, target string
	}{
		"within a namespace":       {"kv", false, ns, "a/", ns, "b/c/", "a/", "b/c/"},
		"to a path below":          {"kv", false, ns, "a/", ns, "a/b/", "a/", "a/b/"},
		"to another namespace":     {"kv", false, ns, "a/", other, "a/", "a/", "other/a/"},
		"out of another namespace": {"kv", true, other, "a/", ns, "b/", "other/a/", "b/"},
		"an auth method":           {"userpass", false, ns, "auth/a/", other, "auth/b/", "auth/a/", "other/auth/b/"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			var f *fixture
			f = setup(t, withOther, func(o *mount.Options) {
				o.Dependents = dependents{move: func(ctx context.Context, m *mount.Mounted, to mount.Target) error {
					calls++
					if r, _, _ := f.Resolve(ctx, tt.from, tt.fromPath+"x"); r != nil {
						t.Error("it still answers")
					}
					if m.Path != tt.fromPath || to.Namespace != tt.to || to.Path != tt.toPath {
						t.Errorf("MoveMount(%s to %+v)", m.Path, to)
					}
					return nil
				}}
			})
			f.addOther()
			standby := newTable(f, withOther)
			was, err := f.enableIn(tt.from, tt.fromPath, tt.kind, tt.local)
			f.must(err)
			id, err := f.Move(t.Context(), ns, tt.from, tt.fromPath, tt.to, tt.toPath)
			f.must(err)
			if m := f.status(id); m.Status != mount.InProgress || m.Source != tt.source || m.Target != tt.target {
				t.Errorf("begun: %+v", m)
			}
			if _, err := f.Migration(t.Context(), other, id); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("another namespace sees it: %v", err)
			}
			f.must(f.Resume(t.Context()))
			f.must(f.Resume(t.Context()))
			if m := f.status(id); m.Status != mount.Success || m.Reason != "" || calls != 1 {
				t.Errorf("done: %+v after %d calls", m, calls)
			}
			for _, table := range []*mount.Table{f.Table, standby} {
				m, err := table.Get(t.Context(), tt.to, tt.toPath)
				f.must(err)
				if m == nil || m.UUID != was.UUID || m.Accessor != was.Accessor || m.Local != tt.local || m.Mount.NamespaceID != tt.to || m.Mount.Path != tt.toPath {
					t.Fatalf("moved: %+v", m)
				}
				if e, err := m.Mount.Storage.Get(t.Context(), "config"); err != nil || string(e.Value) != "c" {
					t.Errorf("its data: %v", err)
				}
				f.must(m.Hold())
				m.Release()
				if old, _ := table.Get(t.Context(), tt.from, tt.fromPath); old != nil {
					t.Error("it is still at its old path")
				}
			}
			if f.count(was.UUID) != 2 {
				t.Errorf("%d entries with its id, want its own and its data", f.count(was.UUID))
			}
			if tt.toPath != "a/b/" {
				_, err = f.enableIn(tt.from, tt.fromPath, tt.kind, tt.local)
				f.must(err)
			}
		})
	}
}

func TestMoveRefused(t *testing.T) {
	f := setup(t, withOther)
	f.addOther()
	for path, kind := range map[string]string{"a/": "kv", "b/": "kv", "auth/u/": "userpass"} {
		f.must(f.enable(path, kind, false))
	}
	for name, tt := range map[string]struct{ from, toNS, to string }{
		"nothing there": {"none/", ns, "c/"}, "the same place": {"a/", ns, "a/"}, "taken": {"a/", ns, "b/"}, "below another": {"a/", ns, "b/x/"},
		"of the server": {"cubbyhole/", ns, "c/"}, "identity": {"identity/", ns, "c/"}, "engine to auth": {"a/", ns, "auth/c/"},
		"auth to engine": {"auth/u/", ns, "c/"}, "reserved": {"a/", ns, "sys/x/"}, "a namespace is there": {"a/", ns, "other/x/"},
		"token": {"auth/token/", other, "auth/t/"},
	} {
		if _, err := f.Move(t.Context(), ns, ns, tt.from, tt.toNS, tt.to); !invalid(err) {
			t.Errorf("%s: Move = %v, want invalid", name, err)
		}
	}
	if _, err := f.Move(t.Context(), ns, ns, "a/", "gone", "a/"); err == nil {
		t.Error("moving into a namespace that is not there worked")
	}
	if n := f.count("remount/"); n != 0 {
		t.Errorf("%d migrations were recorded", n)
	}
}

// While a mount is being moved it has both places, and nothing else can be done to it.
func TestDuringMove(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	f.must(f.enable("z/", "kv", false))
	_, err := f.Move(t.Context(), ns, ns, "a/", ns, "b/")
	f.must(err)
	for name, err := range map[string]error{
		"enabling at its old path": f.enable("a/", "kv", false),
		"enabling at its new path": f.enable("b/", "kv", false),
		"enabling below it":        f.enable("b/x/", "kv", false),
		"disabling":                f.Disable(t.Context(), ns, "a/"),
		"tuning":                   f.Tune(t.Context(), ns, "a/", func(*mount.Entry) error { return nil }),
		"moving another there":     func() error { _, err := f.Move(t.Context(), ns, ns, "z/", ns, "b/"); return err }(),
		"moving it again":          func() error { _, err := f.Move(t.Context(), ns, ns, "a/", ns, "c/"); return err }(),
	} {
		if !invalid(err) {
			t.Errorf("%s = %v, want invalid", name, err)
		}
	}
	f.must(f.Resume(t.Context()))
	f.must(f.Disable(t.Context(), ns, "b/"))
}

// A move that is interrupted goes on when the next node takes over, or when it can.
func TestInterruptedMove(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	id, err := f.Move(t.Context(), ns, ns, "a/", ns, "b/")
	f.must(err)
	f.refuse = func(storage.Batch) error { return storage.ErrUnavailable }
	if err := f.Resume(t.Context()); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatal(err)
	}
	f.refuse = nil
	if m := f.status(id); m.Status != mount.InProgress {
		t.Errorf("interrupted: %+v", m)
	}
	f.must(newTable(f).Resume(t.Context()))
	m, err := f.Get(t.Context(), ns, "b/")
	f.must(err)
	if got := f.status(id); got.Status != mount.Success || m == nil || m.Hold() != nil {
		t.Errorf("taken over: %+v, mount %v", got, m)
	}
}

// A move that cannot be ends with a reason that may be shown, and the mount serves where it was.
func TestFailedMove(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"told":     {&engines.Error{Kind: engines.KindUpstream, Detail: "the cloud says no"}, "the cloud says no"},
		"not told": {errors.New("hush"), "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, func(o *mount.Options) {
				o.Dependents = dependents{move: func(context.Context, *mount.Mounted, mount.Target) error { return tt.err }}
			})
			f.must(f.enable("a/", "kv", false))
			id, err := f.Move(t.Context(), ns, ns, "a/", ns, "b/")
			f.must(err)
			f.must(f.Resume(t.Context()))
			if m := f.status(id); m.Status != mount.Failure || !strings.Contains(m.Reason, tt.want) || strings.Contains(m.Reason, "hush") {
				t.Errorf("failed: %+v", m)
			}
			m, err := f.Get(t.Context(), ns, "a/")
			f.must(err)
			if m == nil || m.Hold() != nil {
				t.Fatal("it does not serve any more")
			}
			f.must(f.enable("b/", "kv", false))
		})
	}
}

// A namespace that goes while a mount moves ends the move: into it by leaving the mount where it was, out of it by
// taking the mount along.
func TestMoveAndDrop(t *testing.T) {
	all := &spaces{}
	f := setup(t, func(o *mount.Options) { o.Namespaces = all })
	f.addOther()
	f.must(f.enable("a/", "kv", false))
	_, err := f.enableIn(other, "b/", "kv", false)
	f.must(err)
	into, err := f.Move(t.Context(), ns, ns, "a/", other, "a/")
	f.must(err)
	out, err := f.Move(t.Context(), ns, other, "b/", ns, "b/")
	f.must(err)
	all.gone = true
	f.must(f.DropNamespace(t.Context(), other))
	f.must(f.Resume(t.Context()))
	for _, id := range []string{into, out} {
		if m := f.status(id); m.Status != mount.Failure || m.Reason == "" {
			t.Errorf("%+v", m)
		}
	}
	if m, err := f.Get(t.Context(), ns, "a/"); m == nil || err != nil {
		t.Errorf("the mount of the root = %v, %v", m, err)
	}
	if m, err := f.Get(t.Context(), ns, "b/"); m != nil || err != nil {
		t.Errorf("the mount of the namespace = %v, %v", m, err)
	}
}

// Of two moves to one place, one happens.
func TestConcurrentMoves(t *testing.T) {
	for range 10 {
		f := setup(t)
		second := newTable(f)
		f.must(f.enable("a/", "kv", false))
		f.must(f.enable("b/", "kv", false))
		errs := make([]error, 2)
		var wg sync.WaitGroup
		wg.Go(func() { _, errs[0] = f.Move(t.Context(), ns, ns, "a/", ns, "c/") })
		wg.Go(func() { _, errs[1] = second.Move(t.Context(), ns, ns, "b/", ns, "c/x/") })
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("moves to overlapping places: %v", errs)
		}
	}
}

// Run carries moves out as they are asked for, and forgets them after a day.
func TestRunMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.must(f.enable("a/", "kv", false))
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { f.Run(ctx) })
		synctest.Wait()
		first, err := f.Move(t.Context(), ns, ns, "a/", ns, "b/")
		f.must(err)
		synctest.Wait()
		if m := f.status(first); m.Status != mount.Success {
			t.Errorf("%+v", m)
		}
		pass(t, 25*time.Hour)
		_, err = f.Move(t.Context(), ns, ns, "b/", ns, "a/")
		f.must(err)
		synctest.Wait()
		if _, err := f.Migration(t.Context(), ns, first); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("after a day: %v", err)
		}
		stop()
		wg.Wait()
	})
}

// The only mount of its type is still one of it in another namespace: listeners ask for certificates while there is one that needs them.
func TestMoveKeepsTheType(t *testing.T) {
	f := setup(t)
	f.must(f.Enable(t.Context(), mount.NewEntry(ns, "auth/people/", "userpass", "")))
	_, err := f.Move(t.Context(), ns, ns, "auth/people/", "abcdef", "auth/people/")
	f.must(err)
	f.must(f.Resume(t.Context()))
	if has, err := f.HasType(t.Context(), "userpass"); !has || err != nil {
		t.Errorf("%v, %v", has, err)
	}
}
