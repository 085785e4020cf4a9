// Package snapshots takes snapshots of the whole cluster by themselves: every so often, to a directory or to an S3
// bucket, keeping the newest few.
//
// It promises that a snapshot is verified from its first byte to its last before it gets its name, and that only
// then older ones are removed; that nothing is written, read or removed on the disk outside the directory that the
// operator set aside; and that in a bucket nothing is touched but files of the schedule's own name. It runs on the
// active node only. Schedules belong to one cluster (class l): two clusters must not remove each other's files.
// Start reading at Run, then take.
package snapshots

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/server/archive"
	"github.com/coffer-project/coffer/storage"
)

// Source writes a complete snapshot file (package archive).
type Source interface {
	WriteSnapshot(ctx context.Context, w io.Writer) error
}

// Options of a Scheduler. Store and Source are required.
type Options struct {
	Store  storage.Store // decrypted
	Source Source
	// LocalRoot is the directory below which schedules may keep files on this node's disk; "": they may not.
	LocalRoot string
	// TempDir is where a snapshot is verified before it is uploaded; "": the system's.
	TempDir string
	Logger  *slog.Logger // nil discards
}

// Scheduler takes the snapshots. Give Changed every change of the feed. Safe for concurrent use.
type Scheduler struct {
	opts Options
	log  *slog.Logger
	wake chan struct{} // capacity 1: the schedules have changed

	mu      sync.Mutex
	running string    // name of the schedule whose snapshot is being taken
	since   time.Time // when it began
	taken   uint64    // on this node
	failed  uint64
	last    time.Time // last success on this node
}

// New returns a Scheduler. It does nothing before Run.
func New(o Options) *Scheduler {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{opts: o, log: o.Logger, wake: make(chan struct{}, 1)}
}

// Changed wakes Run when a schedule has changed.
func (s *Scheduler) Changed(ch storage.Change) {
	if !ch.Touches(configPrefix) {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Numbers are the counters of this node, by metric name.
func (s *Scheduler) Numbers() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]float64{"snapshot_auto_taken_total": float64(s.taken), "snapshot_auto_errors_total": float64(s.failed)}
	if !s.last.IsZero() {
		out["snapshot_auto_last_success_timestamp_seconds"] = float64(s.last.Unix())
	}
	return out
}

const (
	lookInterval = time.Minute      // longest time between two looks, whatever was announced
	clockSkew    = time.Minute      // between two nodes, at most
	retryFirst   = time.Minute      // after a failure, doubled with each one more
	takeTimeout  = 6 * time.Hour    // for one snapshot, with everything
	tempPattern  = "snapshot-auto-" // of files being verified
)

// Run takes snapshots when they are due, one after the other, until ctx ends. It is meant to run while this node
// is the active one.
func (s *Scheduler) Run(ctx context.Context) {
	s.removeLeftovers()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wake:
		}
		timer.Reset(s.look(ctx))
	}
}

// look takes every snapshot that is due and returns how long there is nothing to do.
func (s *Scheduler) look(ctx context.Context) time.Duration {
	all, err := s.configs(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("reading the schedules of snapshots", "err", err)
		}
		return lookInterval
	}
	wait := lookInterval
	for _, c := range all {
		status, err := s.status(ctx, c.Name)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("reading the status of a schedule", "schedule", c.Name, "err", err)
			}
			continue
		}
		now := time.Now()
		if due := status.next(c, now); due.After(now) {
			wait = min(wait, due.Sub(now))
			continue
		}
		s.attempt(ctx, c, status)
		if ctx.Err() != nil {
			return lookInterval
		}
		wait = 0 // what is due may have changed meanwhile
	}
	return wait
}

// attempt takes one snapshot and records how it went.
func (s *Scheduler) attempt(ctx context.Context, c *config, before status) {
	now := time.Now().UTC()
	s.mu.Lock()
	s.running, s.since = c.Name, now
	s.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, takeTimeout)
	kept, err := s.take(limited, c, now)
	cancel()
	s.mu.Lock()
	s.running = ""
	if kept.url != "" {
		s.taken++
		s.last = time.Now()
	}
	if err != nil && ctx.Err() == nil {
		s.failed++
	}
	s.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		return // this node is no longer the active one: the next one begins again
	}
	after := before
	after.Format, after.LastStart, after.LastEnd, after.LastError = 1, now, time.Now().UTC(), ""
	if kept.url != "" {
		after.Errors, after.LastURL, after.LastSuccess, after.LastBytes = 0, kept.url, after.LastEnd, kept.bytes
		s.log.Info("snapshot taken", "schedule", c.Name, "to", kept.url, "bytes", kept.bytes)
	} else {
		after.Errors++
	}
	if err != nil {
		after.LastError = clientText(err)
		s.log.Error("a schedule of snapshots has failed", "schedule", c.Name, "err", err)
	}
	if err := s.putStatus(ctx, c.Name, after); err != nil && ctx.Err() == nil {
		s.log.Warn("recording the status of a schedule", "schedule", c.Name, "err", err)
	}
}

