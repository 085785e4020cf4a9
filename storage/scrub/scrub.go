// Package scrub reads files again and again, slowly, so that damage to what is seldom asked for is found while other
// nodes still have it.
//
// It knows no file: a Reader reads its own, compares checksums, and reports damage where reads report it. This package
// says when each piece is due.
package scrub

import (
	"context"
	"log/slog"
	"math"
	"sync/atomic"
	"time"
)

// Reader is a file, or several that belong together. Safe for use while the file is written.
type Reader interface {
	// Scrub reads everything once. It calls paused after each piece of at most a few hundred KiB, without holding anything
	// that others wait for, and stops with its error. Damage is a *storage.CorruptError.
	Scrub(paused func(bytes int) error) error
	// ScrubBytes returns about how much Scrub reads.
	ScrubBytes() int64
}

// Scrubber reads one Reader. Safe for concurrent use.
type Scrubber struct {
	name     string
	file     Reader
	interval time.Duration
	log      *slog.Logger

	bytes     atomic.Int64 // read so far
	completed atomic.Int64 // Unix seconds of the end of the last pass; 0: none
	damaged   atomic.Int64 // passes that ended with damage
}

// New returns a scrubber that reads everything once in each interval. The name is part of its metrics.
func New(name string, file Reader, interval time.Duration, log *slog.Logger) *Scrubber {
	return &Scrubber{name: name, file: file, interval: interval, log: log}
}

// busyFactor bounds what a disk does for the scrubber to one tenth of its time, also when it is slow because others use it:
// then a pass takes longer than the interval.
const busyFactor = 9

// Run reads until ctx ends.
func (s *Scrubber) Run(ctx context.Context) {
	for ctx.Err() == nil {
		begin := time.Now()
		s.pass(ctx, begin)
		pause(ctx.Done(), time.Until(begin.Add(s.interval)))
	}
}

// pass reads everything once, in about nine tenths of the interval.
func (s *Scrubber) pass(ctx context.Context, begin time.Time) {
	total := max(1, s.file.ScrubBytes())
	done, before := 0, time.Now()
	err := s.file.Scrub(func(bytes int) error {
		took := time.Since(before)
		done += bytes
		s.bytes.Add(int64(bytes))
		share := math.Min(1, float64(done)/float64(total))
		due := begin.Add(time.Duration(0.9 * share * float64(s.interval)))
		pause(ctx.Done(), max(time.Until(due), busyFactor*took))
		before = time.Now()
		return ctx.Err()
	})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.damaged.Add(1)
		s.log.Error("reading a file to check it failed", "file", s.name, "err", err)
	default:
		s.completed.Store(time.Now().Unix())
		s.log.Debug("a file was read and is whole", "file", s.name, "bytes", done)
	}
}

// Pacer has one goroutine work half of the time.
type Pacer struct{ Began time.Time }

// workFor is how long it works between two pauses.
const workFor = 5 * time.Millisecond

// Pause pauses, if it is time for that, until stop is closed at the latest.
func (p *Pacer) Pause(stop <-chan struct{}) {
	if worked := time.Since(p.Began); worked >= workFor {
		pause(stop, worked)
		p.Began = time.Now()
	}
}

// pause ends early when stop is closed.
func pause(stop <-chan struct{}, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-stop:
	}
}

// Numbers are gauges and counters by metric name.
func (s *Scrubber) Numbers() map[string]float64 {
	out := map[string]float64{
		"scrub_" + s.name + "_bytes_total":    float64(s.bytes.Load()),
		"scrub_" + s.name + "_failures_total": float64(s.damaged.Load()),
	}
	if at := s.completed.Load(); at != 0 {
		out["scrub_"+s.name+"_completed_time_seconds"] = float64(at)
	}
	return out
}
