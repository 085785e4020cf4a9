package replication_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// The simulation: three clusters of three nodes, of which one is the primary at first, with the real Session and Follower
// between models of everything else, under faults and changes of roles, all drawn from one seed. COFFER_SIM_SEED=n runs
// one seed and prints what happens; COFFER_SIM_SEEDS=n runs so many.

// bugs are mistakes of the model that the checks must notice: see sim_canary_test.go.
type bugs struct {
	stalePages      bool // answers are older than what was sent before them
	tornCursor      bool // the cursor is committed apart from the data
	foldWithoutSync bool // the state is made durable without the WAL
	oldScope        bool // the scope is that of some entries ago
	blindCommit     bool // a secondary commits whatever happened since it has read
	locateAny       bool // a secondary's log is continued from anywhere, exact or not
	keepLog         bool // one that is promoted when it is not exact keeps its log
	partsExact      bool // between the writes of a change nothing says that units are ahead
	forgetEpochs    bool // a cluster forgets the epochs in which it was the primary when it follows another
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
	tracing  bool
	trace    []string
	rounds   int // that it took to converge
	counts   map[string]int
}

// link is the way from a secondary to its primary.
type link struct {
	sec, pri *cluster
	blocked  bool // a partition
	follower *replication.Follower
	term     int // of sec, that the follower belongs to
	conn     *conn
	final    bool // Final has come, and everything before it
	ref      *state
	refOf    *cluster
	behind   map[storage.Key]replication.Item
	common   storage.Position
	fetched  int // values in answers
}

// conn is one stream.
type conn struct {
	session      *replication.Session
	src          *source
	priTerm      int
	scopeAt      storage.Index
	toSec, toPri []replication.Message
	roleAt       storage.Index
	lingers      bool // its node is no longer the active one of the primary, and does not know
	ended        bool // the session ended: what is under way may still arrive
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
	w.small = w.n(3) * 3
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
	w.must(a, entry{newWAL: true, role: &role{mode: primary, lineage: storage.Lineage{{Epoch: 1, ClusterID: "A"}}}})
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

// enrol makes a cluster a secondary from nothing.
func (w *world) enrol(l *link, pri *cluster) {
	id := l.sec.name + strconv.Itoa(int(l.sec.last()))
	w.must(l.sec, entry{newWAL: true, wipe: id, role: &role{mode: secondary, lineage: pri.at().role.lineage}})
	l.forget()
	w.follow(l, pri)
}

// forget is for a cluster that is something else from now on.
func (l *link) forget() {
	l.cut()
	l.follower, l.behind, l.common = nil, nil, storage.Position{}
}

// follow is update-primary.
func (w *world) follow(l *link, pri *cluster) {
	l.cut()
	if l.pri == nil && l.sec.at() != nil && len(l.sec.at().own) > 0 { // it was demoted: what it still handed out ends with this
		w.setCursor(l.sec)
		r := l.sec.at().role
		w.must(l.sec, entry{role: &r})
	}
	l.pri, l.final = pri, false
	var p peer
	if pri.at() != nil {
		p = pri.at().peers[l.sec.name]
	}
	p.revoked = false
	w.must(pri, entry{peerID: l.sec.name, peer: p})
	w.say("%s follows %s", l.sec.name, pri.name)
}

// run does the steps, and then lets everything come to rest.
func (w *world) run(steps int) (problem string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			problem = string(r)
		default:
			panic(r)
		}
	}()
	w.faults = true
	for range steps {
		w.step()
	}
	w.faults = false
	w.settle()
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

const simSteps = 250

