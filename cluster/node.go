package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/scrub"
)

const rpcTimeout = 10 * time.Second // of one Raft message

// Node is a running member. Safe for concurrent use.
type Node struct {
	opts   Options
	log    *slog.Logger
	who    *identity
	port   *port
	logs   *logs
	stable *stable
	addr   string // what others dial
	calls  *calls // RPCs with other nodes

	ctx    context.Context // the node's lifetime: ends when Close has drained what was under way
	cancel context.CancelFunc
	wg     sync.WaitGroup // everything that runs on ctx

	instance  atomic.Pointer[instance]
	restartMu sync.Mutex // held while instance is replaced
	reloadMu  sync.Mutex // held while Raft's configuration is changed

	scrubber *scrub.Scrubber // of the log; nil: none

	queue  *queue
	nudges nudges
	reads  reads
	roles  roles
	health health

	currency currency
	openedAt time.Time

	registry registry
	fold     chan struct{} // capacity 1: FoldNow

	startIndex storage.Index // last entry of the log when it was opened
	verified   atomic.Bool   // see Verified
	differing  atomic.Uint64
	undecided  atomic.Bool
	withdrawn  atomic.Uint64 // votes
	compareAt  atomic.Uint64 // the states are to be compared at this entry or a later one; see Compare
	restoring  atomic.Bool   // RestoreSnapshot is under way
	withheldAt atomic.Int64  // Unix nanoseconds: this node could not give its state to another one; see giveState
	report     chan struct{} // capacity 1: the next echo is due; never closed
	reported   chan struct{} // capacity 1: there may be a step to take in a comparison; never closed

	removed                          atomic.Bool           // this node is no member any more
	duplicated                       atomic.Pointer[error] // another process runs as this node
	broken                           atomic.Bool           // the state machine applies nothing more
	leaderTerm                       atomic.Uint64
	transferSince                    atomic.Int64 // Unix nanoseconds since Raft refuses writes because of a transfer; 0: it does not
	ops, entries                     atomic.Uint64
	elections, stalls, resets, boots atomic.Uint64
	trailing                         atomic.Uint64

	closeOnce sync.Once
	closed    chan struct{} // closed when everything has ended
	closeErr  error         // valid then
}

