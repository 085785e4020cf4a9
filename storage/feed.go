package storage

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Feed is the ordered stream of applied changes.
type Feed interface {
	// OnChange calls fn once for every applied change, in order, before the change is visible to waiters on
	// its index. With areas, fn only gets changes of a key in one of them, and those that replace the whole state.
	// A read that begins after fn was called finds the change: that is what lets fn
	// invalidate a cache. fn runs on the apply path: it must not block, read the store, commit, or call OnChange or
	// stop. stop ends the calls; after it returns fn is not running.
	OnChange(fn func(Change), areas ...string) (stop func())
}

// Subscribers are those of a Feed, which are called in the order in which they came. The zero value has none.
type Subscribers struct {
	mu  sync.Mutex // held while they run, so that stop can promise that they do not run any more
	all []*subscriber
}

type subscriber struct {
	fn    func(Change)
	areas []string // empty: all
}

// OnChange implements Feed.
func (s *Subscribers) OnChange(fn func(Change), areas ...string) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := &subscriber{fn, areas}
	s.all = append(s.all, added)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = slices.DeleteFunc(s.all, func(sub *subscriber) bool { return sub == added })
	}
}

// Announce calls the subscribers with one change after the other.
func (s *Subscribers) Announce(changes ...Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range changes {
		ch.Areas = make([]string, 0, 4)
		for i := range ch.Entries {
			if area := ch.Entries[i].Key.Area(); !slices.Contains(ch.Areas, area) {
				ch.Areas = append(ch.Areas, area)
			}
		}
		for _, sub := range s.all {
			concerned := ch.Reset || len(sub.areas) == 0
			for _, area := range sub.areas {
				concerned = concerned || slices.Contains(ch.Areas, area)
			}
			if concerned {
				sub.fn(ch)
			}
		}
	}
}

// ErrTailStopped is what Next returns after Stop.
var ErrTailStopped = errors.New("the tail was stopped")

// Tail reads a Feed at its own pace, from its creation on. It keeps at most a fixed number of changes that
// have not been read yet, so a slow reader costs neither memory without end nor the writers any time: it is
// told that it has fallen behind and starts over from the state. One goroutine reads; Stop may come from
// another.
type Tail struct {
	max  int
	stop func()

	mu     sync.Mutex
	queue  []Change
	err    error         // ErrTooSlow or ErrTailStopped, once set for good
	filled chan struct{} // capacity 1, level-triggered: queue or err changed; never closed
}

// NewTail begins to keep the changes of a feed, at most limit of them (at least 1). Call Stop when done.
func NewTail(feed Feed, limit int) *Tail {
	t := &Tail{max: max(1, limit), filled: make(chan struct{}, 1)}
	t.stop = feed.OnChange(t.add)
	return t
}

// add runs on the apply path.
func (t *Tail) add(ch Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.err != nil:
		return
	case len(t.queue) >= t.max:
		t.queue, t.err = nil, ErrTooSlow // the rest is of no use with a gap in it
	default:
		t.queue = append(t.queue, ch)
	}
	t.wake()
}

func (t *Tail) wake() {
	select {
	case t.filled <- struct{}{}:
	default:
	}
}

// Next returns the next change, in order and without gaps, and blocks until there is one. Nothing in it may
// be modified. Its errors are ctx's, which does no harm; ErrTooSlow if more than the limit were waiting;
// and ErrTailStopped. After the last two the Tail is of no more use.
func (t *Tail) Next(ctx context.Context) (Change, error) {
	for {
		if ch, ok, err := t.take(); ok || err != nil {
			return ch, err
		}
		select {
		case <-t.filled:
		case <-ctx.Done():
			return Change{}, ctx.Err()
		}
	}
}

func (t *Tail) take() (ch Change, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil || len(t.queue) == 0 {
		return Change{}, false, t.err
	}
	ch = t.queue[0]
	t.queue[0] = Change{} // let go of its values
	t.queue = t.queue[1:]
	return ch, true, nil
}

// Stop ends the Tail and wakes a Next that waits. Twice is fine.
func (t *Tail) Stop() {
	t.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = ErrTailStopped
	}
	t.queue = nil
	t.wake()
}
