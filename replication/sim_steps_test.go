package replication_test

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// kind is one kind of step, with how often it is taken.
type kind struct {
	name   string
	weight int
	do     func(*world)
}

var kinds []kind

func init() {
	kinds = []kind{
		{"pump", 600, func(w *world) { w.pump(w.someLink(), 1+w.n(12)) }},
		{"exchange", 30, func(w *world) { w.exchange(w.someLink()) }},
		{"connect", 60, func(w *world) { w.connect(w.someLink()) }},
		{"time", 60, func(w *world) { w.now += int64(w.n(800)) }},
		{"write", 180, func(w *world) { w.write(w.primary()) }},
		{"local", 15, func(w *world) { w.local(w.some()) }},
		{"mount", 30, (*world).mount},
		{"unmount", 12, (*world).unmount},
		{"move", 12, (*world).move},
		{"namespace", 10, (*world).namespace},
		{"filter", 30, (*world).filter},
		{"revoke", 2, (*world).revoke},
		{"enrol", 4, func(w *world) { w.reEnrol(w.someLink()) }},
		{"repair", 4, func(w *world) { w.operatorRepair(w.someLink()) }},
		{"cut", 10, func(w *world) { w.someLink().cut() }},
		{"partition", 4, func(w *world) { l := w.someLink(); l.blocked = !l.blocked; l.cut() }},
		{"apply", 40, (*world).applySome},
		{"elect", 6, func(w *world) { w.some().elect(w.n(3)) }},
		{"crash", 5, func(w *world) { w.some().crash(w.n(3)) }},
		{"fold", 20, func(w *world) { w.fold(w.some(), w.n(3)) }},
		{"trim", 5, (*world).trim},
		{"snapshot", 4, (*world).installSnapshot},
		{"switch", 4, (*world).switchOver},
		{"demote", 2, func(w *world) { w.demoteSome() }},
		{"promote", 8, func(w *world) { w.promoteSome() }},
		{"force", 1, func(w *world) { w.forceSome() }},
		{"return", 2, (*world).comeBack},
		{"follow", 10, func(w *world) { w.followSome() }},
		{"backup", 6, func(w *world) { w.backup(w.n(len(w.clusters))) }},
		{"restore", 2, func(w *world) { w.restore(w.n(len(w.clusters))) }},
	}
}

// step does one.
func (w *world) step() {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	at := w.n(total)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			if !w.off[k.name] {
				k.do(w)
			}
			return
		}
	}
}

func (w *world) some() *cluster  { return w.clusters[w.n(len(w.clusters))] }
func (w *world) someLink() *link { return w.links[w.n(len(w.links))] }

// primary returns one that takes shared writes, or nil. After a forced promotion there may be two.
func (w *world) primary() *cluster {
	first := w.n(len(w.clusters))
	for i := range w.clusters {
		c := w.clusters[(first+i)%len(w.clusters)]
		if st := c.at(); st != nil && st.role.mode != asSecondary && !st.role.fenced {
			return c
		}
	}
	return nil
}

func (w *world) value() []byte {
	w.values++
	return []byte("v" + strconv.Itoa(w.values) + strings.Repeat(".", w.n(30)))
}

// shared commits a change of shared data, as package server does it: on the condition that the role has not changed.
func (w *world) shared(c *cluster, puts []replication.Item, deletes ...storage.Key) {
	if len(puts)+len(deletes) == 0 {
		return
	}
	at, err := c.commit(entry{needRole: c.at().roleAt, puts: puts, deletes: deletes})
	if w.tracing {
		var keys []storage.Key
		for _, it := range puts {
			keys = append(keys, it.Key)
		}
		w.say("%s writes %d: puts %v deletes %v %v", c.name, at, keys, deletes, err)
	}
}

func (w *world) item(k storage.Key) replication.Item {
	return replication.Item{Key: k, Value: w.value()}
}

var letters = []string{"a", "b", "c", "d", "e/a", "e/b"}

