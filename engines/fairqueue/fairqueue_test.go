package fairqueue_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
)

func from(mount, address string) fairqueue.Source {
	return fairqueue.SourceOf(&engines.Request{Mount: engines.Mount{UUID: mount}, RemoteIP: netip.MustParseAddr(address)})
}

// rig is a queue with one slot, which is taken, and what was rejected or has run behind it.
type rig struct {
	*testing.T
	queue   *fairqueue.Queue
	release func()
	ran     []string // in this order; "!" before what was rejected
}

func newRig(t *testing.T, limits fairqueue.Limits) *rig {
	r := &rig{T: t, queue: fairqueue.New(limits)}
	var err error
	if r.release, err = r.queue.Acquire(t.Context(), from("other", "192.0.2.99")); err != nil {
		t.Fatal(err)
	}
	return r
}

// enqueue lets work wait.
func (r *rig) enqueue(ctx context.Context, name, mount, address string) {
	r.wait(ctx, name, from(mount, address), r.queue.Acquire)
}

func (r *rig) wait(ctx context.Context, name string, s fairqueue.Source, acquire func(context.Context, fairqueue.Source) (func(), error)) {
	go func() {
		release, err := acquire(ctx, s)
		if err != nil {
			r.ran = append(r.ran, "!"+name)
			var busy *engines.Error
			if ctx.Err() == nil && (!errors.As(err, &busy) || busy.Kind != engines.KindUnavailable || busy.Header.Get("Retry-After") == "") {
				r.Errorf("%s: %v, want a 503 with Retry-After", name, err)
			}
			return
		}
		r.ran = append(r.ran, name)
		release()
	}()
	synctest.Wait()
}

func (r *rig) want(names ...string) {
	r.Helper()
	if !slices.Equal(r.ran, names) {
		r.Errorf("ran %v, want %v", r.ran, names)
	}
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fairqueue.DefaultLimits(1))
		for i := range 4 {
			r.enqueue(t.Context(), fmt.Sprint("flood", i), "a", "192.0.2.1")
		}
		r.enqueue(t.Context(), "neighbour", "a", "192.0.2.2")
		r.enqueue(t.Context(), "v6-1", "b", "2001:db8::1")
		r.enqueue(t.Context(), "v6-2", "b", "2001:db8::2:1") // the same network
		r.release()
		synctest.Wait()
		r.want("flood3", "v6-2", "neighbour", "v6-1", "flood2", "flood1", "flood0")
	})
}

func TestMountsShareEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fairqueue.DefaultLimits(1))
		for i := range 20 { // many addresses do not get their mount more turns
			r.enqueue(t.Context(), fmt.Sprint("many", i), "a", fmt.Sprint("192.0.2.", i))
		}
		r.enqueue(t.Context(), "alone", "b", "192.0.2.1")
		r.release()
		synctest.Wait()
		if i := slices.Index(r.ran, "alone"); i != 1 || len(r.ran) != 21 {
			t.Errorf("ran %v, want the other mount's second", r.ran)
		}
	})
}

// TestFirst: what is vouched for goes first, yet leaves every fourth slot to the rest.
func TestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fairqueue.DefaultLimits(1))
		for i := range 2 {
			r.enqueue(t.Context(), fmt.Sprint("flood", i), "a", "192.0.2.1")
		}
		for i := range 5 {
			r.wait(t.Context(), fmt.Sprint("first", i), from("a", "192.0.2.1"), r.queue.AcquireFirst)
		}
		r.release()
		synctest.Wait()
		r.want("first4", "first3", "first2", "flood1", "first1", "first0", "flood0")
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fairqueue.Limits{Slots: 1, PerSource: 2, Total: 3, Wait: time.Minute})
		r.enqueue(t.Context(), "a0", "m", "192.0.2.1")
		r.enqueue(t.Context(), "a1", "m", "192.0.2.1")
		r.want()
		r.enqueue(t.Context(), "a2", "m", "192.0.2.1") // one too many of the source
		r.want("!a0")
		r.enqueue(t.Context(), "b0", "m", "192.0.2.2")
		r.want("!a0")
		r.enqueue(t.Context(), "c0", "m", "192.0.2.3") // one too many: the longest pays
		r.want("!a0", "!a1")
		r.release()
		synctest.Wait()
		r.want("!a0", "!a1", "a2", "b0", "c0")
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fairqueue.Limits{Slots: 1, PerSource: 9, Total: 9, Wait: time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		r.enqueue(ctx, "gone", "m", "192.0.2.1")
		cancel()
		synctest.Wait()
		r.want("!gone")
		r.enqueue(t.Context(), "late", "m", "192.0.2.1")
		time.Sleep(time.Second) // of the bubble's clock
		synctest.Wait()
		r.want("!gone", "!late")
		if waiting, rejected := r.queue.Stats(); waiting != 0 || rejected != 1 {
			t.Errorf("%d wait, %d were rejected, want 0 and 1", waiting, rejected)
		}
		r.enqueue(t.Context(), "next", "m", "192.0.2.1")
		r.release()
		synctest.Wait()
		r.enqueue(t.Context(), "free", "m", "192.0.2.1") // no slot was lost
		r.want("!gone", "!late", "next", "free")
		if _, err := r.queue.Acquire(ctx, from("m", "192.0.2.1")); !errors.Is(err, context.Canceled) {
			t.Errorf("acquired for a request that has ended: %v", err)
		}
	})
}

// TestNoSlotIsLost: slots that are given to a waiter whose request ends at the same moment come back.
func TestNoSlotIsLost(t *testing.T) {
	q := fairqueue.New(fairqueue.Limits{Slots: 2, PerSource: 3, Total: 5, Wait: time.Minute})
	done := make(chan struct{})
	for i := range 400 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		go func() {
			defer func() { done <- struct{}{} }()
			release, err := q.Acquire(ctx, from(fmt.Sprint("m", i%2), fmt.Sprint("192.0.2.", i%3)))
			if err == nil {
				release()
			}
		}()
	}
	for range 400 {
		<-done
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		if _, err := q.Acquire(ctx, from("m", "192.0.2.1")); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := q.Acquire(ctx, from("m", "192.0.2.1")); err == nil {
		t.Error("more slots than there are")
	}
}
