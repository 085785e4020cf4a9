package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/storage"
)

// fixture is a store of namespaces over memory.
type fixture struct {
	*namespace.Store
	t      testing.TB
	memory *storage.Memory
}

func setup(t testing.TB, o namespace.Options) *fixture {
	f := &fixture{t: t, memory: &storage.Memory{}}
	f.Store = f.node(o)
	return f
}

// node is another node's store over the same state.
func (f *fixture) node(o namespace.Options) *namespace.Store {
	if o.Store == nil {
		o.Store = f.memory
	}
	s := namespace.NewStore(o)
	f.memory.OnChange(s.Changed)
	return s
}

func (f *fixture) create(base, path string) *namespace.Namespace {
	f.t.Helper()
	n, err := f.Create(f.t.Context(), base, path, nil)
	if err != nil {
		f.t.Fatalf("creating %q: %v", path, err)
	}
	return n
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// stored returns the number of entries.
func (f *fixture) stored() int {
	f.t.Helper()
	entries, err := f.memory.Scan(f.t.Context(), "", "", 0)
	f.must(err)
	return len(entries)
}

func kind(err error) engines.Kind {
	var e *engines.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return engines.KindInternal
}

// slowResolve is Resolve by its definition, over a set of full paths that are there.
func slowResolve(there map[string]bool, header, path string) (ns, rest string, ok bool) {
	header = strings.Trim(header, "/")
	if header != "" && header != "root" {
		ns = header + "/"
		if !there[ns] {
			return "", "", false
		}
	}
	for {
		name, after, _ := strings.Cut(path, "/")
		if !there[ns+name+"/"] {
			return ns, path, true
		}
		ns, path = ns+name+"/", after
	}
}

// Random trees with random deletions resolve as the slow model does.
func TestResolveModel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := setup(t, namespace.Options{})
		random := func(n int) string {
			var names []string
			for range r.IntN(n) {
				names = append(names, string(rune('a'+r.IntN(3))))
			}
			return strings.Join(names, "/")
		}
		there := map[string]bool{}
		for range 40 {
			path := random(5)
			if path == "" {
				continue
			}
			parent := path[:strings.LastIndexByte(path, '/')+1]
			_, err := f.Create(t.Context(), namespace.RootID, path, nil)
			if want := parent == "" || there[parent]; (err == nil) != want {
				t.Fatalf("seed %d: creating %q = %v with %v there", seed, path, err, there)
			}
			if err == nil {
				there[path+"/"] = true
			}
			if r.IntN(6) == 0 {
				gone := random(4)
				n, rest, err := f.Resolve(t.Context(), "", gone)
				f.must(err)
				if n.ID == namespace.RootID || rest != "" {
					continue
				}
				parent := false
				for p := range there {
					parent = parent || p != n.Path && strings.HasPrefix(p, n.Path)
				}
				if err := f.Delete(t.Context(), n.ID); (err == nil) == parent {
					t.Fatalf("seed %d: deleting %q = %v with %v there", seed, n.Path, err, there)
				}
				if !parent {
					delete(there, n.Path)
				}
				f.must(f.Resume(t.Context()))
			}
		}
		for range 500 {
			header, path := random(4), random(7)
			switch r.IntN(8) {
			case 0:
				header = "/" + header + "/"
			case 1:
				header = "root"
			case 2:
				path += "/"
			case 3:
				path += "/secret/x"
			}
			path = strings.TrimPrefix(path, "/")
			wantNS, wantRest, ok := slowResolve(there, header, path)
			n, rest, err := f.Resolve(t.Context(), header, path)
			if !ok {
				if kind(err) != engines.KindNotFound {
					t.Fatalf("seed %d: Resolve(%q, %q) = %v, want not found", seed, header, path, err)
				}
				continue
			}
			if err != nil || n.Path != wantNS || rest != wantRest {
				t.Fatalf("seed %d: Resolve(%q, %q) = %v, %q, %v, want %q, %q", seed, header, path, n, rest, err, wantNS, wantRest)
			}
		}
	}
}

