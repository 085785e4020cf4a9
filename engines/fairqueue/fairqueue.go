// Package fairqueue bounds expensive work that clients without a token can ask for, such as hashing a password, and
// shares it out fairly: in turn among the mounts, within a mount in turn among the source addresses.
//
// Work that cannot start at once waits. Within one source the newest starts first: under overload the oldest waits for a
// client that is the likeliest to have given up, and a right login is not behind all the wrong ones that its address has
// sent before. Work that the caller vouches for (AcquireFirst) goes before the rest. What has waited for too long, or is
// the oldest where too much waits, is rejected with 503 and Retry-After.
// Start reading at Queue.Acquire.
package fairqueue

import (
	"container/list"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Limits of a Queue. All must be positive.
type Limits struct {
	Slots     int           // how much runs at once
	PerSource int           // how much of one source of one mount waits
	Total     int           // how much waits
	Wait      time.Duration // how long it waits
}

// DefaultLimits returns the limits for work that a processor does in a few dozen milliseconds, given how much may run
// at once.
func DefaultLimits(slots int) Limits {
	return Limits{Slots: max(1, slots), PerSource: 512, Total: 4096, Wait: 2 * time.Second}
}

// Source is the party that work is counted for.
type Source struct {
	mount   string
	address netip.Prefix
}

// SourceOf returns the source of a request: its mount and its address. An IPv6 network of 64 bits is one address, because
// one client has all of it.
func SourceOf(req *engines.Request) Source {
	return Source{mount: req.Mount.UUID, address: Network(req.RemoteIP)}
}

// Network returns what counts as one source address.
func Network(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	network, _ := ip.Prefix(bits) // fails without an address only: the zero Prefix is a source, too
	return network
}

// Queue shares out the slots. Safe for concurrent use.
type Queue struct {
	limits Limits

	mu      sync.Mutex
	free    int
	waiting int
	busy    uint64 // rejected with 503
	first   line   // AcquireFirst
	rest    line
	inRow   int // how much of first was served while some of rest waited
}

// restTurn is how much of first goes before one of the rest, when both wait.
const restTurn = 3

// line is what waits, in turns.
type line struct {
	turns  list.List // of *mount: the first one is next
	mounts map[string]*list.Element
}

// mount is what waits in one mount.
type mount struct {
	uuid    string
	turns   list.List // of *source: the first one is next
	sources map[netip.Prefix]*list.Element
}

// source is what waits of one source.
type source struct {
	address netip.Prefix
	waiters []*waiter // the newest last
}

type waiter struct {
	line   *line
	source Source
	done   chan struct{} // closed, under the lock, when the waiter has left the queue for one of these two reasons
	slot   bool          // it has a slot
}

// New returns a queue with nothing in it.
func New(limits Limits) *Queue {
	newLine := func() line { return line{mounts: map[string]*list.Element{}} }
	return &Queue{limits: limits, free: limits.Slots, first: newLine(), rest: newLine()}
}

// Acquire waits for a slot until it is the turn of s. The caller calls release exactly once. The error is that of ctx, or
// a 503 for the client.
func (q *Queue) Acquire(ctx context.Context, s Source) (release func(), err error) {
	return q.acquire(ctx, s, &q.rest)
}

// AcquireFirst is Acquire for work that is wanted for sure: it has most of the turns.
func (q *Queue) AcquireFirst(ctx context.Context, s Source) (release func(), err error) {
	return q.acquire(ctx, s, &q.first)
}

func (q *Queue) acquire(ctx context.Context, s Source, l *line) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := q.enter(s, l)
	if w == nil {
		return q.release, nil
	}
	timer := time.NewTimer(q.limits.Wait)
	defer timer.Stop()
	err = errBusy()
	select {
	case <-w.done:
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.done:
	default:
		q.remove(w)
	}
	if !w.slot {
		if ctx.Err() == nil {
			q.busy++
		}
		return nil, err
	}
	if ctx.Err() != nil {
		q.releaseLocked()
		return nil, ctx.Err()
	}
	return q.release, nil
}

