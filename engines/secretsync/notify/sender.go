package notify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/signature"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// Counts are counters for metrics.
type Counts struct{ Sent, Failed atomic.Int64 }

// Sender sends batches.
type Sender struct {
	Batches *Batches
	Host    engines.Host
	// Config reads the configuration of the service.
	Config func(ctx context.Context) (state.Config, error)
	// Client returns a client that goes where connections within a network may go.
	Client func(n *state.Network) (*http.Client, error)
	Log    *slog.Logger

	messages map[subject]*message // those of the last minute, and those that are not sent yet
	failures int                  // of the receiver, in a row
	resumeAt time.Time            // when the receiver is called again after a failure
}

const (
	// gather is how long the first event of a destination waits for more.
	gather = 2 * time.Second
	// interval is the time between messages about one destination.
	interval = time.Minute
	// maxAttempts bounds the attempts to send a message.
	maxAttempts = 5
	// firstRetry and longestRetry are the times until the next attempt.
	firstRetry, longestRetry = 10 * time.Second, 5 * time.Minute
	// callTimeout is the timeout of an attempt.
	callTimeout = 10 * time.Second
)

// message is a batch as it is sent.
type message struct {
	at       time.Time // of the last attempt, or when it was made
	id       string    // the same for each attempt
	body     []byte    // nil: it was sent, or given up
	attempts int
}

// body is the body of a request.
type body struct {
	ID          string    `json:"id"`
	Timestamp   time.Time `json:"timestamp"`
	Destination string    `json:"destination"`
	Namespace   string    `json:"namespace"` // its path; "" for root
	Events      []event   `json:"events"`
}

// Start has events collected, and returns what sends them until ctx ends. The active node calls it.
func (s *Sender) Start() (run func(ctx context.Context)) {
	wake := make(chan struct{}, 1)
	s.Batches.start(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	s.messages, s.failures, s.resumeAt = map[subject]*message{}, 0, time.Time{}
	return func(ctx context.Context) { s.run(ctx, wake) }
}

func (s *Sender) run(ctx context.Context, wake <-chan struct{}) {
	defer s.Batches.stop()
	for {
		next := s.sendDue(ctx)
		var timer <-chan time.Time // never, without next
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer:
		}
	}
}

// sendDue sends what is due, and returns when something is due again; zero: after the next event.
func (s *Sender) sendDue(ctx context.Context) (next time.Time) {
	soonest := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	s.takeDue()
	for _, p := range slices.SortedFunc(maps.Keys(s.messages), compareSubjects) {
		m := s.messages[p]
		if m.body == nil {
			continue
		}
		if time.Now().Before(s.resumeAt) {
			soonest(s.resumeAt)
			continue
		}
		c, err := s.Config(ctx)
		if ctx.Err() != nil {
			return time.Time{}
		}
		if err == nil && (c.Notifications.URL == "" || !s.Host.Owner()) {
			s.Batches.takeAll()
			clear(s.messages)
			return time.Time{}
		}
		if err == nil {
			err = s.send(ctx, &c.Notifications, m)
		}
		if ctx.Err() != nil {
			return time.Time{}
		}
		s.record(p, m, err)
		if m.body != nil {
			soonest(s.resumeAt)
		}
	}
	for p, since := range s.Batches.subjects() {
		if m := s.messages[p]; m == nil || m.body == nil {
			soonest(s.dueAt(p, since))
		}
	}
	return next
}

// dueAt returns when the events of a destination, which has some since a time, are due.
func (s *Sender) dueAt(p subject, since time.Time) time.Time {
	at := since.Add(gather)
	if last := s.messages[p]; last != nil && last.at.Add(interval).After(at) {
		return last.at.Add(interval)
	}
	return at
}

// takeDue makes messages of the batches that are due.
func (s *Sender) takeDue() {
	now := time.Now()
	maps.DeleteFunc(s.messages, func(_ subject, m *message) bool { return m.body == nil && !now.Before(m.at.Add(interval)) })
	for p, since := range s.Batches.subjects() {
		if last := s.messages[p]; last != nil && last.body != nil || now.Before(s.dueAt(p, since)) {
			continue
		}
		m := &message{at: now, id: rand.Text()}
		var err error
		m.body, err = json.Marshal(body{ID: m.id, Timestamp: now.UTC(), Destination: p.name, Namespace: s.Host.NamespacePath(p.ns), Events: s.Batches.take(p)})
		if err != nil {
			s.Log.Error("a notification could not be made", "err", err)
			continue
		}
		s.messages[p] = m
	}
}

// record records the outcome of an attempt.
func (s *Sender) record(p subject, m *message, err error) {
	if m.at = time.Now(); err == nil {
		m.body, s.failures = nil, 0
		s.Batches.Counts.Sent.Add(1)
		return
	}
	m.attempts++
	s.failures++
	wait := engines.Backoff(firstRetry, longestRetry, s.failures)
	e, ok := errors.AsType[*destination.Error](err)
	if ok {
		wait = max(wait, min(e.RetryAfter, workqueue.LongestWait))
	}
	s.resumeAt = time.Now().Add(wait)
	if m.attempts < maxAttempts && (!ok || e.Class != destination.Client) {
		return
	}
	m.body = nil
	s.Batches.Counts.Failed.Add(1)
	s.Log.Warn("a notification of secret sync could not be delivered, and is given up", "namespace", p.ns, "destination", p.name, "attempts", m.attempts, "err", err)
}

// send makes an attempt to send a message.
func (s *Sender) send(ctx context.Context, to *state.Notifications, m *message) error {
	client, err := s.Client(&to.Network)
	if err != nil {
		return err
	}
	w, err := wire.New("the receiver of notifications", "notification_signing_key", destination.Env{Client: client})
	if err != nil {
		return err
	}
	defer w.Close() //nolint:errcheck // it has nothing to lose
	w.MaxBody = 64 << 10
	header := http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {m.id}}
	if to.SigningKey != "" {
		header[signature.Header] = []string{signature.Of([]byte(to.SigningKey), m.body, time.Now())}
	}
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := w.Do(within, wire.Call{Method: http.MethodPost, URL: to.URL, Header: header, Body: m.body, Writes: true})
	if err != nil || resp.OK() {
		return err
	}
	return w.Refusal(resp)
}