// contents has a mount at "mounted/" of the root namespace.
type contents struct{}

func (contents) FirstPuts(id string) []storage.Put {
	return []storage.Put{{Key: storage.Key("s/sys/" + id + "/first"), Value: []byte("1")}}
}

func (contents) Reserve(_ context.Context, _ *storage.Txn, parent, path string) error {
	if parent == namespace.RootID && path == "mounted/" {
		return engines.Invalid("taken")
	}
	return nil
}

// drain is namespace.Requests.
type drain func(ctx context.Context) error

func (d drain) Drain(ctx context.Context) error { return d(ctx) }

func TestCreate(t *testing.T) {
	f := setup(t, namespace.Options{Contents: contents{}})
	a := f.create("root", "a")
	b := f.create("root", "/a/b/")
	c := f.create(b.ID, "c")
	if c.Path != "a/b/c/" || c.UUID == "" || len(c.ID) < 6 || f.Path(c.ID) != "a/b/c/" || f.Path("root") != "" || f.Path("none") != "" {
		t.Errorf("created %+v", c)
	}
	if again := f.create("root", "a"); again.ID != a.ID {
		t.Error("creating one that is there made another")
	}
	for _, id := range []string{a.ID, b.ID, c.ID} {
		if _, err := f.memory.Get(t.Context(), storage.Key("s/sys/"+id+"/first")); err != nil {
			t.Errorf("what %s begins with: %v", id, err)
		}
	}
	before := f.stored()
	for _, path := range []string{
		"", "/", "root", "sys", "audit", "auth", "cubbyhole", "identity", "v1", "ui", "api-lock", ".", "..", "a/sys", "a b", "a\tb", "a\u00a0b",
		"a*", "+", "x\x00", "x\x7f", "\xff", "none/x", "a//x", "mounted", strings.Repeat("x", 129),
	} {
		if _, err := f.Create(t.Context(), "root", path, nil); kind(err) != engines.KindInvalid {
			t.Errorf("creating %.20q = %v, want invalid", path, err)
		}
	}
	for name, metadata := range map[string]map[string]string{
		"empty key": {"": "x"}, "long key": {strings.Repeat("k", 129): ""}, "long value": {"k": strings.Repeat("v", 513)},
	} {
		if _, err := f.Create(t.Context(), "root", "m", metadata); kind(err) != engines.KindInvalid {
			t.Errorf("%s = %v, want invalid", name, err)
		}
	}
	if _, err := f.Create(t.Context(), "none", "x", nil); kind(err) != engines.KindNotFound {
		t.Errorf("creating below an unknown namespace = %v, want not found", err)
	}
	if f.stored() != before {
		t.Error("a refused creation wrote something")
	}
	deep := f.create("root", "d")
	for range 15 {
		deep = f.create(deep.ID, "d")
	}
	if _, err := f.Create(t.Context(), deep.ID, "d", nil); kind(err) != engines.KindInvalid {
		t.Errorf("too deep = %v, want invalid", err)
	}
}

func TestBelow(t *testing.T) {
	f := setup(t, namespace.Options{})
	a, b := f.create("root", "a"), f.create("root", "b")
	ac := f.create(a.ID, "c")
	for _, tt := range []struct {
		ancestor, id string
		want         bool
	}{
		{"root", "root", true}, {"", "root", true}, {"root", a.ID, true}, {"root", ac.ID, true}, {a.ID, ac.ID, true}, {a.ID, a.ID, true},
		{a.ID, "root", false}, {a.ID, b.ID, false}, {ac.ID, a.ID, false}, {b.ID, ac.ID, false}, {"root", "none", false}, {"none", a.ID, false},
	} {
		if got := f.Below(t.Context(), tt.ancestor, tt.id); got != tt.want {
			t.Errorf("Below(%q, %q) = %v", f.Path(tt.ancestor), f.Path(tt.id), got)
		}
	}
	children, err := f.Children(t.Context(), "root")
	f.must(err)
	if len(children) != 2 || children[0].ID != a.ID || children[1].ID != b.ID {
		t.Errorf("children of the root = %v", children)
	}
	for path, want := range map[string]bool{"a/": true, "a/x/y/": true, "c/": false, "ab/": false, "": false} {
		if got, err := f.At(t.Context(), "root", path); err != nil || got != want {
			t.Errorf("At(%q) = %v, %v", path, got, err)
		}
	}
}

