// Package audit writes the trail: one JSON line for each request before it runs, and one for each response
// before it leaves, on every enabled device.
//
// It promises to fail closed: while any device is enabled, a request whose record reached none of them is an
// error, and the server must not go on. Every text value of request and response bodies, and every token, is
// written as "hmac-sha256:<hex>" under a key of its own for each device, so a trail shows that two values are
// equal, and AuditHash finds a known one, but it reveals none. Numbers, booleans, null and the names of fields
// stay readable.
//
// It assumes that the caller hands over bodies as they travel, as raw JSON: values are replaced while scanning,
// and nothing is decoded twice. Start reading at Record, then Broker, then Table, which keeps the enabled
// devices in storage.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Sentinels. Use errors.Is.
var (
	// ErrNotRecorded means that no enabled device took the record: the request must fail.
	ErrNotRecorded = errors.New("no audit device could record this")
	// ErrNoDevice means that no device is enabled at this path.
	ErrNoDevice = errors.New("no such audit device")
)

// Record is what the trail says of one request. The same Record, with Response or Error filled, serves for
// both lines. Nothing in it is modified or kept.
type Record struct {
	Time     time.Time // zero: now
	Auth     *Auth     // of the caller; nil without a valid token
	Request  Request
	Response *Response // only used by Broker.Response; nil when there is none
	Error    string    // as the client sees it; "" for success
}

// Auth is a token, the caller's or one that is handed out. Both secrets are given in the clear and hashed here.
type Auth struct {
	ClientToken      string
	Accessor         string
	DisplayName      string
	Policies         []string
	TokenPolicies    []string
	IdentityPolicies []string
	Metadata         map[string]string
	EntityID         string
	TokenType        string
	TTL              time.Duration
	NumUses          int
}

// Request is the request's part of a record.
type Request struct {
	ID                  string
	Operation           string
	MountType           string
	MountPoint          string
	MountAccessor       string
	ClientToken         string // hashed
	ClientTokenAccessor string // hashed, unless the device has hmac_accessor=false
	NamespaceID         string
	NamespacePath       string
	Path                string
	Data                json.RawMessage // the body; nil if none. What is not JSON is hashed as one text
	PlainKeys           []string        // top-level keys of Data to leave readable (audit_non_hmac_request_keys)
	Query               url.Values      // values are hashed
	RemoteAddress       string
	RemotePort          int
	Headers             http.Header // those worth recording; values are hashed but for a few harmless ones
	ForwardedFrom       string      // node that forwarded the request, if any
	WrapTTL             time.Duration
}

// Response is the response's part of a record.
type Response struct {
	Auth      *Auth // a token handed out
	Data      json.RawMessage
	PlainKeys []string // as in Request (audit_non_hmac_response_keys)
	Warnings  []string
	LeaseID   string
	Wrap      *Wrap
	Status    int // HTTP status; 0 is not written
}

// Wrap is the wrapping token a response was replaced by.
type Wrap struct {
	Token           string // hashed
	Accessor        string // hashed, unless the device has hmac_accessor=false
	WrappedAccessor string
	CreationPath    string
	CreatedAt       time.Time
	TTL             time.Duration
}

// Device stores lines. Safe for concurrent use.
type Device interface {
	// Write stores one line, which ends in a newline and may not be kept, completely or returns an error.
	// It does not give up because ctx ended: a record is due even if the client is gone.
	Write(ctx context.Context, line []byte) error
	// Reload reopens what an operator may have moved away. On error the device goes on as before.
	Reload() error
	Close() error
}

// Stats counts what a Broker did since it was made.
type Stats struct {
	Requests  uint64 // request records asked for
	Responses uint64 // response records asked for
	Failures  uint64 // records that no device took
	Errors    uint64 // single devices failing to take a record
	Seconds   float64
	Devices   int // enabled now
}

// Broker hands each record to all enabled devices. Safe for concurrent use.
type Broker struct {
	log     *slog.Logger
	refresh func(context.Context) error // brings sinks up to date before each record; may be nil

	mu     sync.RWMutex // held for reading while a record is written, so that no device closes meanwhile
	sinks  []*sink
	closed bool // which devices there should be is not known: every record is refused

	requests, responses, failures, errors, nanos atomic.Uint64
}

// sink is one enabled device and how its lines look.
type sink struct {
	cfg     Config
	device  Device
	format  *format
	failing atomic.Bool // to log the first failure and the recovery, not each record
}

// NewBroker returns a broker without devices: it accepts every record and writes none. log may be nil.
func NewBroker(log *slog.Logger) *Broker {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Broker{log: log}
}

// Add enables a device, which the Broker then owns; one of the same path is closed.
func (b *Broker) Add(cfg Config, d Device) error {
	f, err := newFormat(cfg)
	if err != nil {
		return err
	}
	err = b.Remove(cfg.Path)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sinks = append(b.sinks, &sink{cfg: cfg, device: d, format: f})
	slices.SortFunc(b.sinks, func(x, y *sink) int { return strings.Compare(x.cfg.Path, y.cfg.Path) })
	return err
}

// Remove disables and closes the device at path, if there is one.
func (b *Broker) Remove(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.sinks, func(s *sink) bool { return s.cfg.Path == path })
	if i < 0 {
		return nil
	}
	old := b.sinks[i]
	b.sinks = slices.Delete(b.sinks, i, i+1)
	return old.device.Close()
}

// Request records a request before it runs. The error is ErrNotRecorded.
func (b *Broker) Request(ctx context.Context, r *Record) error {
	b.requests.Add(1)
	return b.record(ctx, r, false)
}

// Response records a response before it leaves. The error is ErrNotRecorded.
func (b *Broker) Response(ctx context.Context, r *Record) error {
	b.responses.Add(1)
	return b.record(ctx, r, true)
}

func (b *Broker) record(ctx context.Context, r *Record, response bool) error {
	start := time.Now()
	// A client that hung up does not keep its request out of the trail.
	ctx = context.WithoutCancel(ctx)
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
	at := r.Time
	if at.IsZero() {
		at = start
	}
	var errs []error
	for _, s := range b.sinks {
		if err := s.write(ctx, r, response, at); err != nil {
			b.errors.Add(1)
			errs = append(errs, fmt.Errorf("audit device %s: %w", s.cfg.Path, err))
			if !s.failing.Swap(true) {
				b.log.Error("audit device failed", "mount", s.cfg.Path, "err", err)
			}
		} else if s.failing.Load() && s.failing.Swap(false) {
			b.log.Info("audit device works again", "mount", s.cfg.Path)
		}
	}
	b.nanos.Add(uint64(time.Since(start)))
	if len(errs) < len(b.sinks) {
		return nil
	}
	b.failures.Add(1)
	return fmt.Errorf("%w: %w", ErrNotRecorded, errors.Join(errs...))
}

func (s *sink) write(ctx context.Context, r *Record, response bool, at time.Time) error {
	l := s.format.line(r, response, at)
	defer l.free()
	return s.device.Write(ctx, l.buf)
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
			return s.format.hash(input), nil
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
		Errors: b.errors.Load(), Seconds: float64(b.nanos.Load()) / 1e9, Devices: devices,
	}
}

// reopen lets a closed broker take records again.
func (b *Broker) reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = false
}

// Close closes all devices and forgets them. From then on every record is refused: a request that is still
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
	return errors.Join(errs...)
}
