// Package consensus runs Raft for one node: one instance of the library at a time, over a log, a port and a state machine that the
// node gives it.
//
// It promises that what Commit acknowledged is in the logs of a majority and applied here, that ReadIndex covers every write acknowledged before it
// was called, that a leader serves only once it has applied an entry of its own term, and that an instance which cannot go on is
// replaced by another one in the same process. Who is a member, and what members tell each other, is package cluster's.
//
// Start reading at Runner, then commit.go, reads.go and roles.go.
package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/port"
	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/cluster/transport"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

const rpcTimeout = 10 * time.Second // of one Raft message

// Options of a runner.
type Options struct {
	ID      certs.NodeID
	Dir     string
	Machine *fsm.FSM
	Addr    string // that the others dial

	HeartbeatTimeout, ElectionTimeout, LeaderLeaseTimeout, CommitTimeout time.Duration
	MaxInFlight                                                          int

	SnapshotInterval                time.Duration
	SnapshotThreshold, TrailingLogs uint64
	MaxLogBytes                     int64

	ForwardWait time.Duration
	StallAfter  time.Duration // a local write that takes longer stops this node from leading
	Logger      *slog.Logger
	Members     Members
	States      States
}

// Members is what this node knows of the others.
type Members interface {
	Lead() // this node begins to lead
}

// States compares this node's state with the others'.
type States interface {
	Withholds() bool                 // this node is not to hold on to its leadership
	Give(stop <-chan struct{}) error // waits until this node's state may go to another one
}

// Leader is the leader, another node.
type Leader interface {
	AskIndex(ctx context.Context) (storage.Index, error) // a read index
}

// Runner is the part of a node that runs Raft. Safe for concurrent use.
type Runner struct {
	opts     Options
	leader   Leader // from Serve on
	log      *slog.Logger
	identity *port.Identity
	port     *port.Port
	logs     *raftlog.Log
	stable   *raftlog.Stable

	ctx    context.Context // the node's lifetime: ends when Close has drained what was under way
	cancel context.CancelFunc
	wg     sync.WaitGroup // everything that runs on ctx

	instance  atomic.Pointer[instance]
	restartMu sync.Mutex // held while instance is replaced
	reloadMu  sync.Mutex // held while Raft's configuration is changed

	queue  *queue
	pushes pushes
	reads  reads
	Roles  roles

	Broken        atomic.Bool // the state machine applies nothing more
	handing       sync.Mutex  // held by HandOver
	handedOver    atomic.Bool // this node has asked another one to lead, since it leads
	leaderTerm    atomic.Uint64
	transferSince atomic.Int64 // Unix nanoseconds since Raft refuses writes because of a transfer; 0: it does not
	lostRounds    int          // rounds in a row in which the log was behind Raft's memory; of watchLostSuffix

	ops, entries      atomic.Uint64
	elections, starts atomic.Uint64
	trailing          atomic.Uint64
}

// New returns a runner that runs nothing yet: Start does.
func New(o Options) *Runner {
	n := &Runner{opts: o, log: o.Logger, queue: newQueue()}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.pushes.of = map[certs.NodeID]*push{}
	n.Roles.init()
	n.reads.init()
	n.trailing.Store(o.TrailingLogs)
	return n
}

// UseLog gives it the log, to which it tells what the state machine has. fault is called before each write, for tests; nil in production.
func (n *Runner) UseLog(l *raftlog.Log, s *raftlog.Stable, fault func() error) error {
	n.logs, n.stable = l, s
	l.Fault, l.Covered = fault, func() uint64 { return durableIndex(n.opts.Machine) }
	l.Applied, l.Conflict = n.opts.Machine.Applied, n.opts.Machine.Distrust
	l.OnDamage = n.opts.Machine.Damaged
	s.Closing = n.ctx.Done()
	return recoverPeers(n.opts, n.raftConfig(), l, s)
}

// Start starts Raft over the port, which others dial at addr.
func (n *Runner) Start(p *port.Port, identity *port.Identity, addr string) error {
	n.port, n.identity, n.opts.Addr = p, identity, addr
	return n.startRaft()
}

