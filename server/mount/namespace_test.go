package mount_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// other is a namespace below the root, at "other/".
const other = "n2"

// withOther makes the table know the namespace other.
func withOther(o *mount.Options) {
	o.Namespaces = &spaces{}
}

// spaces are the root and other, until that is gone.
type spaces struct{ gone bool }

func (*spaces) Path(id string) string { return map[string]string{other: "other/"}[id] }

func (*spaces) At(_ context.Context, id, path string) (bool, error) {
	return id == ns && strings.HasPrefix(path, "other/"), nil
}

func (s *spaces) Guard(_ context.Context, _ *storage.Txn, id string) error {
	if id != ns && (id != other || s.gone) {
		return engines.NotFound("namespace not found")
	}
	return nil
}

func (f *fixture) addOther() {
	f.t.Helper()
	_, err := f.memory.Commit(f.t.Context(), storage.Batch{Puts: mount.Defaults(other)})
	f.must(err)
}

func (f *fixture) enableIn(namespace, path, kind string, local bool) (*mount.Mounted, error) {
	e := mount.NewEntry(namespace, path, kind, "")
	e.Local = local
	if err := f.Enable(f.t.Context(), e); err != nil {
		return nil, err
	}
	return f.Get(f.t.Context(), namespace, path)
}

func TestNamespaces(t *testing.T) {
	f := setup(t, withOther)
	f.addOther()
	for path, local := range map[string]bool{"a/": false, "b/": true} {
		inRoot, err := f.enableIn(ns, path, "kv", local)
		f.must(err)
		inOther, err := f.enableIn(other, path, "kv", local)
		f.must(err)
		if m := inOther.Mount; m.NamespaceID != other || m.Namespace != "other/" || m.Path != path || m.Local != local {
			t.Errorf("the engine is told %+v", m)
		}
		if m := inRoot.Mount; m.NamespaceID != ns || m.Namespace != "" {
			t.Errorf("the engine is told %+v", m)
		}
		for namespace, want := range map[string]*mount.Mounted{ns: inRoot, other: inOther} {
			if m, rest, err := f.Resolve(t.Context(), namespace, path+"x"); m != want || rest != "x" || err != nil {
				t.Errorf("Resolve in %s = %v, %q, %v", namespace, m, rest, err)
			}
		}
		if m, err := f.ByAccessor(t.Context(), other, inOther.Accessor); m != inOther || err != nil {
			t.Errorf("ByAccessor = %v, %v", m, err)
		}
		if m, _ := f.ByAccessor(t.Context(), ns, inOther.Accessor); m != nil {
			t.Error("a mount of another namespace is found by its accessor")
		}
		if m, err := f.ByUUID(t.Context(), inOther.UUID); m != inOther || err != nil {
			t.Errorf("ByUUID = %v, %v", m, err)
		}
	}
	all, err := f.All(t.Context(), other)
	f.must(err)
	var got []string
	for _, m := range all {
		got = append(got, m.Path)
	}
	if want := []string{"a/", "auth/token/", "b/", "cubbyhole/", "identity/", "sys/"}; !slices.Equal(got, want) {
		t.Errorf("mounts %q, want %q", got, want)
	}
	if _, err := f.enableIn(ns, "other/x/", "kv", false); !invalid(err) || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("enabling where a namespace is = %v, want invalid", err)
	}
	if _, err := f.enableIn("gone", "x/", "kv", false); err == nil {
		t.Error("enabling in a namespace that is not there worked")
	}
}

// A namespace and a mount that want the same place never both get it.
func TestReserve(t *testing.T) {
	f := setup(t)
	f.must(f.enable("a/b/", "kv", false))
	reserve := func(path string, during func()) error {
		_, err := storage.Update(t.Context(), &f.memory, func(tx *storage.Txn) error {
			if err := f.Reserve(t.Context(), tx, ns, path); err != nil {
				return err
			}
			during()
			during = func() {}
			tx.Put("s/namespace/x", []byte("1"))
			return nil
		})
		return err
	}
	for path, free := range map[string]bool{"a/": false, "a/b/": false, "sys/": false, "b/": true, "ab/": true} {
		if err := reserve(path, func() {}); (err == nil) != free || !free && !invalid(err) {
			t.Errorf("Reserve(%q) = %v", path, err)
		}
	}
	if err := reserve("c/", func() { f.must(f.enable("c/x/", "kv", false)) }); !invalid(err) {
		t.Errorf("reserving what is mounted meanwhile = %v, want invalid", err)
	}
}