// Of many who create the same namespace at once, all get the same one.
func TestConcurrentCreate(t *testing.T) {
	f := setup(t, namespace.Options{})
	nodes := []*namespace.Store{f.Store, f.node(namespace.Options{})}
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			n, err := nodes[i%2].Create(t.Context(), "root", "same", nil)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = n.ID
		})
	}
	wg.Wait()
	if len(slices.Compact(ids)) != 1 || f.stored() != 2 {
		t.Errorf("ids %v, %d entries", ids, f.stored())
	}
}

// Of a parent's deletion and the creation of its children either the one succeeds or the other, whatever their order.
func TestCreateDuringDelete(t *testing.T) {
	for range 50 {
		f := setup(t, namespace.Options{})
		a := f.create("root", "a")
		var wg sync.WaitGroup
		var created atomic.Int32
		for i := range 2 {
			wg.Go(func() {
				_, err := f.Create(t.Context(), a.ID, fmt.Sprint("c", i), nil)
				switch {
				case err == nil:
					created.Add(1)
				case kind(err) != engines.KindNotFound:
					t.Error(err)
				}
			})
		}
		var deleted error
		wg.Go(func() { deleted = f.Delete(t.Context(), a.ID) })
		wg.Wait()
		if (deleted == nil) != (created.Load() == 0) || deleted != nil && kind(deleted) != engines.KindInvalid {
			t.Fatalf("%d children were created, and the parent's deletion is %v", created.Load(), deleted)
		}
		f.must(f.Resume(t.Context()))
		if n := f.stored(); deleted == nil && n != 0 {
			entries, _ := f.memory.Scan(t.Context(), "", "", 0)
			t.Fatalf("%d entries are left: %v", n, entries)
		}
	}
}

// Paths on which clients seal a namespace create none.
func TestSealPaths(t *testing.T) {
	f := setup(t, namespace.Options{})
	a := f.create("root", "a")
	for _, path := range []string{"seal", "unseal", "seal-status", "key-status", "rotate", "rekey", "generate-root"} {
		for _, base := range []string{"root", a.ID} {
			if _, err := f.Create(t.Context(), base, path, nil); kind(err) != engines.KindInvalid || !strings.Contains(err.Error(), "no seal of its own") {
				t.Errorf("creating %q in %s = %v", path, base, err)
			}
		}
	}
}

// A transaction that is guarded does not commit into a namespace that is being deleted.
func TestGuard(t *testing.T) {
	f := setup(t, namespace.Options{})
	a := f.create("root", "a")
	b := f.create(a.ID, "b")
	write := func(during func()) error {
		_, err := storage.Update(t.Context(), f.memory, func(tx *storage.Txn) error {
			if err := f.Guard(t.Context(), tx, b.ID); err != nil {
				return err
			}
			during()
			tx.Put("s/x/y", []byte("1"))
			return nil
		})
		return err
	}
	f.must(write(func() {}))
	if err := write(func() { f.must(f.Delete(t.Context(), b.ID)) }); kind(err) != engines.KindNotFound {
		t.Errorf("writing while it is being deleted = %v, want not found", err)
	}
}

