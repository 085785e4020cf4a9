package saml

import (
	"runtime"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines/fairqueue"
)

// newQueue returns the queue of responses to verify, each of which may be a mebibyte of XML from any client: at most half of
// the processors are for them, and few wait, because each that waits holds its body.
func newQueue() *fairqueue.Queue {
	return fairqueue.New(fairqueue.Limits{Slots: max(1, runtime.GOMAXPROCS(0)/2), PerSource: 64, Total: 128, Wait: 5 * time.Second})
}

// maxRejections is how many responses to one login may be rejected without proving anything, before the login ends: who has
// its RelayState could go on for as long as it lives.
const maxRejections = 10

// rejections counts the responses that were rejected by login. It is in memory: writing it down would cost more than what
// it bounds.
type rejections struct {
	mu            sync.Mutex
	count, before map[string]int // by login, since a time and in the five minutes before it
	since         time.Time
}

// add counts one more, and reports whether it is one too many.
func (r *rejections) add(now time.Time, login string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := now.Sub(r.since); age < 0 || age >= loginTTL {
		r.before, r.count, r.since = r.count, map[string]int{}, now
	}
	r.count[login]++
	return r.count[login]+r.before[login] >= maxRejections
}

// throttle lets something happen once a second.
type throttle struct {
	mu   sync.Mutex
	last time.Time
}

func (t *throttle) allow(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if since := now.Sub(t.last); since >= 0 && since < time.Second {
		return false
	}
	t.last = now
	return true
}