// Serve takes commits and reads from now on.
func (n *Runner) Serve(l Leader) {
	n.leader = l
	for range entriesAtOnce {
		n.Go(n.propose)
	}
	n.Go(func() { n.reads.confirms.run(n.ctx, n.confirmedIndex) })
	n.Go(func() { n.reads.seeks.run(n.ctx, n.seekIndex) })
	n.Go(n.lookOut)
	n.Go(n.awaitFailure)
}

// Go runs a part of the node, which must end with the node's context.
func (n *Runner) Go(do func()) { n.wg.Go(do) }

// Context is the node's lifetime: it ends when Close has drained what was under way.
func (n *Runner) Context() context.Context { return n.ctx }

// Cut closes every connection of Raft's, and each later one at once, without a word to the others: for tests.
func (n *Runner) Cut() { n.instance.Load().streams.Cut() }

// Abandon ends a runner that was started and does not serve.
func (n *Runner) Abandon() error {
	n.cancel()
	return n.instance.Load().end()
}

// Stop ends commits, then everything that runs on the node's context, then Raft. meanwhile is called once the context has ended.
func (n *Runner) Stop(meanwhile func()) error {
	n.queue.close()
	n.cancel()
	meanwhile()
	n.restartMu.Lock() // a restart that was under way has ended, and no other begins
	err := n.instance.Load().end()
	n.restartMu.Unlock() // a watchdog may be waiting for it, and is waited for
	n.wg.Wait()
	return err
}

// instance is one run of Raft. W3 replaces it while the node stays.
type instance struct {
	raft      *raft.Raft
	transport *transport.Transport
	network   *transport.Inbound // below transport
	streams   *transport.Streams
	stop      chan struct{} // closed when it is to end
	ended     chan struct{} // closed when Raft has ended: futures may never be answered
	wg        sync.WaitGroup

	end func() error // ends this run, once: a node may be stopped while a restart that failed waits for another try
}

// durableIndex returns the last entry whose effect survives a crash.
func durableIndex(m *fsm.FSM) uint64 {
	snapshots, err := m.SnapshotStore().List()
	if err != nil || len(snapshots) == 0 {
		return 0
	}
	return snapshots[0].Index
}

func (n *Runner) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.opts.ID)
	c.HeartbeatTimeout = n.opts.HeartbeatTimeout
	c.ElectionTimeout = n.opts.ElectionTimeout
	c.LeaderLeaseTimeout = n.opts.LeaderLeaseTimeout
	c.CommitTimeout = n.opts.CommitTimeout
	c.MaxAppendEntries = 32 // of up to 256 KiB each
	c.SnapshotInterval = n.opts.SnapshotInterval
	c.SnapshotThreshold = n.opts.SnapshotThreshold
	c.TrailingLogs = n.trailing.Load()
	c.ShutdownOnRemove = false
	c.NoSnapshotRestoreOnStart = true
	c.NoLegacyTelemetry = true
	c.Logger = transport.NewLog(n.log)
	return c
}

func (n *Runner) startRaft() error {
	s := transport.NewStreams(n.port.Inbox(port.Raft), n.identity)
	network := transport.NewInbound(s, 2*n.opts.ElectionTimeout, raft.NetworkTransportConfig{
		Logger: transport.NewLog(n.log), MaxPool: 8, MaxRPCsInFlight: n.opts.MaxInFlight,
		Timeout: rpcTimeout, MsgpackUseNewTimeFormat: true,
	})
	i := &instance{network: network, streams: s, stop: make(chan struct{}), ended: make(chan struct{})}
	t := transport.New(network, raft.ServerAddress(n.opts.Addr), func() bool { return n.Stalled() || n.opts.States.Withholds() })
	t.Stop, t.Give = i.stop, n.opts.States.Give
	r, err := raft.NewRaft(n.raftConfig(), n.opts.Machine, n.logs, n.stable, n.opts.Machine.SnapshotStore(), t)
	if err != nil {
		s.Cut()
		return errors.Join(fmt.Errorf("starting Raft: %w", err), network.Close())
	}
	i.raft, i.transport, i.end = r, t, sync.OnceValue(i.shutdown)
	n.instance.Store(i)
	i.wg.Go(func() { n.follow(i) })
	n.campaignIfAlone(i)
	return nil
}

// shutdown ends one run of Raft. It blocks as long as a local write hangs.
func (i *instance) shutdown() error {
	close(i.stop)
	ended := i.raft.Shutdown()
	i.streams.Cut()
	err := ended.Error()
	close(i.ended)
	i.wg.Wait()
	return err
}

