package server_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/roles"
)

// workers are engines with work to do. They count it by the mount's path.
type workers struct {
	mu     sync.Mutex
	calls  map[string]int
	at     map[string]int // how many are at work
	owner  map[string]bool
	twice  bool            // one was called while it was at work
	block  map[string]bool // these work until their context ends
	panics map[string]bool
	early  []string // which were to leave while they were at work
	left   []string // the others that were to leave
}

type workerEngine struct{ *workers }

func (w *workers) Factory(engines.Mount) (engines.Engine, error) { return workerEngine{w}, nil }

func (workerEngine) Router() *engines.Router { return engines.NewRouter() }

// Work implements engines.Worker.
func (e workerEngine) Work(ctx context.Context, m engines.Mount, owner bool) error {
	w := e.workers
	w.mu.Lock()
	if w.calls == nil {
		w.calls, w.at, w.owner = map[string]int{}, map[string]int{}, map[string]bool{}
	}
	w.calls[m.Path]++
	w.owner[m.Path] = owner
	w.at[m.Path]++
	w.twice = w.twice || w.at[m.Path] > 1
	block, panics := w.block[m.Path], w.panics[m.Path]
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.at[m.Path]--
		w.mu.Unlock()
	}()
	if panics {
		panic("work")
	}
	if block {
		<-ctx.Done()
	}
	return errors.New("there is always something")
}

// Leave implements engines.Leaver.
func (e workerEngine) Leave(_ context.Context, m engines.Mount) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at[m.Path] > 0 {
		e.early = append(e.early, m.Path)
	} else {
		e.left = append(e.left, m.Path)
	}
	return nil
}

// since returns how often each was called since the last time.
func (w *workers) since() map[string]int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.calls
	w.calls = map[string]int{}
	return calls
}

func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := start(t)
		w := in.workers
		synctest.Wait() // for the first round, which finds no mount
		w.block, w.panics = map[string]bool{"slow/": true}, map[string]bool{"mad/": true}
		for _, path := range []string{"one", "slow", "mad"} {
			in.must(in.root, engines.Update, "sys/mounts/"+path, `{"type":"worker"}`)
		}
		in.must(in.root, engines.Update, "sys/mounts/local", `{"type":"worker","local":true}`)
		want := func(what string, calls map[string]int) {
			t.Helper()
			if got := w.since(); !maps.Equal(got, calls) {
				t.Errorf("%s: called %v, want %v", what, got, calls)
			}
		}
		time.Sleep(engines.WorkInterval)
		want("a first time", map[string]int{"one/": 1, "slow/": 1, "mad/": 1, "local/": 1})
		time.Sleep(3 * engines.WorkInterval)
		want("as one works on and another panics", map[string]int{"one/": 3, "mad/": 3, "local/": 3})
		if w.twice {
			t.Error("a mount was called while it was at work")
		}
		if !w.owner["one/"] || !w.owner["local/"] {
			t.Errorf("a cluster on its own owns %v", w.owner)
		}

		in.state.lead(false)
		time.Sleep(2 * engines.WorkInterval)
		want("on a standby", map[string]int{})
		in.state.lead(true)
		time.Sleep(engines.WorkInterval)
		if got := w.since(); got["one/"] == 0 || got["slow/"] != 1 {
			t.Errorf("active again: called %v", got)
		}

		in.role(roles.Role{Mode: roles.Secondary, ClusterID: "cluster-b"})
		time.Sleep(2 * engines.WorkInterval)
		w.since()
		if w.owner["one/"] || !w.owner["local/"] {
			t.Errorf("a secondary owns %v", w.owner)
		}
	})
}

// TestWorkEndsWithItsMount: a mount that works is disabled or moved at once, its work ends before it is asked to leave.
func TestWorkEndsWithItsMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := start(t)
		w := in.workers
		synctest.Wait() // for the first round, which finds no mount
		w.block = map[string]bool{"gone/": true, "moved/": true, "inside/": true, "new/": true, "other/": true}
		in.must(in.root, engines.Update, "sys/namespaces/team", `{}`)
		for _, path := range []string{"gone", "moved", "other"} {
			in.must(in.root, engines.Update, "sys/mounts/"+path, `{"type":"worker"}`)
		}
		if _, err := in.doIn("team", in.root, engines.Update, "sys/mounts/inside", `{"type":"worker"}`, nil); err != nil {
			t.Fatal(err)
		}
		atWork := func(when string, paths ...string) {
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			var got []string
			for path, n := range w.at {
				if n > 0 {
					got = append(got, path)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, paths) {
				t.Errorf("%s: %q at work, want %q", when, got, paths)
			}
		}
		time.Sleep(engines.WorkInterval)
		atWork("a first time", "gone/", "inside/", "moved/", "other/")

		began := time.Now()
		in.must(in.root, engines.Delete, "sys/mounts/gone", "")
		atWork("after a disable", "inside/", "moved/", "other/")
		in.must(in.root, engines.Delete, "sys/namespaces/team", "")
		atWork("after its namespace went", "moved/", "other/")
		in.must(in.root, engines.Update, "sys/remount", `{"from":"moved","to":"new"}`)
		atWork("after a move", "other/")
		if took := time.Since(began); took >= engines.WorkInterval {
			t.Errorf("they were waited for, for %v", took)
		}
		time.Sleep(engines.WorkInterval)
		atWork("at its new place", "new/", "other/")
		in.must(in.root, engines.Delete, "sys/mounts/new", "")
		atWork("in the end", "other/")
		if want := []string{"gone/", "inside/", "moved/", "new/"}; len(w.early) > 0 || !slices.Equal(w.left, want) {
			t.Errorf("%q left, %q too early, want %q", w.left, w.early, want)
		}
	})
}
