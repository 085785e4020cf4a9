package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/cluster/digest"
	"github.com/coffer-project/coffer/cluster/forward"
	"github.com/coffer-project/coffer/cluster/health"
	"github.com/coffer-project/coffer/cluster/port"
	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/cluster/registry"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/scrub"
)

// Node is a running member. Safe for concurrent use.
type Node struct {
	runner
	raft     *consensus.Runner
	opts     Options
	log      *slog.Logger
	identity *port.Identity
	port     *port.Port
	logs     *raftlog.Log
	addr     string          // what others dial
	calls    *forward.Calls  // RPCs with other nodes
	ctx      context.Context // of the runner

	scrubber *scrub.Scrubber // of the log; nil: none

	health health.Members

	currency currency
	openedAt time.Time

	registry *registry.Registry
	// The latest rejection of a joiner that was logged, and when. Guarded by registry.Joining.
	rejection  string
	rejectedAt time.Time
	fold       chan struct{} // capacity 1: FoldNow

	states    *digest.States
	withdrawn atomic.Uint64 // votes

	removed        atomic.Bool           // this node is no member any more
	duplicated     atomic.Pointer[error] // another process runs as this node
	stalls, resets atomic.Uint64

	closeOnce sync.Once
	closed    chan struct{} // closed when everything has ended
	closeErr  error         // valid then
}

// runner is what the consensus.Runner does for a node's users.
type runner interface {
	// Committer works on the leader. It returns when the local state machine has applied the batch.
	storage.Committer
	// ReadIndex returns once local reads cover every write that was acknowledged anywhere in the cluster before
	// the call, and the index they cover at least. It works on every node. storage.ErrUnavailable: there is no
	// leader, or leadership could not be confirmed in time.
	ReadIndex(ctx context.Context) (storage.Index, error)
	// IsLeader reports whether this node leads and has applied everything earlier leaders committed. It can be
	// wrong for as long as a lost leader does not know: ReadIndex is the proof.
	IsLeader() bool
	// LeaderChanges signals, level-triggered with capacity 1, that IsLeader or Leader may have changed. The
	// channel is never closed and has one consumer.
	LeaderChanges() <-chan struct{}
	// State returns Raft's word for the node's role: "Leader", "Follower", "Candidate" or "Shutdown".
	State() string
	// Bootstrap makes this node the only voter of a new cluster. If the node already has a cluster nothing happens.
	Bootstrap(ctx context.Context) error
	// TransferLeadership hands leadership to the voter that is furthest ahead, or to another one if that does not take it.
	// storage.ErrUnavailable: there is none, or none took it.
	TransferLeadership(ctx context.Context) error
}

