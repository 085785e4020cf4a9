package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// receiver answers requests, and keeps them.
type receiver struct {
	mu     sync.Mutex
	began  time.Time
	status func() int // nil: 204
	got    []string
	ids    []string
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b body
	raw, err := io.ReadAll(req.Body)
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		return nil, err
	}
	var events []string
	for _, e := range b.Events {
		events = append(events, fmt.Sprintf("%s %s %d", e.Event, e.Code, e.Names+e.Secrets))
	}
	r.got = append(r.got, fmt.Sprintf("%v %s%s: %s", time.Since(r.began).Round(time.Second), b.Namespace, b.Destination, strings.Join(events, ", ")))
	r.ids = append(r.ids, b.ID)
	code := http.StatusNoContent
	if r.status != nil {
		code = r.status()
	}
	h := http.Header{}
	if code == http.StatusServiceUnavailable {
		h.Set("Retry-After", "90")
	}
	return &http.Response{StatusCode: code, Header: h, Body: http.NoBody, Request: req}, nil
}

// restart forgets what was received, and has requests answered with a status from now on.
func (r *receiver) restart(status func() int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.got, r.status = time.Now(), nil, status
}

// inBubble runs a test with a sender that runs, and the receiver of its requests.
func inBubble(t *testing.T, test func(b *Batches, r *receiver, c *state.Config, w *syncsim.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, w := &receiver{began: time.Now()}, syncsim.NewWorld()
		c := &state.Config{Notifications: state.Notifications{URL: "https://ops.example.com/coffer"}}
		s := Sender{
			Batches: new(Batches), Host: w.Node(), Log: slog.New(slog.NewTextHandler(new(bytes.Buffer), nil)),
			Config: func(context.Context) (state.Config, error) { return *c, nil },
			Client: func(*state.Network) (*http.Client, error) { return &http.Client{Transport: r}, nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		run := s.Start()
		go func() { defer close(done); run(ctx) }()
		synctest.Wait()
		test(s.Batches, r, c, w)
		cancel()
		<-done
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *receiver) wants(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.got, want) {
		t.Errorf("received %q, want %q", r.got, want)
	}
}

var (
	first, second = &state.Association{NS: "root", Type: "test", Name: "a"}, &state.Association{NS: "root", Type: "test", Name: "b"}
	broken        = workqueue.Circuit{Open: true, Cause: &destination.Error{Code: "unreachable"}}
	pending       = state.Outcome{Status: state.Pending}
)

// TestBatches: what happens at a destination within a minute is one message, and the same things are counted.
func TestBatches(t *testing.T) {
	inBubble(t, func(b *Batches, r *receiver, _ *state.Config, _ *syncsim.World) {
		for range 1000 {
			b.Synced(first, pending, state.Outcome{Status: state.Conflict, Code: "conflict"})
			b.Synced(first, pending, state.Outcome{Status: state.ClientError, Code: "access_denied"})
		}
		b.Synced(first, state.Outcome{Status: state.Conflict}, state.Outcome{Status: state.Conflict}) // as before
		b.Synced(first, pending, state.Outcome{Status: state.Synced})
		b.Synced(first, pending, state.Outcome{Status: state.ExternalError})
		b.Drift(second, 0)
		b.Drift(second, 3)
		pass(10 * time.Second)
		want := []string{"2s test/a: conflict conflict 1000, failure access_denied 1000", "2s test/b: drift  3"}
		r.wants(t, want...)
		b.Circuit("root", "test/a", broken)
		pass(20 * time.Second)
		b.Circuit("root", "test/a", workqueue.Circuit{})
		b.Drift(second, 2)
		b.Drift(second, 2)
		pass(20 * time.Second)
		r.wants(t, want...)
		pass(time.Minute)
		want = append(want, "1m2s test/a: circuit_opened unreachable 0, circuit_closed  0", "1m2s test/b: drift  4")
		r.wants(t, want...)
		pass(time.Hour)
		b.Circuit("root", "test/a", broken)
		pass(10 * time.Second)
		r.wants(t, append(want, "1h1m52s test/a: circuit_opened unreachable 0")...)
		if sent := b.Counts.Sent.Load(); sent != 5 || b.Counts.Failed.Load() != 0 {
			t.Errorf("%d sent", sent)
		}
	})
}

// TestRetries: a message is sent again, as it was, up to five times; what happens meanwhile is in the next one.
func TestRetries(t *testing.T) {
	inBubble(t, func(b *Batches, r *receiver, _ *state.Config, _ *syncsim.World) {
		fails := 2
		r.restart(func() int {
			if fails--; fails >= 0 {
				return http.StatusInternalServerError
			}
			return http.StatusOK
		})
		b.Drift(first, 1)
		pass(3 * time.Second)
		b.Drift(first, 2)
		pass(10 * time.Minute)
		r.wants(t, "2s test/a: drift  1", "12s test/a: drift  1", "32s test/a: drift  1", "1m32s test/a: drift  2")
		if r.ids[0] != r.ids[2] || r.ids[2] == r.ids[3] {
			t.Errorf("the ids are %q", r.ids)
		}

		r.restart(func() int { return http.StatusInternalServerError })
		b.Drift(first, 1)
		pass(24 * time.Hour)
		r.wants(t, "2s test/a: drift  1", "12s test/a: drift  1", "32s test/a: drift  1", "1m12s test/a: drift  1", "2m32s test/a: drift  1")
		if sent, failed := b.Counts.Sent.Load(), b.Counts.Failed.Load(); sent != 2 || failed != 1 {
			t.Errorf("%d sent, %d failed", sent, failed)
		}

		r.restart(func() int { return http.StatusBadRequest })
		b.Drift(first, 1)
		pass(24 * time.Hour)
		r.wants(t, "2s test/a: drift  1") // it is rejected
		if failed := b.Counts.Failed.Load(); failed != 2 {
			t.Errorf("%d failed", failed)
		}
	})
	inBubble(t, func(b *Batches, r *receiver, _ *state.Config, _ *syncsim.World) {
		r.restart(func() int { r.status = nil; return http.StatusServiceUnavailable })
		b.Drift(first, 1)
		b.Drift(second, 1)
		pass(time.Hour)
		r.wants(t, "2s test/a: drift  1", "1m32s test/a: drift  1", "1m32s test/b: drift  1") // it has asked to wait
	})
}

// TestNothingIsSent where no receiver is configured, and by a cluster that does not sync; nothing of it comes later.
func TestNothingIsSent(t *testing.T) {
	inBubble(t, func(b *Batches, r *receiver, c *state.Config, w *syncsim.World) {
		to := c.Notifications
		c.Notifications = state.Notifications{}
		b.Drift(first, 1)
		pass(time.Hour)
		c.Notifications = to
		w.SetOwner(false)
		b.Drift(first, 1)
		pass(time.Hour)
		w.SetOwner(true)
		pass(time.Hour)
		r.wants(t)
	})
}

func TestABatchIsBounded(t *testing.T) {
	b := new(Batches)
	b.Drift(first, 1) // nothing is sent from here
	b.start(func() {})
	for range 1000 {
		b.Circuit("root", "test/a", broken)
		b.Circuit("root", "test/a", workqueue.Circuit{})
	}
	if got := b.take(subject{"root", "test/a"}); len(got) != maxEvents || got[maxEvents-1].Event != circuitClosed {
		t.Errorf("%d events", len(got))
	}
}
