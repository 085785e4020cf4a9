// Package powerfs is a file system that can lose power. A Disk keeps its files in memory, serves them to an unchanged program
// through FUSE, and records every operation that changes something, and every sync, in one order. Disk.Crash then makes
// an Image of what a disk may hold if the power is cut before the n-th operation: what was synced is there, and of the rest
// some writes, sectors of writes and directory entries survive, others do not. A new Disk begins with an Image.
//
// The recorded operations make crashes cheap and repeatable: one run of a program gives as many crashes as it has
// operations, times the ways to lose what was not synced. Disks that share a Power share its order, so that several nodes
// lose power at the same moment. A test notes Power.Now when a response arrives: whatever was acknowledged then must be in every image
// of that moment and of later ones.
//
// The model of a disk and its file system:
//
//   - fsync and fdatasync of a file make its writes and its size durable, not its name. A write to a file that is open with
//     O_SYNC or O_DSYNC is synced by itself.
//   - fsync of a directory makes durable what was created, renamed and removed in it. A rename is one step, also
//     between two directories: it is durable once one of them is.
//   - A sector of 512 bytes is written whole or not at all. Everything else that was not synced may survive in any
//     combination; a file that grew may have zeros where its data was lost.
//   - Modes are durable at once. There are no links, devices or extended attributes.
//
// Crash takes a function that says which syncs the disk answers without doing them. A test that finds no fault with such a
// disk would not find a program that left these syncs out.
//
// Start reading at Disk, then crash.go, then fuse_linux.go.
package powerfs

import (
	"io/fs"
	"maps"
	"path"
	"strings"
	"sync"
)

const (
	sectorBytes = 512
	pageBytes   = 4096
	rootID      = 1
)

// Power is what Disks share that lose power together. Safe for concurrent use.
type Power struct {
	mu sync.Mutex // guards the disks too: their operations have one order
	n  int
}

// Now returns how many operations there have been on all disks.
func (p *Power) Now() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// Sync is one call of fsync or its like.
type Sync struct {
	Path string // of what is synced, from the root of the disk, without a slash in front; "" is the root
	Dir  bool
}

// Disk is one file system. Safe for concurrent use.
type Disk struct {
	power *Power
	start *Image
	log   []op
	nodes map[uint64]*node
	next  uint64
	fail  func(Sync) bool // nil: no sync fails
}

// FailSyncs has the syncs of files for which fail returns true fail from now on; nil: none. What they were to make durable is in the files as long
// as there is power and never reaches the disk, unless it is written again: so does Linux.
func (d *Disk) FailSyncs(fail func(Sync) bool) {
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	d.fail = fail
}

// node is a file or directory. Nodes stay until the disk goes: a file without a name may still be open.
type node struct {
	mode    fs.FileMode
	content content           // of a file
	entries map[string]uint64 // of a directory
	// Where it is, to name it.
	parent uint64
	name   string
}

// op is one recorded operation. Exactly one of its parts is set.
type op struct {
	at      int
	write   *write
	changes []change
	sync    *syncOp
}

type write struct {
	node uint64
	off  int64  // of data; the new size if data is nil
	data []byte // nil: the size is set
}

// change makes a name stand for a node, 0: for nothing.
type change struct {
	dir  uint64
	name string
	node uint64
	mode fs.FileMode // of the node
}

type syncOp struct {
	node   uint64
	what   Sync
	failed bool
}

// Image is what a disk holds without power. It does not change.
type Image struct {
	nodes map[uint64]*node
	next  uint64
}

// NewDisk returns a disk that begins with an image, empty if that is nil.
func NewDisk(p *Power, from *Image) *Disk {
	if from == nil {
		from = &Image{nodes: map[uint64]*node{rootID: {mode: fs.ModeDir | 0o755}}, next: rootID + 1}
	}
	return &Disk{power: p, start: from, nodes: from.clone(), next: from.next}
}

func (i *Image) clone() map[uint64]*node {
	nodes := make(map[uint64]*node, len(i.nodes))
	for id, n := range i.nodes {
		c := *n
		c.content, c.entries = n.content.clone(), maps.Clone(n.entries)
		if c.mode.IsDir() && c.entries == nil {
			c.entries = map[string]uint64{}
		}
		nodes[id] = &c
	}
	return nodes
}