// await returns the future's error. Raft forgets some of its futures when it shuts down.
func (i *instance) await(f raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- f.Error() }()
	select {
	case err := <-answer:
		return err
	case <-i.ended:
	}
	select {
	case err := <-answer:
		return err
	default:
		return raft.ErrRaftShutdown
	}
}

// restartRaft replaces a Raft that got itself into a state it cannot leave.
func (n *Runner) restartRaft(why string) {
	n.restartMu.Lock()
	defer n.restartMu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	n.log.Warn("restarting Raft in the process", "reason", why)
	n.starts.Add(1)
	n.leaderTerm.Store(0)
	if err := n.instance.Load().end(); err != nil {
		n.log.Warn("stopping Raft", "err", err)
	}
	for {
		err := n.startRaft()
		if err == nil {
			break
		}
		n.log.Error("Raft does not start again", "err", err)
		if !n.pause(time.Second) {
			return
		}
	}
	n.transferSince.Store(0)
	n.Roles.Signal()
}

// Raft returns the instance that runs now.
func (n *Runner) Raft() *raft.Raft { return n.instance.Load().raft }

// Bootstrap makes this node the only voter of a new cluster. If the node already has a cluster nothing happens.
func (n *Runner) Bootstrap(ctx context.Context) error {
	i := n.instance.Load()
	future := i.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{
		{Suffrage: raft.Voter, ID: raft.ServerID(n.opts.ID), Address: raft.ServerAddress(n.opts.Addr)},
	}})
	if err := future.Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrapping: %w", err)
	}
	n.campaignIfAlone(i)
	return ctx.Err()
}

// campaignIfAlone makes the only voter of a cluster stand for election at once: no other node can lead, so
// there is nothing to wait for. It tells itself what a leader that hands over would tell it, unless it has stood for election
// meanwhile: as the leader it would stand again, and lose what is under way.
func (n *Runner) campaignIfAlone(i *instance) {
	servers := i.raft.GetConfiguration().Configuration().Servers
	voters := 0
	alone := false
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			voters++
			alone = s.ID == raft.ServerID(n.opts.ID)
		}
	}
	if voters != 1 || !alone {
		return
	}
	i.wg.Go(func() {
		i.network.Tell(&raft.TimeoutNowRequest{RPCHeader: n.rpcHeader()}, func() bool { return i.raft.State() == raft.Follower })
	})
}

func (n *Runner) rpcHeader() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.opts.ID), Addr: []byte(n.opts.Addr)}
}

// Stalled reports whether the local log hangs (W1).
func (n *Runner) Stalled() bool { return n.logs.StalledFor() > n.opts.StallAfter }

// Numbers are counted since the start.
type Numbers struct {
	Ops, Entries                          uint64
	QueuedOps, QueuedBytes, UnderWay      int // UnderWay: entries
	ReadRequests, ReadRounds              uint64
	TrailingLogs, Elections, RaftRestarts uint64
}

// Numbers returns what was counted.
func (n *Runner) Numbers() (c Numbers) {
	c = Numbers{
		Ops: n.ops.Load(), Entries: n.entries.Load(),
		ReadRequests: n.reads.requests.Load(), ReadRounds: n.reads.confirms.count.Load() + n.reads.seeks.count.Load(),
		TrailingLogs: n.trailing.Load(), Elections: n.elections.Load(), RaftRestarts: n.starts.Load(),
	}
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	c.QueuedOps, c.QueuedBytes, c.UnderWay = len(n.queue.ops), n.queue.bytes, n.queue.under
	return c
}

// Transport returns what carries Raft's messages.
func (n *Runner) Transport() *transport.Transport { return n.instance.Load().transport }

// TransferTo hands leadership to a voter.
func (n *Runner) TransferTo(id certs.NodeID, addr string) error {
	i := n.instance.Load()
	return i.await(i.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(addr)))
}

// ProposeOnce proposes a command and does not wait: what is lost is lost.
func (n *Runner) ProposeOnce(command []byte) { n.Raft().Apply(command, proposeTimeout) }

// OwnRead returns an index that this node has confirmed as the leader.
func (n *Runner) OwnRead(ctx context.Context) (storage.Index, error) {
	return n.reads.confirms.wait(ctx)
}
