package system

import (
	"context"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// InFlight knows the requests that this node is working on. The zero value is ready; safe for concurrent use.
type InFlight struct {
	mu       sync.Mutex
	requests map[string]*flying // by request id
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
