package audit

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
)

// DeviceStats counts what one device did since it was enabled on this node.
type DeviceStats struct {
	Path    string
	Type    string
	Records uint64 // written
	Errors  uint64 // not written although tried
	Skipped uint64 // not even tried, because the device had failed shortly before and another one worked
	Failing bool   // the last record was not written
}

// How long a device behind a connection is left alone after it failed.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// quiet is how long the log hears nothing more of a device that goes on failing.
const quiet = time.Minute

// sink is one enabled device, how its lines look, and how it fares.
type sink struct {
	cfg    device.Config
	device device.Device
	format *record.Format

	records, errors, skipped atomic.Uint64

	failing  atomic.Bool
	retryAt  atomic.Int64 // in Unix nanoseconds; 0: the device works
	pause    atomic.Int64 // before the next try, in nanoseconds
	loggedAt atomic.Int64 // when the log last heard of a failure, in Unix nanoseconds
	unlogged atomic.Int64 // failures since
	told     atomic.Bool  // the log has heard of a failure but not that it is over
}

// due reports whether a record should be written to the device even if another one takes it. Of the records
// that come when a pause is over, one tries.
func (s *sink) due(now time.Time) bool {
	at := s.retryAt.Load()
	if at == 0 {
		return true
	}
	return now.UnixNano() >= at && s.retryAt.CompareAndSwap(at, now.Add(maxPause).UnixNano())
}

func (s *sink) worked(log *slog.Logger) {
	s.records.Add(1)
	if s.retryAt.Load() != 0 {
		s.retryAt.Store(0)
	}
	if s.failing.Load() && s.failing.Swap(false) {
		s.pause.Store(0)
		if s.told.Swap(false) {
			log.Info("audit device works again", "mount", s.cfg.Path)
		}
	}
}

func (s *sink) failed(log *slog.Logger, err error, now time.Time) {
	s.errors.Add(1)
	s.failing.Store(true)
	if !device.TooLong(err) { // else the device is fine
		pause := min(max(2*time.Duration(s.pause.Load()), minPause), maxPause)
		// Of the records that fail at the same time, one makes the pause longer.
		if at := s.retryAt.Load(); now.UnixNano() >= at || at > now.Add(pause).UnixNano() {
			s.pause.Store(int64(pause))
			s.retryAt.Store(now.Add(pause).UnixNano())
		}
	}
	last := s.loggedAt.Load()
	if now.UnixNano()-last < int64(quiet) || !s.loggedAt.CompareAndSwap(last, now.UnixNano()) {
		s.unlogged.Add(1)
		return
	}
	s.told.Store(true)
	log.Error("audit device failed", "mount", s.cfg.Path, "failures", s.unlogged.Swap(0)+1, "err", err)
}