// Walk calls visit for every file, in no order, with its path from the root of the disk and what returns its content.
func (i *Image) Walk(visit func(name string, content func() []byte)) {
	var walk func(id uint64, at string)
	walk = func(id uint64, at string) {
		n := i.nodes[id]
		if !n.mode.IsDir() {
			visit(at, n.content.bytes)
			return
		}
		for name, child := range n.entries {
			walk(child, path.Join(at, name))
		}
	}
	walk(rootID, "")
}

// Edit returns an image in which the content of one file was changed in place, the same one if there is no such file.
func (i *Image) Edit(name string, edit func(content []byte)) *Image {
	changed := &Image{nodes: i.clone(), next: i.next}
	id := uint64(rootID)
	for part := range strings.SplitSeq(name, "/") {
		if id = changed.nodes[id].entries[part]; id == 0 {
			return i
		}
	}
	content := &changed.nodes[id].content
	b := content.bytes()
	edit(b)
	content.apply(write{data: b})
	return changed
}

// recordLocked appends an operation.
func (d *Disk) recordLocked(o op) {
	o.at = d.power.n
	d.power.n++
	d.log = append(d.log, o)
}

func (d *Disk) writeLocked(id uint64, w write) {
	w.node = id
	d.nodes[id].content.apply(w)
	d.recordLocked(op{write: &w})
}

// changeLocked changes directory entries in one step.
func (d *Disk) changeLocked(changes ...change) {
	for _, c := range changes {
		if c.node == 0 {
			delete(d.nodes[c.dir].entries, c.name)
			continue
		}
		d.nodes[c.dir].entries[c.name] = c.node
		n := d.nodes[c.node]
		n.parent, n.name = c.dir, c.name
	}
	d.recordLocked(op{changes: changes})
}

func (d *Disk) createLocked(dir uint64, name string, mode fs.FileMode) uint64 {
	n := &node{mode: mode}
	if mode.IsDir() {
		n.entries = map[string]uint64{}
	}
	id := d.next
	d.next++
	d.nodes[id] = n
	d.changeLocked(change{dir, name, id, mode})
	return id
}

// syncLocked reports whether the sync was done.
func (d *Disk) syncLocked(id uint64) bool {
	what := Sync{d.pathLocked(id), d.nodes[id].mode.IsDir()}
	failed := d.fail != nil && !what.Dir && d.fail(what)
	d.recordLocked(op{sync: &syncOp{id, what, failed}})
	return !failed
}

func (d *Disk) pathLocked(id uint64) string {
	if id == rootID {
		return ""
	}
	n := d.nodes[id]
	return path.Join(d.pathLocked(n.parent), n.name)
}

// content is what is in a file. Its pages are shared and never changed; one that is missing is all zeros.
type content struct {
	size  int64
	pages map[int64][]byte
}

func (c *content) clone() content { return content{c.size, maps.Clone(c.pages)} }

func (c *content) apply(w write) {
	if w.data == nil {
		c.truncate(w.off)
		return
	}
	if c.pages == nil {
		c.pages = map[int64][]byte{}
	}
	off, data := w.off, w.data
	for len(data) > 0 {
		number, within := off/pageBytes, int(off%pageBytes)
		page := make([]byte, pageBytes)
		copy(page, c.pages[number])
		n := copy(page[within:], data)
		c.pages[number] = page
		off, data = off+int64(n), data[n:]
	}
	c.size = max(c.size, off)
}

func (c *content) truncate(size int64) {
	if size < c.size {
		maps.DeleteFunc(c.pages, func(number int64, _ []byte) bool { return number*pageBytes >= size })
		if within := size % pageBytes; within != 0 && c.pages[size/pageBytes] != nil {
			page := make([]byte, pageBytes)
			copy(page, c.pages[size/pageBytes][:within])
			c.pages[size/pageBytes] = page
		}
	}
	c.size = size
}

// read fills b from off and returns how much of it there was.
func (c *content) read(b []byte, off int64) int {
	b = b[:max(0, min(int64(len(b)), c.size-off))]
	for done := 0; done < len(b); {
		number, within := (off+int64(done))/pageBytes, int((off+int64(done))%pageBytes)
		part := b[done:min(len(b), done+pageBytes-within)]
		if page := c.pages[number]; page != nil {
			copy(part, page[within:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	return len(b)
}

func (c *content) bytes() []byte {
	b := make([]byte, c.size)
	c.read(b, 0)
	return b
}
