package link

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/storage"
)

// replicaOf returns a cluster with a replica and no primary.
func replicaOf(t *testing.T) (*testCluster, *state.Replica) {
	t.Helper()
	s := newTestCluster(t, "s", 1)
	s.admin(func() { s.self.Lineage = storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}} })
	s.nodes[0].lead()
	r := state.NewReplica(s.nodes[0].link.Local, s.nodes[0].link.here().trees)
	if _, err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, r
}

func at(index int) *storage.Position {
	return &storage.Position{Epoch: 1, Index: storage.Index(index)}
}

func item(key storage.Key, size, index int) replication.Item {
	return replication.Item{Key: key, Value: bytes.Repeat([]byte{'x'}, size), Mod: *at(index)}
}

// cursorEntry is what is stored at replication.CursorKey.
type cursorEntry struct {
	Cursor    storage.Position `json:"cursor"`
	TimeMS    int64            `json:"time_ms"`
	Part      bool             `json:"part"`
	Exact     bool             `json:"exact"`
	Conflicts uint64           `json:"conflicts"`
}

// cursors returns the cursor's entries in the node's log, oldest first.
func cursors(t *testing.T, n *testNode) (out []cursorEntry) {
	t.Helper()
	for r, err := range n.log.Records(n.log.Base()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range r.Ops {
			if op.Key == replication.CursorKey && !op.Deleted {
				value, err := unseal(op.Value)
				if err != nil {
					t.Fatal(err)
				}
				var c cursorEntry
				if err := json.Unmarshal(value, &c); err != nil {
					t.Fatal(err)
				}
				out = append(out, c)
			}
		}
	}
	return out
}

func TestReplicaCommit(t *testing.T) {
	s, r := replicaOf(t)
	whole := replication.UnitState{Phase: replication.Whole, Until: *at(3)}
	adding := replication.UnitState{Phase: replication.Adding, Anchor: &replication.Item{Key: anchorKey("b"), Value: []byte("m"), Mod: *at(2)}}
	first := replication.Change{
		Cursor: at(3), TimeMS: 7, Lineage: storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}}, Scope: new(uint64),
		Puts: []replication.Item{item(key("a", 1), 3, 2), item(anchorKey("a"), 3, 1)}, Units: map[replication.Unit]*replication.UnitState{"mount/a": &whole, "mount/b": &adding},
	}
	if err := r.Commit(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := state.NewReplica(s.nodes[0].link.Local, s.nodes[0].link.here().trees)
	got, err := second.Load(t.Context())
	want := replication.State{Cursor: *at(3), Lineage: first.Lineage, Units: map[replication.Unit]replication.UnitState{"mount/a": whole, "mount/b": adding}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("loaded %+v, %v", got, err)
	}
	if e, err := r.Get(t.Context(), key("a", 1)); err != nil || e.Mod != *at(2) {
		t.Errorf("got %+v, %v", e, err)
	}
	if err := r.Commit(t.Context(), replication.Change{Cursor: at(4), Units: map[replication.Unit]*replication.UnitState{"mount/b": nil}}); err != nil {
		t.Fatal(err)
	}
	if err := second.Commit(t.Context(), replication.Change{Cursor: at(5)}); err == nil {
		t.Error("a commit upon a state that is not the last one was made")
	}
	all := cursors(t, s.nodes[0])
	if len(all) != 2 || all[0].Exact || !all[1].Exact || all[1].TimeMS != 7 {
		t.Errorf("the cursors were %+v", all)
	}
}

