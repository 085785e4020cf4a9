package audit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// remote enables a memDevice that counts as one behind a connection.
func remote(t *testing.T, b *audit.Broker, path string, d device.Device) {
	t.Helper()
	c := device.Config{Path: path, Type: "socket", Salt: device.NewSalt(), Options: map[string]string{"address": "collector.example:1"}}
	if err := b.Add(c, d); err != nil {
		t.Fatal(err)
	}
}

func request(t *testing.T, b *audit.Broker) error {
	t.Helper()
	return b.Request(t.Context(), someRecord())
}

// A failed connection is left alone while another device works, tried by one record after a pause, and always
// tried when there is nothing else.
func TestFailedConnectionIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := audit.NewBroker(nil)
		file := enableMemory(t, b, "file", nil)
		down := &memDevice{err: errors.New("down")}
		remote(t, b, "net", down)
		stats := func() audit.DeviceStats { return b.Devices()[1] }
		for range 10 {
			if err := request(t, b); err != nil {
				t.Fatal(err)
			}
		}
		if s := stats(); s.Errors != 1 || s.Skipped != 9 || !s.Failing || s.Path != "net" || s.Type != "socket" {
			t.Errorf("after ten records: %+v, want one try and nine skipped", s)
		}
		time.Sleep(time.Second)
		for range 10 {
			request(t, b)
		}
		if s := stats(); s.Errors != 2 {
			t.Errorf("a second later: %+v, want a second try", s)
		}
		time.Sleep(time.Second)
		if request(t, b); stats().Errors != 2 {
			t.Error("the pause does not grow")
		}
		file.err = errors.New("full")
		for range 3 {
			if err := request(t, b); !errors.Is(err, audit.ErrNotRecorded) || !errors.Is(err, down.err) || !errors.Is(err, file.err) {
				t.Errorf("with no device that works: %v, want both errors", err)
			}
		}
		if s := stats(); s.Errors != 5 {
			t.Errorf("with no other device: %+v, want each record tried", s)
		}
		down.err = nil
		if err := request(t, b); err != nil {
			t.Errorf("the connection works again: %v", err)
		}
		if s := stats(); s.Failing || s.Records != 1 || len(down.lines) != 1 {
			t.Errorf("recovered: %+v", s)
		}
		file.err = nil
		for range 5 {
			request(t, b)
		}
		if s := stats(); s.Records != 6 {
			t.Errorf("recovered: %+v, want each record written again", s)
		}
		down.err = syscall.EMSGSIZE
		for range 5 {
			request(t, b)
		}
		if s := stats(); s.Errors != 10 {
			t.Errorf("with lines too long for a datagram: %+v, want each record tried", s)
		}
		if s := b.Devices()[0]; s.Records != 31 || s.Errors != 4 || s.Skipped != 0 {
			t.Errorf("the file: %+v", s)
		}
	})
}

// stuck is a device that takes as long as its time-out to fail.
type stuck struct{ memDevice }

const stuckTimeout = 2 * time.Second

func (*stuck) Write(context.Context, []byte) error {
	time.Sleep(stuckTimeout)
	return os.ErrDeadlineExceeded
}

// Connections are written at the same time: the record takes as long as the slowest, once.
func TestSlowConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := audit.NewBroker(nil)
		works := &memDevice{}
		remote(t, b, "a", &stuck{})
		remote(t, b, "b", works)
		remote(t, b, "c", &stuck{})
		for i, want := range []time.Duration{stuckTimeout, 0, 0} {
			start := time.Now()
			if err := request(t, b); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("record %d took %v, want %v", i, took, want)
			}
		}
		time.Sleep(audit.MaxPause)
		start := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		late := 0
		for range 20 {
			wg.Go(func() {
				if err := request(t, b); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if time.Since(start) > 0 {
					late++
				}
			})
		}
		wg.Wait()
		if late < 1 || late > 2 {
			t.Errorf("%d of 20 records waited for two connections that may work again, want one for each at most", late)
		}
		if len(works.lines) != 23 {
			t.Errorf("the working connection has %d lines", len(works.lines))
		}
	})
}

// The log hears of a failing device, but not of every record.
func TestFailuresAreLoggedSparingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := audit.NewBroker(slog.New(slog.NewTextHandler(&out, nil)))
		d := enableMemory(t, b, "trail", nil)
		step := func(err error, records int) {
			d.err = err
			for range records {
				request(t, b)
			}
		}
		step(errors.New("disk full"), 100)
		step(nil, 2)
		for range 20 { // it comes and goes
			step(errors.New("disk full"), 1)
			step(nil, 1)
		}
		if got := strings.Count(out.String(), "\n"); got != 2 || !strings.Contains(out.String(), "mount=trail") || !strings.Contains(out.String(), "disk full") {
			t.Errorf("logged within a minute:\n%s\nwant one failure and one recovery, naming the device", &out)
		}
		time.Sleep(time.Minute)
		out.Reset()
		step(errors.New("disk full"), 5)
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "failures=120") {
			t.Errorf("logged a minute later: %q, want one line that counts 120 failures", got)
		}
	})
}
