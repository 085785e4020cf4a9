package mount_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

const ns = "root"

// engine answers nothing and notes what it is told.
type engine struct {
	mount engines.Mount
	mu    sync.Mutex
	told  []storage.Key
	fails error // of Initialize
}

func (*engine) Router() *engines.Router { return engines.NewRouter() }

func (e *engine) Changed(_ storage.Class, keys []storage.Key, reset bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told = append(e.told, keys...); reset {
		e.told = append(e.told, "everything")
	}
}

func (e *engine) Initialize(ctx context.Context, m engines.Mount) error {
	if e.fails == nil {
		_, e.fails = m.Storage.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "config", Value: []byte("c")}}})
	}
	return e.fails
}

// fixture is a table over memory whose commits can be made to fail.
type fixture struct {
	*mount.Table
	t      *testing.T
	memory storage.Memory
	refuse func(storage.Batch) error
	broken error // of new engines' Initialize
}

// store is the fixture as the table's store.
type store struct{ *fixture }

func (f store) Get(ctx context.Context, k storage.Key) (storage.Entry, error) {
	return f.memory.Get(ctx, k)
}
func (f store) List(ctx context.Context, p storage.Key, after string, n int) ([]string, error) {
	return f.memory.List(ctx, p, after, n)
}
func (f store) Scan(ctx context.Context, p, after storage.Key, n int) ([]storage.Entry, error) {
	return f.memory.Scan(ctx, p, after, n)
}
func (f store) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if f.refuse != nil {
		if err := f.refuse(b); err != nil {
			return 0, err
		}
	}
	return f.memory.Commit(ctx, b)
}

// dependents are mount.Dependents as a test says.
type dependents struct {
	disable func(ctx context.Context, m *mount.Mounted) error
	move    func(ctx context.Context, m *mount.Mounted, to mount.Target) error
}

func (d dependents) DisableMount(ctx context.Context, m *mount.Mounted) error {
	if d.disable == nil {
		return nil
	}
	return d.disable(ctx, m)
}

func (d dependents) MoveMount(ctx context.Context, m *mount.Mounted, to mount.Target) error {
	if d.move == nil {
		return nil
	}
	return d.move(ctx, m, to)
}

func newTable(f *fixture, edit ...func(*mount.Options)) *mount.Table {
	make := func(m engines.Mount) (engines.Engine, error) { return &engine{mount: m, fails: f.broken}, nil }
	o := mount.Options{
		Store: store{f}, DefaultLeaseTTL: time.Hour, MaxLeaseTTL: 2 * time.Hour,
		Factories: map[string]engines.Factory{"system": make, "token": make, "cubbyhole": make, "kv": make, "userpass": make},
	}
	for _, e := range edit {
		e(&o)
	}
	t := mount.NewTable(o)
	f.memory.OnChange(t.Changed)
	return t
}