// instance is one run of Raft. W3 replaces it while the node stays.
type instance struct {
	raft      *raft.Raft
	transport *safeTransport
	streams   *streams
	stop      chan struct{} // closed when it is to end
	dead      chan struct{} // closed when Raft has ended: futures may never be answered
	wg        sync.WaitGroup
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
		opts: o, log: o.Logger, queue: newQueue(), fold: make(chan struct{}, 1), openedAt: time.Now(), closed: make(chan struct{}),
		report: make(chan struct{}, 1), reported: make(chan struct{}, 1),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.nudges.of = map[NodeID]*nudge{}
	n.roles.init()
	n.reads.init()
	n.health.init(o)
	n.trailing.Store(o.TrailingLogs)
	if n.who, err = openIdentity(o); err != nil {
		return nil, err
	}
	if o.wire != nil {
		n.who.wire = o.wire
	}
	n.registry.init()
	if o.Entering {
		if err := setLogAside(o); err != nil {
			return nil, err
		}
	}
	if n.logs, n.stable, err = openState(o); err != nil {
		return nil, err
	}
	_, last, _ := n.logs.size()
	n.startIndex = max(storage.Index(last), o.Machine.AppliedIndex())
	n.logs.fault, n.logs.covered = o.logFault, func() uint64 { return durableIndex(o.Machine) }
	n.logs.applied, n.logs.conflict = o.Machine.Applied, o.Machine.Distrust
	n.logs.onDamage = o.Machine.Damaged
	n.stable.closing = n.ctx.Done()
	if err := recoverPeers(o, n.raftConfig(), n.logs, n.stable); err != nil {
		return nil, errors.Join(err, n.logs.Close())
	}
	if n.port, err = listen(o.ListenAddr, n.who, o.Logger, protocolRaft, protocolForward); err != nil {
		return nil, errors.Join(fmt.Errorf("listening on the cluster port: %w", err), n.logs.Close())
	}
	if n.addr = o.AdvertiseAddr; n.addr == "" {
		n.addr = n.port.tcp.Addr().String()
	}
	if err := n.startRaft(); err != nil {
		n.port.close()
		return nil, errors.Join(err, n.logs.Close())
	}
	n.who.admitOnly(n.isMember)
	if err := n.duplicate(); err != nil {
		n.cancel()
		err = errors.Join(err, n.instance.Load().end())
		n.port.close()
		return nil, errors.Join(err, n.logs.Close())
	}
	n.calls = newCalls(n)
	for range entriesAtOnce {
		n.wg.Go(n.propose)
	}
	n.wg.Go(func() { n.reads.confirms.run(n.ctx, n.ownIndex) })
	n.wg.Go(func() { n.reads.seeks.run(n.ctx, n.seekIndex) })
	n.wg.Go(n.echoes)
	n.wg.Go(n.lookOut)
	n.wg.Go(n.folds)
	n.wg.Go(n.followLeader)
	n.wg.Go(n.watch)
	n.wg.Go(n.awaitFailure)
	n.wg.Go(n.followDigest)
	n.wg.Go(n.compareStates)
	if o.ScrubInterval > 0 {
		n.scrubber = scrub.New("raft_log", n.logs, o.ScrubInterval, o.Logger)
		n.wg.Go(func() { n.scrubber.Run(n.ctx) })
	}
	n.wg.Go(n.care)
	n.wg.Go(n.followTrust)
	n.wg.Go(n.watchRemoval)
	n.log.Info("cluster node started", "node", string(o.ID), "address", n.addr, "index", n.raft().LastIndex())
	return n, nil
}

// openState opens the log and checks that it fits the state machine.
func openState(o Options) (*logs, *stable, error) {
	if left, err := filepath.Glob(filepath.Join(o.Dir, restorePattern)); err == nil {
		for _, name := range left {
			os.Remove(name) // of a restore that was cut short; harmless if it stays
		}
	}
	path := filepath.Join(o.Dir, logFile)
	applied := uint64(o.Machine.AppliedIndex())
	l, s, err := openLogs(path, applied == 0)
	if err != nil {
		return nil, nil, err
	}
	if err := s.belongs(o.Identity); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	if err := l.fits(applied, o.Machine.LastTerm()); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, s, nil
}

// fits reports, as an error, that the log cannot be the one from which the state machine has applied entries up to an index
// and term.
func (l *logs) fits(applied, term uint64) error {
	first, last, _ := l.size()
	switch {
	case last == 0 || applied > last:
		return nil
	case first > applied+1:
		return &storage.CorruptError{File: l.path, Detail: fmt.Sprintf(
			"the log begins at entry %d, but the state machine beside it is at %d: one of them is from elsewhere", first, applied)}
	case first > applied:
		return nil
	}
	var e raft.Log
	if err := l.GetLog(applied, &e); err != nil {
		return err
	}
	if e.Term != term {
		return &storage.CorruptError{File: l.path, Detail: fmt.Sprintf(
			"entry %d of the log is of term %d, but the state machine beside it has applied one of term %d: one of them is from elsewhere", applied, e.Term, term)}
	}
	return nil
}

// durableIndex returns the last entry whose effect survives a crash.
func durableIndex(m *fsm.FSM) uint64 {
	snapshots, err := m.SnapshotStore().List()
	if err != nil || len(snapshots) == 0 {
		return 0
	}
	return snapshots[0].Index
}

func (n *Node) raftConfig() *raft.Config {
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
	c.Logger = raftLog{log: n.log}
	return c
}