// Open starts the node: it listens, opens and verifies the log, and takes part in the cluster that the log
// or the state machine knows, or that PeersFile gives it. A node that knows none waits for Bootstrap or for a
// leader to add it. A damaged or missing log is a *storage.CorruptError.
func Open(o Options) (*Node, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{
		opts: o, log: o.Logger, fold: make(chan struct{}, 1), openedAt: time.Now(), closed: make(chan struct{}),
	}
	n.health.Init(o.currentFor, o.StabilizationTime)
	n.states = digest.New(digest.Options{
		ID: o.ID, Dir: o.Dir, Machine: o.Machine, Logger: o.Logger,
		EchoInterval: o.EchoInterval, HeartbeatTimeout: o.HeartbeatTimeout, ElectionTimeout: o.ElectionTimeout, CompareFor: o.compareFor,
		Node: n,
	})
	settings := o.settings()
	settings.Members, settings.States = &n.health, n.states
	n.raft = consensus.New(settings)
	n.runner = n.raft
	n.ctx = n.raft.Context()
	n.registry, n.identity, err = registry.Open(registry.Options{
		ID: o.ID, Key: o.Key, CA: o.CA, Trust: o.Trust, Records: o.Records, Raft: n.raft, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	if o.wire != nil {
		n.identity.Wire = o.wire
	}
	if o.Entering {
		if err := setLogAside(o); err != nil {
			return nil, err
		}
	}
	log, stable, err := openState(o)
	if err != nil {
		return nil, err
	}
	n.logs = log
	n.states.Begin(n.raft, n.logs)
	if err := n.raft.UseLog(log, stable, o.logFault); err != nil {
		return nil, errors.Join(err, n.logs.Close())
	}
	if n.port, err = port.Open(o.ListenAddr, n.identity, o.Logger, port.Raft, port.Forward); err != nil {
		return nil, errors.Join(fmt.Errorf("listening on the cluster port: %w", err), n.logs.Close())
	}
	if n.addr = o.AdvertiseAddr; n.addr == "" {
		n.addr = n.port.TCP.Addr().String()
	}
	if err := n.raft.Start(n.port, n.identity, n.addr); err != nil {
		n.port.Close()
		return nil, errors.Join(err, n.logs.Close())
	}
	n.identity.AdmitOnly(n.raft.IsMember)
	if err := n.duplicate(); err != nil {
		err = errors.Join(err, n.raft.Abandon())
		n.port.Close()
		return nil, errors.Join(err, n.logs.Close())
	}
	n.calls = forward.New(forward.Options{
		ID: o.ID, Raft: n.raft, Port: n.port, Identity: n.identity, Handler: o.Handler, Reports: n, Logger: o.Logger,
		HeartbeatTimeout: o.HeartbeatTimeout, LeaderLeaseTimeout: o.LeaderLeaseTimeout, EchoInterval: o.EchoInterval, ForwardWait: o.ForwardWait,
	})
	n.raft.Serve(n.calls)
	n.raft.Go(n.reportLoop)
	n.raft.Go(n.foldLoop)
	n.raft.Go(n.followLeader)
	n.raft.Go(n.watch)
	n.raft.Go(n.states.Follow)
	n.raft.Go(n.states.Run)
	if o.ScrubInterval > 0 {
		n.scrubber = scrub.New("raft_log", n.logs, o.ScrubInterval, o.Logger)
		n.raft.Go(func() { n.scrubber.Run(n.ctx) })
	}
	n.raft.Go(n.maintain)
	n.raft.Go(n.registry.Follow)
	n.raft.Go(n.watchRemoval)
	n.log.Info("cluster node started", "node", string(o.ID), "address", n.addr, "index", n.raft.Raft().LastIndex())
	return n, nil
}

// Forward sends the request to the leader and relays the answer. nil: an answer was relayed, whatever its
// status. storage.ErrUnavailable: nothing ran (there was no leader within Options.ForwardWait, or this node
// has become the leader: serve the request here); w was not touched. storage.ErrOutcomeUnknown: the leader
// was lost after it got the request and before it answered; w was not touched. If the leader is lost in the
// middle of its answer, Forward panics with http.ErrAbortHandler, as there is no other way to tell the client.
func (n *Node) Forward(w http.ResponseWriter, r *http.Request) error { return n.calls.ToLeader(w, r) }

// Compare has the members compare their states, at an entry that is not older than the call, and returns nil if this node's is
// the majority's, or there is nothing to compare with. It is for the leader; elsewhere it waits for the leader's next checkpoint.
// A node whose state differs distrusts its data. storage.ErrUnavailable: the states could not be compared in time.
func (n *Node) Compare(ctx context.Context) error { return n.states.Compare(ctx) }

// Verified reports whether this node's state is known to be its cluster's: a checkpoint that is newer than the log it was
// opened with has confirmed that, or there is nothing to compare with. Until then what it would serve may have been
// changed on its disk. LeaderChanges signals when that becomes true, which it stays.
func (n *Node) Verified() bool { return n.states.Verified() }

// TrustChanged says that the record of the register may have changed. It does not wait.
func (n *Node) TrustChanged() { n.registry.Changed() }

// RotateCA replaces the cluster's CA and every member's certificate, on the leader. No connection ends.
func (n *Node) RotateCA(ctx context.Context) error { return n.registry.RotateCA(ctx) }

// Certificates returns when the CA and each member's certificate ends.
func (n *Node) Certificates() (caEnds time.Time, generation uint64, members []Certificate) {
	return n.registry.Certificates()
}

// Close hands leadership to another voter if there is one, then stops streams, Raft and the log. It returns
// when everything has ended or with ctx; whatever is left then ends by itself. Twice is fine.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() {
		go func() {
			defer close(n.closed)
			n.closeErr = n.shutdown(ctx)
		}()
	})
	select {
	case <-n.closed:
		return n.closeErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Requests of other nodes that are under way have handOverAfter until this node hands over: those of all clients wait for
// that. They may go on until drainTime, and respond unless they still have something to write.
const (
	handOverAfter = 300 * time.Millisecond
	drainTime     = 5 * time.Second
)

// Drain refuses what other nodes forward, waits for what is under way and hands leadership to another voter if
// there is one. It returns after five seconds or with ctx at the latest; Close follows. Other nodes keep requests
// until there is a new leader, so that no client sees the change. Twice is fine.
func (n *Node) Drain(ctx context.Context) {
	polite, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	idle := n.calls.Drain()
	select {
	case <-idle:
	case <-time.After(handOverAfter):
	case <-polite.Done():
	}
	if r := n.raft.Raft(); r.State() == raft.Leader && n.raft.OtherVoters() > 0 {
		if err := n.TransferLeadership(polite); err != nil {
			n.log.Info("closing without handing leadership over", "err", err)
		}
	}
	select {
	case <-idle:
	case <-polite.Done():
	}
}

// shutdown goes from the outside in. ctx only bounds what is polite.
func (n *Node) shutdown(ctx context.Context) error {
	n.Drain(ctx)
	err := n.raft.Stop(n.calls.Close)
	n.port.Close()
	n.log.Info("cluster node stopped", "node", string(n.opts.ID))
	return errors.Join(err, n.logs.Close())
}

// Listen returns a listener for connections from outside of the cluster: those to the cluster port that ask for this ALPN
// name. Their handshake is done with the configuration that config answers for them, whose NextProtos and MinVersion
// are set here, and they come out as *tls.Conn; nil, and an error, refuses. Such a connection never reaches what the
// nodes of the cluster say to each other, nor the other way round. Closing the listener gives the name back; it is
// closed with the node.
func (n *Node) Listen(protocol string, config func(*tls.ClientHelloInfo) (*tls.Config, error)) (net.Listener, error) {
	return n.port.Guest(protocol, config)
}