// someKey draws a key of anything that exists, or of what is not of any unit.
func (w *world) someKey(st *state) storage.Key {
	letter := letters[w.n(len(letters))]
	switch n := w.n(20); {
	case n < 13:
		if mounts := st.mountKeys(); len(mounts) > 0 {
			k := mounts[w.n(len(mounts))]
			return "s/" + k[strings.LastIndexByte(string(k), '/')+1:] + storage.Key("/"+letter)
		}
		return storage.Key("s/sys/set/" + letter)
	case n < 15:
		return storage.Key("s/sys/" + st.someSpace(w) + "/policies/" + letter)
	case n < 16:
		return storage.Key("s/identity/" + st.someSpace(w) + "/" + letter)
	case n < 17:
		return storage.Key("s/sys/audit/" + letter)
	case n < 18:
		return storage.Key("s/namespace/root/" + letter)
	case n < 19:
		return storage.Key("s/junk/" + letter)
	}
	return storage.Key("s/sys/set/" + letter)
}

func (s *state) mountKeys() (keys []storage.Key) {
	for _, c := range s.below("s/sys/") {
		if simAnchor(c.Key) {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

func (s *state) spaces() (ids []string) {
	for _, c := range s.below("s/namespace/") {
		if simAnchor(c.Key) {
			ids = append(ids, string(c.Key[len("s/namespace/"):]))
		}
	}
	return ids
}

func (s *state) someSpace(w *world) string {
	all := append([]string{"root"}, s.spaces()...)
	return all[w.n(len(all))]
}

// write is one transaction of one to four keys.
func (w *world) write(c *cluster) {
	if c == nil || c.at() == nil {
		return
	}
	st := c.at()
	var puts []replication.Item
	var deletes []storage.Key
	used := map[storage.Key]bool{}
	for range 1 + w.n(4) {
		k := w.someKey(st)
		if used[k] {
			continue
		}
		used[k] = true
		if w.chance(25) {
			deletes = append(deletes, k)
		} else {
			puts = append(puts, w.item(k))
		}
	}
	w.shared(c, puts, deletes...)
}

func (w *world) local(c *cluster) {
	if c.at() != nil {
		c.commit(entry{puts: []replication.Item{w.item(storage.Key("l/own/" + letters[w.n(4)]))}})
	}
}

func (w *world) mount() {
	c := w.primary()
	if c == nil || len(c.at().mountKeys()) > 5 {
		return
	}
	w.mounts++
	id := "m" + strconv.Itoa(w.mounts)
	puts := []replication.Item{w.item(storage.Key("s/sys/" + c.at().someSpace(w) + "/mounts/" + id))}
	for _, letter := range letters[:w.n(4)] {
		puts = append(puts, w.item(storage.Key("s/"+id+"/"+letter)))
	}
	w.shared(c, puts)
}

// unmount removes a mount's entry; what it held goes before, with it, or is left behind.
func (w *world) unmount() {
	c := w.primary()
	if c == nil || len(c.at().mountKeys()) == 0 {
		return
	}
	keys := c.at().mountKeys()
	k := keys[w.n(len(keys))]
	u, _ := simUnit(k)
	var held []storage.Key
	c.at().keys(u, "", nil, func(c cell) bool { held = append(held, c.Key); return true })
	switch w.n(3) {
	case 0:
		held = nil
	case 1:
		n := w.n(len(held) + 1)
		w.shared(c, nil, held[:n]...)
		if held = held[n:]; c.at() == nil {
			return
		}
	}
	w.shared(c, nil, append(held, k)...)
}

// move takes a mount to another namespace.
func (w *world) move() {
	c := w.primary()
	if c == nil || len(c.at().mountKeys()) == 0 {
		return
	}
	keys := c.at().mountKeys()
	k := keys[w.n(len(keys))]
	to := storage.Key("s/sys/"+c.at().someSpace(w)) + k[strings.LastIndex(string(k), "/mounts/"):]
	if to != k {
		w.shared(c, []replication.Item{w.item(to)}, k)
	}
}

// namespace makes one, or removes one with its mounts' entries, or without.
func (w *world) namespace() {
	c := w.primary()
	if c == nil {
		return
	}
	all := c.at().spaces()
	if len(all) < 3 && w.chance(70) || len(all) == 0 {
		w.spaces++
		id := storage.Key("n" + strconv.Itoa(w.spaces))
		puts := []replication.Item{w.item("s/namespace/" + id), w.item("s/namespace/root/" + id)}
		if w.chance(50) {
			puts = append(puts, w.item("s/sys/"+id+"/policies/a"))
		}
		w.shared(c, puts)
		return
	}
	id := storage.Key(all[w.n(len(all))])
	deletes := []storage.Key{"s/namespace/" + id}
	if w.chance(60) {
		for _, cell := range c.at().below("s/sys/" + id + "/") {
			deletes = append(deletes, cell.Key)
		}
	}
	w.shared(c, nil, deletes...)
}

// filter changes what a secondary may have.
func (w *world) filter() {
	c := w.primary()
	if c == nil || c.at().role.mode != asPrimary {
		return
	}
	l := w.someLink()
	p, ok := c.at().peers[l.sec.name]
	if !ok {
		return
	}
	p.deny, p.units = w.chance(50), ""
	if w.chance(70) {
		p.units = " mount/m" + strconv.Itoa(1+w.n(w.mounts+1)) + " "
		if w.chance(50) {
			p.units += "mount/m" + strconv.Itoa(1+w.n(w.mounts+1)) + " "
		}
		if w.chance(30) {
			p.units += "ns/n" + strconv.Itoa(1+w.n(w.spaces+1)) + " "
		}
	} else {
		p.deny = false
	}
	_, err := c.commit(entry{needRole: c.at().roleAt, peerID: l.sec.name, peer: p})
	w.say("%s: filter of %s: deny %v %q %v", c.name, l.sec.name, p.deny, p.units, err)
}

func (w *world) revoke() {
	c := w.primary()
	if c == nil || c.at().role.mode != asPrimary {
		return
	}
	l := w.someLink()
	if p, ok := c.at().peers[l.sec.name]; ok {
		p.revoked = true
		_, err := c.commit(entry{needRole: c.at().roleAt, peerID: l.sec.name, peer: p})
		w.say("%s revokes %s %v", c.name, l.sec.name, err)
	}
}

// reEnrol makes a secondary once more: everything it had is wiped.
func (w *world) reEnrol(l *link) {
	if c := w.primary(); c != nil && c.at().role.mode == asPrimary && l.sec != c && l.sec.at() != nil && l.sec.at().role.mode == asSecondary {
		w.say("%s is enabled anew", l.sec.name)
		w.enrol(l, c)
	}
}

func (w *world) operatorRepair(l *link) {
	if w.alive(l) {
		w.count("repairs")
		w.say("%s: repair", l.sec.name)
		if err := l.follower.Repair(context.Background(), "operator"); err != nil {
			w.say("%s: %v", l.sec.name, err)
			l.cut()
		}
	}
}

// applySome lets a node that is not the active one go on.
func (w *world) applySome() {
	c := w.some()
	i := w.n(3)
	n := c.nodes[i]
	if i == c.active || len(c.log) == 0 {
		return
	}
	if !n.up {
		c.restart(n)
	}
	c.catchUp(n, n.st.applied+storage.Index(1+w.n(40)))
}

func (w *world) fold(c *cluster, i int) {
	if n := c.nodes[i]; n.up {
		c.foldNow(n)
	}
}

// trim takes the oldest records from a WAL: too many of them, or one that cannot be read.
func (w *world) trim() {
	n := w.some().nodes[w.n(3)]
	if n.up && len(n.wal.records) > 0 {
		n.wal.drop(1 + w.n(len(n.wal.records)))
	}
}

func (w *world) installSnapshot() {
	c := w.some()
	if i := w.n(3); c.active >= 0 && i != c.active {
		c.nodes[i].up = true
		c.snapshot(c.nodes[i], c.nodes[c.active])
	}
}

func (w *world) demoteSome() {
	if c := w.primary(); c != nil && c.at().role.mode == asPrimary {
		w.demote(c, false)
	}
}

// switchOver is a planned change of the primary, as far as nothing comes between.
func (w *world) switchOver() {
	c, l := w.primary(), w.someLink()
	if c == nil || c.at().role.mode != asPrimary || l.pri != c {
		return
	}
	for range w.n(5) { // of which the others have got only a part
		w.write(c)
		w.pump(w.someLink(), 5)
		if c.at() == nil {
			return
		}
	}
	w.connect(l)
	w.exchange(l)
	if c.at() == nil || l.sec.at() == nil || l.sec.at().progress == nil || !exact(l.sec.at().progress) {
		return
	}
	w.demote(c, false)
	for range 4 {
		if !l.final {
			w.connect(l)
			w.now += 300
			w.exchange(l)
		}
	}
	if !l.final || l.sec.at() == nil || !exact(l.sec.at().progress) {
		return
	}
	w.promote(l.sec, false)
	for _, other := range w.links {
		if other != l && w.chance(70) && other.sec.at() != nil && other.sec.at().role.mode == asSecondary {
			w.follow(other, l.sec)
		}
	}
}

// promoteSome promotes by the rules: exact, and at the end of what the demoted primary had.
func (w *world) promoteSome() {
	l := w.someLink()
	if l.sec.at() == nil || !l.final || l.sec.at().progress == nil || !exact(l.sec.at().progress) || l.pri.at() == nil || l.pri.at().role.mode == asPrimary {
		return
	}
	w.promote(l.sec, false)
}

// forceSome promotes whatever the state.
func (w *world) forceSome() {
	if c := w.some(); c.at() != nil && c.at().role.mode == asSecondary {
		w.setCursor(c)
		w.promote(c, true)
	}
}

// comeBack demotes a primary and has it follow another one, which may be of an earlier epoch: that one is fenced then.
func (w *world) comeBack() {
	from, to := w.primary(), w.primary()
	if from == nil || from == to || from.at().role.mode != asPrimary || to.at().role.mode != asPrimary {
		return
	}
	w.demote(from, true)
	w.follow(w.ownLink(from), to)
	w.connect(w.ownLink(from))
}

// followSome is update-primary.
func (w *world) followSome() {
	l, c := w.someLink(), w.primary()
	if c == nil || c == l.sec || c.at().role.mode != asPrimary || l.pri == c && w.chance(80) {
		return
	}
	if st := l.sec.at(); st != nil && st.role.mode == asPrimary && l.sec.lineage().Epoch() < c.lineage().Epoch() {
		w.demote(l.sec, true) // the old primary learns of the new one
	}
	if st := l.sec.at(); st != nil && st.role.mode == asSecondary {
		w.follow(l, c)
	}
}

func (w *world) backup(i int) {
	if st := w.clusters[i].at(); st != nil {
		w.backups[i] = st.clone()
	}
}

// restore puts a backup in the place of the state, if the cluster still is what it was then.
func (w *world) restore(i int) {
	c, b := w.clusters[i], w.backups[i]
	if b == nil || c.at() == nil || b.roleAt != c.at().roleAt || b.torn {
		return
	}
	at := w.must(c, entry{restore: b, newWAL: true})
	w.links[i].forget()
	w.links[i].cut()
	c.elect(c.active)
	w.count("restored")
	w.say("%s is restored to %d at %d", c.name, b.applied, at)
}

// damage changes what secondaries hold behind everybody's back, and watches that no more than that is repaired.
func (w *world) damage(pri *cluster) {
	for _, l := range w.links {
		if l.pri != pri {
			continue
		}
		var puts []replication.Item
		var deletes []storage.Key
		units := map[replication.Unit]bool{}
		for _, c := range l.sec.at().cells {
			if c.unit == "" || simAnchor(c.Key) || !w.chance(15) {
				continue
			}
			units[c.unit] = true
			switch w.n(3) {
			case 0:
				deletes = append(deletes, c.Key)
			case 1:
				c.Mod.Index--
				puts = append(puts, replication.Item{Key: c.Key, Value: []byte("damaged"), Mod: c.Mod})
			case 2:
				puts = append(puts, replication.Item{Key: c.Key + "~", Value: []byte("extra"), Mod: c.Mod})
			}
		}
		if len(puts)+len(deletes) == 0 {
			continue
		}
		w.must(l.sec, entry{puts: puts, deletes: deletes})
		w.say("%s is damaged: %d puts %v deletes %v", l.sec.name, len(puts), puts, deletes)
		l.fetched = 0
		for round := 0; ; round++ {
			w.now += 300
			w.connect(l)
			w.exchange(l)
			if w.same(l) {
				w.count("damage repaired")
				break
			}
			if round > 60 {
				w.fail("%s does not repair damage: %+v; stored %+v", l.sec.name, l.follower.Status(), l.sec.at().progress)
			}
		}
		if limit := len(puts) + len(deletes); l.fetched > limit {
			w.fail("%s fetched %d values to repair %d keys", l.sec.name, l.fetched, limit)
		}
		for range 5 {
			w.now += 300
			w.exchange(l)
		}
		w.checkArrived(l)
	}
}

func sortedUnits[V any](m map[replication.Unit]V) []replication.Unit {
	out := make([]replication.Unit, 0, len(m))
	for u := range m {
		out = append(out, u)
	}
	slices.Sort(out)
	return out
}
