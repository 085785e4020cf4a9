package wal

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Pin keeps what is after an index for a reader, until it pins another index under its name, or Unpin. Only MaxBytes is
// stronger. Pins are not stored.
func (l *Log) Pin(name string, after storage.Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pins[name] = after
}

// Unpin ends what Pin began.
func (l *Log) Unpin(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pins, name)
}

// Lost reports whether something that is pinned under this name is gone.
func (l *Log) Lost(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	after, pinned := l.pins[name]
	return pinned && after < l.baseLocked()
}

// Run calls Trim once a minute until the context ends.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.Trim()
		}
	}
}

// Trim removes the oldest segments: those that are older than MaxAge and not pinned, and, pinned or not, as many as are
// needed to come down to MaxBytes. What is newer than the last Sync stays. Sync does it too, after a segment was full.
func (l *Log) Trim() {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.trim()
}

func (l *Log) trim() {
	l.mu.Lock()
	n := l.trimmableLocked()
	gone := slices.Clone(l.segments[:n])
	lost := l.pinsBeforeLocked(n)
	l.segments = slices.Delete(l.segments, 0, n)
	l.mu.Unlock()
	for _, name := range lost {
		l.log.Warn("the log of changes has reached its limit and loses what a reader needs", "reader", name)
	}
	for _, s := range gone {
		if err := os.Remove(l.segmentPath(s.number)); err != nil {
			l.log.Warn("removing an old file of the log of changes", "err", err)
		}
	}
}

// trimmableLocked returns how many of the oldest segments may go.
func (l *Log) trimmableLocked() (n int) {
	pinned := ^storage.Index(0)
	for _, after := range l.pins {
		pinned = min(pinned, after)
	}
	bytes := l.bytesLocked()
	old := l.opts.Now().Add(-l.opts.MaxAge).UnixMilli()
	for ; n < len(l.segments); n++ {
		s := &l.segments[n]
		// The mark names its last segment: that has to exist. Without it, Open would start over.
		unneeded := s.lastMS < old && s.last <= pinned
		if s.number >= l.checked || bytes <= l.opts.MaxBytes && !unneeded {
			break
		}
		bytes -= s.end
	}
	return n
}

// pinsBeforeLocked returns the pins that lose something with the first n segments.
func (l *Log) pinsBeforeLocked(n int) (names []string) {
	if n == 0 {
		return nil
	}
	was, is := l.segments[0].base, l.segments[n-1].last
	for name, after := range l.pins {
		if after >= was && after < is && after < l.memory.base {
			names = append(names, name)
		}
	}
	return names
}
