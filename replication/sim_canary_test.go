package replication_test

import (
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
		{"a log that is continued from anywhere", bugs{locateAny: true}, 20000},
		{"a log without deletions of what was not there", bugs{quietDeletes: true}, 20000},
		{"parts of a change that look exact", bugs{partsExact: true}, 10000},
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