func (n *Node) startRaft() error {
	s := newStreams(n.port.inbox(protocolRaft), n.who)
	network := newInbound(s, 2*n.opts.ElectionTimeout, raft.NetworkTransportConfig{
		Logger: raftLog{log: n.log}, MaxPool: 8, MaxRPCsInFlight: n.opts.MaxInFlight,
		Timeout: rpcTimeout, MsgpackUseNewTimeFormat: true,
	})
	i := &instance{streams: s, stop: make(chan struct{}), dead: make(chan struct{})}
	t := newSafeTransport(network, raft.ServerAddress(n.addr), func() bool { return n.stalled() || n.withholds() })
	t.stop, t.give = i.stop, n.giveState
	r, err := raft.NewRaft(n.raftConfig(), n.opts.Machine, n.logs, n.stable, n.opts.Machine.SnapshotStore(), t)
	if err != nil {
		s.cut()
		return errors.Join(fmt.Errorf("starting Raft: %w", err), network.Close())
	}
	i.raft, i.transport = r, t
	n.instance.Store(i)
	i.wg.Go(func() { n.follow(i) })
	n.campaignIfAlone(i)
	return nil
}

// end ends one run of Raft. It blocks as long as a local write hangs.
func (i *instance) end() error {
	close(i.stop)
	ended := i.raft.Shutdown()
	i.streams.cut()
	err := ended.Error()
	close(i.dead)
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
	case <-i.dead:
	}
	select {
	case err := <-answer:
		return err
	default:
		return raft.ErrRaftShutdown
	}
}

// restartRaft replaces a Raft that got itself into a state it cannot leave.
func (n *Node) restartRaft(why string) {
	n.restartMu.Lock()
	defer n.restartMu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	n.log.Warn("restarting Raft in the process", "reason", why)
	n.boots.Add(1)
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
	n.roles.signal()
}

func (n *Node) raft() *raft.Raft { return n.instance.Load().raft }

// stalled reports whether the local log hangs (W1).
func (n *Node) stalled() bool { return n.logs.stalledFor() > n.opts.stallAfter }

// Bootstrap makes this node the only voter of a new cluster. If the node already has a cluster nothing happens.
func (n *Node) Bootstrap(ctx context.Context) error {
	i := n.instance.Load()
	future := i.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{
		{Suffrage: raft.Voter, ID: raft.ServerID(n.opts.ID), Address: raft.ServerAddress(n.addr)},
	}})
	if err := future.Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrapping: %w", err)
	}
	n.campaignIfAlone(i)
	return ctx.Err()
}

// campaignIfAlone makes the only voter of a cluster stand for election at once: nobody else can lead, so
// there is nothing to wait for. It tells itself what a leader that hands over would tell it.
func (n *Node) campaignIfAlone(i *instance) {
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
		id := raft.ServerID(n.opts.ID)
		req := &raft.TimeoutNowRequest{RPCHeader: n.rpcHeader()}
		// If it does not get through, the election timeout does the same.
		err := i.transport.TimeoutNow(id, raft.ServerAddress(n.port.tcp.Addr().String()), req, &raft.TimeoutNowResponse{})
		if err != nil {
			n.log.Debug("standing for election at once", "err", err)
		}
	})
}

func (n *Node) rpcHeader() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.opts.ID), Addr: []byte(n.addr)}
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
	idle := n.calls.drain()
	select {
	case <-idle:
	case <-time.After(handOverAfter):
	case <-polite.Done():
	}
	if r := n.raft(); r.State() == raft.Leader && n.otherVoters() > 0 {
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
	n.queue.close()
	n.cancel()
	n.calls.close()
	n.restartMu.Lock() // a restart that was under way has ended, and no other begins
	defer n.restartMu.Unlock()
	err := n.instance.Load().end()
	n.wg.Wait()
	n.port.close()
	n.log.Info("cluster node stopped", "node", string(n.opts.ID))
	return errors.Join(err, n.logs.Close())
}
