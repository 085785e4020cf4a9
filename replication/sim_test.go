package replication_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// The simulation: three clusters of three nodes, of which one is the primary at first, with the real Session and Follower
// between models of everything else, under faults and changes of roles, all drawn from one seed. COFFER_SIM_SEED=n runs
// one seed and prints what happens; COFFER_SIM_SEEDS=n runs so many, from COFFER_SIM_FIRST on; -short means 500.

// bugs are mistakes of the model that the checks must notice: see sim_canary_test.go.
type bugs struct {
	stalePages      bool // answers are older than what was sent before them
	tornCursor      bool // the cursor is committed apart from the data
	foldWithoutSync bool // the state is made durable without the WAL
	oldScope        bool // the scope is that of some entries ago
	blindCommit     bool // a secondary commits whatever happened since it has read
	locateAny       bool // a secondary's log is continued from anywhere, exact or not
	quietDeletes    bool // the WAL does not have deletions of what was not there
	partsExact      bool // between the writes of a change nothing says that units are ahead
	wrongDigest     bool // what a primary says of one unit never agrees with what it has
	dropCopies      bool // what a repair replaces is not kept
}

type world struct {
	seed     uint64
	rng      *rand.Rand
	now      int64
	faults   bool
	bug      bugs
	off      map[string]bool // kinds of steps that are left out
	clusters []*cluster
	links    []*link // of each cluster, when it is a secondary
	backups  []*state
	values   int
	mounts   int
	spaces   int
	small    int // FollowerOptions.SmallUnit
	batch    int // SessionOptions.BatchBytes
	page     int // PageBytes
	tracing  bool
	trace    []string
	rounds   int // that it took to converge
	counts   map[string]int
}

type failure string

// noise is what makes a trace hard to read.
var noise = regexp.MustCompile(`replication\.|\{A:[0-9]+ B:[0-9]+ Count:[0-9]+\} ?|Value:\[[0-9 ]*\] |Bytes:[0-9]+ ?|TimeMS:[0-9]+ ?|Delete:false |Fresh:false|Buckets:<nil> |Addrs:\[.\]|Proto[A-Za-z]*:1 ?|SetID:set `)

func (w *world) fail(format string, a ...any) { panic(failure(fmt.Sprintf(format, a...))) }

func (w *world) say(format string, a ...any) {
	if w.tracing {
		w.trace = append(w.trace, noise.ReplaceAllString(fmt.Sprintf(format, a...), ""))
	}
}

// count counts what a run has met, so that one can see what it was worth.
func (w *world) count(what string) { w.counts[what]++ }

func (w *world) n(n int) int             { return w.rng.IntN(n) }
func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func newWorld(seed uint64, bug bugs, off map[string]bool, tracing bool) *world {
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), now: 1000, bug: bug, off: off, tracing: tracing, counts: map[string]int{}}
	w.small, w.batch = w.n(3)*3, []int{60, 120, 360, 900}[w.n(4)]
	w.page = w.batch * (1 + 3*w.n(2))
	for i := range 3 {
		c := newCluster(w, string(rune('A'+i)))
		w.clusters = append(w.clusters, c)
		w.links = append(w.links, &link{sec: c})
	}
	w.backups = make([]*state, len(w.clusters))
	a := w.clusters[0]
	for range w.n(4) {
		w.write(a)
	}
	w.must(a, entry{newWAL: true, role: &role{mode: asPrimary, lineage: storage.Lineage{{Epoch: 1, ClusterID: "A"}}}})
	for i, c := range w.clusters[1:] {
		w.must(c, entry{puts: []replication.Item{{Key: "s/m99/old", Value: []byte("old")}, {Key: "l/own/a", Value: []byte("own")}}})
		w.enrol(w.links[i+1], a)
	}
	return w
}

