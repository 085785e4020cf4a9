package mount_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// newer adds the types of a version to come.
func newer(o *mount.Options) {
	withOther(o)
	make := func(m engines.Mount) (engines.Engine, error) { return &engine{mount: m}, nil }
	o.Factories["later"] = make
	o.Factories["laterauth"] = make
}

// unavailable reports whether the error is a 503 that names the type.
func unavailable(err error, kind string) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == engines.KindUnavailable && strings.Contains(e.Detail, `"`+kind+`"`) &&
		strings.Contains(e.Detail, "newer version")
}

// withLater is a table of this version over the data of a newer one, with a mount of its type in each namespace.
func withLater(t *testing.T) (f *fixture, newerTable *mount.Table) {
	t.Helper()
	f = setup(t, withOther)
	f.addOther()
	f.must(f.enable("kv/", "kv", false))
	newerTable = newTable(f, newer)
	for _, in := range []string{ns, other} {
		f.must(newerTable.Enable(t.Context(), mount.NewEntry(in, "later/", "later", "")))
	}
	// What a version knows to be an auth method is not told to the others.
	entry := mount.NewEntry(ns, "auth/later/", "laterauth", "")
	f.must(f.putEntry(entry))
	return f, newerTable
}

func (f *fixture) putEntry(e *mount.Entry) error {
	_, err := f.memory.Commit(f.t.Context(), storage.Batch{Puts: []storage.Put{{
		Key: storage.NewKey(storage.Shared, "sys", e.Namespace+"/mounts/"+e.UUID), Value: []byte(text(f.t, e)),
	}}})
	return err
}

// A type that only a newer version has is the trouble of its mounts, and of nothing else.
func TestUnknownType(t *testing.T) {
	f, _ := withLater(t)
	fresh := newTable(f, withOther) // reads all, where f.Table followed
	for name, table := range map[string]*mount.Table{"followed": f.Table, "loaded": fresh} {
		f.must(table.Load(t.Context()))
		want := []string{"auth/later/", "auth/token/", "cubbyhole/", "identity/", "kv/", "later/", "sys/"}
		if got := paths(t, table); !slices.Equal(got, want) {
			t.Errorf("%s: mounts %v, want %v", name, got, want)
		}
		for _, op := range []engines.Operation{engines.Create, engines.Read, engines.Update, engines.Patch, engines.Delete, engines.List} {
			for _, path := range []string{"later/", "later/a", "later/a/b", "auth/later/login/x"} {
				m, rest, err := table.Resolve(t.Context(), ns, path)
				if err != nil || m == nil {
					t.Fatalf("%s: resolving %s = %v, %v", name, path, m, err)
				}
				route, params, err := m.Engine.Router().Match(op, rest)
				if err != nil {
					t.Errorf("%s: no route for %s %s: %v", name, op, path, err)
					continue
				}
				_, err = route.Serve(t.Context(), &engines.Request{Body: []byte(`{"x":1}`)}, params)
				if !unavailable(err, m.Type) || !route.Flags.Has(engines.Active) {
					t.Errorf("%s: %s %s = %v with flags %v", name, op, path, err, route.Flags)
				}
				if login := m.IsAuth() && (op == engines.Update || op == engines.Create); route.Flags.Has(engines.Unauthenticated) != login {
					t.Errorf("%s: %s %s has flags %v", name, op, path, route.Flags)
				}
			}
		}
		m, err := table.Get(t.Context(), ns, "later/")
		f.must(err)
		err = m.Engine.(engines.Leaser).RevokeLease(t.Context(), m.Mount, engines.LeaseRecord{})
		if !unavailable(err, "later") || !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%s: revoking a lease = %v, want an error that counts as an outage", name, err)
		}
		if _, err := m.Engine.(engines.Renewer).RenewLogin(t.Context(), m.Mount, engines.RenewedLogin{}); !unavailable(err, "later") {
			t.Errorf("%s: renewing a token = %v", name, err)
		}
	}
	f.must(f.enable("another/", "kv", false))
	f.must(f.Disable(t.Context(), ns, "another/"))
	if err := f.enable("later/x/", "kv", false); !invalid(err) {
		t.Errorf("mounting below = %v, want that the path is in use", err)
	}
	if err := f.enable("mine/", "later", false); !invalid(err) {
		t.Errorf("enabling the unknown type = %v", err)
	}
}

// What a newer version has begun to do with its mounts waits for it, and no older version begins anything.
func TestUnknownTypeIsLeftAlone(t *testing.T) {
	f, newerTable := withLater(t)
	begun := mount.NewEntry(ns, "half/", "later", "")
	begun.Deleting = true
	moving := mount.NewEntry(ns, "going/", "later", "")
	moving.Moving = &mount.Target{Migration: "m", Namespace: ns, Path: "there/"}
	for _, e := range []*mount.Entry{begun, moving} {
		f.must(f.putEntry(e))
		_, err := f.memory.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{
			Key: storage.NewKey(storage.Shared, e.UUID, "data"), Value: []byte("v"),
		}}})
		f.must(err)
	}
	all := func() string {
		entries, err := f.memory.Scan(t.Context(), "", "", 0)
		f.must(err)
		return text(t, entries)
	}
	before := all()
	for what, do := range map[string]func(context.Context) error{
		"disable":            func(ctx context.Context) error { return f.Disable(ctx, ns, "later/") },
		"disable once more":  func(ctx context.Context) error { return f.Disable(ctx, ns, "half/") },
		"drop the namespace": func(ctx context.Context) error { return f.DropNamespace(ctx, other) },
		"tune": func(ctx context.Context) error {
			return f.Tune(ctx, ns, "later/", func(*mount.Entry) error { return nil })
		},
		"move":                   func(ctx context.Context) error { _, err := f.Move(ctx, ns, ns, "later/", ns, "else/"); return err },
		"to another namespace":   func(ctx context.Context) error { _, err := f.Move(ctx, ns, ns, "later/", other, "x/"); return err },
		"from another namespace": func(ctx context.Context) error { _, err := f.Move(ctx, ns, other, "later/", ns, "x/"); return err },
	} {
		if err := do(t.Context()); !unavailable(err, "later") {
			t.Errorf("%s = %v, want a 503 that names the type", what, err)
		}
	}
	f.must(f.Resume(t.Context()))
	if after := all(); after != before {
		t.Errorf("something was changed:\n%s\n%s", before, after)
	}
	f.must(newerTable.Resume(t.Context()))
	if got := paths(t, newerTable); !slices.Contains(got, "there/") || slices.Contains(got, "half/") || f.count(begun.UUID) != 0 {
		t.Errorf("the newer version could not go on: %v, %d entries of the disabled mount", got, f.count(begun.UUID))
	}
	f.must(newerTable.DropNamespace(t.Context(), other))
}
