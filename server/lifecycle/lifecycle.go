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
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Entries behind the barrier.
var (
	caKey      = storage.NewKey(storage.Local, "cluster", "ca")
	trustKey   = storage.NewKey(storage.Local, "cluster", "trust")
	clusterKey = storage.NewKey(storage.Local, "cluster", "identity")
)

// KeyInfo describes the active encryption key.
type KeyInfo struct {
	Term        uint32
	InstalledAt time.Time
	Encryptions uint64 // of the cluster, as far as this node knows
	Unsaved     uint64 // those of them that only this node knows of
}

// Barrier is the encryption layer: a Store of plaintext over the raw one.
type Barrier interface {
	storage.Store
	// NewRing makes a root key and the stored form of a fresh key ring under it.
	NewRing() (rootKey []byte, ring storage.Put, err error)
	Unseal(ctx context.Context, rootKey []byte) error
	Seal()
	Changed(storage.Change)
	Rotate(ctx context.Context) (KeyInfo, error)
	// Renew adds to a transaction of the raw store what replaces the root key, for this node and for those whose
	// Peer.FollowKey is among followers. The result seals under the key ring of afterwards.
	Renew(ctx context.Context, txn *storage.Txn, next []byte, followers [][]byte) (seal func(aad string, plain []byte) ([]byte, error), err error)
	KeyInfo() KeyInfo
	// SaveCount makes what this node has encrypted since the last time part of the stored count.
	SaveCount(ctx context.Context) error
	SealBytes(aad string, plain []byte) ([]byte, error)
	OpenBytes(aad string, sealed []byte) ([]byte, error)
	DeriveKey(purpose string) ([]byte, error)
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

// Peer is a member of the cluster as the leader (or this node) knows it.
type Peer struct {
	ID, APIAddr, ClusterAddr, Version string
	Voter, Leader, Healthy            bool
	LastContact                       time.Duration // 0 on the leader itself
	Behind                            time.Duration // how old its state may be; negative if not known
	Disk                              string        // "ok", "low", "full" or "failing"
	LastIndex, AppliedIndex, LastTerm uint64
	FollowKey                         []byte // public key that the next root key is encrypted to; empty until the node has reported it
}

// Autopilot is the automatic care of membership. Durations as in the field's autopilot.
type Autopilot struct {
	CleanupDeadServers             bool
	LastContactThreshold           time.Duration
	DeadServerLastContactThreshold time.Duration
	MaxTrailingLogs                uint64
	MinQuorum                      int
	ServerStabilizationTime        time.Duration
}

// Cluster is this node's running part in Raft and in the traffic between nodes.
type Cluster interface {
	storage.Committer
	// AwaitDurable waits, on the leader, until what a sealed node reads has everything up to index on the disks of a
	// majority. The error says which voters have not reported that when ctx ended.
	AwaitDurable(ctx context.Context, index storage.Index) error
	// FoldNow makes what this node has applied durable where a sealed node reads it, and reports it. It does not wait.
	FoldNow()
	// Bootstrap makes this node the only voter of a new cluster. Doing it again changes nothing.
	Bootstrap(ctx context.Context) error
	ReadIndex(ctx context.Context) (storage.Index, error)
	IsLeader() bool
	Leader() (Peer, bool)
	Peers() ([]Peer, error)
	// Changes signals (capacity 1) that leadership may have changed.
	Changes() <-chan struct{}
	// Admit makes a node with this public key a member. The answer is what the node goes by until it has the state.
	Admit(ctx context.Context, a Answer) (trust []byte, err error)
	// RemovePeer ends a node's membership, and with it the node's certificate.
	RemovePeer(ctx context.Context, id string) error
	// RotateCA replaces the CA and every member's certificate.
	RotateCA(ctx context.Context) error
	Certificates() Certificates
	// TrustChanged says that the record of Records.Trust may have changed.
	TrustChanged()
	// Behind returns how old this node's state may be: the leader had no more so long ago. Negative: not known. Current
	// reports whether it is less than ten seconds. Until a node has caught up after it was unsealed its state may be as old
	// as its last stop; and one that is cut off, or whose disk is full, does not hear of tokens that are revoked.
	Behind() time.Duration
	Current() bool
	// Roomier reports whether there is another node that could lead and has room on its disk for more data.
	Roomier() bool
	// DiskFault returns why the disk takes no writes at the moment, or nil.
	DiskFault() error
	// Removed reports whether the others have told this node that it is not a member any more.
	Removed() bool
	// Verified reports whether this node's data is known to be its cluster's. Until it is, nothing is served from it. Changes
	// signals when it is, which it stays.
	Verified() bool
	// Distrusted returns why this node's data is not its cluster's, or nil.
	Distrusted() error
	// Compare returns nil if the leader's data, as of the call or later, is found to be its cluster's; see Distrusted.
	Compare(ctx context.Context) error
	// FormatsAgreed reports whether no member is of a version that may not read what this one adds.
	FormatsAgreed() bool
	StepDown(ctx context.Context) error
	// Forward sends the request to the active node and relays the answer; see storage.ErrUnavailable and
	// storage.ErrOutcomeUnknown.
	Forward(w http.ResponseWriter, r *http.Request) error
	Restore(ctx context.Context, state io.Reader) error
	SetAutopilot(Autopilot)
	// Numbers are gauges and counters by metric name.
	Numbers() map[string]float64
	// Drain refuses requests that other nodes forward, waits for those under way, and hands over: before the
	// node forgets what serving them takes. Close does what is left.
	Drain(ctx context.Context)
	Close(ctx context.Context) error
}

// CA is the cluster's certificate authority, PEM.
type CA struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// Certificates are those of the cluster port.
type Certificates struct {
	CAEnds     time.Time
	Generation uint64 // of the register of members; each change raises it
	Nodes      []Certificate
}

// Certificate is one node's. Ends is zero if the node has none of its own yet.
type Certificate struct {
	Node    string
	Ends    time.Time
	Current bool // issued by the present CA
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
	Router      *RawStore // the raw store below Barrier, routed to the running cluster
	NewCA       func() (CA, error)
	NewKey      func() (private, public []byte, err error) // of a node
	Formats     uint32                                     // newest generation of stored formats that this build reads
	KeyFile     string                                     // where the node's key is kept, encrypted; "": nowhere
	OpenCluster func(ctx context.Context, p Passport) (Cluster, error)
	AutoSeal    seal.Wrapper // nil: Shamir
	OldSeal     seal.Wrapper // an automatic seal that the cluster is to leave; nil: none
	RetryJoin   []JoinTarget
	Hooks       Hooks
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

// Hooks are what the server does at each turn of the node's life.
type Hooks struct {
	// FirstPuts returns what a new cluster begins with, plaintext.
	FirstPuts func() ([]storage.Put, error)
	// RootToken creates a root token; the node is active.
	RootToken func(ctx context.Context) (string, error)
	// GenerateRoot creates a root token of OTPLength bytes, on the authority of those who hold the keys. nil:
	// RootToken does.
	GenerateRoot func(ctx context.Context) (string, error)
	// Load is called when storage has become readable, also after it was replaced by a snapshot.
	Load func(ctx context.Context) error
	// Unload is called before sealing.
	Unload func()
	// Active runs while this node is the active one. ctx ends with that; Active must then return.
	Active func(ctx context.Context)
}

// Sentinels of this package.
var (
	ErrInitialized    = errors.New("already initialized")
	ErrNotInitialized = errors.New("not initialized")
)

// running is what an unsealed node has. It is replaced as a whole.
type running struct {
	cluster    Cluster
	seal       sealInUse
	challenges seal.Challenges // of nodes that want to join
	identity   Identity
	migration  *migration               // to another seal, when this node becomes active; nil: none
	ceremony   atomic.Pointer[ceremony] // of the people who hold keys; nil while not active
	stop       context.CancelFunc       // ends watch
	done       chan struct{}            // closed when watch has ended
	active     atomic.Bool
	since      atomic.Int64 // Unix nanoseconds when it became active
}

// Node is one node's life. Safe for concurrent use.
type Node struct {
	opts Options
	log  *slog.Logger

	running atomic.Pointer[running]    // nil while sealed
	last    atomic.Pointer[SealStatus] // as Status last saw it

	life context.Context // ends when the node is closed; every transition ends with it
	end  context.CancelFunc

	health sealHealth

	mu       sync.Mutex // guards everything below, and every transition
	unsealer *seal.Attempts
	migrates bool         // the unsealer is to change the seal
	pending  *pendingJoin // a join that waits for the key
	closed   bool

	removed  atomic.Bool            // the cluster has removed this node
	founding atomic.Pointer[string] // nonce of the initialization under way; nil: none

	// restoring is held while a snapshot is restored through this node.
	restoring sync.Mutex
	replaced  atomic.Uint64 // index at which the state was last replaced

	reset chan struct{}   // capacity 1: the state was replaced under us
	moved chan struct{}   // capacity 1: the seal has changed, and the root key may have
	later chan JoinTarget // capacity 1: a join to keep trying
}

// New returns a sealed node. Run starts what goes on in the background.
func New(o Options) *Node {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{opts: o, log: o.Logger, reset: make(chan struct{}, 1), moved: make(chan struct{}, 1), later: make(chan JoinTarget, 1)}
	n.life, n.end = context.WithCancel(context.Background())
	if f, err := n.readKeyFile(); err == nil {
		n.removed.Store(f.Removed)
	}
	n.statusLocked(n.life) // no other goroutine has it yet
	o.Raw.OnChange(func(ch storage.Change) {
		o.Barrier.Changed(ch)
		if r := n.running.Load(); r != nil {
			if ch.Touches(trustKey) {
				r.cluster.TrustChanged()
			}
			if slices.ContainsFunc(sealedPrefixes, ch.Touches) {
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
	})
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
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		r := n.running.Load()
		switch {
		case n.Active():
			return true
		case r == nil || !r.cluster.IsLeader():
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-again.C:
		}
	}
}

// ActiveSince returns when the node became active; zero if it is not.
func (n *Node) ActiveSince() time.Time {
	if r := n.running.Load(); r != nil && r.active.Load() {
		return time.Unix(0, r.since.Load()).UTC()
	}
	return time.Time{}
}

// Cluster returns the running cluster, or nil while sealed.
func (n *Node) Cluster() Cluster {
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