// must commits something that operators do, and that they see done.
func (w *world) must(c *cluster, e entry) storage.Index {
	e.timeMS = w.now
	if c.active < 0 {
		c.elect(w.n(3))
	}
	c.settle(len(c.limbo))
	at, err := c.append(e)
	if err != nil {
		w.fail("%s: an operator's change was refused: %v", c.name, err)
	}
	return at
}

// run does the steps, and then lets everything come to rest.
func (w *world) run(steps int) (problem string) {
	return guard(func() {
		w.faults = true
		for range steps {
			w.step()
		}
		w.faults = false
		w.settle()
	})
}

// guard returns what a check found, or "".
func guard(f func()) (problem string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			problem = string(r)
		default:
			panic(r)
		}
	}()
	f()
	return ""
}

// simulate runs one seed. If it fails, it tries to fail with less, and returns how.
func simulate(seed uint64, steps int, bug bugs) (problem, how string) {
	problem = newWorld(seed, bug, nil, false).run(steps)
	if problem == "" {
		return "", ""
	}
	off := map[string]bool{}
	for range 2 {
		for _, k := range kinds {
			if off[k.name] {
				continue
			}
			off[k.name] = true
			if p := newWorld(seed, bug, off, false).run(steps); p == "" {
				delete(off, k.name)
			}
		}
		for n := steps / 2; n > 0; n /= 2 {
			for steps > n && newWorld(seed, bug, off, false).run(steps-n) != "" {
				steps -= n
			}
		}
	}
	w := newWorld(seed, bug, off, true)
	problem = w.run(steps)
	trace := w.trace
	return problem, fmt.Sprintf("seed %d, %d steps\n%s", seed, steps, strings.Join(trace, "\n"))
}

func fromEnv(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// stepsOf returns how many steps a seed takes: short runs are easier to read, long ones meet more.
func stepsOf(seed uint64) int { return 60 + int(seed%5)*45 }

func TestSimulation(t *testing.T) {
	if seed := fromEnv("COFFER_SIM_SEED", 0); seed != 0 {
		if problem, how := simulate(seed, stepsOf(seed), bugs{}); problem != "" {
			t.Fatalf("%s\n%s", how, problem)
		}
		return
	}
	usual := uint64(10_000)
	if testing.Short() {
		usual = 500
	}
	seeds := fromEnv("COFFER_SIM_SEEDS", usual)
	first := fromEnv("COFFER_SIM_FIRST", 1)
	const parts = 4
	var (
		mu     sync.Mutex
		met    = map[string]int{}
		rounds int
	)
	t.Run("seeds", func(t *testing.T) {
		for part := range uint64(parts) {
			t.Run(strconv.FormatUint(part, 10), func(t *testing.T) {
				t.Parallel()
				for seed := first + part; seed < first+seeds && !t.Failed(); seed += parts {
					w := newWorld(seed, bugs{}, nil, false)
					problem := w.run(stepsOf(seed))
					mu.Lock()
					rounds = max(rounds, w.rounds)
					for what, n := range w.counts {
						met[what] += n
					}
					mu.Unlock()
					if problem != "" {
						_, how := simulate(seed, stepsOf(seed), bugs{})
						lines := strings.Split(how, "\n")
						t.Errorf("COFFER_SIM_SEED=%d: %s\n%s", seed, problem, strings.Join(lines[max(0, len(lines)-60):], "\n"))
					}
				}
			})
		}
	})
	t.Logf("%d seeds, at most %d rounds to converge", seeds, rounds)
	for _, what := range []string{
		"states compared", "streams resumed", "resumed in another epoch", "everything compared", "diverged", "units that began", "units added",
		"units dropped", "planned promotions", "forced promotions", "promotions of what was not exact", "checkpoints", "repairs", "commits with an open outcome", "values kept",
		"damage repaired", "pages cut short", "changes in parts", "restored", "primaries fenced",
	} {
		t.Logf("%9d %s", met[what], what)
		if met[what] == 0 && seeds >= 10_000 {
			t.Errorf("there were no %s", what)
		}
	}
}
