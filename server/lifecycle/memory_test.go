package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/lifecycle/rawstore"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// copyState takes over another node's state, as a snapshot does.
func copyState(t testing.TB, to, from *lifecycletest.State) {
	t.Helper()
	entries, err := from.Scan(context.Background(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var b storage.Batch
	for _, e := range entries {
		b.Puts = append(b.Puts, storage.Put{Key: e.Key, Value: e.Value})
	}
	if _, err := to.Commit(context.Background(), b); err != nil {
		t.Fatal(err)
	}
}

// member is a running node of the cluster.
type member struct {
	lifecycletest.Cluster
	n *node
}

func (m member) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if m.n.onCommit != nil {
		if err := m.n.onCommit(b); err != nil {
			return 0, err
		}
	}
	return m.State.Commit(ctx, b)
}
func (m member) IsLeader() bool { return !m.n.follower.Load() }
func (m member) Peers() (peers []members.Peer, err error) {
	for _, p := range m.n.peers {
		peers = append(peers, members.Peer{ID: p.id, FollowKey: p.barrier.FollowKey()})
	}
	return peers, nil
}
func (m member) Removed() bool  { return m.n.expelled.Load() }
func (m member) Verified() bool { return !m.n.unverified.Load() }
func (m member) Distrusted() error {
	if m.n.differs.Load() {
		return errors.New("its data differs")
	}
	return nil
}
func (m member) Admit(_ context.Context, a join.Answer) ([]byte, error) {
	m.n.joined = append(m.n.joined, a.ServerID)
	return []byte("trust with " + string(a.PublicKey)), nil
}
func (m member) Close(context.Context) error { return m.n.closing }

// node is a Node with everything below it, and what the test does to it.
type node struct {
	*lifecycle.Node
	t       *testing.T
	id      string
	state   *lifecycletest.State
	barrier *barrier.Barrier

	onCommit   func(storage.Batch) error                      // before each commit through the cluster
	onOpen     func(context.Context, passport.Passport) error // before the cluster starts
	onToken    func()                                         // when the root token is made
	closing    error                                          // what closing the cluster answers
	loading    error                                          // what Service.Load answers
	follower   atomic.Bool
	joined     []string
	peers      []*node           // other nodes of the cluster, which it has heard of
	passport   passport.Passport // shown to the running cluster
	expelled   atomic.Bool       // the others say that it is no member
	unverified atomic.Bool       // its data is not known to be the others'
	differs    atomic.Bool       // its data is not the others'
	turns      atomic.Int32      // running Service.Active
	loads      atomic.Int32
	unloads    atomic.Int32
}

const (
	dataKey  storage.Key = "s/sys/root/first"
	tokenKey storage.Key = "l/token/root"
)

// newNode returns a node that is sealed; it is closed at the end of the test. change may adjust the options.
func newNode(t *testing.T, id string, state *lifecycletest.State, change func(*lifecycle.Options)) *node {
	t.Helper()
	router := rawstore.New(state, nil)
	n := &node{t: t, id: id, state: state, barrier: barrier.New(router)}
	o := lifecycle.Options{
		NodeID: id, ClusterAddr: id + ":8201", Raw: state, Router: router, Barrier: lifecycletest.Barrier{Barrier: n.barrier},
		Raft: raft{n}, Service: served{n},
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

// raft is lifecycle.Raft: of a cluster in memory.
type raft struct{ n *node }

func (r raft) NewCA() (passport.CA, error) {
	return passport.CA{Cert: []byte("cert"), Key: []byte("key of " + r.n.id)}, nil
}

func (r raft) NewKey() (private, public []byte, err error) {
	return []byte("key of " + r.n.id), []byte("public key of " + r.n.id), nil
}

func (r raft) OpenCluster(ctx context.Context, p passport.Passport) (members.Cluster, error) {
	r.n.passport = p
	if r.n.onOpen != nil {
		if err := r.n.onOpen(ctx, p); err != nil {
			return nil, err
		}
	}
	return member{lifecycletest.Cluster{State: r.n.state}, r.n}, nil
}

// served is lifecycle.Service: it counts the calls.
type served struct{ n *node }

func (served) FirstPuts() ([]storage.Put, error) {
	return []storage.Put{{Key: dataKey, Value: []byte("1")}}, nil
}

func (s served) RootToken(ctx context.Context) (string, error) {
	if s.n.onToken != nil {
		s.n.onToken()
	}
	_, err := s.n.barrier.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: tokenKey, Value: []byte("t")}}})
	return "the root token", err
}

func (s served) GenerateRoot(ctx context.Context) (string, error) { return s.RootToken(ctx) }

func (s served) Load(context.Context, lifecycle.Identity) error {
	s.n.loads.Add(1)
	return s.n.loading
}

func (s served) Unload() { s.n.unloads.Add(1) }

func (s served) Active(ctx context.Context) {
	s.n.turns.Add(1)
	<-ctx.Done()
	s.n.turns.Add(-1)
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

// anotherNumber returns the first of shares, more than given, whose number, the last byte, none of the given ones has: two shares of one
// number are rejected before they are combined.
func anotherNumber(shares []string, given ...string) string {
	number := func(share string) byte {
		part, _ := base64.StdEncoding.DecodeString(share) // as init encoded it
		return part[len(part)-1]
	}
	return shares[slices.IndexFunc(shares, func(share string) bool {
		return !slices.ContainsFunc(given, func(g string) bool { return number(g) == number(share) })
	})]
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