// Stats returns how many wait, and how many were rejected since the queue was made.
func (q *Queue) Stats() (waiting int, rejected uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting, q.busy
}

// enter takes a slot, and returns nil, or begins to wait.
func (q *Queue) enter(s Source, l *line) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free > 0 {
		q.free--
		return nil
	}
	if own := l.source(s); own != nil && len(own.waiters) >= q.limits.PerSource {
		q.reject(own.waiters[0])
	} else if q.waiting >= q.limits.Total {
		q.reject(q.longest().waiters[0])
	}
	w := &waiter{line: l, source: s, done: make(chan struct{})}
	q.add(w)
	return w
}

func (q *Queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked()
}

// releaseLocked gives the slot to the newest waiter of the source, of the mount, whose turn it is.
func (q *Queue) releaseLocked() {
	l := &q.first
	if l.turns.Len() == 0 || q.rest.turns.Len() > 0 && q.inRow >= restTurn {
		l, q.inRow = &q.rest, 0
	} else {
		q.inRow++
	}
	turn := l.turns.Front()
	if turn == nil {
		q.free++
		return
	}
	m := turn.Value.(*mount)
	l.turns.MoveToBack(turn)
	turn = m.turns.Front()
	m.turns.MoveToBack(turn)
	waiters := turn.Value.(*source).waiters
	w := waiters[len(waiters)-1]
	q.remove(w)
	w.slot = true
	close(w.done)
}

func (q *Queue) reject(w *waiter) {
	q.remove(w)
	close(w.done)
}

// source returns what waits of one source, nil if nothing does.
func (l *line) source(s Source) *source {
	turn := l.mounts[s.mount]
	if turn == nil {
		return nil
	}
	if turn = turn.Value.(*mount).sources[s.address]; turn == nil {
		return nil
	}
	return turn.Value.(*source)
}

// longest returns the source that has most waiting, and of several the one whose turn is the farthest.
func (q *Queue) longest() (longest *source) {
	for _, l := range []*line{&q.rest, &q.first} {
		for m := l.turns.Back(); m != nil; m = m.Prev() {
			for turn := m.Value.(*mount).turns.Back(); turn != nil; turn = turn.Prev() {
				if s := turn.Value.(*source); longest == nil || len(s.waiters) > len(longest.waiters) {
					longest = s
				}
			}
		}
	}
	return longest
}

func (q *Queue) add(w *waiter) {
	l := w.line
	if l.mounts[w.source.mount] == nil {
		l.mounts[w.source.mount] = l.turns.PushBack(&mount{uuid: w.source.mount, sources: map[netip.Prefix]*list.Element{}})
	}
	m := l.mounts[w.source.mount].Value.(*mount)
	if m.sources[w.source.address] == nil {
		m.sources[w.source.address] = m.turns.PushBack(&source{address: w.source.address})
	}
	s := m.sources[w.source.address].Value.(*source)
	s.waiters = append(s.waiters, w)
	q.waiting++
}

// remove takes a waiter out, and with it the turns of a source and of a mount of which nothing else waits.
func (q *Queue) remove(w *waiter) {
	l := w.line
	s := l.source(w.source)
	i := slices.Index(s.waiters, w)
	s.waiters = slices.Delete(s.waiters, i, i+1)
	q.waiting--
	if len(s.waiters) > 0 {
		return
	}
	turn := l.mounts[w.source.mount]
	m := turn.Value.(*mount)
	m.turns.Remove(m.sources[s.address])
	delete(m.sources, s.address)
	if len(m.sources) == 0 {
		l.turns.Remove(turn)
		delete(l.mounts, m.uuid)
	}
}

func errBusy() error {
	return &engines.Error{
		Kind:   engines.KindUnavailable,
		Detail: "too many logins at once: try again in a second",
		Header: http.Header{"Retry-After": {"1"}},
	}
}
