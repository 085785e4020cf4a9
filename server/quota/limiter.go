package quota

import (
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/coffer-project/coffer/server/admission"
	"golang.org/x/time/rate"
)

// Bounds of what one rate limit keeps in memory: at most shards × shardClients clients. Those for whom there is
// no room share one bucket for each shard: many addresses must not get what one address is denied.
const (
	shards       = 16
	shardClients = 4096
)

// A shard is searched for clients that are as good as new when one is added, but not more often than that.
const (
	minSweep = time.Second
	maxSweep = time.Minute
)

// limiter is a token bucket for each client: limit requests at once, and as many again in each interval. Safe
// for concurrent use.
type limiter struct {
	perSecond rate.Limit
	burst     int
	block     time.Duration // how long a client that went too far gets nothing
	seed      maphash.Seed
	shards    [shards]shard
}

type shard struct {
	mu       sync.Mutex
	clients  map[netip.Addr]*client
	overflow *client // of all for whom there is no room; nil until then
	sweepAt  time.Time
}

// client is what is known of one address.
type client struct {
	bucket  *rate.Limiter
	blocked time.Time // until then; zero: not
}

func newLimiter(requests float64, interval, block time.Duration) *limiter {
	return &limiter{
		perSecond: rate.Limit(requests / interval.Seconds()), burst: max(1, int(math.Ceil(requests))),
		block: block, seed: maphash.MakeSeed(),
	}
}

// take counts one request.
func (l *limiter) take(ip netip.Addr, now time.Time) Decision {
	ip = admission.Client(ip)
	s := &l.shards[maphash.Comparable(l.seed, ip)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[ip]
	if c == nil {
		c = l.admitLocked(s, ip, now)
	}
	d := Decision{Limit: l.burst}
	if now.Before(c.blocked) {
		d.RetryAfter = c.blocked.Sub(now)
		d.ResetAfter = d.RetryAfter
		return d
	}
	d.Allowed = c.bucket.AllowN(now, 1)
	left := c.bucket.TokensAt(now)
	d.ResetAfter = l.until(float64(l.burst) - left)
	if d.Allowed {
		d.Remaining = max(0, int(left))
		return d
	}
	d.RetryAfter = l.until(1 - left)
	if l.block > 0 {
		c.blocked = now.Add(l.block)
		d.RetryAfter = l.block
		d.ResetAfter = max(d.ResetAfter, l.block)
	}
	return d
}

// until is how long it takes to get this many tokens.
func (l *limiter) until(tokens float64) time.Duration {
	seconds := max(0, tokens) / float64(l.perSecond)
	return time.Duration(min(seconds*float64(time.Second), math.MaxInt64/2))
}

func (l *limiter) fresh() *client { return &client{bucket: rate.NewLimiter(l.perSecond, l.burst)} }

// admitLocked makes room for a client that the shard does not know.
func (l *limiter) admitLocked(s *shard, ip netip.Addr, now time.Time) *client {
	if s.clients == nil {
		s.clients = map[netip.Addr]*client{}
	}
	if !now.Before(s.sweepAt) {
		for known, c := range s.clients {
			// A full bucket remembers nothing.
			if !now.Before(c.blocked) && c.bucket.TokensAt(now) >= float64(l.burst) {
				delete(s.clients, known)
			}
		}
		s.sweepAt = now.Add(min(max(l.until(float64(l.burst)), minSweep), maxSweep))
	}
	if len(s.clients) >= shardClients {
		if s.overflow == nil {
			s.overflow = l.fresh()
		}
		return s.overflow
	}
	c := l.fresh()
	s.clients[ip] = c
	return c
}

// clients returns how many clients are kept in memory.
func (l *limiter) clients() int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += len(s.clients)
		s.mu.Unlock()
	}
	return n
}
