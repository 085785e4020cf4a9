// Package cluster is this node's part in Raft and in the traffic between the nodes of one cluster.
//
// It promises that what Commit acknowledged survives the loss of any minority of voters, that ReadIndex
// covers every write acknowledged before it was called, and that Forward never runs a request twice. It
// assumes that the state machine is durable (package storage/fsm), that a disk either keeps what was synced
// or is caught lying by a checksum, and that all nodes hold the same CA. Clocks are never compared between
// nodes, except for the age of a certificate.
//
// One port carries everything: mutual TLS 1.3 with certificates of the cluster's own CA, told apart by ALPN.
// Start reading at Node and Open; DESIGN.md has the invariants.
package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// NodeID names a node for its whole life. It survives restarts and a change of address.
type NodeID string

// Options of Open. ID, Dir, Machine, ListenAddr and CA are required; zero values of the rest are the defaults
// given here.
type Options struct {
	ID      NodeID
	Dir     string   // directory of raft.db; must exist
	Machine *fsm.FSM // stays open when the node closes, and may be given to the next Open

	ListenAddr    string // host:port to listen on
	AdvertiseAddr string // host:port that other nodes dial; "": the address of the listener
	APIAddr       string // URL of this node's API, told to the others
	Version       string // this build, told to the others
	NonVoter      bool   // never ask to be promoted

	CA      CA
	Handler http.Handler // serves requests that other nodes forward; nil: refuses them
	Logger  *slog.Logger // nil discards

	HeartbeatTimeout   time.Duration // without a leader before standing for election; 1 s
	ElectionTimeout    time.Duration // 1 s, at least HeartbeatTimeout
	LeaderLeaseTimeout time.Duration // without a quorum before stepping down; half of HeartbeatTimeout
	CommitTimeout      time.Duration // 50 ms
	MaxInFlight        int           // append RPCs under way to one follower; 2, 1 turns the pipeline off

	SnapshotInterval  time.Duration // 60 s
	SnapshotThreshold uint64        // entries; 16384
	TrailingLogs      uint64        // entries kept behind a snapshot; 32768
	MaxLogBytes       int64         // live log above which fewer entries are kept; 2 GiB

	EchoInterval      time.Duration // signs of life to the leader; 1 s
	StabilizationTime time.Duration // how long a joiner must be healthy before it votes; 10 s
	ForwardWait       time.Duration // how long Forward and ReadIndex wait for a leader; 5 s
}

// NodeInfo is what is known of one node.
type NodeInfo struct {
	ID          NodeID
	APIAddr     string // "" until the node was heard of
	ClusterAddr string
	Version     string
	Voter       bool
	Leader      bool
	Healthy     bool
	LastContact time.Duration // since its last sign of life; 0 for the leader and for this node, negative if never
	LastTerm    uint64
	LastIndex   storage.Index // of its log
	Applied     storage.Index
}

// AutopilotConfig is the automatic care of membership. The names are the field's.
type AutopilotConfig struct {
	CleanupDeadServers             bool
	LastContactThreshold           time.Duration // silent for longer: unhealthy
	DeadServerLastContactThreshold time.Duration // silent for longer: dead, removed if CleanupDeadServers
	MaxTrailingLogs                uint64        // further behind: unhealthy
	MinQuorum                      int           // voters that are never removed automatically
	ServerStabilizationTime        time.Duration // healthy for so long before a joiner votes
}

// DefaultAutopilot returns the configuration that a node starts with.
func DefaultAutopilot() AutopilotConfig {
	return AutopilotConfig{
		LastContactThreshold:           10 * time.Second,
		DeadServerLastContactThreshold: 24 * time.Hour,
		MaxTrailingLogs:                1000,
		ServerStabilizationTime:        10 * time.Second,
	}
}

// AutopilotState is the health of the cluster as its leader sees it.
type AutopilotState struct {
	Healthy          bool // every node is
	FailureTolerance int  // healthy voters that may fail before the quorum is lost
	Leader           NodeID
	Voters           []NodeID // sorted
	Servers          []ServerState
}

// ServerState is one node in an AutopilotState.
type ServerState struct {
	NodeInfo
	StableSince time.Time // since when Healthy has its value, on the leader's clock
}

// Stats are numbers for metrics. Counters count since Open.
type Stats struct {
	Term, CommitIndex, AppliedIndex, LastIndex, SnapshotIndex uint64

	Leader      bool
	Peers       int           // members, this node included
	Voters      int           // of them
	LastContact time.Duration // with the leader; 0 on the leader, negative if never

	Ops, Entries          uint64 // committed operations, and the log entries that carried them
	QueuedOps             int    // waiting for a place in an entry
	QueuedBytes           int64
	ReadRequests          uint64 // ReadIndex calls on the leader, and the rounds that answered them
	ReadRounds            uint64
	LogSyncs              uint64        // synced appends to the log
	LogSyncTime           time.Duration // spent in them
	LogBytes              int64         // live log, payload
	Elections             uint64        // times this node became leader
	ForwardsIn            uint64        // requests served for other nodes, and sent to the leader
	ForwardsOut           uint64
	StallsSeen            uint64 // times the local log did not answer in time (W1)
	PipelineResets        uint64 // times a stuck follower's connection was cut (W2)
	RaftRestarts          uint64 // times Raft was rebuilt in the process (W3)
	SnapshotsSent         uint64
	HandshakesFailed      uint64
	TrailingLogsEffective uint64
}