func setup(t *testing.T, edit ...func(*mount.Options)) *fixture {
	t.Helper()
	f := &fixture{t: t}
	if _, err := f.memory.Commit(t.Context(), storage.Batch{Puts: mount.Defaults(ns)}); err != nil {
		t.Fatal(err)
	}
	f.Table = newTable(f, edit...)
	if err := f.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) enable(path, kind string, local bool) error {
	e := mount.NewEntry(ns, path, kind, "")
	e.Local = local
	return f.Enable(f.t.Context(), e)
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// paths are the mounts that answer.
func paths(t *testing.T, table *mount.Table) []string {
	t.Helper()
	all, err := table.All(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range all {
		out = append(out, m.Path)
	}
	return out
}

func invalid(err error) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == engines.KindInvalid
}

// count returns the number of stored entries that hold the text in their key.
func (f *fixture) count(text string) (n int) {
	f.t.Helper()
	entries, err := f.memory.Scan(f.t.Context(), "", "", 0)
	f.must(err)
	for _, e := range entries {
		if strings.Contains(string(e.Key), text) {
			n++
		}
	}
	return n
}

func TestResolve(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	f.must(f.enable("b/c/", "kv", false))
	for _, tt := range []struct{ path, mount, rest string }{
		{"a/x/y", "a/", "x/y"}, {"a/", "a/", ""}, {"a", "a/", ""}, {"b/c/x", "b/c/", "x"}, {"b/c", "b/c/", ""},
		{"b/x", "", ""}, {"b", "", ""}, {"ab", "", ""}, {"", "", ""}, {"A/x", "", ""}, {"auth/token/create", "auth/token/", "create"},
	} {
		m, rest, err := f.Resolve(t.Context(), ns, tt.path)
		f.must(err)
		got := ""
		if m != nil {
			got = m.Path
		}
		if got != tt.mount || rest != tt.rest {
			t.Errorf("Resolve(%q) = %q, %q, want %q, %q", tt.path, got, rest, tt.mount, tt.rest)
		}
		if m, _, _ := f.Resolve(t.Context(), "other", tt.path); m != nil {
			t.Errorf("Resolve(%q) in another namespace = %q", tt.path, m.Path)
		}
	}
}

func TestCleanPath(t *testing.T) {
	for path, want := range map[string]string{
		"a": "a/", "/a/b/": "a/b/", "ä b": "ä b/",
		"": "", "/": "", "a//b": "", "a/../b": "", "./a": "", "a*": "", "a/+/b": "", "a\x00": "", "a\n": "", strings.Repeat("a", 513): "",
	} {
		got, err := mount.CleanPath(path)
		if got != want || want == "" && !invalid(err) {
			t.Errorf("CleanPath(%.20q) = %q, %v, want %q", path, got, err, want)
		}
	}
}

func TestEnableRefuses(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/b/", "kv", false))
	for path, kind := range map[string]string{
		"a/b/": "kv", "a/": "kv", "a/b/c/": "kv", "sys/x/": "kv", "sys/": "kv", "auth/x/": "kv", "auth/": "kv", "ui/": "kv", "v1/x/": "kv",
		"cubbyhole/x/": "kv", "auth/token/x/": "userpass", "c/": "userpass", "d/": "nonesuch", "e/": "system", "auth/t/": "token", "g/": "cubbyhole",
		"h/": "identity", "identity/": "kv",
	} {
		if err := f.enable(path, kind, false); !invalid(err) {
			t.Errorf("enabling %s at %s = %v, want invalid", kind, path, err)
		}
	}
	f.broken = errors.New("no")
	if err := f.enable("broken/", "kv", false); !errors.Is(err, f.broken) || slices.Contains(paths(t, f.Table), "broken/") {
		t.Errorf("an engine that cannot begin = %v, mounts %q", err, paths(t, f.Table))
	}
}

// Two nodes that both believe to be active never enable mounts that exclude each other.
func TestEnableFromTwoTables(t *testing.T) {
	f := setup(t)
	other := newTable(f)
	f.must(other.Load(t.Context()))
	f.refuse = func(b storage.Batch) error { // in the middle of the first enable, the second one happens
		if slices.ContainsFunc(b.Puts, func(p storage.Put) bool { return strings.Contains(string(p.Key), "/mounts/") }) {
			f.refuse = nil
			f.must(other.Enable(t.Context(), mount.NewEntry(ns, "a/b/", "kv", "")))
		}
		return nil
	}
	if err := f.enable("a/", "kv", false); !invalid(err) {
		t.Errorf("enabling above a mount that came meanwhile = %v, want invalid", err)
	}
	if got := paths(t, f.Table); slices.Contains(got, "a/") || !slices.Contains(got, "a/b/") {
		t.Errorf("mounts = %q", got)
	}
}

func TestDisableRemovesEverything(t *testing.T) {
	f := setup(t)
	for _, local := range []bool{false, true} {
		f.must(f.enable("a/", "kv", local))
		mounted, err := f.Get(t.Context(), ns, "a/")
		f.must(err)
		if f.count(mounted.UUID) != 2 {
			t.Fatal("the entry or what Initialize wrote is missing")
		}
		f.must(f.Disable(t.Context(), ns, "a/"))
		if n := f.count(mounted.UUID); n != 0 || slices.Contains(paths(t, f.Table), "a/") {
			t.Errorf("%d entries are left, mounts %q", n, paths(t, f.Table))
		}
	}
	f.must(f.Disable(t.Context(), ns, "nothing/"))
	for _, path := range []string{"sys/", "cubbyhole/", "auth/token/", "identity/"} {
		if err := f.Disable(t.Context(), ns, path); !invalid(err) {
			t.Errorf("disabling %s = %v, want invalid", path, err)
		}
	}
}

// A disable that was interrupted keeps its path, goes on when it is asked for again, and when the next active
// node takes over.
func TestInterruptedDisable(t *testing.T) {
	for name, finish := range map[string]func(*fixture, *mount.Table) error{
		"asked again": func(f *fixture, table *mount.Table) error { return table.Disable(f.t.Context(), ns, "a/") },
		"taken over":  func(f *fixture, table *mount.Table) error { return table.Resume(f.t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.must(f.enable("a/", "kv", false))
			mounted, err := f.Get(t.Context(), ns, "a/")
			f.must(err)
			f.refuse = func(b storage.Batch) error {
				if len(b.Deletes) > 0 {
					return storage.ErrUnavailable
				}
				return nil
			}
			if err := f.Disable(t.Context(), ns, "a/"); !errors.Is(err, storage.ErrUnavailable) {
				t.Fatal(err)
			}
			if m, _, _ := f.Resolve(t.Context(), ns, "a/x"); m != nil {
				t.Error("it still answers")
			}
			if err := f.enable("a/", "kv", false); !invalid(err) {
				t.Errorf("enabling another one there = %v, want invalid", err)
			}
			f.refuse = nil
			next := newTable(f)
			f.must(finish(f, next))
			if n := f.count(mounted.UUID); n != 0 {
				t.Errorf("%d entries are left", n)
			}
			f.must(f.enable("a/", "kv", false))
		})
	}
}

// The client may go away: what has begun is finished.
func TestDisableOutlivesItsClient(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	mounted, err := f.Get(t.Context(), ns, "a/")
	f.must(err)
	ctx, gone := context.WithCancel(t.Context())
	f.refuse = func(b storage.Batch) error {
		if len(b.Deletes) > 0 {
			gone()
		}
		return nil
	}
	f.must(f.Disable(ctx, ns, "a/"))
	if n := f.count(mounted.UUID); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestTune(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	was, err := f.Get(t.Context(), ns, "a/")
	f.must(err)
	f.must(f.Tune(t.Context(), ns, "a/", func(e *mount.Entry) error {
		e.Config.DefaultLeaseTTL, e.Config.MaxLeaseTTL = 60, 30
		return nil
	}))
	now, err := f.Get(t.Context(), ns, "a/")
	f.must(err)
	if now.UUID != was.UUID || now.Mount.MaxLeaseTTL != 30*time.Second || now.Mount.DefaultLeaseTTL != 30*time.Second {
		t.Errorf("after tuning: %+v", now.Mount)
	}
	refused := errors.New("no")
	if err := f.Tune(t.Context(), ns, "a/", func(e *mount.Entry) error { e.Description = "x"; return refused }); !errors.Is(err, refused) {
		t.Errorf("a refused change = %v", err)
	}
	if err := f.Tune(t.Context(), ns, "b/", func(*mount.Entry) error { return nil }); !invalid(err) {
		t.Errorf("tuning nothing = %v, want invalid", err)
	}
}

// Every node follows the entries: unchanged engines stay, and hear of changes to their own data only.
func TestFollow(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/", "kv", false))
	f.must(f.enable("b/", "kv", true))
	standby := newTable(f)
	f.must(standby.Load(t.Context()))
	a, err := standby.Get(t.Context(), ns, "a/")
	f.must(err)
	b, err := standby.Get(t.Context(), ns, "b/")
	f.must(err)
	f.must(f.enable("c/", "kv", false))
	if got := paths(t, standby); !slices.Contains(got, "c/") {
		t.Errorf("the standby has %q", got)
	}
	if again, _ := standby.Get(t.Context(), ns, "a/"); again != a {
		t.Error("an unchanged engine was built again")
	}
	_, err = a.Mount.Storage.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "x/y", Value: []byte("1")}}})
	f.must(err)
	if got := a.Engine.(*engine).told; !slices.Equal(got, []storage.Key{"x/y"}) {
		t.Errorf("the engine was told of %q", got)
	}
	if got := b.Engine.(*engine).told; len(got) != 0 {
		t.Errorf("another engine was told of %q", got)
	}
	standby.Changed(storage.Change{Reset: true})
	if got := b.Engine.(*engine).told; !slices.Contains(got, "everything") {
		t.Errorf("after a restore the engine was told of %q", got)
	}
	standby.Clear()
	if got := paths(t, standby); !slices.Equal(got, paths(t, f.Table)) {
		t.Errorf("after Clear: %q", got)
	}
}

// An entry that this version cannot read (of a type that it does not have, it can) must not be skipped: its path would be free.
func TestUnknownEntries(t *testing.T) {
	for _, value := range []string{`{"format":2}`, `{"format":1,"type":"kv"}`, `{"format":1,"uuid":"x","path":"x/"}`, `{`, ``} {
		f := setup(t)
		_, err := f.memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "s/sys/root/mounts/x", Value: []byte(value)}}})
		f.must(err)
		if err := f.Load(t.Context()); err == nil {
			t.Errorf("entry %q was accepted", value)
		}
	}
}
