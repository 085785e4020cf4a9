package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// memory is a replicated state and a cluster of one, in memory.
type memory struct {
	storage.Memory
	mu      sync.Mutex
	index   storage.Index
	applied chan struct{} // closed at each change
	feed    []func(storage.Change)
	changes chan struct{}
}

func newMemory() *memory {
	m := &memory{applied: make(chan struct{}), changes: make(chan struct{}, 1)}
	m.Memory.OnChange(func(ch storage.Change) { m.apply(ch.Index) })
	return m
}

func (m *memory) apply(index storage.Index) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index = index
	close(m.applied)
	m.applied = make(chan struct{})
}

func (m *memory) OnChange(fn func(storage.Change)) func() {
	m.feed = append(m.feed, fn)
	return m.Memory.OnChange(fn)
}

// replaced tells everybody that the whole state is another one.
func (m *memory) replaced() {
	index := m.AppliedIndex() + 1
	for _, fn := range m.feed {
		fn(storage.Change{Index: index, Reset: true})
	}
	m.apply(index + 1) // what the leader writes after a restore
}

func (m *memory) AppliedIndex() storage.Index {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

func (m *memory) WaitApplied(ctx context.Context, index storage.Index) error {
	for {
		m.mu.Lock()
		done, wait := m.index >= index, m.applied
		m.mu.Unlock()
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

func (m *memory) WriteSnapshot(context.Context, io.Writer) (uint64, uint64, error) { return 0, 0, nil }

// copyFrom takes over another node's state, as a snapshot does.
func (m *memory) copyFrom(t testing.TB, from *memory) {
	t.Helper()
	entries, err := from.Scan(context.Background(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var b storage.Batch
	for _, e := range entries {
		b.Puts = append(b.Puts, storage.Put{Key: e.Key, Value: e.Value})
	}
	if _, err := m.Commit(context.Background(), b); err != nil {
		t.Fatal(err)
	}
}

// member is a running node of the cluster.
type member struct{ *node }

func (m member) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if m.onCommit != nil {
		if err := m.onCommit(b); err != nil {
			return 0, err
		}
	}
	return m.state.Commit(ctx, b)
}
func (m member) Bootstrap(context.Context) error                  { return nil }
func (m member) ReadIndex(context.Context) (storage.Index, error) { return m.state.AppliedIndex(), nil }
func (m member) IsLeader() bool                                   { return !m.follower.Load() }
func (m member) Leader() (lifecycle.Peer, bool)                   { return lifecycle.Peer{}, !m.cutOff.Load() }
func (m member) Peers() ([]lifecycle.Peer, error)                 { return nil, nil }
func (m member) Changes() <-chan struct{}                         { return m.state.changes }
func (m member) Join(_ context.Context, id, _ string, _, _ bool) error {
	m.joined = append(m.joined, id)
	return nil
}
func (m member) RemovePeer(context.Context, string) error         { return nil }
func (m member) StepDown(context.Context) error                   { return nil }
func (m member) Forward(http.ResponseWriter, *http.Request) error { return storage.ErrUnavailable }
func (m member) Restore(context.Context, io.Reader) error         { return nil }
func (m member) SetAutopilot(lifecycle.Autopilot)                 {}
func (m member) Numbers() map[string]float64                      { return nil }
func (m member) Drain(context.Context)                            {}
func (m member) Close(context.Context) error                      { return m.closing }

// theBarrier is a lifecycle.Barrier.
type theBarrier struct{ *barrier.Barrier }

func (b theBarrier) NewRing() ([]byte, storage.Put, error) {
	root := barrier.NewRootKey()
	ring, err := barrier.KeyringPut(root)
	return root, ring, err
}

func (b theBarrier) Rotate(ctx context.Context) (lifecycle.KeyInfo, error) {
	info, err := b.Barrier.Rotate(ctx)
	return lifecycle.KeyInfo(info), err
}
func (b theBarrier) KeyInfo() lifecycle.KeyInfo { return lifecycle.KeyInfo(b.Barrier.KeyInfo()) }

// node is a Node with everything below it, and what the test does to it.
type node struct {
	*lifecycle.Node
	t       *testing.T
	id      string
	state   *memory
	barrier *barrier.Barrier

	onCommit func(storage.Batch) error                 // before each commit through the cluster
	onOpen   func(context.Context, lifecycle.CA) error // before the cluster starts
	onToken  func()                                    // when the root token is made
	closing  error                                     // what closing the cluster answers
	loading  error                                     // what Hooks.Load answers
	follower atomic.Bool
	cutOff   atomic.Bool // it knows of no leader
	joined   []string
	ca       lifecycle.CA // of the running cluster
	turns    atomic.Int32 // running Hooks.Active
	loads    atomic.Int32
	unloads  atomic.Int32
}

const (
	dataKey  storage.Key = "s/sys/root/first"
	tokenKey storage.Key = "l/token/root"
)

// newNode returns a node that is sealed; it is closed at the end of the test. change may adjust the options.
func newNode(t *testing.T, id string, state *memory, change func(*lifecycle.Options)) *node {
	t.Helper()
	router := lifecycle.NewRawStore(state)
	n := &node{t: t, id: id, state: state, barrier: barrier.New(router)}
	o := lifecycle.Options{
		NodeID: id, ClusterAddr: id + ":8201", Raw: state, Router: router, Barrier: theBarrier{n.barrier},
		NewCA: func() (lifecycle.CA, error) {
			return lifecycle.CA{Cert: []byte("cert"), Key: []byte("key of " + id)}, nil
		},
		OpenCluster: func(ctx context.Context, ca lifecycle.CA) (lifecycle.Cluster, error) {
			n.ca = ca
			if n.onOpen != nil {
				if err := n.onOpen(ctx, ca); err != nil {
					return nil, err
				}
			}
			return member{n}, nil
		},
		Hooks: lifecycle.Hooks{
			FirstPuts: func() ([]storage.Put, error) { return []storage.Put{{Key: dataKey, Value: []byte("1")}}, nil },
			RootToken: func(ctx context.Context) (string, error) {
				if n.onToken != nil {
					n.onToken()
				}
				_, err := n.barrier.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: tokenKey, Value: []byte("t")}}})
				return "the root token", err
			},
			Load:   func(context.Context) error { n.loads.Add(1); return n.loading },
			Unload: func() { n.unloads.Add(1) },
			Active: func(ctx context.Context) {
				n.turns.Add(1)
				<-ctx.Done()
				n.turns.Add(-1)
			},
		},
	}
	if change != nil {
		change(&o)
	}
	n.Node = lifecycle.New(o)
	t.Cleanup(func() {
		n.closing = nil
		if err := n.Close(context.Background()); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return n
}

// run starts what goes on in the background, until the end of the test.
func (n *node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.t.Cleanup(func() { cancel(); <-done })
}

func (n *node) init(shares, threshold int) (keys []string) {
	n.t.Helper()
	result, err := n.Init(context.Background(), shares, threshold)
	if err != nil {
		n.t.Fatal(err)
	}
	if result.RootToken == "" {
		n.t.Error("no root token")
	}
	for _, k := range result.KeyShares {
		keys = append(keys, base64.StdEncoding.EncodeToString(k))
	}
	return keys
}

func (n *node) unseal(keys ...string) {
	n.t.Helper()
	for _, k := range keys {
		if _, err := n.Unseal(context.Background(), k, false); err != nil {
			n.t.Fatal(err)
		}
	}
	if n.Sealed() {
		n.t.Fatal("still sealed")
	}
}

// until waits for something that happens in the background.
func (n *node) until(cond func() bool, what string) {
	n.t.Helper()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			n.t.Fatal(what)
		case <-time.After(time.Millisecond):
		}
	}
}

// static is an automatic seal.
func static(t *testing.T, fill byte) seal.Wrapper {
	t.Helper()
	w, err := seal.NewStatic(map[string]string{
		"current_key_id": "k", "current_key": base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, seal.KeyBytes)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var errTest = errors.New("as the test wants it")