// Every node sees a namespace as soon as the change was announced.
func TestFollow(t *testing.T) {
	f := setup(t, namespace.Options{})
	standby := f.node(namespace.Options{})
	f.must(standby.Load(t.Context()))
	a := f.create("root", "a")
	if n, rest, err := standby.Resolve(t.Context(), "", "a/x"); err != nil || n.ID != a.ID || rest != "x" {
		t.Errorf("Resolve = %v, %q, %v", n, rest, err)
	}
	f.must(f.Delete(t.Context(), a.ID))
	if n, rest, err := standby.Resolve(t.Context(), "", "a/x"); err != nil || n.ID != "root" || rest != "a/x" {
		t.Errorf("after the deletion: Resolve = %v, %q, %v", n, rest, err)
	}
	standby.Clear()
	if standby.Numbers()["namespaces"] != 0 {
		t.Error("Clear kept something")
	}
	if n, err := standby.ByID(t.Context(), a.ID); err != nil || !n.Deleting {
		t.Errorf("after Clear: %v, %v", n, err)
	}
}

// An entry that this version does not understand must not be skipped: its name would be free.
func TestUnknownEntries(t *testing.T) {
	for _, value := range []string{`{"format":2}`, `{`, ``} {
		f := setup(t, namespace.Options{})
		_, err := f.memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "s/namespace/abcdef", Value: []byte(value)}}})
		f.must(err)
		if _, _, err := f.Resolve(t.Context(), "", "x"); err == nil {
			t.Errorf("entry %q was accepted", value)
		}
	}
}

func TestLock(t *testing.T) {
	f := setup(t, namespace.Options{})
	a := f.create("root", "a")
	b := f.create(a.ID, "b")
	key, err := f.Lock(t.Context(), a.ID)
	f.must(err)
	for _, id := range []string{a.ID, b.ID} {
		n, err := f.ByID(t.Context(), id)
		f.must(err)
		if !n.Locked() {
			t.Errorf("%s is not locked", n.Path)
		}
	}
	entries, err := f.memory.Scan(t.Context(), "", "", 0)
	f.must(err)
	for _, e := range entries {
		if strings.Contains(string(e.Value), key.Reveal()) {
			t.Error("the unlock key is stored")
		}
	}
	for name, got := range map[string]error{
		"wrong key":     f.Unlock(t.Context(), a.ID, "wrong", true),
		"no key":        f.Unlock(t.Context(), a.ID, "", false),
		"not locked":    f.Unlock(t.Context(), b.ID, key, true),
		"root":          f.Unlock(t.Context(), "root", key, true),
		"locked before": func() error { _, err := f.Lock(t.Context(), a.ID); return err }(),
		"lock of root":  func() error { _, err := f.Lock(t.Context(), "root"); return err }(),
		"delete":        f.Delete(t.Context(), a.ID),
	} {
		if kind(got) != engines.KindInvalid {
			t.Errorf("%s = %v, want invalid", name, got)
		}
	}
	f.must(f.Unlock(t.Context(), a.ID, key, false))
	_, err = f.Lock(t.Context(), b.ID)
	f.must(err)
	if err := f.Delete(t.Context(), b.ID); kind(err) != engines.KindInvalid || !strings.Contains(err.Error(), "unlock it") {
		t.Errorf("deleting a locked one = %v", err)
	}
	f.must(f.Unlock(t.Context(), b.ID, "", true))
	for _, id := range []string{a.ID, b.ID} {
		if n, _ := f.ByID(t.Context(), id); n.Locked() {
			t.Errorf("%s is still locked", n.Path)
		}
	}
}

