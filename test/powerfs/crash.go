package powerfs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
)

// Loss is what becomes of what was not synced.
type Loss int

// The ways to lose it.
const (
	LoseNothing Loss = iota // as if only the process had been killed
	LoseAll
	LoseLatest // what was done after some moment; the write of that moment is torn
	LoseSome   // any operations and sectors, in any combination
	Losses     // how many there are
)

func (l Loss) String() string {
	return [...]string{"nothing", "everything", "the latest", "some"}[l]
}

// Crash returns what the disk may hold if the power is cut before the at-th operation of its Power. Syncs for which
// ignore returns true are ones that the disk has answered without doing them; nil: none. The same arguments give the same image.
func (d *Disk) Crash(at int, loss Loss, seed uint64, ignore func(Sync) bool) *Image {
	d.power.mu.Lock()
	log := d.log // it only grows
	next := d.next
	d.power.mu.Unlock()
	c := crash{nodes: d.start.clone(), pending: map[uint64][]op{}}
	for _, o := range log {
		if o.at >= at {
			break
		}
		switch {
		case o.write != nil:
			c.pending[o.write.node] = append(c.pending[o.write.node], o)
		case o.changes != nil:
			c.names = append(c.names, o)
		case o.sync.failed:
			delete(c.pending, o.sync.node)
		case ignore != nil && ignore(o.sync.what):
		case o.sync.what.Dir:
			c.syncDir(o.sync.node)
		default:
			c.syncFile(o.sync.node)
		}
	}
	c.lose(at, loss, rand.New(rand.NewPCG(seed, uint64(at))))
	return c.image(next)
}

// crash is the state of a disk on the way to an image.
type crash struct {
	nodes   map[uint64]*node // durable
	pending map[uint64][]op  // writes to each file that are not
	names   []op             // changes of directories that are not
}

// node returns the durable state of a node, which may not have a durable name.
func (c *crash) node(id uint64) *node {
	n := c.nodes[id]
	if n == nil {
		n = &node{mode: 0o600}
		c.nodes[id] = n
	}
	return n
}

func (c *crash) syncFile(id uint64) {
	for _, o := range c.pending[id] {
		c.node(id).content.apply(*o.write)
	}
	delete(c.pending, id)
}

// syncDir applies what was changed in a directory, and in those that something was moved to or from on the way.
func (c *crash) syncDir(id uint64) {
	dirs, durable := map[uint64]bool{id: true}, make([]bool, len(c.names))
	for i, o := range slices.Backward(c.names) {
		durable[i] = slices.ContainsFunc(o.changes, func(x change) bool { return dirs[x.dir] })
		if durable[i] {
			for _, x := range o.changes {
				dirs[x.dir] = true
			}
		}
	}
	var left []op
	for i, o := range c.names {
		if durable[i] {
			c.change(o.changes)
		} else {
			left = append(left, o)
		}
	}
	c.names = left
}

func (c *crash) change(changes []change) {
	for _, x := range changes {
		dir := c.node(x.dir)
		if dir.entries == nil {
			dir.entries = map[string]uint64{}
		}
		if x.node == 0 {
			delete(dir.entries, x.name)
			continue
		}
		n := c.node(x.node)
		if old := c.nodes[n.parent]; old != nil && old.entries[n.name] == x.node {
			delete(old.entries, n.name) // the rename that had removed it was lost; there are no links
		}
		dir.entries[x.name] = x.node
		n.mode, n.parent, n.name = x.mode, x.dir, x.name
	}
}

// lose applies what survives of what is pending.
func (c *crash) lose(at int, loss Loss, r *rand.Rand) {
	if loss == LoseAll {
		return
	}
	rest := slices.Clone(c.names)
	for _, id := range slices.Sorted(maps.Keys(c.pending)) {
		rest = append(rest, c.pending[id]...)
	}
	if len(rest) == 0 {
		return
	}
	slices.SortFunc(rest, func(a, b op) int { return a.at - b.at })
	latest := len(rest)
	if loss == LoseLatest {
		latest = r.IntN(len(rest))
	}
	survives, torn := 1.0, 0.0
	if loss == LoseSome {
		survives, torn = []float64{0.1, 0.5, 0.9}[r.IntN(3)], []float64{0, 0.3}[r.IntN(2)]
	}
	for i, o := range rest[:min(len(rest), latest+1)] {
		tear := i == latest || r.Float64() < torn
		switch {
		case i < latest && r.Float64() >= survives:
		case o.changes != nil:
			if i < latest {
				c.change(o.changes)
			}
		case tear:
			c.tear(*o.write, r)
		default:
			c.node(o.write.node).content.apply(*o.write)
		}
	}
}

// tear applies some of the sectors of a write: the first ones, the last ones, or any. The size may be that of the whole.
func (c *crash) tear(w write, r *rand.Rand) {
	if w.data == nil {
		return
	}
	content := &c.node(w.node).content
	end := w.off + int64(len(w.data))
	first, count := w.off/sectorBytes, (end-1)/sectorBytes-w.off/sectorBytes+1
	how, split := r.IntN(3), r.Int64N(count+1)
	for i := range count {
		if how == 0 && i >= split || how == 1 && i < split || how == 2 && r.IntN(2) == 0 {
			continue
		}
		from, to := max(w.off, (first+i)*sectorBytes), min(end, (first+i+1)*sectorBytes)
		content.apply(write{off: from, data: w.data[from-w.off : to-w.off]})
	}
	if r.IntN(2) == 0 && end > content.size {
		content.truncate(end)
	}
}

// image keeps what has a name.
func (c *crash) image(next uint64) *Image {
	i := &Image{nodes: map[uint64]*node{}, next: next}
	var keep func(id uint64)
	keep = func(id uint64) {
		i.nodes[id] = c.node(id)
		for _, child := range i.nodes[id].entries {
			keep(child)
		}
	}
	keep(rootID)
	return i
}

// Named returns the moments before which a path, from the root of the disk, came to stand for a file.
func (d *Disk) Named(name string) (moments []int) {
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	for _, o := range d.log {
		for _, x := range o.changes {
			if x.node != 0 && path.Join(d.pathLocked(x.dir), x.name) == name {
				moments = append(moments, o.at)
			}
		}
	}
	return moments
}

// Describe says what the disk's syncs and unsynced operations were up to a moment, the latest last, for messages of tests.
func (d *Disk) Describe(at, count int) []string {
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	var lines []string
	for _, o := range d.log {
		if o.at >= at {
			break
		}
		if o.at < at-count {
			continue
		}
		switch {
		case o.sync != nil:
			lines = append(lines, fmt.Sprintf("%d sync %q, failed: %v", o.at, o.sync.what.Path, o.sync.failed))
		case o.changes != nil:
			for _, x := range o.changes {
				lines = append(lines, fmt.Sprintf("%d %q in %q is node %d", o.at, x.name, d.pathLocked(x.dir), x.node))
			}
		default:
			lines = append(lines, fmt.Sprintf("%d write %q at %d: %d bytes", o.at, d.pathLocked(o.write.node), o.write.off, len(o.write.data)))
		}
	}
	return lines
}
