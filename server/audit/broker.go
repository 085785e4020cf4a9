package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
)

// Stats counts what a Broker did since it was made.
type Stats struct {
	Requests  uint64 // request records asked for
	Responses uint64 // response records asked for
	Failures  uint64 // records that no device took
	Errors    uint64 // single devices failing to take a record
	Lost      uint64 // records of a sealed node that were too many to keep
	Seconds   float64
	Devices   int // enabled now
}

// Broker hands each record to all enabled devices. Safe for concurrent use.
//
// Files are written first, one after the other; then all devices behind a connection at the same time, so that
// a record takes as long as the slowest of them and never longer than its write_timeout. A device behind a
// connection that failed is left alone for a while (one second at first, at most thirty), as long as another
// device takes the records; then one record tries it again. If no other device took a record, every one is
// tried, so the only device is never given up.
type Broker struct {
	log     *slog.Logger
	refresh func(context.Context) error    // brings sinks up to date before each record; may be nil
	headers atomic.Pointer[record.Headers] // the request headers that are recorded

	mu     sync.RWMutex // held for reading while a record is written, so that no device closes meanwhile
	sinks  []*sink      // by path
	local  []*sink      // those of sinks that are not behind a connection
	remote []*sink      // the others
	closed bool         // which devices there should be is not known: every record is rejected

	keptMu sync.Mutex
	kept   []*record.Record // see Keep, oldest first
	behind atomic.Bool      // there are some

	requests, responses, failures, errors, nanos, lost atomic.Uint64
}

// NewBroker returns a broker without devices: it accepts every record and writes none. log may be nil.
func NewBroker(log *slog.Logger) *Broker {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Broker{log: log}
	b.headers.Store(record.NewHeaders(defaultHeaders))
	return b
}

// Add enables a device, which the Broker then owns. It takes the place of one of the same path, which is closed; no
// record passes between the two.
func (b *Broker) Add(cfg device.Config, d device.Device) error {
	how, err := cfg.Style()
	if err != nil {
		return err
	}
	f, err := record.NewFormat(cfg.Salt, how)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	err = b.removeLocked(cfg.Path)
	b.sinks = append(b.sinks, &sink{cfg: cfg, device: d, format: f})
	slices.SortFunc(b.sinks, func(x, y *sink) int { return strings.Compare(x.cfg.Path, y.cfg.Path) })
	b.sortLocked()
	return err
}

// Remove disables and closes the device at path, if there is one.
func (b *Broker) Remove(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.removeLocked(path)
}

func (b *Broker) removeLocked(path string) error {
	i := slices.IndexFunc(b.sinks, func(s *sink) bool { return s.cfg.Path == path })
	if i < 0 {
		return nil
	}
	old := b.sinks[i]
	b.sinks = slices.Delete(b.sinks, i, i+1)
	b.sortLocked()
	return old.device.Close()
}

// sortLocked tells devices behind a connection from the others.
func (b *Broker) sortLocked() {
	b.local, b.remote = nil, nil
	for _, s := range b.sinks {
		if s.cfg.Type == device.TypeFile {
			b.local = append(b.local, s)
		} else {
			b.remote = append(b.remote, s)
		}
	}
}

// Request records a request before it runs. The error is ErrNotRecorded.
func (b *Broker) Request(ctx context.Context, r *record.Record) error {
	return b.Record(ctx, false, func() (*record.Record, error) { return r, nil })
}

// Response records a response before it leaves. The error is ErrNotRecorded.
func (b *Broker) Response(ctx context.Context, r *record.Record) error {
	return b.Record(ctx, true, func() (*record.Record, error) { return r, nil })
}

