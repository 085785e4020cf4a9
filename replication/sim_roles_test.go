package replication_test

import (
	"slices"
	"strconv"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// What operators do to whole clusters, and how a run ends.

// enrol makes a cluster a secondary from nothing.
func (w *world) enrol(l *link, pri *cluster) {
	id := l.sec.name + strconv.Itoa(int(l.sec.last()))
	w.must(l.sec, entry{newWAL: true, wipe: id, role: &role{mode: asSecondary, lineage: pri.at().role.lineage}})
	l.forget()
	w.follow(l, pri)
}

// forget is for a cluster that is something else from now on.
func (l *link) forget() {
	l.cut()
	l.follower, l.final, l.behind, l.common = nil, false, nil, storage.Position{}
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
		w.now += 300
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
		} else if calm++; calm > 2 {
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
		if r := c.at().role; r.mode == asPrimary {
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
		if st := c.at(); c != best && st.role.mode == asPrimary {
			w.demote(c, true)
		}
	}
	switch st := best.at(); {
	case st.role.mode != asPrimary:
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
	if p := st.progress; st.role.mode == asSecondary && p != nil && len(p.Lineage) > 0 {
		return p.Lineage
	}
	return st.role.lineage
}

// setCursor gives a demoted cluster the cursor from which on it follows, once.
func (w *world) setCursor(c *cluster) {
	st := c.at()
	n := len(st.own)
	if st.role.mode != asSecondary || st.progress != nil || n == 0 {
		return
	}
	p := &replication.State{Cursor: storage.Position{Epoch: st.own[n-1].Epoch, Index: st.roleAt}, Lineage: st.role.lineage, Units: map[replication.Unit]replication.UnitState{}}
	bare := w.chance(20) // a crash came before the units were written
	for _, cell := range st.cells {
		if cell.unit != "" && !bare {
			p.Units[cell.unit] = replication.UnitState{Phase: replication.Whole}
		}
	}
	zero := st.progressAt
	w.must(c, entry{progress: p, needProgress: &zero})
}

// demote makes a primary a secondary that follows no primary yet.
func (w *world) demote(c *cluster, abruptly bool) {
	st := c.at()
	at := w.must(c, entry{role: &role{mode: asSecondary, lineage: st.role.lineage}})
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
	own.pri = nil
}

// promote makes a secondary a primary. The log of one that is not exact cannot be continued: see source.Locate.
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
	own.pri = nil
	for _, l := range w.links { // sessions of an earlier time, and its own stream
		if l.pri == c {
			l.cut()
		}
	}
	own.forget()
	switch {
	case !force:
		w.count("planned promotions")
		w.checkNothingLost(c, lineage, from)
	case whole:
		w.count("forced promotions")
	default:
		w.count("promotions of what was not exact")
	}
	w.must(c, entry{role: &role{mode: asPrimary, lineage: append(lineage, storage.Branch{Epoch: epoch, ClusterID: st.id, From: from})}})
	w.say("%s is promoted (force %v, whole %v): %+v", c.name, force, whole, c.at().role.lineage)
}

// checkNothingLost checks a promotion without force: the former primary has written nothing behind the position that the new
// epoch begins from.
func (w *world) checkNothingLost(c *cluster, lineage storage.Lineage, from storage.Position) {
	last := lineage.Last()
	if from.Epoch != last.Number {
		w.fail("%s is promoted without force at %s, and there was epoch %d", c.name, from, last.Number)
	}
	for _, p := range w.clusters {
		st := p.at()
		if st == nil || st.id != last.ClusterID {
			continue
		}
		end := ^storage.Index(0) // of its time as the primary of that epoch
		for _, b := range st.own {
			if b.Epoch > last.Number {
				end = min(end, b.Base)
			}
		}
		for _, r := range p.nodes[p.active].wal.records {
			if r.primary && len(r.ops) > 0 && r.index > from.Index && r.index < end {
				w.fail("%s is promoted without force at %s, and %s has written at %d", c.name, from, p.name, r.index)
			}
		}
	}
}