var errTODO = errors.New("not written yet")

// Node is a running member. Safe for concurrent use.
type Node struct{}

// Open starts the node: it listens, opens and verifies the log, and takes part in the cluster that the log
// or the state machine knows. A node that knows none waits for Bootstrap or for a leader to add it. A damaged
// or missing log is a *storage.CorruptError.
func Open(o Options) (*Node, error) { return nil, errTODO }

// Close hands leadership to another voter if there is one, then stops streams, Raft and the log. It returns
// when everything has ended or with ctx; whatever is left then ends by itself. Twice is fine.
func (n *Node) Close(ctx context.Context) error { return errTODO }

// Bootstrap makes this node the only voter of a new cluster. If the node already has a cluster nothing happens.
func (n *Node) Bootstrap(ctx context.Context) error { return errTODO }

// Commit implements storage.Committer on the leader: see there for the errors. It returns when the local
// state machine has applied the batch.
func (n *Node) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	return 0, errTODO
}

// ReadIndex returns once local reads cover every write that was acknowledged anywhere in the cluster before
// the call, and the index they cover at least. It works on every node. storage.ErrUnavailable: there is no
// leader, or leadership could not be confirmed in time.
func (n *Node) ReadIndex(ctx context.Context) (storage.Index, error) { return 0, errTODO }

// IsLeader reports whether this node leads and has applied everything earlier leaders committed. It can be
// wrong for as long as a lost leader does not know: ReadIndex is the proof.
func (n *Node) IsLeader() bool { return false }

// LeaderChanges signals, level-triggered with capacity 1, that IsLeader or Leader may have changed. The
// channel is never closed and has one consumer.
func (n *Node) LeaderChanges() <-chan struct{} { return nil }

// State returns Raft's word for the node's role: "Leader", "Follower", "Candidate" or "Shutdown".
func (n *Node) State() string { return "" }

// Leader returns the current leader, if one is known.
func (n *Node) Leader() (NodeInfo, bool) { return NodeInfo{}, false }

// Nodes returns all members, sorted by id. Only the leader knows how the others are.
func (n *Node) Nodes() []NodeInfo { return nil }

// Peers returns the members in Raft's latest configuration, sorted by id, with id, address and vote only.
func (n *Node) Peers() []NodeInfo { return nil }

// Join adds a member, on the leader; it will vote once it is healthy and has caught up, unless nonVoter. A
// known id gets the new address. rejoin says that the node lost its data: if it was a voter it first stops
// being one, because it must not vote with an empty log.
func (n *Node) Join(ctx context.Context, id NodeID, clusterAddr string, nonVoter, rejoin bool) error {
	return errTODO
}

// RemovePeer removes a member, on the leader. Removing an unknown one is fine.
func (n *Node) RemovePeer(ctx context.Context, id NodeID) error { return errTODO }

// TransferLeadership hands leadership to the voter that is furthest ahead. storage.ErrUnavailable: there is
// none.
func (n *Node) TransferLeadership(ctx context.Context) error { return errTODO }

// SetAutopilot sets what this node does as leader from now on. It is not stored.
func (n *Node) SetAutopilot(c AutopilotConfig) {}

// Autopilot returns the configuration in use.
func (n *Node) Autopilot() AutopilotConfig { return AutopilotConfig{} }

// AutopilotState returns the health of the cluster, on the leader; else storage.ErrReadOnly.
func (n *Node) AutopilotState() (AutopilotState, error) { return AutopilotState{}, errTODO }

// Forward sends the request to the leader and relays the answer. nil: an answer was relayed, whatever its
// status. storage.ErrUnavailable: nothing ran (there was no leader within Options.ForwardWait, or this node
// has become the leader: serve the request here); w was not touched. storage.ErrOutcomeUnknown: the leader
// was lost after it got the request and before it answered; w was not touched.
func (n *Node) Forward(w http.ResponseWriter, r *http.Request) error { return errTODO }

// RestoreSnapshot replaces the state of the whole cluster by a stream of fsm.FSM.WriteSnapshot, on the
// leader. The stream is verified before anything changes. Other nodes get it from the leader.
func (n *Node) RestoreSnapshot(ctx context.Context, state io.Reader) error {
	return errTODO
}

// Stats returns current numbers.
func (n *Node) Stats() Stats { return Stats{} }
