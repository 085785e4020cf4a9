// Package lifecycle is the life of one node: not initialised, sealed, unsealed as standby or active. It owns
// the order in which keys, storage and the cluster come up and go down, and nothing of what is served.
//
// While a node is sealed its state file is open but nothing can be decrypted, and the node takes no part in
// Raft: the node's own key is a file that is encrypted with the cluster's key ring, so a node that cannot unseal cannot
// even connect.
// Start reading at Node, then Init, Unseal and up.
package lifecycle

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/lifecycle/rawstore"
	"github.com/coffer-project/coffer/server/lifecycle/rotation"
	"github.com/coffer-project/coffer/server/lifecycle/sealing"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Entries behind the barrier.
var (
	clusterKey = storage.NewKey(storage.Local, "cluster", "identity")
)

// Barrier is the encryption layer: a Store of plaintext over the raw one.
type Barrier interface {
	storage.Store
	Keys
	SealBytes(aad string, plain []byte) ([]byte, error)
	OpenBytes(aad string, sealed []byte) ([]byte, error)
	DeriveKey(purpose string) ([]byte, error)
}

// Keys are the root key and the ring of a barrier.
type Keys interface {
	// NewRing makes a root key and the stored form of a fresh key ring under it.
	NewRing() (rootKey []byte, ring storage.Put, err error)
	Unseal(ctx context.Context, rootKey []byte) error
	Seal()
	Changed(storage.Change)
	Rotate(ctx context.Context) (rotation.KeyInfo, error)
	// Renew adds to a transaction of the raw store what replaces the root key, for this node and for those whose
	// Peer.FollowKey is among followers. The result seals under the key ring of afterwards.
	Renew(ctx context.Context, txn *storage.Txn, next []byte, followers [][]byte) (seal func(aad string, plain []byte) ([]byte, error), err error)
	KeyInfo() rotation.KeyInfo
	// SaveCount makes what this node has encrypted since the last time part of the stored count.
	SaveCount(ctx context.Context) error
}

// Raw is the replicated state as stored, on this node.
type Raw interface {
	storage.Reader
	storage.Feed
	AppliedIndex() storage.Index
	WaitApplied(ctx context.Context, index storage.Index) error
	// Distrusted returns why this node's files must not be used any more, or nil. WaitApplied then fails.
	Distrusted() error
	// WriteSnapshot streams the whole state; the answer says at which index and term it is.
	WriteSnapshot(ctx context.Context, w io.Writer) (index, term uint64, err error)
}

// Identity names a cluster.
type Identity struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Options of a Node. All but AutoSeal, OldSeal, RetryJoin, OwnFiles, Sealing, StaySealed and Logger are required.
type Options struct {
	NodeID      string
	ClusterAddr string // advertised host:port
	APIAddr     string // advertised URL
	ClusterName string
	Raw         Raw
	Barrier     Barrier
	Router      *rawstore.Store // the raw store below Barrier, routed to the running cluster
	Raft        Raft
	Formats     uint32       // newest generation of stored formats that this build reads
	KeyFile     string       // where the node's key is kept, encrypted; "": nowhere
	AutoSeal    seal.Wrapper // nil: Shamir
	OldSeal     seal.Wrapper // an automatic seal that the cluster is to leave; nil: none
	RetryJoin   []join.Target
	Service     Service
	// OwnFiles records the cluster's id beside the node's files. nil: it is not recorded.
	OwnFiles func(Identity) error
	// Sealing is called before an unsealed node seals for good, and what it returns once it is sealed: the process then
	// restarts, because its memory still holds what the node has served, and the node takes no more keys. stay says that an
	// operator sealed it, so that it must not unseal by itself. nil: the node goes on, and can be unsealed again.
	Sealing func(stay bool) (sealed func())
	// StaySealed keeps the node from unsealing by itself, because an operator has sealed it.
	StaySealed bool
	Logger     *slog.Logger
}

// Raft is what makes a node a member of a cluster.
type Raft interface {
	// NewCA makes the CA of a new cluster, NewKey the key of a node.
	NewCA() (passport.CA, error)
	NewKey() (private, public []byte, err error)
	// OpenCluster starts this node's part in Raft, each time the node unseals.
	OpenCluster(ctx context.Context, p passport.Passport) (members.Cluster, error)
}

