package system

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// InFlight knows the requests that this node is working on. The zero value is ready; safe for concurrent use.
type InFlight struct {
	mu       sync.Mutex
	requests map[string]*flying // by request id
	waiting  []*drain
}

// drain waits for the end of requests.
type drain struct {
	left map[string]bool // ids
	done chan struct{}   // closed when none is left
}

type flying struct {
	since      time.Time
	op         engines.Operation
	path       string
	remote     string
	client     string
	forwarding bool
}

// Routes declares sys/in-flight-req.
func (f *InFlight) Routes(r *engines.Router) {
	engines.On(r, engines.Read, "in-flight-req", "List the requests that this node is working on.", engines.AnyNode|engines.RootNamespace, f.read)
}

// Begin notes a request until end is called. remote is the address of the client.
func (f *InFlight) Begin(id string, op engines.Operation, path, remote string) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.requests == nil {
		f.requests = map[string]*flying{}
	}
	f.requests[id] = &flying{since: time.Now(), op: op, path: path, remote: remote}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.requests, id)
		for _, d := range f.waiting {
			d.ended(id)
		}
		f.waiting = slices.DeleteFunc(f.waiting, func(d *drain) bool { return len(d.left) == 0 })
	}
}

func (d *drain) ended(id string) {
	if !d.left[id] {
		return
	}
	if delete(d.left, id); len(d.left) == 0 {
		close(d.done)
	}
}

// Drain waits until every request that is under way now has ended, or ctx has.
func (f *InFlight) Drain(ctx context.Context) error {
	d := &drain{left: map[string]bool{}, done: make(chan struct{})}
	f.mu.Lock()
	for id := range f.requests {
		d.left[id] = true
	}
	if len(d.left) == 0 {
		f.mu.Unlock()
		return nil
	}
	f.waiting = append(f.waiting, d)
	f.mu.Unlock()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting = slices.DeleteFunc(f.waiting, func(w *drain) bool { return w == d })
		return ctx.Err()
	}
}

// Identify says who makes a request, once that is known: the id of an entity, or else an accessor.
func (f *InFlight) Identify(id, client string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.requests[id]; r != nil {
		r.client = client
	}
}

// Forwarded says that another node is answering the request.
func (f *InFlight) Forwarded(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.requests[id]; r != nil {
		r.forwarding = true
	}
}

// Count returns how many there are.
func (f *InFlight) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

func (f *InFlight) read(context.Context, *engines.Request, *none) (*engines.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]any, len(f.requests))
	for id, r := range f.requests {
		out[id] = map[string]any{
			"start_time": rfc3339(r.since), "request_path": r.path, "request_method": string(r.op),
			"client_remote_address": r.remote, "client_id": r.client, "forwarded": r.forwarding,
			"duration": time.Since(r.since).String(),
		}
	}
	return both(out), nil
}
