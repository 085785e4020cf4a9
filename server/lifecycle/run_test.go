package lifecycle_test

import (
	"context"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/storage"
)

func TestRunUnsealsByItself(t *testing.T) {
	auto := func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) }
	n := newNode(t, "n1", lifecycletest.NewState(), auto)
	if keys := n.init(5, 3); len(keys) != 0 || n.Sealed() {
		t.Errorf("%d keys, sealed %v", len(keys), n.Sealed())
	}
	if err := n.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Unseal(t.Context(), "x", false); err == nil {
		t.Error("a cluster with an automatic seal took a key share")
	}
	again := newNode(t, "n1", n.state, auto)
	again.run()
	again.until(again.Active, "not active")
}

func TestLeadershipComesAndGoes(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), nil)
	n.unseal(n.init(1, 1)...)
	for range 3 {
		n.until(func() bool { return n.Active() && n.turns.Load() == 1 && !n.ActiveSince().IsZero() }, "not active")
		n.follower.Store(true)
		if n.Active() {
			t.Error("active without the lead")
		}
		n.state.Changes <- struct{}{}
		n.until(func() bool { return n.turns.Load() == 0 && n.ActiveSince().IsZero() }, "still active")
		n.follower.Store(false)
		n.state.Changes <- struct{}{}
	}
}

// A state that was replaced is followed: loaded again if it is this cluster's.
func TestReplacedState(t *testing.T) {
	t.Run("this cluster's", func(t *testing.T) {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		n.unseal(n.init(1, 1)...)
		n.run()
		before := n.loads.Load()
		n.state.Replaced()
		n.until(func() bool { return n.loads.Load() == before+1 }, "not loaded again")
		if n.Sealed() {
			t.Error("sealed")
		}
	})
	t.Run("another cluster's", func(t *testing.T) {
		n := newNode(t, "n1", lifecycletest.NewState(), nil)
		n.unseal(n.init(1, 1)...)
		n.run()
		other := newNode(t, "other", lifecycletest.NewState(), nil)
		keys := other.init(1, 1)
		copyState(t, n.state, other.state)
		n.state.Replaced()
		n.until(n.barrier.Sealed, "not sealed")
		n.until(func() bool { return n.Status(t.Context()).Sealed }, "not sealed")
		n.unseal(keys...)
		other.unseal(keys...)
		if n.Identity() != other.Identity() {
			t.Errorf("identity = %v, want %v", n.Identity(), other.Identity())
		}
	})
	// The seal's key does not tell the clusters apart, but the running node has the certificates of the old one.
	t.Run("another cluster's with the same seal", func(t *testing.T) {
		auto := func(o *lifecycle.Options) { o.AutoSeal = static(t, 1) }
		n := newNode(t, "n1", lifecycletest.NewState(), auto)
		n.init(0, 0)
		n.run()
		other := newNode(t, "other", lifecycletest.NewState(), auto)
		other.init(0, 0)
		copyState(t, n.state, other.state)
		n.state.Replaced()
		n.until(func() bool { return n.Identity() == other.Identity() }, "it goes on as the old cluster")
		if ca, err := n.passport.Records.CA(t.Context()); err != nil || string(ca.Key) != "key of other" {
			t.Errorf("it runs with the %s, %v", ca.Key, err)
		}
	})
}

// Everything at once, as often as it likes: nothing hangs, and in the end the node can be unsealed.
func TestRaces(t *testing.T) {
	n := newNode(t, "n1", lifecycletest.NewState(), nil)
	keys := n.init(3, 2)
	n.run()
	var wg sync.WaitGroup
	for _, do := range []func(){
		func() { n.Unseal(context.Background(), keys[0], false) },
		func() { n.Unseal(context.Background(), keys[1], false) },
		func() { n.Unseal(context.Background(), "", true) },
		func() { n.Seal(context.Background()) },
		func() { n.Status(context.Background()) },
		func() { n.Init(context.Background(), 1, 1) },
		func() { n.Join(context.Background(), join.Target{LeaderAPIAddr: "http://127.0.0.1:1"}) },
		func() { n.state.Replaced() },
		func() { n.ReadIndex(context.Background()) },
		func() { n.Challenge(context.Background(), "n2") },
		func() {
			n.barrier.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: dataKey, Value: []byte("2")}}})
		},
	} {
		wg.Go(func() {
			for range 50 {
				do()
			}
		})
	}
	wg.Wait()
	n.until(func() bool {
		for _, k := range keys[1:] {
			n.Unseal(t.Context(), k, false)
		}
		return n.Active()
	}, "it cannot be unsealed any more")
}
