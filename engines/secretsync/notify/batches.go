// Package notify reports to a receiver of the operator's choice that something needs attention: the circuit of a destination has opened
// or closed, a drift check has found changes, secrets are in conflict or cannot be synced.
//
// Batches collects what happens, by destination, and Sender sends each destination's once a minute at most. What is sent has no value, and
// no name of a secret: like the audit log it names the destination only. It is kept in memory: a node that stops sends no more. What the
// sync state of secrets says, the next active node reports again if it is recent. Start reading at Sender.Start.
package notify

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
)

// The events.
const (
	circuitOpened = "circuit_opened"
	circuitClosed = "circuit_closed"
	drift         = "drift"
	conflict      = "conflict"
	failure       = "failure" // until an operator acts
)

// event is something that has happened at a destination, once or to several names or secrets.
type event struct {
	Event   string    `json:"event"`
	At      time.Time `json:"at"` // the first time
	Code    string    `json:"code,omitempty"`
	Until   time.Time `json:"until,omitzero"`    // of circuit_opened: when the destination is called again
	Names   int       `json:"names,omitempty"`   // of drift
	Secrets int       `json:"secrets,omitempty"` // of conflict and failure
}

// subject is a destination.
type subject struct{ ns, name string }

// maxEvents bounds the events of a batch. The oldest go.
const maxEvents = 50

// Batches collects events, by destination. The zero value has none. Safe for concurrent use.
type Batches struct {
	Counts Counts

	mu        sync.Mutex
	bySubject map[subject][]event
	wake      func()
}

// Circuit adds that the circuit of a destination has opened or closed.
func (b *Batches) Circuit(ns, name string, c workqueue.Circuit) {
	e := event{Event: circuitClosed, At: time.Now().UTC()}
	if c.Open {
		e.Event, e.Code, e.Until = circuitOpened, c.Cause.Code, c.Until.UTC()
	}
	b.add(subject{ns, name}, e)
}

// Drift adds that a check has found names changed or missing which it had not found before; 0: nothing.
func (b *Batches) Drift(a *state.Association, names int) {
	if names > 0 {
		b.add(subject{a.NS, a.Type + "/" + a.Name}, event{Event: drift, At: time.Now().UTC(), Names: names})
	}
}

// Synced adds that an attempt to sync a secret has ended in a way that needs an operator, if the one before has not.
func (b *Batches) Synced(a *state.Association, before, now state.Outcome) {
	e := event{At: time.Now().UTC(), Code: now.Code, Secrets: 1}
	switch {
	case now.Status == before.Status:
		return
	case now.Status == state.Conflict:
		e.Event = conflict
	case now.Status == state.ClientError:
		e.Event = failure
	default:
		return
	}
	b.add(subject{a.NS, a.Type + "/" + a.Name}, e)
}

// unsentWindow is how long an earlier active node may have had no time to send an event.
const unsentWindow = 10 * time.Minute

// Found adds what a new active node finds of a link: the event of its last outcome, if the node before may not have sent that.
func (b *Batches) Found(a *state.Association, l *state.Link) {
	if time.Since(l.UpdatedAt) < unsentWindow {
		b.Synced(a, state.Outcome{}, l.Outcome)
	}
}

func (b *Batches) add(p subject, e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake == nil { // nothing is sent from here
		return
	}
	events := b.bySubject[p]
	if i := slices.IndexFunc(events, func(of event) bool { return of.Event == e.Event && of.Code == e.Code && of.Names+of.Secrets > 0 }); i >= 0 {
		events[i].Names += e.Names
		events[i].Secrets += e.Secrets
		return
	}
	events = append(events, e)
	b.bySubject[p] = events[max(0, len(events)-maxEvents):]
	b.wake()
}

// start has events collected from now on, and wake called with each new one.
func (b *Batches) start(wake func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bySubject, b.wake = map[subject][]event{}, wake
}

// stop drops all events.
func (b *Batches) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bySubject, b.wake = nil, nil
}

// subjects returns the destinations with events, and since when they have some.
func (b *Batches) subjects() map[subject]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[subject]time.Time, len(b.bySubject))
	for p, events := range b.bySubject {
		out[p] = events[0].At
	}
	return out
}

// take returns the events of a destination, which has none then.
func (b *Batches) take(p subject) []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.bySubject[p]
	delete(b.bySubject, p)
	return events
}

func (b *Batches) takeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.bySubject)
}

func compareSubjects(a, b subject) int {
	if c := strings.Compare(a.ns, b.ns); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name)
}
