// Package freespace watches how much room is left on the disks that a node cannot do without: those of its data and of its
// audit files. A full one stops the service, so operators hear of it before: in the log, and as metrics.
package freespace

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"
)

// interval is the time between two checks.
const interval = 10 * time.Second

// Options of a Watch.
type Options struct {
	// Dirs returns the directories to watch, by what they are for: a word that names a metric. Those that do not exist count
	// as the one that they would be made in.
	Dirs func() map[string][]string
	// WarnBelow is how many bytes should be free; 0: any number is enough.
	WarnBelow int64
	Logger    *slog.Logger
}

// Watch is safe for concurrent use.
type Watch struct {
	opts Options

	mu   sync.Mutex
	free map[string]int64 // the least of the directories of one purpose
	low  map[string]bool  // directories that the log has heard of
}

// New returns a Watch that has not looked yet.
func New(o Options) *Watch {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watch{opts: o, free: map[string]int64{}, low: map[string]bool{}}
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
		}
	}
}

// Check measures once, and tells the log of each directory whose disk has become too full, and when it is no longer.
func (w *Watch) Check() {
	free, low := map[string]int64{}, map[string]bool{}
	for purpose, dirs := range w.opts.Dirs() {
		for _, dir := range dirs {
			n, ok := measure(dir)
			if !ok {
				continue
			}
			if least, seen := free[purpose]; !seen || n < least {
				free[purpose] = n
			}
			if n < w.opts.WarnBelow {
				told := low[dir] || w.known(dir)
				if low[dir] = true; !told {
					w.opts.Logger.Warn("a disk is almost full: free space or make it larger, as a full one stops the service", "directory", dir, "used_for", purpose, "free_bytes", n, "threshold_bytes", w.opts.WarnBelow)
				}
			} else if w.known(dir) {
				w.opts.Logger.Info("a disk has room again", "directory", dir, "used_for", purpose, "free_bytes", n)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free, w.low = free, low
}

func (w *Watch) known(dir string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low[dir]
}

// measure returns the free bytes on the disk of a directory, or of the nearest one above it that exists.
func measure(dir string) (int64, bool) {
	for {
		if n, ok := freeBytes(dir); ok {
			return n, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return 0, false
		}
		dir = parent
	}
}

// Numbers are the gauges: what was free at the last check, by purpose, and for how many directories it was too little.
func (w *Watch) Numbers() map[string]float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]float64{"disk_directories_low": float64(len(w.low))}
	for purpose, bytes := range w.free {
		n["disk_"+purpose+"_free_bytes"] = float64(bytes)
	}
	return n
}
