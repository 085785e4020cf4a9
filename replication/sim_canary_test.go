package replication_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/replication"
)

// TestSimulationNotices plants mistakes in the model, one at a time, and wants the simulation to find each: a simulation
// that cannot fail proves nothing.
func TestSimulationNotices(t *testing.T) {
	tests := []struct {
		name  string
		bug   bugs
		seeds uint64 // at most
	}{
		{"answers that are older than the stream", bugs{stalePages: true}, 300},
		{"a cursor that is committed apart from the data", bugs{tornCursor: true}, 300},
		{"a state that is durable before its log", bugs{foldWithoutSync: true}, 2000},
		{"a scope that is not the present one", bugs{oldScope: true}, 300},
		{"commits without a condition", bugs{blindCommit: true}, 3000},
		{"a log that is continued from anywhere", bugs{locateAny: true}, 5000},
		{"parts of a change that look exact", bugs{partsExact: true}, 3000},
		{"values that are not kept when they are replaced", bugs{dropCopies: true}, 3000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for seed := range tt.seeds {
				if problem := newWorld(seed+1, tt.bug, nil, false).run(stepsOf(seed + 1)); problem != "" {
					t.Logf("seed %d: %.200s", seed+1, problem)
					return
				}
			}
			t.Errorf("nothing was noticed in %d seeds", tt.seeds)
		})
	}
}

// TestSimulationDoesNotRepairForEver has a primary whose digest of one unit is wrong: that unit is given up after two
// repairs, and goes on with the stream; the others know nothing of it.
func TestSimulationDoesNotRepairForEver(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(seed, bugs{wrongDigest: true}, nil, false)
		pri, l := w.clusters[0], w.links[1]
		rounds := func(n int) {
			for range n {
				w.write(pri)
				w.now += 300
				w.connect(l)
				w.exchange(l)
			}
		}
		rounds(25)
		if got := l.follower.Status().Units["global"]; got != replication.Quarantined {
			t.Fatalf("seed %d: the unit is %s, want it in quarantine", seed, got)
		}
		fetched := l.fetched
		rounds(25)
		if s := l.follower.Status(); s.Quarantined != 1 || l.fetched != fetched || !w.same(l) {
			t.Fatalf("seed %d: %d units in quarantine, %d values were fetched after that, the same: %v", seed, s.Quarantined, l.fetched-fetched, w.same(l))
		}
	}
}

// TestSimulationContinuesWithinABatch has C apply in one batch what made a key and what removed it, and B, which has the key,
// continue C's log: the log must have the removal, although the key never was in C.
func TestSimulationContinuesWithinABatch(t *testing.T) {
	run := func(bug bugs) string {
		w := newWorld(4, bug, nil, true)
		a, b, c := w.clusters[0], w.links[1], w.links[2]
		w.batch = 900
		both := func(l *link) {
			for range 5 {
				w.now += 300
				w.connect(l)
				w.exchange(l)
			}
		}
		both(b)
		both(c)
		w.shared(a, []replication.Item{w.item("s/sys/set/short")})
		both(b)
		w.shared(a, nil, "s/sys/set/short")
		b.cut()
		b.blocked = true
		w.demote(a, false)
		both(c)
		w.promote(c.sec, false)
		b.blocked = false
		w.follow(b, c.sec)
		w.connect(b)
		for range 20 {
			w.toPrimary(b)
			w.fromPrimary(b)
			if !w.alive(b) || w.counts["resumed in another epoch"] != 0 {
				break
			}
		}
		if w.counts["resumed in another epoch"] == 0 {
			t.Fatalf("B has not continued C's log: %s", strings.Join(w.trace, "\n"))
		}
		return guard(func() { w.exchange(b) })
	}
	if problem := run(bugs{}); problem != "" {
		t.Error(problem)
	}
	if problem := run(bugs{quietDeletes: true}); problem == "" {
		t.Error("nothing was noticed without the removal in the log")
	}
}