func TestDropNamespace(t *testing.T) {
	var told []string
	f := setup(t, withOther, func(o *mount.Options) {
		o.Dependents = dependents{disable: func(_ context.Context, m *mount.Mounted) error { told = append(told, m.Path); return nil }}
	})
	f.must(f.enable("a/", "kv", false))
	before, err := f.memory.Scan(t.Context(), "", "", 0)
	f.must(err)
	f.addOther()
	for i := range 300 {
		e := mount.NewEntry(other, fmt.Sprintf("m%d/", i), "kv", "")
		e.Local = i%2 == 0
		f.must(f.Enable(t.Context(), e))
	}
	deletes := 0
	f.refuse = func(b storage.Batch) error {
		if len(b.Deletes) > 0 {
			if deletes++; deletes > 50 {
				return storage.ErrUnavailable
			}
		}
		return nil
	}
	if err := f.DropNamespace(t.Context(), other); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatal(err)
	}
	f.refuse = nil
	next := newTable(f, withOther, func(o *mount.Options) {
		o.Dependents = dependents{disable: func(_ context.Context, m *mount.Mounted) error { told = append(told, m.Path); return nil }}
	})
	f.must(next.DropNamespace(t.Context(), other))
	f.must(next.DropNamespace(t.Context(), other))
	if all, err := f.All(t.Context(), other); len(all) != 0 || err != nil {
		t.Errorf("%d mounts are left, %v", len(all), err)
	}
	f.must(storage.DeletePrefix(t.Context(), &f.memory, "l/sys/"+other+"/")) // what the namespace itself leaves
	after, err := f.memory.Scan(t.Context(), "", "", 0)
	f.must(err)
	if len(after) != len(before) {
		t.Errorf("%d entries were there, %d are left", len(before), len(after))
	}
	for _, path := range []string{"m0/", "m299/", "sys/", "cubbyhole/"} {
		if !slices.Contains(told, path) {
			t.Errorf("DisableMount was not told of %s", path)
		}
	}
	if err := f.DropNamespace(t.Context(), ns); err == nil {
		t.Error("the root's mounts could be dropped")
	}
}

// A data directory that an older version made lacks what that version did not know.
func TestEnsureDefaults(t *testing.T) {
	old := func(t *testing.T) *fixture {
		f := &fixture{t: t}
		for _, p := range append(mount.Defaults(ns), mount.Defaults(other)...) {
			if !strings.Contains(string(p.Value), `"type":"identity"`) {
				_, err := f.memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{p}})
				f.must(err)
			}
		}
		f.Table = newTable(f, withOther)
		return f
	}
	f := old(t)
	for range 2 {
		f.must(f.EnsureDefaults(t.Context()))
		for _, namespace := range []string{ns, other} {
			m, err := f.Get(t.Context(), namespace, "identity/")
			f.must(err)
			all, err := f.All(t.Context(), namespace)
			f.must(err)
			if m == nil || m.Type != "identity" || m.Engine.Router() == nil || len(all) != 4 {
				t.Errorf("%s: identity %v, %d mounts", namespace, m, len(all))
			}
		}
	}
	f = old(t)
	f.must(f.enable("identity/", "kv", false)) // as could be done then
	f.must(f.EnsureDefaults(t.Context()))
	if m, err := f.Get(t.Context(), ns, "identity/"); err != nil || m.Type != "kv" {
		t.Errorf("what was there is now %v, %v", m, err)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Tables that follow the changes have the routes of one that reads everything.
func TestFollowModel(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 2))
		f := setup(t, withOther)
		f.addOther()
		standby := newTable(f, withOther)
		namespaces := []string{ns, other}
		path := func() string { return strings.Repeat(string(rune('a'+r.IntN(3)))+"/", 1+r.IntN(2)) }
		for range 80 {
			in, at := namespaces[r.IntN(2)], path()
			switch r.IntN(5) {
			case 0, 1:
				_, _ = f.enableIn(in, at, "kv", r.IntN(2) == 0)
			case 2:
				f.must(f.Disable(t.Context(), in, at))
			case 3:
				_ = f.Tune(t.Context(), in, at, func(e *mount.Entry) error { e.Description += "."; return nil })
			case 4:
				_, _ = f.Move(t.Context(), ns, in, at, namespaces[r.IntN(2)], path())
				if r.IntN(3) > 0 {
					f.must(f.Resume(t.Context()))
				}
			}
			if r.IntN(4) > 0 {
				continue // let changes gather
			}
			full := newTable(f, withOther)
			for _, in := range namespaces {
				want, err := full.All(t.Context(), in)
				f.must(err)
				for name, table := range map[string]*mount.Table{"active": f.Table, "standby": standby} {
					got, err := table.All(t.Context(), in)
					f.must(err)
					same := slices.EqualFunc(got, want, func(a, b *mount.Mounted) bool {
						there, _ := table.ByUUID(t.Context(), a.UUID)
						found, _ := table.ByAccessor(t.Context(), in, a.Accessor)
						routed, _, _ := table.Resolve(t.Context(), in, a.Path+"x")
						return text(t, a.Entry) == text(t, b.Entry) && there == a && found == a && (routed == a) == (a.Moving == nil)
					})
					if !same {
						t.Fatalf("seed %d: the %s table differs from what is stored in %s", seed, name, in)
					}
				}
			}
		}
	}
}
