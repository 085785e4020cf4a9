// Package lifecycletest has what a lifecycle.Node stands on, in memory: a replicated state, a cluster of one node, and
// a real barrier. Tests embed State and Cluster, and override the methods that matter to them.
package lifecycletest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/rotation"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// State is a lifecycle.Raw. Several nodes may share one: then each is a replica that is never behind.
type State struct {
	storage.Memory

	// Changes is what Cluster.Changes returns. Its capacity is 1, and nothing but tests sends on it.
	Changes chan struct{}

	mu      sync.Mutex
	index   storage.Index
	applied chan struct{} // closed at each change
}

// NewState returns an empty state.
func NewState() *State {
	s := &State{Changes: make(chan struct{}, 1), applied: make(chan struct{})}
	s.Memory.OnChange(func(ch storage.Change) { s.apply(ch.Index) })
	return s
}

func (s *State) apply(index storage.Index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = index
	close(s.applied)
	s.applied = make(chan struct{})
}

// Replaced tells everybody that the whole state is another one.
func (s *State) Replaced() {
	s.mu.Lock()
	index := s.index + 1
	s.mu.Unlock()
	s.Announce(storage.Change{Index: index, Reset: true})
	s.apply(index + 1) // what the leader writes after a restore
}

// AppliedIndex is the index of the last change.
func (s *State) AppliedIndex() storage.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// Distrusted implements lifecycle.Raw.
func (s *State) Distrusted() error { return nil }

// WaitApplied waits for a change.
func (s *State) WaitApplied(ctx context.Context, index storage.Index) error {
	for {
		s.mu.Lock()
		done, wait := s.index >= index, s.applied
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WriteSnapshot writes nothing.
func (s *State) WriteSnapshot(context.Context, io.Writer) (uint64, uint64, error) { return 0, 0, nil }

// Cluster is a lifecycle.Cluster of one node, which always leads.
type Cluster struct{ State *State }

// Commit implements storage.Committer.
func (c Cluster) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	return c.State.Commit(ctx, b)
}

// ReadIndex is the index of the last change.
func (c Cluster) ReadIndex(context.Context) (storage.Index, error) {
	return c.State.AppliedIndex(), nil
}

// Changes signals what the test sends on State.Changes.
func (c Cluster) Changes() <-chan struct{} { return c.State.Changes }

// The others do and tell as little as they can.

func (Cluster) AwaitDurable(context.Context, storage.Index) error { return nil }

// Compare finds nothing that differs.
func (Cluster) Compare(context.Context) error                     { return nil }
func (Cluster) FoldNow()                                          {}
func (Cluster) AwaitMembers(context.Context, time.Duration) error { return nil }
func (Cluster) Bootstrap(context.Context) error                   { return nil }
func (Cluster) IsLeader() bool                                    { return true }
func (Cluster) Leader() (members.Peer, bool)                      { return members.Peer{}, true }
func (Cluster) Peers() ([]members.Peer, error)                    { return nil, nil }
func (Cluster) Behind() time.Duration                             { return 0 }
func (Cluster) Current() bool                                     { return true }
func (Cluster) Roomier() bool                                     { return false }
func (Cluster) DiskFault() error                                  { return nil }
func (Cluster) Admit(context.Context, join.Answer) ([]byte, error) {
	return []byte("{}"), nil
}
func (Cluster) RotateCA(context.Context) error                   { return nil }
func (Cluster) Certificates() members.Certificates               { return members.Certificates{} }
func (Cluster) TrustChanged()                                    {}
func (Cluster) Removed() bool                                    { return false }
func (Cluster) Verified() bool                                   { return true }
func (Cluster) Distrusted() error                                { return nil }
func (Cluster) FormatsAgreed() bool                              { return true }
func (Cluster) RemovePeer(context.Context, string) error         { return nil }
func (Cluster) StepDown(context.Context) error                   { return nil }
func (Cluster) SetVote(context.Context, string, bool) error      { return nil }
func (Cluster) Forward(http.ResponseWriter, *http.Request) error { return storage.ErrUnavailable }
func (Cluster) Restore(context.Context, io.Reader) error         { return nil }
func (Cluster) SetAutopilot(members.Autopilot)                   {}
func (Cluster) Numbers() map[string]float64                      { return nil }
func (Cluster) Drain(context.Context)                            {}
func (Cluster) Close(context.Context) error                      { return nil }

// Barrier is a lifecycle.Barrier over the real one.
type Barrier struct{ *barrier.Barrier }

// NewRing makes a root key and a key ring under it.
func (Barrier) NewRing() ([]byte, storage.Put, error) {
	root := barrier.NewRootKey()
	ring, err := barrier.KeyringPut(root)
	return root, ring, err
}

// Rotate adds a key to the ring.
func (b Barrier) Rotate(ctx context.Context) (rotation.KeyInfo, error) {
	info, err := b.Barrier.Rotate(ctx)
	return rotation.KeyInfo(info), err
}

// KeyInfo tells about the ring's newest key.
func (b Barrier) KeyInfo() rotation.KeyInfo { return rotation.KeyInfo(b.Barrier.KeyInfo()) }
