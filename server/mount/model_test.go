package mount_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/mount"
)

// model is what mounts there should be: namespace and path, with the UUID of each.
type model map[[2]string]string

// taken reports whether a mount is at, above or below a path.
func (m model) taken(namespace, path string) bool {
	for at := range m {
		if at[0] == namespace && (strings.HasPrefix(at[1], path) || strings.HasPrefix(path, at[1])) {
			return true
		}
	}
	return false
}

// TestTableIsLikeAMap makes, moves and disables mounts at random, and compares the table with a plain map, after each change and
// after it was read from storage.
func TestTableIsLikeAMap(t *testing.T) {
	f := setup(t)
	random := rand.New(rand.NewPCG(1, 2))
	spaces := []string{ns, "abcdef"}
	place := func() (namespace, path string) {
		for range 1 + random.IntN(3) {
			path += string(rune('a'+random.IntN(5))) + strings.Repeat("x", random.IntN(2)) + "/"
		}
		return spaces[random.IntN(2)], path
	}
	want := model{}
	all, err := f.All(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		want[[2]string{ns, m.Path}] = m.UUID
	}
	for range 600 {
		namespace, path := place()
		at := [2]string{namespace, path}
		switch random.IntN(5) {
		default:
			e := mount.NewEntry(namespace, path, "kv", "")
			if taken, err := want.taken(namespace, path), f.Enable(t.Context(), e); taken != (err != nil) {
				t.Fatalf("enabling %v, taken: %v: %v", at, taken, err)
			} else if !taken {
				want[at] = e.UUID
			}
		case 0:
			if err := f.Disable(t.Context(), namespace, path); err != nil {
				t.Fatal(err)
			}
			delete(want, at)
		case 1:
			toNS, to := place()
			uuid, there := want[at]
			delete(want, at) // it may go to where it is in part itself
			free := there && !want.taken(toNS, to) && at != [2]string{toNS, to}
			if _, err := f.Move(t.Context(), ns, namespace, path, toNS, to); free != (err == nil) {
				t.Fatalf("moving %v to %s %s, free: %v: %v", at, toNS, to, free, err)
			}
			if err := f.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if free {
				want[[2]string{toNS, to}] = uuid
			} else if there {
				want[at] = uuid
			}
		}
		compare(t, f.Table, want, spaces)
	}
	fresh := newTable(f)
	if err := fresh.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	compare(t, fresh, want, spaces)
	for at := range want {
		if at[1] == "sys/" || at[1] == "auth/token/" || at[1] == "cubbyhole/" || at[1] == "identity/" {
			continue
		}
		if err := f.Disable(t.Context(), at[0], at[1]); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := f.HasType(t.Context(), "kv"); has || err != nil {
		t.Errorf("the last mount of a type is gone, and the type is there: %v, %v", has, err)
	}
}

func compare(t *testing.T, table *mount.Table, want model, spaces []string) {
	t.Helper()
	for _, namespace := range spaces {
		paths := []string{}
		for at := range want {
			if at[0] == namespace {
				paths = append(paths, at[1])
			}
		}
		slices.Sort(paths)
		got := []string{}
		all, err := table.All(t.Context(), namespace)
		for _, m := range all {
			got = append(got, m.Path)
		}
		if err != nil || !slices.Equal(got, paths) {
			t.Fatalf("namespace %s has %q, %v; want %q", namespace, got, err, paths)
		}
	}
	for at, uuid := range want {
		below, rest, err := table.Resolve(t.Context(), at[0], at[1]+"data/app")
		same, none, more := table.Resolve(t.Context(), at[0], strings.TrimSuffix(at[1], "/"))
		exact, again := table.Get(t.Context(), at[0], at[1])
		if err = cmp.Or(err, more, again); err != nil || below == nil || below.UUID != uuid || rest != "data/app" || same != below || none != "" || exact != below {
			t.Fatalf("%v resolves to %v, %q, %v, %q, %v, %v", at, below, rest, same, none, exact, err)
		}
		if m, err := table.ByUUID(t.Context(), uuid); m != below || err != nil {
			t.Fatalf("%v by its UUID: %v, %v", at, m, err)
		}
		if m, err := table.ByAccessor(t.Context(), at[0], below.Accessor); m != below || err != nil {
			t.Fatalf("%v by its accessor: %v, %v", at, m, err)
		}
	}
	everywhere, err := table.Everywhere(t.Context())
	if err != nil || len(everywhere) != len(want) || table.Numbers()["mounts"] != float64(len(want)) {
		t.Fatalf("there are %d mounts, %v, counted %v; want %v", len(everywhere), err, table.Numbers(), fmt.Sprint(slices.Collect(maps.Keys(want))))
	}
	for _, m := range everywhere {
		if has, err := table.HasType(t.Context(), m.Type); !has || err != nil {
			t.Fatalf("a mount is there, and not its type %q: %v", m.Type, err)
		}
	}
	if m, _, err := table.Resolve(t.Context(), "nowhere", "a/b"); m != nil || err != nil {
		t.Fatal(m, err)
	}
}