// file is a snapshot that has been put where it belongs.
type file struct {
	url   string
	bytes int64
}

// place is where a schedule keeps its snapshots.
type place interface {
	// Put stores what write writes under name, completely or not at all, and returns where it is.
	Put(ctx context.Context, name string, write func(io.Writer) error) (file, error)
	// Prune removes the oldest files of the schedule, but never taken, which has just been put.
	Prune(ctx context.Context, taken string) error
}

// take takes one snapshot, and then removes what is too many. If only that failed, there is a file and an error.
func (s *Scheduler) take(ctx context.Context, c *config, now time.Time) (file, error) {
	p, err := s.place(ctx, c)
	if err != nil {
		return file{}, err
	}
	name := c.fileName(now)
	kept, err := p.Put(ctx, name, func(w io.Writer) error { return s.opts.Source.WriteSnapshot(ctx, w) })
	if err != nil {
		return file{}, err
	}
	if err := p.Prune(ctx, name); err != nil {
		return kept, fmt.Errorf("the snapshot was taken, but older ones could not be removed: %w", err)
	}
	return kept, nil
}

func (s *Scheduler) place(ctx context.Context, c *config) (place, error) {
	if c.StorageType == typeLocal {
		return newLocal(s.opts.LocalRoot, c)
	}
	return newBucket(ctx, s.opts.TempDir, c)
}

// removeLeftovers removes what an interrupted upload left in TempDir.
func (s *Scheduler) removeLeftovers() {
	dir := s.opts.TempDir
	if dir == "" {
		return // not ours alone
	}
	names, err := filepath.Glob(filepath.Join(dir, tempPattern+"*.tmp"))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	if err != nil {
		s.log.Warn("removing what was left of snapshots", "err", err)
	}
}

// verified fills f by write and reads it again from its beginning. It returns its size.
func verified(f *os.File, write func(io.Writer) error) (int64, error) {
	w := bufio.NewWriterSize(f, 64<<10)
	if err := write(w); err != nil {
		return 0, fmt.Errorf("writing the snapshot: %w", err)
	}
	if err := errors.Join(w.Flush(), f.Sync()); err != nil {
		return 0, fmt.Errorf("writing the snapshot: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	if _, err := archive.Verify(f); err != nil {
		return 0, fmt.Errorf("verifying the snapshot: %w", err)
	}
	return f.Seek(0, io.SeekEnd)
}

// status is how a schedule is doing, as stored.
type status struct {
	Format      int       `json:"format"` // 1
	LastStart   time.Time `json:"last_start"`
	LastEnd     time.Time `json:"last_end"`
	LastSuccess time.Time `json:"last_success"`
	LastError   string    `json:"last_error,omitempty"`
	LastURL     string    `json:"last_url,omitempty"`
	LastBytes   int64     `json:"last_bytes,omitempty"`
	Errors      int       `json:"errors,omitempty"` // since the last success
}

// next returns when the schedule's next snapshot is due. What was noted by a clock that has been put back since counts
// for nothing: there would be no snapshot until then.
func (s *status) next(c *config, now time.Time) time.Time {
	ahead := func(t time.Time) bool { return t.After(now.Add(clockSkew)) }
	switch {
	case s.LastStart.IsZero() && ahead(c.Updated), ahead(s.LastStart), ahead(s.LastEnd):
		return now
	case s.LastStart.IsZero():
		return c.Updated
	case s.Errors == 0:
		return s.LastStart.Add(c.Interval)
	case c.Updated.After(s.LastEnd) && !ahead(c.Updated):
		return c.Updated // perhaps it has been put right
	}
	return s.LastEnd.Add(min(c.Interval, retryFirst<<min(s.Errors-1, 10)))
}

// newestFirst orders the names of a schedule's files by age. Names that are later than the one just taken are of a clock
// that was wrong: they go first.
func newestFirst(names []string, taken string) []string {
	slices.SortFunc(names, func(x, y string) int {
		switch wrong := x > taken; {
		case wrong == (y > taken):
			return strings.Compare(y, x)
		case wrong:
			return 1
		}
		return -1
	})
	return names
}

func (s *Scheduler) status(ctx context.Context, name string) (status, error) {
	var st status
	e, err := s.opts.Store.Get(ctx, statusPrefix+storage.Key(name))
	if errors.Is(err, storage.ErrNotFound) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(e.Value, &st); err != nil {
		return st, fmt.Errorf("decoding the status of a schedule: %w", err)
	}
	if st.Format != 1 {
		return st, fmt.Errorf("the status of a schedule has format %d, this build knows 1", st.Format)
	}
	return st, nil
}

// putStatus stores the status, unless the schedule has been deleted meanwhile.
func (s *Scheduler) putStatus(ctx context.Context, name string, st status) error {
	value, err := json.Marshal(st)
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, s.opts.Store, func(t *storage.Txn) error {
		if _, err := t.Get(ctx, configPrefix+storage.Key(name)); err != nil {
			return err
		}
		t.Put(statusPrefix+storage.Key(name), value)
		return nil
	})
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	return err
}
