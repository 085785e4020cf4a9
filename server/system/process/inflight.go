package process

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// InFlight knows the requests that this node is working on. The zero value is ready; safe for concurrent use.
type InFlight struct {
	mu      sync.Mutex
	first   *Flight // the oldest
	last    *Flight
	count   int
	started uint64 // requests ever
	waiting []*drain
}

// Flight is one request under way. Fill the fields before Begin.
type Flight struct {
	ID     string
	Op     engines.Operation
	Path   string
	Remote netip.AddrPort // of the client

	since      time.Time
	number     uint64 // in the order of their beginnings
	client     string
	prev, next *Flight
}

// drain waits for the end of every request up to a number.
type drain struct {
	upTo uint64
	done chan struct{} // closed when none is left
}

// Routes declares sys/in-flight-req.
func (f *InFlight) Routes(r *engines.Router) {
	engines.On(r, engines.Read, "in-flight-req", "List the requests that this node is working on.", engines.AnyNode|engines.RootNamespace, f.read).
		Returns("top; *: {client_id, client_remote_address, duration, request_method, request_path, start_time}")
}

// Begin notes a request until End.
func (f *InFlight) Begin(r *Flight) {
	r.since = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started++
	f.count++
	r.number, r.prev = f.started, f.last
	if f.last == nil {
		f.first = r
	} else {
		f.last.next = r
	}
	f.last = r
}

// End ends what Begin began.
func (f *InFlight) End(r *Flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count--
	if r.prev == nil {
		f.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		f.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	left := f.waiting[:0]
	for _, d := range f.waiting {
		if f.drained(d.upTo) {
			close(d.done)
		} else {
			left = append(left, d)
		}
	}
	f.waiting = left
}

// drained reports whether no request up to a number is under way. f.mu is held.
func (f *InFlight) drained(upTo uint64) bool { return f.first == nil || f.first.number > upTo }

// Drain waits until every request that is under way now has ended, or ctx has.
func (f *InFlight) Drain(ctx context.Context) error {
	f.mu.Lock()
	d := &drain{upTo: f.started, done: make(chan struct{})}
	if f.drained(d.upTo) {
		f.mu.Unlock()
		return nil
	}
	f.waiting = append(f.waiting, d)
	f.mu.Unlock()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return ctx.Err() // d is forgotten when its requests end
	}
}

// Identify says who makes a request, once that is known: the id of an entity, or else an accessor.
func (f *InFlight) Identify(r *Flight, client string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.client = client
}

// Count returns how many there are.
func (f *InFlight) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *InFlight) read(context.Context, *engines.Request, *none) (*engines.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]any, f.count)
	for r := f.first; r != nil; r = r.next {
		out[r.ID] = map[string]any{
			"start_time": rfc3339(r.since), "request_path": r.Path, "request_method": string(r.Op),
			"client_remote_address": r.Remote.String(), "client_id": r.client, "duration": time.Since(r.since).String(),
		}
	}
	return both(out), nil
}
