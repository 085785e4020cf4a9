// Package freespace watches how much room is left on the disks that a node cannot do without: those of its data and of its
// audit files. A full one stops the service, so operators hear of it before: in the log, and as metrics. Before the disk of the
// data is full, clients' writes are rejected, and a ballast file keeps room for what makes room: deletes and revocations.
package freespace

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// interval is the time between two checks, if not so much was written that there is one before: a part of the minimum.
const (
	interval  = 2 * time.Second
	checkPart = 32
)

// The defaults of Options.Minimum and Options.Ballast: so much, but not more than this part of a small disk.
const (
	defaultReserve = 64 << 20
	defaultPart    = 50
)

// State says how much room there is for data.
type State uint8

const (
	OK   State = iota
	Low        // less than the warning threshold
	Full       // not enough for writes of clients
)

func (s State) String() string { return [...]string{"ok", "low", "full"}[s] }

// Options of a Watch.
type Options struct {
	// Data is the directory of the data; "": it is not watched for State.
	Data  string
	Disks Disks
	// WarnBelow is how many bytes should be free, WarnPercent how much of the disk; 0: any number is enough.
	WarnBelow   int64
	WarnPercent int64
	// Minimum is how many bytes must be free, beside the ballast, for writes of clients; Ballast is the size of the file that
	// keeps room on the disk. Negative: 64 MiB, on a small disk a fiftieth of it. 0: none.
	Minimum, Ballast int64
	// Pending returns how many bytes were accepted and are not in the files yet: there must be room for them, too. nil: none.
	Pending func() int64
	Logger  *slog.Logger
}

// Disks are those that the node cannot do without.
type Disks interface {
	// Dirs returns the directories to watch, by what they are for: a word that names a metric. Those that do not exist count
	// as the one that they would be made in.
	Dirs() map[string][]string
	// Fault returns why the disk of the data takes no writes, or nil.
	Fault() error
}

// Watch is safe for concurrent use.
type Watch struct {
	opts  Options
	state atomic.Uint32 // State
	step  atomic.Int64  // bytes written before the next check; 0: any number
	wrote atomic.Int64  // since the last one
	kick  chan struct{} // capacity 1: check now

	checking sync.Mutex // held by Check, also while the disk does not answer
	failed   bool       // the log has heard that there is no ballast; guarded by checking

	mu      sync.Mutex
	free    map[string]int64 // the least of the directories of one purpose
	low     map[string]bool  // directories that the log has heard of
	ballast int64            // bytes of the file
}

// New returns a Watch that has not looked yet.
func New(o Options) *Watch {
	if o.Pending == nil {
		o.Pending = func() int64 { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watch{opts: o, kick: make(chan struct{}, 1), free: map[string]int64{}, low: map[string]bool{}}
}

// Run checks until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		w.Check()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.kick:
		}
	}
}

