package namespace_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/storage"
)

// TestNamespacesArriveInAnyOrder gives a store the entries of a tree in random order, and takes them away so, as a cluster that
// follows another may see them. After each it knows of a namespace what those that are there say.
func TestNamespacesArriveInAnyOrder(t *testing.T) {
	of := setup(t, namespace.Options{})
	paths := map[string]string{} // by id
	for _, path := range []string{"a", "a/b", "a/b/c", "a/b/c/d", "a/x", "e", "e/b", "e/b/c"} {
		paths[of.create("", path).ID] = path
	}
	locked, deleting := map[string]bool{}, map[string]bool{} // by path
	for id, path := range paths {
		switch path {
		case "a/b", "a/b/c":
			_, err := of.Lock(t.Context(), id)
			of.must(err)
			locked[path] = true
		case "e/b/c":
			of.must(of.Delete(t.Context(), id))
			deleting[path] = true
		}
	}
	var entries []storage.Entry
	for id := range paths {
		e, err := of.memory.Get(t.Context(), storage.NewKey(storage.Shared, "namespace", id))
		of.must(err)
		entries = append(entries, e)
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := setup(t, namespace.Options{})
		there := map[string]bool{} // paths
		check := func() {
			t.Helper()
			for id, path := range paths {
				n, err := f.ByID(t.Context(), id)
				if there[path] != (err == nil) {
					t.Fatalf("seed %d: %s, there: %v: %v", seed, path, there[path], err)
				}
				reach, lock, gone := true, false, false
				var above []string
				for at := path; at != "" && reach; at = at[:max(0, strings.LastIndexByte(at, '/'))] {
					if reach = there[at]; reach {
						lock, gone, above = lock || locked[at], gone || deleting[at], append(above, at)
					}
				}
				if err == nil && (n.Locked() != lock || n.Deleting != gone) {
					t.Fatalf("seed %d: %s is locked: %v, deleting: %v", seed, path, n.Locked(), n.Deleting)
				}
				if got, rest, err := f.Resolve(t.Context(), path, "rest"); (reach && !gone) != (err == nil) || err == nil && (got.ID != id || rest != "rest") {
					t.Fatalf("seed %d: %s, in reach: %v, resolves to %v %q, %v", seed, path, reach, got, rest, err)
				}
				if ids := f.Above(t.Context(), id); reach && len(ids) != len(above) {
					t.Fatalf("seed %d: above %s are %v", seed, path, ids)
				}
			}
		}
		shuffled := slices.Clone(entries)
		for _, arrive := range []bool{true, false} {
			r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			for _, e := range shuffled {
				b := storage.Batch{Deletes: []storage.Key{e.Key}}
				if arrive {
					b = storage.Batch{Puts: []storage.Put{{Key: e.Key, Value: e.Value}}}
				}
				_, err := f.memory.Commit(t.Context(), b)
				f.must(err)
				there[paths[e.Key.Path()]] = arrive
				check()
			}
		}
	}
}

// TestNamesakeTakesOver gives a store two namespaces of one name, as a cluster that follows may get the new one before the former one
// is gone. Whichever goes, the other one has the name, and what lies below it.
func TestNamesakeTakesOver(t *testing.T) {
	var former, next []storage.Put
	for _, out := range []*[]storage.Put{&former, &next} {
		of := setup(t, namespace.Options{})
		for _, path := range []string{"team", "team/app"} {
			key := storage.NewKey(storage.Shared, "namespace", of.create("", path).ID)
			e, err := of.memory.Get(t.Context(), key)
			of.must(err)
			*out = append(*out, storage.Put{Key: key, Value: e.Value})
		}
	}
	for _, order := range [][2][]storage.Put{{former, next}, {next, former}} {
		for gone, stays := range map[int]int{0: 1, 1: 0} {
			f := setup(t, namespace.Options{})
			commit := func(b storage.Batch) {
				t.Helper()
				_, err := f.memory.Commit(t.Context(), b)
				f.must(err)
				_, _, _ = f.Resolve(t.Context(), "team/app", "") // it reads each change by itself
			}
			for _, puts := range order {
				commit(storage.Batch{Puts: puts})
			}
			for i := range order[gone] {
				commit(storage.Batch{Deletes: []storage.Key{order[gone][len(order[gone])-1-i].Key}})
			}
			for i, path := range []string{"team", "team/app"} {
				if got, _, err := f.Resolve(t.Context(), path, ""); err != nil || got.ID != order[stays][i].Key.Path() {
					t.Errorf("%s without number %d of the two: %v, %v", path, gone, got, err)
				}
			}
		}
	}
}