// Service is what a node serves, in the course of its life.
type Service interface {
	// FirstPuts returns what a new cluster begins with, plaintext.
	FirstPuts() ([]storage.Put, error)
	// RootToken creates the root token of a new cluster; the node is active.
	RootToken(ctx context.Context) (string, error)
	// GenerateRoot creates a root token of ceremony.OTPLength bytes, on the authority of those who hold the keys.
	GenerateRoot(ctx context.Context) (string, error)
	// Load is called when storage has become readable, also after it was replaced by a snapshot.
	Load(ctx context.Context, id Identity) error
	// Unload is called before sealing.
	Unload()
	// Active runs while this node is the active one. ctx ends with that; Active must then return.
	Active(ctx context.Context)
}

// Sentinels of this package.
var (
	ErrInitialized    = errors.New("already initialized")
	ErrNotInitialized = errors.New("not initialized")
)

// running is what an unsealed node has. It is replaced as a whole.
type running struct {
	cluster    members.Cluster
	seal       sealing.InUse
	challenges seal.Challenges // of nodes that want to join
	identity   Identity
	migration  *sealing.Migration            // to another seal, when this node becomes active; nil: none
	ceremony   atomic.Pointer[ceremony.Turn] // of the people who hold keys; nil while not active
	stop       context.CancelFunc            // ends watch
	done       chan struct{}                 // closed when watch has ended
	active     atomic.Bool
	since      atomic.Int64 // Unix nanoseconds when it became active
	unsealed   time.Time
}

// Node is one node's life. Safe for concurrent use.
type Node struct {
	*ceremony.Ceremonies // of the people who hold keys

	opts Options
	log  *slog.Logger

	running atomic.Pointer[running]    // nil while sealed
	last    atomic.Pointer[SealStatus] // as Status last saw it

	life context.Context // ends when the node is closed; every transition ends with it
	end  context.CancelFunc

	seals    sealing.Seals
	rotation rotation.Keys
	health   sealing.Health
	keyFile  passport.File

	mu       sync.Mutex // guards everything below, and every transition
	unsealer *seal.Attempts
	migrates bool         // the unsealer is to change the seal
	pending  *pendingJoin // a join that waits for the key
	closed   bool

	removed    atomic.Bool            // the cluster has removed this node
	founding   atomic.Pointer[string] // nonce of the initialization under way; nil: none
	joinFailed atomic.Pointer[string] // why the last attempt to join failed; nil: none has

	// restoring is held while a snapshot is restored through this node.
	restoring sync.Mutex
	replaced  atomic.Uint64 // index at which the state was last replaced

	reset chan struct{}    // capacity 1: the state was replaced under us
	moved chan struct{}    // capacity 1: the seal has changed, and the root key may have
	later chan join.Target // capacity 1: a join to keep trying
}

