package replication_test

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/primary"
	"github.com/coffer-project/coffer/replication/secondary"
	"github.com/coffer-project/coffer/storage"
)

// link is the way from a secondary to its primary.
type link struct {
	sec, pri *cluster
	blocked  bool // a partition
	follower *secondary.Follower
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
	session      *primary.Session
	src          *source
	priTerm      int
	scopeAt      storage.Index
	toSec, toPri []replication.Message
	roleAt       storage.Index
	lingers      bool // its node is no longer the active one of the primary, and does not know
	ended        bool // the session ended: what is under way may still arrive
}

func (l *link) cut() {
	l.conn = nil
}

// alive reports whether the stream still has both its ends, and forgets it otherwise.
func (w *world) alive(l *link) bool {
	if l.conn == nil {
		return false
	}
	if l.pri == nil || l.sec.term != l.term || l.sec.active < 0 || l.sec.at().role.mode != asSecondary ||
		len(l.conn.toSec) == 0 && l.conn.ended {
		l.cut()
		return false
	}
	if c := l.conn; !c.ended && c.priTerm != l.pri.term && !c.lingers {
		n := c.src.n
		c.lingers = n.up && w.chance(50) // the node has not noticed yet, and goes on
		c.ended = !c.lingers
	}
	c := l.conn
	if changed := c.src.n.st.roleAt != c.roleAt; changed && (!w.faults || w.chance(30)) || c.lingers && (!c.src.n.up || !w.faults || w.chance(1)) {
		c.ended = true // sooner or later
	}
	return true
}

// connect opens a stream.
func (w *world) connect(l *link) {
	ctx := context.Background()
	if l.pri == nil || l.blocked || l.sec.active < 0 || l.pri.active < 0 || l.sec.at().role.mode != asSecondary || w.alive(l) {
		return
	}
	st := l.pri.at()
	demoted := w.ownLink(l.pri).pri == nil && st.role.mode == asSecondary && len(st.own) > 0
	if p, ok := st.peers[l.sec.name]; !ok || p.revoked || st.role.mode != asPrimary && !demoted {
		return
	}
	w.setCursor(l.sec)
	if l.sec.active < 0 {
		return
	}
	if l.follower == nil || l.term != l.sec.term {
		l.term = l.sec.term
		r := &replica{w: w, l: l, c: l.sec, n: l.sec.nodes[l.sec.active], term: l.term}
		l.follower = secondary.New(r, simLayout, secondary.Options{
			SetID: "set", ClusterID: l.sec.at().id, SmallUnit: 1 + w.small, MaxAsk: 3, Handouts: r,
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
	l.conn = &conn{src: src, priTerm: l.pri.term, roleAt: st.roleAt, scopeAt: st.scopeAt, session: primary.New(src, simLayout, primary.Options{
		BatchBytes: w.batch, PageBytes: w.page, WindowBytes: int64(4 * w.batch), HeartbeatMS: 300, CheckpointMS: 500,
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
	if w.seed%4 > 0 { // it need not be called
		if next := l.follower.Ahead(m); next != nil {
			l.conn.toPri = append(l.conn.toPri, next)
		}
	}
	err := l.follower.Receive(context.Background(), m)
	if _, final := m.(replication.Final); final && err == nil {
		l.final = true // also if the stream ends before Next says so
	}
	if err != nil {
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
	if st := l.pri.at(); errors.Is(err, replication.ErrFenced) && st != nil && st.role.mode == asPrimary {
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