// A change that is too large for one write says so until it is complete.
func TestReplicaCommitInParts(t *testing.T) {
	s, r := replicaOf(t)
	whole := replication.UnitState{Phase: replication.Whole}
	if err := r.Commit(t.Context(), replication.Change{Cursor: at(1), Units: map[replication.Unit]*replication.UnitState{"mount/a": &whole, "mount/b": &whole}}); err != nil {
		t.Fatal(err)
	}
	c := replication.Change{Cursor: at(50), Puts: []replication.Item{item(anchorKey("a"), 3, 2)}}
	for i := range 30 {
		c.Puts = append(c.Puts, item(key("a", i), 1<<20, 3+i))
	}
	c.Lost = []replication.Conflict{{Item: item(key("a", 1), 1<<20, 40)}, {Item: item(key("a", 2), 1<<20, 40)}}
	before := s.index
	var states []replication.UnitState
	stop := s.nodes[0].OnChange(func(ch storage.Change) { // under the cluster's lock: only looks at the change
		for _, p := range ch.Entries {
			if p.Key == "l/replication/progress/unit/mount/a" {
				states = append(states, replication.UnitState{})
			}
		}
	})
	err := r.Commit(t.Context(), c)
	stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := s.index - before; n < 5 || n > 8 {
		t.Errorf("it took %d writes", n)
	}
	if len(states) != 1 {
		t.Errorf("the state of the unit was written %d times", len(states))
	}
	all := cursors(t, s.nodes[0])
	for i, c := range all[1:] {
		last := i == len(all)-2
		if c.Part == last || c.Exact != last || (c.Cursor == *at(50)) != last {
			t.Errorf("write %d has %+v", i, c)
		}
	}
	if n := all[len(all)-1].Conflicts; n != 2 {
		t.Errorf("%d copies are counted", n)
	}
	state, err := r.Load(t.Context())
	if err != nil || state.Units["mount/a"].Until != *at(50) || state.Units["mount/b"].Until != (storage.Position{}) {
		t.Errorf("loaded %+v, %v", state, err)
	}
	for i := range 30 {
		if _, err := r.Get(t.Context(), key("a", i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConflictsAreBounded(t *testing.T) {
	const maxConflicts = 10_000
	s, r := replicaOf(t)
	many := fmt.Appendf(nil, `{"format":1,"cursor":{},"time_ms":0,"scope":0,"conflicts":%d}`, maxConflicts-1)
	if _, err := (testStore{s}).Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: replication.CursorKey, Value: many}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := r.Commit(t.Context(), replication.Change{Cursor: at(i + 1), Lost: []replication.Conflict{{Item: item(key("a", i), i, 9)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Commit(t.Context(), replication.Change{Cursor: at(9), Deletes: []storage.Key{storage.Key(fmt.Sprintf("l/replication/progress/conflict/%016x", maxConflicts))}}); err != nil {
		t.Fatal(err) // one that was removed half
	}
	copies, err := s.nodes[0].link.Conflicts(t.Context())
	if err != nil || len(copies) != 2 || copies[0].Key != key("a", 0) || copies[1].Key != key("a", 2) {
		t.Errorf("%d copies, %+v, %v", len(copies), copies, err)
	}
	if err := s.nodes[0].link.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state, err := r.Load(t.Context()); err != nil || !state.Cursor.IsZero() {
		t.Errorf("after Reset: %+v, %v", state, err)
	}
	if err := r.Commit(t.Context(), replication.Change{Cursor: at(1)}); err != nil {
		t.Fatal(err)
	}
	if all := cursors(t, s.nodes[0]); all[len(all)-1].Conflicts != maxConflicts+2 {
		t.Errorf("after Reset the next copy is %d", all[len(all)-1].Conflicts)
	}
}

func TestDrop(t *testing.T) {
	const dropAtOnce = 1000
	_, r := replicaOf(t)
	c := replication.Change{Cursor: at(1), Puts: []replication.Item{item(anchorKey("a"), 1, 1), item(anchorKey("b"), 1, 1), item(key("b", 1), 1, 1)}, Units: map[replication.Unit]*replication.UnitState{
		"mount/a": {Phase: replication.Dropping}, "mount/b": {Phase: replication.Whole},
	}}
	for i := range 2*dropAtOnce + 1 {
		c.Puts = append(c.Puts, item(key("a", i), 1, 1))
	}
	if err := r.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		done, err := r.Drop(t.Context(), "mount/a")
		if err != nil {
			t.Fatal(err)
		}
		keys, err := r.Keys(t.Context(), "mount/a", "", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(keys, func(k replication.KeyMod) bool { return k.Key == anchorKey("a") }) {
			t.Error("the anchor is still there")
		}
		if want := max(2*dropAtOnce+1-n*dropAtOnce, 0); len(keys) != want {
			t.Errorf("after %d calls %d keys are left, want %d", n+1, len(keys), want)
		}
		if done != (len(keys) == 0 && n == 4) {
			t.Errorf("call %d is done: %v", n+1, done)
		}
		if done || n > 5 {
			break
		}
	}
	if keys, err := r.Keys(t.Context(), "mount/b", "", "", nil); err != nil || len(keys) != 2 {
		t.Errorf("the other unit has %v, %v", keys, err)
	}
}

// What the trees say after any number of changes is what they would say if they were built now; and pages, keys and trees
// agree.
func TestTreesKeepUp(t *testing.T) {
	p := newTestCluster(t, "p", 1)
	p.enable()
	link := p.nodes[0].link
	trees := link.here().trees
	eventually(t, "the trees are built", func() bool { _, _, ok := trees.Roots(); return ok })
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		for range r.IntN(50) {
			mount := fmt.Sprint("m", r.IntN(3))
			switch r.IntN(8) {
			case 0:
				p.remove(key(mount, r.IntN(100)))
			case 1:
				p.put(anchorKey(mount), "x")
			case 2:
				p.remove(anchorKey(mount))
			case 3:
				p.put("s/sys/root/policies/"+storage.Key(mount), "x")
			case 4:
				foreign := storage.Batch{Puts: []storage.Put{{Key: key(mount, r.IntN(100)), Value: []byte("y"), Origin: *at(r.IntN(50) + 1)}}}
				if _, err := (testStore{p}).Commit(t.Context(), foreign); err != nil {
					t.Fatal(err)
				}
			default:
				p.put(key(mount, r.IntN(100)), "z")
			}
		}
		index, roots, ok := trees.Roots()
		if !ok {
			t.Fatal("they are not there")
		}
		if index != p.nodes[0].AppliedIndex() {
			t.Errorf("they are of %d, want %d", index, p.nodes[0].AppliedIndex())
		}
		fresh := state.NewTrees(link.Local)
		if err := fresh.Build(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, want, _ := fresh.Roots(); !maps.Equal(roots, want) {
			t.Fatalf("round %d: kept up %v, built %v", round, roots, want)
		}
		for unit, root := range roots {
			pages(t, p, unit, root)
		}
	}
}

// pages reads a unit page by page, in random sizes, and compares it with its digest.
func pages(t *testing.T, p *testCluster, unit replication.Unit, root digest.Sum) {
	t.Helper()
	src := state.NewSource(p.nodes[0].link.Local, p.nodes[0].link.here().trees, replication.Peer{})
	replica := state.NewReplica(p.nodes[0].link.Local, p.nodes[0].link.here().trees)
	var sum digest.Sum
	after := storage.Key("")
	for done := false; !done; {
		items, last, end, _, err := src.Page(t.Context(), unit, after, nil, true, 1+rand.IntN(2000))
		if err != nil {
			t.Fatal(err)
		}
		until := last
		if end {
			until = ""
		}
		keys, err := replica.Keys(t.Context(), unit, after, until, nil)
		if err != nil || len(keys) != len(items) {
			t.Fatalf("a page of %d items, and %d keys, %v", len(items), len(keys), err)
		}
		for i, item := range items {
			if item.Key != keys[i].Key || item.Mod != keys[i].Mod || len(item.Value) == 0 {
				t.Fatalf("item %d is %+v, key is %+v", i, item, keys[i])
			}
			sum.Add(digest.Of(item.Key, item.Mod))
		}
		after, done = last, end
	}
	if sum != root {
		t.Fatalf("the pages of %s add up to %v, the digest is %v", unit, sum, root)
	}
}

// Where a promoted cluster can be continued.
func TestLocate(t *testing.T) {
	s, r := replicaOf(t)
	exact := &replication.UnitState{Phase: replication.Whole}
	commit := func(cursor int, state *replication.UnitState, puts ...replication.Item) storage.Index {
		c := replication.Change{Cursor: at(cursor), Puts: puts}
		if state != nil {
			c.Units = map[replication.Unit]*replication.UnitState{"mount/a": state}
		}
		if err := r.Commit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return s.index
	}
	commit(5, &replication.UnitState{Phase: replication.Checking})
	commit(6, nil, item(key("a", 1), 1, 6))
	i7 := commit(7, exact, item(key("a", 1), 1, 7))
	i9 := commit(9, nil, item(key("a", 2), 1, 8), item(key("a", 3), 1, 9))
	src := state.NewSource(s.nodes[0].link.Local, s.nodes[0].link.here().trees, replication.Peer{})
	tests := []struct {
		cursor int
		want   storage.Index // 0: not known
	}{{4, 0}, {5, 0}, {6, 0}, {7, i7}, {8, i7}, {9, i9}, {10, i9}}
	check := func(what string) {
		t.Helper()
		for _, tt := range tests {
			got, ok := src.Locate(t.Context(), *at(tt.cursor))
			if ok != (tt.want != 0) || ok && got != tt.want {
				t.Errorf("%s: %d is located at %d, %v, want %d", what, tt.cursor, got, ok, tt.want)
			}
		}
	}
	check("before the promotion")
	s.admin(func() { s.self.Primary = true })
	if _, err := (testStore{s}).Commit(t.Context(), storage.Batch{Deletes: []storage.Key{replication.CursorKey}}); err != nil {
		t.Fatal(err)
	}
	for i := range tests {
		tests[i].want = 0
	}
	check("after the cursor was taken away")
	s.mu.Lock()
	s.self.Lineage = append(s.self.Lineage, storage.Branch{Epoch: 2, ClusterID: "s", From: *at(9), Base: s.index})
	s.mu.Unlock()
	tests[3].want, tests[4].want, tests[5].want, tests[6].want = i7, i7, i9, i9
	check("after that was a promotion")

	entries, _, err := src.Records(t.Context(), i7, 1<<20)
	if err != nil || len(entries) != 1 || entries[0].At != *at(9) || len(entries[0].Ops) != 2 {
		t.Errorf("the records behind it are %+v, %v", entries, err)
	}
	own := s.put(key("a", 9), "x")
	entries, through, err := src.Records(t.Context(), i9, 1<<20)
	if want := (storage.Position{Epoch: 2, Index: own}); err != nil || through != own || len(entries) != 1 || entries[0].At != want || !entries[0].Ops[0].Fresh {
		t.Errorf("the records of the epoch are %+v through %d, %v", entries, through, err)
	}
	if got, ok := src.Locate(t.Context(), storage.Position{Epoch: 2, Index: own}); !ok || got != own {
		t.Errorf("a position of the own epoch is located at %d, %v", got, ok)
	}

	commitInexact := replication.Change{Cursor: &storage.Position{Epoch: 3, Index: 1}, Units: map[replication.Unit]*replication.UnitState{"mount/a": {Phase: replication.Checking}}}
	if _, err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(t.Context(), commitInexact); err != nil {
		t.Fatal(err)
	}
	for i := range tests {
		tests[i].want = 0
	}
	check("after the cluster was not exact")
	if got, ok := src.Locate(t.Context(), storage.Position{Epoch: 2, Index: own}); ok {
		t.Errorf("a position of the own epoch is located at %d", got)
	}
}

// What a cluster has written in an epoch that the set's history has left keeps its position.
func TestOwnEpochsAreKept(t *testing.T) {
	c := newTestCluster(t, "c", 1)
	link := c.nodes[0].link
	first := c.put(key("a", 1), "of the first epoch")
	lineage := storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}, {Epoch: 2, ClusterID: "c", From: *at(1), Base: first + 1}}
	c.admin(func() { c.self.Lineage, c.self.Demoted = lineage, true })
	own := c.put(key("a", 2), "of the second")
	if err := link.SetCursor(t.Context(), storage.Position{Epoch: 2, Index: own}, lineage, []string{"mount/a"}); err != nil {
		t.Fatal(err)
	}
	c.admin(func() { // it hears of another second epoch
		c.self.Lineage, c.self.Demoted = storage.Lineage{{Epoch: 1, ClusterID: "p", Base: 1}, {Epoch: 2, ClusterID: "b", From: *at(1), Base: 9}}, false
	})
	for _, tt := range []struct{ index, epoch int }{{int(first), 1}, {int(own), 2}, {int(own) + 10, 2}} {
		if got := link.PositionOf(storage.Index(tt.index)); got.Epoch != uint32(tt.epoch) {
			t.Errorf("index %d is of %v, want epoch %d", tt.index, got, tt.epoch)
		}
	}
	c.admin(func() { c.self.ClusterID = "another" }) // it begins from the start: nothing of that counts
	if got := link.PositionOf(own); got.Epoch != 1 {
		t.Errorf("with another id the index is of %v", got)
	}
}

func TestKeep(t *testing.T) {
	c := newTestCluster(t, "c", 1)
	n := c.nodes[0]
	if !n.log.Active() {
		t.Fatal("the log is not kept")
	}
	c.put(key("a", 1), "x")
	base := n.log.Base()
	if err := n.link.Keep(t.Context(), true); err != nil || n.log.Base() != base {
		t.Errorf("kept twice: base %d, %v", n.log.Base(), err)
	}
	if err := n.link.Keep(t.Context(), false); err != nil || n.log.Active() {
		t.Errorf("not kept: %v, %v", n.log.Active(), err)
	}
	if got := n.link.Head(); got != c.index {
		t.Errorf("the head is %d, want %d", got, c.index)
	}
	if err := n.link.Keep(t.Context(), true); err != nil || n.log.Base() != c.index {
		t.Errorf("kept again: base %d, %v", n.log.Base(), err)
	}
}

func TestAwaitCursorFollowsTheFollower(t *testing.T) {
	s, r := replicaOf(t)
	done := make(chan error, 1)
	go func() { done <- s.nodes[0].link.AwaitCursor(t.Context(), *at(7)) }()
	s.nodes[0].link.FollowerAt(*at(6))
	if err := r.Commit(t.Context(), replication.Change{Cursor: at(6)}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(time.Millisecond):
	}
	s.nodes[0].link.FollowerAt(*at(7)) // nothing had to be stored
	if err := <-done; err != nil {
		t.Error(err)
	}
}