// New returns a sealed node. Run starts what goes on in the background.
func New(o Options) *Node {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{opts: o, log: o.Logger, reset: make(chan struct{}, 1), moved: make(chan struct{}, 1), later: make(chan join.Target, 1)}
	n.life, n.end = context.WithCancel(context.Background())
	n.Ceremonies = ceremony.New(ceremony.Options{Raw: o.Router, Barrier: o.Barrier, Node: n, Tokens: o.Service, Logger: n.log})
	n.seals = sealing.Seals{Auto: o.AutoSeal, Old: o.OldSeal}
	n.rotation = rotation.Keys{Barrier: o.Barrier, Logger: n.log}
	n.keyFile = passport.File{Path: o.KeyFile, Node: o.NodeID, Barrier: o.Barrier, Logger: n.log}
	n.removed.Store(n.keyFile.Removed())
	n.statusLocked(n.life) // no other goroutine has it yet
	o.Raw.OnChange(func(ch storage.Change) {
		o.Barrier.Changed(ch)
		if r := n.running.Load(); r != nil {
			if ch.Touches(passport.TrustEntry) {
				r.cluster.TrustChanged()
			}
			if ch.Touches(rawstore.SealedPrefixes...) {
				r.cluster.FoldNow()
			}
		}
		var wake chan struct{}
		switch {
		case ch.Reset:
			n.replaced.Store(uint64(ch.Index))
			wake = n.reset
		case ch.Touches(seal.RootKey):
			wake = n.moved
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}, "seal", "barrier", "cluster")
	return n
}

// transition takes the lock for a change of state. The context it returns also ends when the node is closed,
// so that a change that waits for others never holds up the end. Call done when the change is over.
func (n *Node) transition(ctx context.Context) (_ context.Context, done func()) {
	n.mu.Lock()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(n.life, cancel)
	return ctx, func() {
		stop()
		cancel()
		n.statusLocked(context.Background()) // for those who ask during the next change
		n.mu.Unlock()
	}
}

// Turn implements ceremony.Node: what the people who hold keys have begun together while this node is the active one.
func (n *Node) Turn() (*ceremony.Turn, error) {
	r := n.running.Load()
	if r == nil {
		return nil, storage.ErrSealed
	}
	t := r.ceremony.Load()
	if t == nil || !n.Active() {
		return nil, storage.ErrReadOnly
	}
	return t, nil
}

// Removed reports whether this node was removed from its cluster. It is sealed then.
func (n *Node) Removed() bool { return n.removed.Load() }

// Sealed reports whether the node is sealed (or not initialised).
func (n *Node) Sealed() bool { return n.running.Load() == nil }

// Active reports whether this node is the active one, ready to serve.
func (n *Node) Active() bool {
	r := n.running.Load()
	return r != nil && r.active.Load() && r.cluster.IsLeader()
}

// Current reports whether what the node holds is known to be what its cluster had less than ten seconds ago: see Cluster.
func (n *Node) Current() bool {
	r := n.running.Load()
	return r != nil && r.cluster.Current() && r.cluster.Verified()
}

// settling is how long after its unsealing a node may take to become active or current.
const settling = 5 * time.Second

// AwaitCurrent waits for a node that was unsealed a moment ago. It reports whether the node is active or current.
func (n *Node) AwaitCurrent(ctx context.Context) bool {
	return n.await(ctx, func() bool { return n.Active() || n.Current() }, func(r *running) bool { return time.Since(r.unsealed) <= settling })
}

// await waits until what a running node is about to do is done, for as long as there is hope. It reports whether it is done.
func (n *Node) await(ctx context.Context, done func() bool, hope func(*running) bool) bool {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for !done() {
		if r := n.running.Load(); r == nil || !hope(r) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-again.C:
		}
	}
	return true
}

// Behind returns how old what the node holds may be; negative if that is not known.
func (n *Node) Behind() time.Duration {
	if r := n.running.Load(); r != nil {
		return r.cluster.Behind()
	}
	return -1
}

// AwaitActive waits, for a moment, until a node that has become the leader serves as the active one. It
// reports whether it does.
func (n *Node) AwaitActive(ctx context.Context) bool {
	return n.await(ctx, n.Active, func(r *running) bool { return r.cluster.IsLeader() })
}

// ActiveSince returns when the node became active; zero if it is not.
func (n *Node) ActiveSince() time.Time {
	if r := n.running.Load(); r != nil && r.active.Load() {
		return time.Unix(0, r.since.Load()).UTC()
	}
	return time.Time{}
}

// Cluster returns the running cluster, or nil while sealed.
func (n *Node) Cluster() members.Cluster {
	if r := n.running.Load(); r != nil {
		return r.cluster
	}
	return nil
}

// Identity returns the cluster's name and id; zero while sealed.
func (n *Node) Identity() Identity {
	if r := n.running.Load(); r != nil {
		return r.identity
	}
	return Identity{}
}

// ID returns the node's id.
func (n *Node) ID() string { return n.opts.NodeID }

// Initialized reports whether this node holds a cluster's seal configuration.
func (n *Node) Initialized(ctx context.Context) bool {
	_, err := n.opts.Raw.Get(ctx, seal.ConfigKey)
	return err == nil
}
