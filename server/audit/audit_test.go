package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
)

// memDevice keeps lines, or fails.
type memDevice struct {
	mu     sync.Mutex
	lines  []string
	err    error
	closed bool
}

func (d *memDevice) Write(_ context.Context, line []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return errors.New("closed")
	case d.err != nil:
		return d.err
	}
	d.lines = append(d.lines, string(line))
	return nil
}

func (d *memDevice) Reload() error { return d.err }

func (d *memDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// enableMemory enables a memDevice whose configuration has these options, and a fixed salt.
func enableMemory(t testing.TB, b *audit.Broker, path string, options map[string]string) *memDevice {
	t.Helper()
	opts := map[string]string{"file_path": "discard"}
	for k, v := range options {
		opts[k] = v
	}
	d := &memDevice{}
	err := b.Add(device.Config{Path: path, Type: "file", Options: opts, Salt: bytes.Repeat([]byte{7}, 32)}, d)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// someRecord is a record of a request and its response.
func someRecord() *record.Record {
	return &record.Record{
		Time:     time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC),
		Auth:     &record.Auth{ClientToken: "hvs.caller", Accessor: "acc1", Policies: []string{"default", "dev"}},
		Request:  record.Request{ID: "r1", Operation: "update", ClientToken: "hvs.caller", Path: "secret/data/a", Headers: http.Header{"User-Agent": {"cli/1"}}},
		Response: &record.Response{Data: json.RawMessage(`{"version":3}`), Status: 200},
	}
}

func TestSaltsDiffer(t *testing.T) {
	if bytes.Equal(device.NewSalt(), device.NewSalt()) {
		t.Error("two salts are equal")
	}
	c := device.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "discard"}, Salt: device.NewSalt()}
	b := audit.NewBroker(nil)
	if err := b.Add(c, &memDevice{}); err != nil {
		t.Fatal(err)
	}
	enableMemory(t, b, "mem", nil)
	other, err := b.Hash("mem", "x")
	if err != nil {
		t.Fatal(err)
	}
	if h, err := b.Hash("a", "x"); err != nil || h == other || len(h) != len("hmac-sha256:")+64 {
		t.Errorf("Hash = %q, %v", h, err)
	}
	if _, err := b.Hash("b", "x"); !errors.Is(err, audit.ErrNoDevice) {
		t.Errorf("Hash on an unknown device = %v, want ErrNoDevice", err)
	}
	c.Salt = nil
	if err := b.Add(c, &memDevice{}); err == nil {
		t.Error("a device without a salt is accepted")
	}
}

func TestFailClosed(t *testing.T) {
	full := errors.New("disk full")
	tests := []struct {
		name   string
		errs   []error
		fails  bool
		failed uint64 // devices
	}{
		{"no device", nil, false, 0},
		{"one works", []error{nil}, false, 0},
		{"one fails", []error{full}, true, 1},
		{"one of two fails", []error{full, nil}, false, 1},
		{"the other of two fails", []error{nil, full}, false, 1},
		{"both fail", []error{full, full}, true, 2},
	}
	for _, tt := range tests {
		for _, response := range []bool{false, true} {
			b := audit.NewBroker(nil)
			var devices []*memDevice
			for i, err := range tt.errs {
				d := enableMemory(t, b, string(rune('a'+i)), nil)
				d.err = err
				devices = append(devices, d)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the client hung up: recorded all the same
			write := b.Request
			if response {
				write = b.Response
			}
			err := write(ctx, someRecord())
			if errors.Is(err, audit.ErrNotRecorded) != tt.fails || (err != nil) != tt.fails || tt.fails && !errors.Is(err, full) {
				t.Errorf("%s: %v, want failure: %v", tt.name, err, tt.fails)
			}
			for i, d := range devices {
				if got := len(d.lines) == 1; got != (tt.errs[i] == nil) {
					t.Errorf("%s: device %d has %d lines", tt.name, i, len(d.lines))
				}
			}
			s := b.Stats()
			if s.Requests+s.Responses != 1 || s.Failures == 1 != tt.fails || s.Errors != tt.failed || s.Devices != len(tt.errs) {
				t.Errorf("%s: stats %+v", tt.name, s)
			}
		}
	}
}

// A device that is replaced while requests run is never written to after it was closed.
func TestReplaceWhileWriting(t *testing.T) {
	b := audit.NewBroker(nil)
	enableMemory(t, b, "a", nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if err := b.Request(t.Context(), someRecord()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 50 {
		enableMemory(t, b, "a", nil)
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Request(t.Context(), someRecord()); !errors.Is(err, audit.ErrNotRecorded) {
		t.Errorf("after Close = %v, want ErrNotRecorded", err)
	}
}

// counting is a device that only counts.
type counting struct{ lines *atomic.Int64 }

func (c counting) Write(context.Context, []byte) error { c.lines.Add(1); return nil }
func (counting) Reload() error                         { return nil }
func (counting) Close() error                          { return nil }

// A record is written by one of the two devices while one replaces the other.
func TestReplaceLosesNothing(t *testing.T) {
	b, lines := audit.NewBroker(nil), new(atomic.Int64)
	cfg := device.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "discard"}, Salt: device.NewSalt()}
	if err := b.Add(cfg, counting{lines}); err != nil {
		t.Fatal(err)
	}
	const each, writers = 500, 4
	ctx, stop := context.WithCancel(t.Context())
	var wg, replacing sync.WaitGroup
	replacing.Go(func() {
		for ctx.Err() == nil {
			if err := b.Add(cfg, counting{lines}); err != nil {
				t.Error(err)
			}
		}
	})
	for range writers {
		wg.Go(func() {
			for range each {
				if err := b.Request(ctx, someRecord()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stop()
	replacing.Wait()
	if n := lines.Load(); n != each*writers {
		t.Errorf("%d of %d records were written", n, each*writers)
	}
}

func BenchmarkPair(b *testing.B) {
	broker := audit.NewBroker(nil)
	c := device.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "discard"}, Salt: device.NewSalt()}
	d, err := c.Open(device.Files{})
	if err != nil {
		b.Fatal(err)
	}
	if err := broker.Add(c, d); err != nil {
		b.Fatal(err)
	}
	r := someRecord()
	body := `{"data":{"password":"` + strings.Repeat("x", 480) + `","note":"` + strings.Repeat("y", 480) + `","n":12}}`
	r.Request.Data, r.Response.Data = json.RawMessage(body), json.RawMessage(body)
	r.Response.Wrap, r.Response.Auth, r.Request.Query = nil, nil, nil
	b.ReportAllocs()
	for b.Loop() {
		if err := broker.Request(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		if err := broker.Response(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