func TestSimulation(t *testing.T) {
	if seed := fromEnv("COFFER_SIM_SEED", 0); seed != 0 {
		if problem, how := simulate(seed, simSteps, bugs{}); problem != "" {
			t.Fatalf("%s\n%s", how, problem)
		}
		return
	}
	seeds := fromEnv("COFFER_SIM_SEEDS", 10_000)
	first := fromEnv("COFFER_SIM_FIRST", 1)
	met, rounds := map[string]int{}, 0
	for seed := first; seed < first+seeds; seed++ {
		w := newWorld(seed, bugs{}, nil, false)
		if problem := w.run(simSteps); problem != "" {
			_, how := simulate(seed, simSteps, bugs{})
			lines := strings.Split(how, "\n")
			t.Fatalf("COFFER_SIM_SEED=%d: %s\n%s", seed, problem, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
		rounds = max(rounds, w.rounds)
		for what, n := range w.counts {
			met[what] += n
		}
	}
	t.Logf("%d seeds, at most %d rounds to converge", seeds, rounds)
	for _, what := range []string{
		"states compared", "streams resumed", "resumed in another epoch", "everything compared", "diverged", "units that began", "units added",
		"units dropped", "planned promotions", "forced promotions", "promotions of what was not exact", "checkpoints", "repairs", "commits with an open outcome", "values kept",
		"damage repaired", "pages cut short", "changes in parts", "restored", "primaries fenced",
	} {
		t.Logf("%9d %s", met[what], what)
		if met[what] == 0 && seeds >= 3000 {
			t.Errorf("there were no %s", what)
		}
	}
}

// session and follower

func (l *link) cut() {
	l.conn = nil
}

// alive reports whether the stream still has both its ends, and forgets it otherwise.
func (w *world) alive(l *link) bool {
	if l.conn == nil {
		return false
	}
	if l.pri == nil || l.sec.term != l.term || l.sec.active < 0 || l.sec.at().role.mode != secondary ||
		len(l.conn.toSec) == 0 && l.conn.ended {
		l.cut()
		return false
	}
	if c := l.conn; !c.ended && c.priTerm != l.pri.term && !c.lingers {
		n := c.src.n
		c.lingers = n.up && w.chance(50) // the node has not noticed yet, and goes on
		c.ended = !c.lingers
	}
	if c := l.conn; c.src.n.st.roleAt != c.roleAt || c.lingers && (!c.src.n.up || !w.faults || w.chance(1)) {
		c.ended = true
	}
	return true
}

// connect opens a stream.
func (w *world) connect(l *link) {
	ctx := context.Background()
	if l.pri == nil || l.blocked || l.sec.active < 0 || l.pri.active < 0 || l.sec.at().role.mode != secondary || w.alive(l) {
		return
	}
	st := l.pri.at()
	demoted := w.ownLink(l.pri).pri == nil && st.role.mode == secondary && len(st.own) > 0
	if p, ok := st.peers[l.sec.name]; !ok || p.revoked || st.role.mode != primary && !demoted {
		return
	}
	w.setCursor(l.sec)
	if l.sec.active < 0 {
		return
	}
	if l.follower == nil || l.term != l.sec.term {
		l.term = l.sec.term
		r := &replica{w: w, l: l, c: l.sec, n: l.sec.nodes[l.sec.active], term: l.term}
		l.follower = replication.NewFollower(r, simLayout, replication.FollowerOptions{
			SetID: "set", ClusterID: l.sec.at().id, SmallUnit: 1 + w.small, MaxAsk: 3, Now: func() int64 { return w.now },
			BeforeDrop: func(context.Context, replication.Unit) bool { return !w.faults || w.chance(70) },
		})
	}
	hello, err := l.follower.Hello(ctx)
	if errors.Is(err, replication.ErrBuilding) {
		return
	}
	if err != nil {
		w.say("%s: hello: %v", l.sec.name, err)
		return
	}
	src := &source{w: w, c: l.pri, n: l.pri.nodes[l.pri.active], peer: l.sec.name}
	l.conn = &conn{src: src, priTerm: l.pri.term, roleAt: st.roleAt, scopeAt: st.scopeAt, session: replication.NewSession(src, simLayout, replication.SessionOptions{
		BatchBytes: 100, WindowBytes: 400, HeartbeatMS: 300, CheckpointMS: 500,
	})}
	if demoted { // it still hands out what there is
		l.conn.session.Demoted(st.applied)
	}
	l.conn.toPri = append(l.conn.toPri, hello)
	w.say("%s → %s: %+v", l.sec.name, l.pri.name, hello)
}

// toSecondary delivers the next message, as toPrimary does; fromPrimary and fromSecondary ask for one to send. They report
// whether there was anything to do.
func (w *world) toSecondary(l *link) bool {
	if !w.alive(l) || len(l.conn.toSec) == 0 {
		return false
	}
	m := l.conn.toSec[0]
	l.conn.toSec = l.conn.toSec[1:]
	w.countAnswer(l, m)
	if err := l.follower.Receive(context.Background(), m); err != nil {
		w.say("%s: %v", l.sec.name, err)
		if errors.Is(err, replication.ErrProtocol) || errors.Is(err, replication.ErrOtherSet) {
			w.fail("%s refuses %T: %v", l.sec.name, m, err)
		}
		l.cut()
	}
	return true
}

func (w *world) toPrimary(l *link) bool {
	if !w.alive(l) || l.conn.ended || len(l.conn.toPri) == 0 {
		return false
	}
	m := l.conn.toPri[0]
	l.conn.toPri = l.conn.toPri[1:]
	w.sessionError(l, l.conn.session.Receive(context.Background(), m))
	return true
}

func (w *world) fromPrimary(l *link) bool {
	if !w.alive(l) || l.conn.ended || len(l.conn.toSec) > 8 {
		return false
	}
	if at := l.conn.src.n.st.scopeAt; at != l.conn.scopeAt {
		l.conn.scopeAt = at
		l.conn.session.ScopeChanged()
	}
	m, err := l.conn.session.Next(context.Background())
	if m != nil {
		w.say("%s ⇒ %s: %T%+v", l.pri.name, l.sec.name, m, m)
		w.checkMessage(l, m)
		w.countMessage(l, m)
		l.conn.toSec = append(l.conn.toSec, m)
	}
	w.sessionError(l, err)
	return m != nil
}

func (w *world) sessionError(l *link, err error) {
	if err == nil {
		return
	}
	w.say("%s: session of %s: %v", l.pri.name, l.sec.name, err)
	l.conn.ended = true
	if errors.Is(err, replication.ErrProtocol) {
		w.fail("%s refuses what %s sent: %v", l.pri.name, l.sec.name, err)
	}
	if st := l.pri.at(); errors.Is(err, replication.ErrFenced) && st != nil && st.role.mode == primary {
		r := st.role
		r.fenced = true
		w.count("primaries fenced")
		w.must(l.pri, entry{role: &r})
	}
	if len(l.conn.toSec) == 0 {
		l.cut()
	}
}

func (w *world) fromSecondary(l *link) bool {
	if !w.alive(l) {
		return false
	}
	m, err := l.follower.Next(context.Background())
	if err != nil {
		w.say("%s: next: %v", l.sec.name, err)
		l.final = l.final || errors.Is(err, replication.ErrFinal)
		l.cut()
		return false
	}
	if m != nil {
		w.say("%s → %s: %T%+v", l.sec.name, l.pri.name, m, m)
		l.conn.toPri = append(l.conn.toPri, m)
	}
	return m != nil || l.follower.Busy()
}

// pump does some of what a stream's two ends do, in any order.
func (w *world) pump(l *link, n int) {
	if w.chance(30) {
		w.connect(l)
	}
	for range n {
		switch w.n(5) {
		case 0:
			w.toSecondary(l)
		case 1:
			w.toPrimary(l)
		case 2:
			w.fromPrimary(l)
		case 3:
			w.fromSecondary(l)
		case 4:
			w.toSecondary(l)
			w.fromSecondary(l)
		}
	}
}

// exchange does everything there is to do, in order.
func (w *world) exchange(l *link) {
	for range 400 {
		busy := false
		for w.toPrimary(l) {
			busy = true
		}
		for range 8 {
			busy = w.fromPrimary(l) || busy
		}
		for w.toSecondary(l) {
			busy = true
		}
		for range 8 {
			busy = w.fromSecondary(l) || busy
		}
		if !busy {
			return
		}
	}
	w.fail("%s and %s do not stop talking", l.sec.name, l.sec.name)
}

// settle ends all faults and disputes, and checks that everybody comes to the same.
func (w *world) settle() {
	for _, c := range w.clusters {
		for _, n := range c.nodes {
			if !n.up {
				c.restart(n)
			}
		}
		if c.active < 0 {
			c.elect(w.n(3))
		}
		c.settle(len(c.limbo))
	}
	pri := w.onePrimary()
	w.say("--- everything settles; the primary is %s", pri.name)
	for _, l := range w.links {
		l.blocked = false
		if l.sec == pri {
			l.cut()
			l.pri = nil
			continue
		}
		if p, ok := pri.at().peers[l.sec.name]; l.pri != pri || !ok || p.revoked {
			w.follow(l, pri)
		}
		w.setCursor(l.sec)
	}
	w.converge(pri)
	w.checkNodes()
	if w.chance(30) {
		w.damage(pri)
	}
}

// converge lets time pass until all secondaries are exact, and a little longer.
func (w *world) converge(pri *cluster) {
	calm := 0
	for round := range 120 {
		w.rounds = max(w.rounds, round)
		w.now += 150
		done := true
		for _, l := range w.links {
			if l.pri != pri {
				continue
			}
			w.connect(l)
			w.exchange(l)
			if !w.arrived(l) {
				done = false
			}
		}
		if !done {
			calm = 0
		} else if calm++; calm > 5 {
			for _, l := range w.links {
				if l.pri == pri {
					w.checkArrived(l)
				}
			}
			return
		}
	}
	for _, l := range w.links {
		if l.pri == pri && !w.arrived(l) {
			w.fail("%s does not converge: %+v; stored %+v", l.sec.name, l.follower.Status(), l.sec.at().progress)
		}
	}
	w.fail("the secondaries do not stay converged")
}

// onePrimary ends with one cluster as the primary: the one that knows of the latest epoch.
func (w *world) onePrimary() *cluster {
	best := w.clusters[0]
	rank := func(c *cluster) int {
		n := int(c.lineage().Epoch()) * 4
		if r := c.at().role; r.mode == primary {
			n += 2
		}
		return n
	}
	for _, c := range w.clusters[1:] {
		if rank(c) > rank(best) {
			best = c
		}
	}
	for _, c := range w.clusters {
		if st := c.at(); c != best && st.role.mode == primary {
			w.demote(c, true)
		}
	}
	switch st := best.at(); {
	case st.role.mode != primary:
		w.setCursor(best)
		w.promote(best, true)
	case st.role.fenced:
		r := st.role
		r.fenced = false
		w.must(best, entry{role: &r})
	}
	return best
}

func (w *world) ownLink(c *cluster) *link { return w.links[slices.Index(w.clusters, c)] }

// lineage returns the history that a cluster knows.
func (c *cluster) lineage() storage.Lineage {
	st := c.at()
	if p := st.progress; st.role.mode == secondary && p != nil && len(p.Lineage) > 0 {
		return p.Lineage
	}
	return st.role.lineage
}

// setCursor gives a demoted cluster the cursor from which on it follows, once.
func (w *world) setCursor(c *cluster) {
	st := c.at()
	n := len(st.own)
	if st.role.mode != secondary || st.progress != nil || n == 0 {
		return
	}
	p := &replication.State{Cursor: storage.Position{Epoch: st.own[n-1].Epoch, Index: st.roleAt}, Lineage: st.role.lineage, Units: map[replication.Unit]replication.UnitState{}}
	for _, cell := range st.cells {
		if cell.unit != "" {
			p.Units[cell.unit] = replication.UnitState{Phase: replication.Whole}
		}
	}
	zero := st.progressAt
	w.must(c, entry{progress: p, needProgress: &zero})
}

// demote makes a primary a secondary that follows nobody yet.
func (w *world) demote(c *cluster, abruptly bool) {
	st := c.at()
	at := w.must(c, entry{role: &role{mode: secondary, lineage: st.role.lineage}})
	w.say("%s is demoted at %d", c.name, at)
	for _, l := range w.links {
		if l.pri == c && l.conn != nil && l.conn.src.n == c.nodes[c.active] && !l.conn.ended {
			if abruptly {
				l.cut()
			} else {
				l.conn.roleAt = c.at().roleAt
				l.conn.session.Demoted(at + storage.Index(w.n(2))*(c.last()-at))
			}
		}
	}
	own := w.ownLink(c)
	own.forget()
	own.pri, own.final = nil, false
}

// promote makes a secondary a primary. One that is not exact begins its log anew a place later, so that nobody resumes.
func (w *world) promote(c *cluster, force bool) {
	st := c.at()
	var from storage.Position
	whole := false
	if st.progress != nil {
		from, whole = st.progress.Cursor, exact(st.progress) && !st.torn
	}
	lineage := slices.Clone(c.lineage())
	epoch := lineage.Epoch() + 1 // two that are promoted by force may take the same
	own := w.ownLink(c)
	own.pri, own.final = nil, false
	for _, l := range w.links { // sessions of an earlier time, and its own stream
		if l.pri == c {
			l.cut()
		}
	}
	own.forget()
	switch {
	case !force:
		w.count("planned promotions")
	case whole:
		w.count("forced promotions")
	default:
		w.count("promotions of what was not exact")
	}
	w.must(c, entry{role: &role{mode: primary, lineage: append(lineage, storage.Branch{Epoch: epoch, ClusterID: st.id, From: from})}})
	if !whole && !w.bug.keepLog {
		w.must(c, entry{newWAL: true})
	}
	w.say("%s is promoted (force %v, whole %v): %+v", c.name, force, whole, c.at().role.lineage)
}
