package lifecycle_test

import (
	"context"
	"testing"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/storage"
)

// durables counts what is durable where a sealed node reads it.
type durables struct {
	member
	at *storage.Index
}

func (d durables) AwaitDurable(_ context.Context, index storage.Index) error {
	*d.at = max(*d.at, index)
	return nil
}

// durableRaft opens clusters that tell what was durable.
type durableRaft struct {
	lifecycle.Raft
	at *storage.Index
}

func (r durableRaft) OpenCluster(ctx context.Context, p passport.Passport) (members.Cluster, error) {
	c, err := r.Raft.OpenCluster(ctx, p)
	return durables{c.(member), r.at}, err
}

// Whatever changes what a sealed node reads waits until a majority has it there; nothing else does.
func TestSealedStateIsAwaited(t *testing.T) {
	state := lifecycletest.NewState()
	var at storage.Index
	n := newNode(t, "a", state, func(o *lifecycle.Options) {
		o.Raft = durableRaft{o.Raft, &at}
	})
	written := func(what string) {
		t.Helper()
		var last storage.Index
		for _, prefix := range []storage.Key{"l/seal/", "l/barrier/"} {
			entries, err := state.Scan(context.Background(), prefix, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				last = max(last, e.Version)
			}
		}
		if last == 0 || at < last {
			t.Errorf("%s was answered with %d durable, want %d", what, at, last)
		}
	}
	keys := n.init(1, 1)
	written("init")
	n.unseal(keys...)
	n.until(n.Active, "not active")
	if _, err := n.barrier.Rotate(context.Background()); err != nil {
		t.Fatal(err)
	}
	written("a rotation")
	s, err := n.StartRekey(context.Background(), ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 1})
	if err == nil {
		s, err = n.Rekey(context.Background(), ceremony.Unseal, keys[0], s.Nonce)
	}
	if err != nil || !s.Complete {
		t.Fatalf("rekey = %+v, %v", s, err)
	}
	written("a rekey")
	before := at
	if _, err := n.barrier.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: dataKey, Value: []byte("2")}}}); err != nil {
		t.Fatal(err)
	}
	if at != before {
		t.Error("an ordinary write waited for the state file")
	}
}