// Record is Request, or Response, for a record that is made only if there is a device to take it. An error of make is returned as it is.
func (b *Broker) Record(ctx context.Context, response bool, make func() (*record.Record, error)) error {
	if response {
		b.responses.Add(1)
	} else {
		b.requests.Add(1)
	}
	if b.refresh != nil {
		if err := b.refresh(ctx); err != nil {
			b.failures.Add(1)
			return fmt.Errorf("%w: %w", ErrNotRecorded, err)
		}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	switch {
	case b.closed:
		b.failures.Add(1)
		return fmt.Errorf("%w: the devices are closed", ErrNotRecorded)
	case len(b.sinks) == 0:
		return nil
	}
	start := time.Now()
	if err := b.writeKept(ctx); err != nil {
		b.failures.Add(1)
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	r, err := make()
	if err != nil {
		return err
	}
	e := record.Event{Record: r, OfResponse: response, At: r.Time, Headers: b.headers.Load()}
	if e.At.IsZero() {
		e.At = start
	}
	// A client that hung up does not keep its request out of the audit log.
	took, errs := b.deliver(context.WithoutCancel(ctx), e)
	b.nanos.Add(uint64(time.Since(start)))
	if took {
		return nil
	}
	b.failures.Add(1)
	return fmt.Errorf("%w: %w", ErrNotRecorded, errors.Join(errs...))
}

// maxKept is how many records wait for a device.
const maxKept = 256

// Keep takes the record of a response of which the devices could not be open, such as that of an unseal: it is written
// before the next record that is. If there are too many the oldest are lost.
func (b *Broker) Keep(r *record.Record) {
	b.keptMu.Lock()
	defer b.keptMu.Unlock()
	if len(b.kept) == maxKept {
		if b.lost.Add(1) == 1 {
			b.log.Warn("audit records of a sealed node are lost: too many requests came before it was unsealed")
		}
		b.kept = b.kept[1:]
	}
	b.kept = append(b.kept, r)
	b.behind.Store(true)
}

// Flush writes what is kept, if there is a device for it.
func (b *Broker) Flush(ctx context.Context) error {
	if !b.behind.Load() {
		return nil
	}
	if b.refresh != nil {
		if err := b.refresh(ctx); err != nil {
			return err
		}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed || len(b.sinks) == 0 {
		return nil
	}
	return b.writeKept(ctx)
}

// writeKept writes what is kept. b.mu is held for reading, and there is a device.
func (b *Broker) writeKept(ctx context.Context) error {
	if !b.behind.Load() {
		return nil
	}
	b.keptMu.Lock()
	defer b.keptMu.Unlock()
	for len(b.kept) > 0 {
		e := record.Event{Record: b.kept[0], OfResponse: true, At: b.kept[0].Time, Headers: b.headers.Load()}
		if took, errs := b.deliver(context.WithoutCancel(ctx), e); !took {
			return errors.Join(errs...)
		}
		b.kept = b.kept[1:]
	}
	b.kept = nil
	b.behind.Store(false)
	return nil
}

// deliver writes an event to the devices, in the order that Broker describes, and reports whether any took it.
func (b *Broker) deliver(ctx context.Context, e record.Event) (took bool, errs []error) {
	for _, s := range b.local {
		if err := b.write(ctx, s, e); err != nil {
			errs = append(errs, err)
		} else {
			took = true
		}
	}
	if len(b.remote) == 0 {
		return took, errs
	}
	var due, failed []*sink
	now := time.Now()
	for _, s := range b.remote {
		if s.due(now) {
			due = append(due, s)
		} else {
			failed = append(failed, s)
		}
	}
	for _, err := range b.writeAll(ctx, due, e) {
		took, errs = took || err == nil, append(errs, err)
	}
	if took {
		for _, s := range failed {
			s.skipped.Add(1)
		}
		return true, errs
	}
	for _, err := range b.writeAll(ctx, failed, e) {
		took, errs = took || err == nil, append(errs, err)
	}
	return took, errs
}

// writeAll writes an event to several devices at the same time.
func (b *Broker) writeAll(ctx context.Context, sinks []*sink, e record.Event) []error {
	errs := make([]error, len(sinks))
	if len(sinks) == 1 {
		errs[0] = b.write(ctx, sinks[0], e)
		return errs
	}
	var wg sync.WaitGroup
	for i, s := range sinks {
		wg.Go(func() { errs[i] = b.write(ctx, s, e) })
	}
	wg.Wait()
	return errs
}

// write writes an event to one device and keeps count.
func (b *Broker) write(ctx context.Context, s *sink, e record.Event) error {
	err := s.format.Write(e, func(line []byte) error { return s.device.Write(ctx, line) })
	if err == nil {
		s.worked(b.log)
		return nil
	}
	b.errors.Add(1)
	s.failed(b.log, err, time.Now())
	return fmt.Errorf("audit device %s: %w", s.cfg.Path, err)
}

// Reload reopens all devices, on SIGHUP. The error joins those of the devices that could not.
func (b *Broker) Reload() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var errs []error
	for _, s := range b.sinks {
		if err := s.device.Reload(); err != nil {
			errs = append(errs, fmt.Errorf("reopening audit device %s: %w", s.cfg.Path, err))
		}
	}
	return errors.Join(errs...)
}

// Hash returns input as the device at path writes it, or ErrNoDevice.
func (b *Broker) Hash(path, input string) (string, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, s := range b.sinks {
		if s.cfg.Path == path {
			return s.format.Hash(input), nil
		}
	}
	return "", ErrNoDevice
}

// Stats returns the counters.
func (b *Broker) Stats() Stats {
	b.mu.RLock()
	devices := len(b.sinks)
	b.mu.RUnlock()
	return Stats{
		Requests: b.requests.Load(), Responses: b.responses.Load(), Failures: b.failures.Load(),
		Errors: b.errors.Load(), Lost: b.lost.Load(), Seconds: float64(b.nanos.Load()) / 1e9, Devices: devices,
	}
}

// Devices returns what each enabled device did, by path.
func (b *Broker) Devices() []DeviceStats {
	b.mu.RLock()
	defer b.mu.RUnlock()
	stats := make([]DeviceStats, 0, len(b.sinks))
	for _, s := range b.sinks {
		stats = append(stats, DeviceStats{
			Path: s.cfg.Path, Type: s.cfg.Type, Records: s.records.Load(), Errors: s.errors.Load(),
			Skipped: s.skipped.Load(), Failing: s.failing.Load(),
		})
	}
	return stats
}

// dirs returns the directories of the files that devices write.
func (b *Broker) dirs() (dirs []string) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, s := range b.sinks {
		if dir := device.Dir(s.device); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// reopen lets a closed broker take records again.
func (b *Broker) reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = false
}

// Close closes all devices and forgets them. From then on every record is rejected: a request that is still
// under way must not go unrecorded.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	var errs []error
	for _, s := range b.sinks {
		errs = append(errs, s.device.Close())
	}
	b.sinks = nil
	b.sortLocked()
	return errors.Join(errs...)
}
