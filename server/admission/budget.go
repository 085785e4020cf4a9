package admission

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// Budget is how many bytes of request bodies may be in memory at once: of all clients, and of each. Safe for
// concurrent use; the zero value admits nothing.
type Budget struct {
	total, each int64 // bytes

	mu   sync.Mutex
	used int64
	by   map[netip.Addr]int64 // only clients that hold something

	rejected atomic.Uint64
}

// NewBudget returns a budget of total bytes, and each bytes for each client.
func NewBudget(total, each int64) *Budget {
	return &Budget{total: total, each: each, by: map[netip.Addr]int64{}}
}

// Share is what one request has taken of a Budget. Not safe for concurrent use.
type Share struct {
	budget *Budget
	client netip.Addr
	bytes  int64
}

// Share begins a share of a client, with nothing in it. Release it.
func (b *Budget) Share(ip netip.Addr) Share { return Share{budget: b, client: Client(ip)} }

// Grow takes so many bytes more, or returns ErrBusy.
func (s *Share) Grow(bytes int64) error {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.by[s.client]
	if b.used+bytes > b.total || held+bytes > b.each {
		b.rejected.Add(1)
		return ErrBusy
	}
	b.used += bytes
	b.by[s.client] = held + bytes
	s.bytes += bytes
	return nil
}

// Shrink gives so many bytes back, at most what the share has.
func (s *Share) Shrink(bytes int64) {
	if bytes = min(bytes, s.bytes); bytes == 0 {
		return
	}
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= bytes
	s.bytes -= bytes
	if held := b.by[s.client] - bytes; held > 0 {
		b.by[s.client] = held
	} else {
		delete(b.by, s.client)
	}
}

// Release gives all of it back. Releasing twice is fine.
func (s *Share) Release() { s.Shrink(s.bytes) }

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Rejected returns how many times there was no room.
func (b *Budget) Rejected() uint64 { return b.rejected.Load() }