func TestDeleteSteps(t *testing.T) {
	var did []string
	broken := errors.New("broken")
	var f *fixture
	step := func(name string) namespace.Step {
		return namespace.Step{Name: name, Do: func(_ context.Context, id string) error {
			did = append(did, name+" "+f.Path(id))
			return broken
		}}
	}
	f = setup(t, namespace.Options{Steps: []namespace.Step{step("one"), step("two")}})
	top := f.create("root", "top")
	a := f.create(top.ID, "a")
	if err := f.Delete(t.Context(), top.ID); kind(err) != engines.KindInvalid || !strings.Contains(err.Error(), `delete "top/a/" first`) {
		t.Errorf("deleting a parent = %v", err)
	}
	f.must(f.Delete(t.Context(), a.ID))
	f.must(f.Delete(t.Context(), a.ID)) // again is fine
	if err := f.Resume(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Resume = %v", err)
	}
	n, err := f.ByID(t.Context(), a.ID)
	f.must(err)
	p, ok := f.Progress(n)
	if !ok || p.Step != "one" || p.Namespace != "top/a/" || p.Left != 1 || p.Failures != 1 || p.LastError == "" || strings.Contains(p.LastError, "broken") {
		t.Errorf("progress %+v, %v", p, ok)
	}
	if _, err := f.Create(t.Context(), top.ID, "a", nil); kind(err) != engines.KindInvalid {
		t.Errorf("creating it again meanwhile = %v, want invalid", err)
	}
	if _, err := f.Create(t.Context(), a.ID, "x", nil); kind(err) != engines.KindNotFound {
		t.Errorf("creating one in it = %v, want not found", err)
	}
	broken, did = nil, nil
	f.must(f.Resume(t.Context()))
	if want := []string{"one top/a/", "two top/a/"}; !slices.Equal(did, want) {
		t.Errorf("steps %q, want %q", did, want)
	}
	if _, ok := f.Progress(n); ok || f.stored() != 2 {
		t.Errorf("progress %v, %d entries are left", ok, f.stored())
	}
	f.create(top.ID, "a")
	if err := f.Delete(t.Context(), "root"); kind(err) != engines.KindInvalid {
		t.Errorf("deleting the root = %v", err)
	}
}

// Run goes on with what another node began, tries again what fails, and hears of what is deleted later.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures, drained := 3, 0
		steps := []namespace.Step{{Name: "one", Do: func(context.Context, string) error {
			if failures > 0 {
				failures--
				return storage.ErrUnavailable
			}
			return nil
		}}}
		f := setup(t, namespace.Options{})
		a, b := f.create("root", "a"), f.create("root", "b")
		f.must(f.Delete(t.Context(), a.ID))
		next := f.node(namespace.Options{Steps: steps, Requests: drain(func(context.Context) error { drained++; return nil })})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { next.Run(ctx) })
		gone := func(id string) {
			t.Helper()
			for range 100 { // of time that costs nothing
				if _, err := next.ByID(ctx, id); kind(err) == engines.KindNotFound {
					return
				}
				advance(t)
			}
			t.Error("it is still there")
		}
		gone(a.ID)
		if failures != 0 || drained != 4 {
			t.Errorf("%d failures left, drained %d times", failures, drained)
		}
		f.must(next.Delete(ctx, b.ID))
		synctest.Wait()
		if _, err := next.ByID(ctx, b.ID); kind(err) != engines.KindNotFound {
			t.Errorf("after a later deletion: %v", err)
		}
		stop()
		wg.Wait()
	})
}

// A request that never ends does not keep a namespace from being deleted.
func TestDrainEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, namespace.Options{Requests: drain(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })})
		a := f.create("root", "a")
		f.must(f.Delete(t.Context(), a.ID))
		stopped, stop := context.WithCancel(t.Context())
		stop()
		if err := f.Resume(stopped); err == nil || f.stored() == 0 {
			t.Error("a node that steps down went on")
		}
		f.must(f.Resume(t.Context()))
		if f.stored() != 0 {
			t.Errorf("%d entries are left", f.stored())
		}
	})
}

// advance lets the bubble's clock run for a second.
func advance(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 1e9)
	defer cancel()
	<-ctx.Done()
}

// Finding the namespace of a request allocates nothing while there are none.
func BenchmarkResolve(b *testing.B) {
	f := setup(b, namespace.Options{})
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := f.Resolve(b.Context(), "", "secret/data/app"); err != nil {
			b.Fatal(err)
		}
	}
}