// Wrote tells how much was written, so that a fast writer does not fill the disk between two checks.
func (w *Watch) Wrote(bytes int) {
	if step := w.step.Load(); step > 0 && w.wrote.Add(int64(bytes)) >= step {
		w.wrote.Store(0)
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

// State returns how much room there was for data at the last check.
func (w *Watch) State() State { return State(w.state.Load()) } //nolint:gosec // it is one

// Check measures once, tells the log of each directory whose disk has become too full, and when it is no longer, and sees to
// the ballast.
func (w *Watch) Check() {
	w.checking.Lock()
	defer w.checking.Unlock()
	free, low := map[string]int64{}, map[string]bool{}
	for purpose, dirs := range w.opts.Disks.Dirs() {
		for _, dir := range dirs {
			n, total, ok := measure(dir)
			if !ok {
				continue
			}
			if least, seen := free[purpose]; !seen || n < least {
				free[purpose] = n
			}
			if threshold := w.threshold(total); n < threshold {
				told := low[dir] || w.low[dir]
				if low[dir] = true; !told {
					w.opts.Logger.Warn("a disk is almost full: free space or make it larger, as a full one stops the service", "directory", dir, "used_for", purpose, "free_bytes", n, "threshold_bytes", threshold)
				}
			} else if w.low[dir] {
				w.opts.Logger.Info("a disk has room again", "directory", dir, "used_for", purpose, "free_bytes", n)
			}
		}
	}
	w.mu.Lock()
	w.free, w.low = free, low
	w.mu.Unlock()
	if w.opts.Data != "" {
		w.checkData()
	}
}

// threshold is below how many free bytes there is a warning, on a disk of a size.
func (w *Watch) threshold(total int64) int64 {
	return max(w.opts.WarnBelow, total/100*w.opts.WarnPercent)
}

// Reserve returns Options.Minimum or Options.Ballast, with the default for a disk of a size.
func Reserve(configured, total int64) int64 {
	if configured < 0 {
		return min(defaultReserve, total/defaultPart)
	}
	return configured
}

// checkData decides whether there is room for writes, and sees to the ballast. What the ballast lacks does not count as room,
// or the disk would have room as soon as it is released. w.checking is held.
func (w *Watch) checkData() {
	free, total, ok := measure(w.opts.Data)
	if !ok {
		return
	}
	b, minimum := newBallast(w.opts.Data, Reserve(w.opts.Ballast, total)), Reserve(w.opts.Minimum, total)
	w.step.Store(minimum / checkPart)
	held := b.held()
	w.setBallast(held)
	room := free - max(0, b.size-held)
	before, state := w.State(), OK
	if before == Full {
		minimum += minimum / 4 // so that it does not come and go
	}
	if minimum > 0 {
		minimum = max(minimum, w.opts.Pending())
	}
	switch {
	case room < minimum:
		state = Full
	case free < w.threshold(total):
		state = Low
	}
	w.state.Store(uint32(state))
	log := w.opts.Logger.With("directory", w.opts.Data, "free_bytes", free, "minimum_bytes", minimum, "ballast_bytes", held)
	switch {
	case state == Full && before != Full:
		log.Error("the disk of the data has no room for writes: while this node is the active one, only reads, deletes, revocations, logins and requests below sys/ are accepted, unless another node can take over; free space, or make the disk larger")
	case state != Full && before == Full:
		log.Info("the disk of the data has room for writes again")
	}
	w.seeTo(b, held, free, state)
}

// seeTo releases the ballast when the disk is full, and makes it again.
func (w *Watch) seeTo(b ballast, held, free int64, state State) {
	var err error
	switch full := free < b.size/8 || IsFull(w.opts.Disks.Fault()); {
	case held > 0 && (full || max(held-b.size, b.size-held) > b.size/8): // or it has another size now
		if err = b.release(); err == nil && full {
			w.opts.Logger.Warn("the ballast was released, as the disk of the data is full: deletes and revocations can be committed; free space, or make the disk larger", "directory", w.opts.Data, "bytes", held)
		}
	case held == 0 && b.size > 0 && !full && state != Full:
		err = b.make()
	default:
		return
	}
	w.setBallast(b.held())
	if err != nil && !w.failed {
		w.opts.Logger.Warn("there is no ballast on the disk of the data", "directory", w.opts.Data, "err", err)
	}
	w.failed = err != nil
}

func (w *Watch) setBallast(held int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ballast = held
}

// measure returns the free bytes on the disk of a directory, or of the nearest one above it that exists, and its size.
func measure(dir string) (free, total int64, ok bool) {
	for {
		if free, total, ok = freeBytes(dir); ok {
			return free, total, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return 0, 0, false
		}
		dir = parent
	}
}

// Numbers are the gauges: what was free at the last check, by purpose, for how many directories it was too little, and what
// is pending now.
func (w *Watch) Numbers() map[string]float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]float64{"disk_directories_low": float64(len(w.low)), "disk_data_ballast_bytes": float64(w.ballast), "disk_data_pending_bytes": float64(w.opts.Pending()), "disk_data_full": 0}
	if w.State() == Full {
		n["disk_data_full"] = 1
	}
	for purpose, bytes := range w.free {
		n["disk_"+purpose+"_free_bytes"] = float64(bytes)
	}
	return n
}
