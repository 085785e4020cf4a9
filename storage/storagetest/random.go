package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// model is a store too simple to be wrong.
type model map[storage.Key]storage.Entry

func (m model) commit(b storage.Batch, at storage.Index) {
	for _, p := range b.Puts {
		m[p.Key] = storage.Entry{Key: p.Key, Value: p.Value, Version: at, Origin: p.Origin}
	}
	for _, k := range b.Deletes {
		delete(m, k)
	}
}

func (m model) holds(reads []storage.Read) bool {
	return !slices.ContainsFunc(reads, func(r storage.Read) bool { return m[r.Key].Version != r.Version })
}

func (m model) scan(prefix, after storage.Key, limit int) []storage.Entry {
	var out []storage.Entry
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.HasPrefix(string(k), string(prefix)) && k > after && (limit <= 0 || len(out) < limit) {
			out = append(out, m[k])
		}
	}
	return out
}

func (m model) list(prefix storage.Key, after string, limit int) []string {
	names := map[string]bool{}
	for k := range m {
		rest, below := strings.CutPrefix(string(k), string(prefix))
		if !below || rest == "" {
			continue
		}
		name, _, folder := strings.Cut(rest, "/")
		if folder {
			name += "/"
		}
		if name > after {
			names[name] = true
		}
	}
	out := slices.Sorted(maps.Keys(names))
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out
}

// testRandom does the same random operations to the store and to the model and compares every answer. The
// seeds are fixed, so that a failure is the same on the next run.
func testRandom(t *testing.T, s storage.Store) {
	if len(mustScan(t, s, "s/", "", 0)) != 0 {
		t.Fatal("the store is not empty")
	}
	m := model{}
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible on purpose
		for op := range 250 {
			step := fmt.Sprintf("seed %d, operation %d", seed, op)
			switch n := r.IntN(10); {
			case n < 5:
				randomCommit(t, s, m, r, step)
			case n < 6:
				key := randomKey(r)
				got, err := s.Get(t.Context(), key)
				want, ok := m[key]
				if ok && (err != nil || !sameEntry(got, want)) || !ok && !errors.Is(err, storage.ErrNotFound) {
					t.Fatalf("%s: Get(%q) = %s, %v; want %s, %v", step, key, describe([]storage.Entry{got}), err, describe([]storage.Entry{want}), ok)
				}
			case n < 8:
				prefix, after, limit := randomFolder(r), string(randomKey(r)[4:]), r.IntN(5)
				got, err := s.List(t.Context(), prefix, after, limit)
				if want := m.list(prefix, after, limit); err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s: List(%q, %q, %d) = %q, %v; want %q", step, prefix, after, limit, got, err, want)
				}
			default:
				prefix, after, limit := randomFolder(r), storage.Key(""), r.IntN(5)
				if r.IntN(2) == 0 {
					after = randomKey(r)
				}
				got := mustScan(t, s, prefix, after, limit)
				if want := m.scan(prefix, after, limit); !slices.EqualFunc(got, want, sameEntry) {
					t.Fatalf("%s: Scan(%q, %q, %d) = %s, want %s", step, prefix, after, limit, describe(got), describe(want))
				}
			}
		}
	}
	wantSame(t, s, m.scan("s/", "", 0))
}

func randomCommit(t *testing.T, s storage.Store, m model, r *rand.Rand, step string) {
	t.Helper()
	var b storage.Batch
	written := map[storage.Key]bool{}
	for range 1 + r.IntN(4) {
		k := randomKey(r)
		if written[k] {
			continue
		}
		written[k] = true
		if r.IntN(3) == 0 {
			b.Deletes = append(b.Deletes, k)
		} else {
			p := put(k, strings.Repeat("v", r.IntN(50))+step)
			if r.IntN(3) == 0 {
				p.Origin = storage.Position{Epoch: 1 + r.Uint32N(3), Index: 1 + storage.Index(r.IntN(1000))}
			}
			b.Puts = append(b.Puts, p)
		}
	}
	for range r.IntN(3) {
		k := randomKey(r)
		read := storage.Read{Key: k, Version: m[k].Version}
		if r.IntN(4) == 0 {
			read.Version = storage.Index(r.IntN(100))
		}
		b.Reads = append(b.Reads, read)
	}
	idx, err := s.Commit(t.Context(), b)
	if holds := m.holds(b.Reads); holds != (err == nil) || !holds && !errors.Is(err, storage.ErrConflict) {
		t.Fatalf("%s: Commit = %v, the preconditions hold: %v", step, err, holds)
	}
	if err == nil {
		m.commit(b, idx)
	}
}

// randomKey is drawn from few enough keys that operations meet.
func randomKey(r *rand.Rand) storage.Key {
	segments := []string{"a", "b", "a-", "a0", "a\x01", "é", "b/"}
	key := "s/m"
	for range 1 + r.IntN(3) {
		key += "/" + segments[r.IntN(len(segments))]
	}
	return storage.Key(key)
}

func randomFolder(r *rand.Rand) storage.Key {
	key := string(randomKey(r))
	return storage.Key(key[:strings.LastIndexByte(key, '/')+1])
}

func sameEntry(a, b storage.Entry) bool {
	return a.Key == b.Key && a.Version == b.Version && a.Origin == b.Origin && bytes.Equal(a.Value, b.Value)
}
