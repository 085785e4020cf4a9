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
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/cluster/digest"
	"github.com/coffer-project/coffer/cluster/health"
	"github.com/coffer-project/coffer/cluster/registry"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// NodeID names a node for its whole life.
type NodeID = certs.NodeID

// CA is the authority of one cluster.
type CA = certs.CA

// NewCA makes a CA with a new key.
func NewCA() (CA, error) { return certs.NewCA() }

// NewKey makes the key of a node, which it keeps for as long as it is a member. private is a secret.
func NewKey() (private, public []byte, err error) { return certs.NewKey() }

// PeersFile is the file, below a node's data directory, by which an operator gives a cluster that lost its quorum a new one, and
// PeersDone its name once it has been followed.
const (
	PeersFile = consensus.PeersFile
	PeersDone = consensus.PeersDone
)

// Options of Open. ID, Dir, Machine, ListenAddr and one of CA, Trust and Records are required; zero values of the rest are the defaults
// given here.
type Options struct {
	ID  NodeID
	Dir string // directory of raft.db; must exist
	// Identity is the one that the Raft log must have; a log without one gets it. Zero: any.
	Identity storage.FileIdentity
	// Entering says that the node founds or joins a cluster. A Raft log that is there without a state is another cluster's, or of an
	// earlier attempt, and is moved aside.
	Entering bool
	Machine  *fsm.FSM // stays open when the node closes, and may be given to the next Open

	ListenAddr    string // host:port to listen on
	AdvertiseAddr string // host:port that other nodes dial; "": the address of the listener
	APIAddr       string // URL of this node's API, told to the others
	Version       string // this build, told to the others
	FollowKey     []byte // public key that the next root key is encrypted to for this node; reported to the others
	NonVoter      bool   // never ask to be promoted

	Key     []byte       // of NewKey; nil: a new one, so that the node is another one after each start
	CA      CA           // of a cluster that has no register of members yet
	Trust   []byte       // what Admit returned to this node, for one that joins; nil: Records tell
	Records Records      // nil: the cluster keeps no register of its members, CA's certificates count
	Handler http.Handler // serves requests that other nodes forward; nil: rejects them
	Space   Space        // nil: enough
	Logger  *slog.Logger // nil discards

	HeartbeatTimeout   time.Duration // without a leader before standing for election; 750 ms
	ElectionTimeout    time.Duration // 750 ms, at least HeartbeatTimeout
	LeaderLeaseTimeout time.Duration // without a quorum before stepping down; half of HeartbeatTimeout
	CommitTimeout      time.Duration // how late an idle follower may learn of a commit; 10 ms
	MaxInFlight        int           // append RPCs under way to one follower; 2, 1 turns the pipeline off

	SnapshotInterval  time.Duration // 60 s
	SnapshotThreshold uint64        // entries; 16384
	TrailingLogs      uint64        // entries kept behind a snapshot; 32768
	MaxLogBytes       int64         // live log above which fewer entries are kept; 2 GiB

	ScrubInterval time.Duration // time in which the log is read once and compared with its checksums; 0: it is not

	EchoInterval      time.Duration // signs of life to the leader; 1 s
	StabilizationTime time.Duration // how long a joiner must be healthy before it votes; 10 s
	ForwardWait       time.Duration // how long Forward and ReadIndex wait for a leader; 5 s

	// For tests; zero values are the constants stallLimit, stuckLimit, CurrentWithin and compareTimeout, and no faults.
	stallAfter time.Duration
	stuckAfter time.Duration
	currentFor time.Duration
	compareFor time.Duration
	logFault   func() error
	wire       func(net.Conn) net.Conn // around each connection with another node
	unnumbered bool                    // as a build from before formats were numbered
}

// Space is the disk of a node.
type Space interface {
	// Disk says how much room there is for the node's data; the other nodes get it.
	Disk() Disk
}

// withDefaults fills in what is zero, and says everything that is missing.
func (o Options) withDefaults() (Options, error) {
	var problems []error
	if o.ID == "" || len(o.ID) > certs.MaxIDBytes {
		problems = append(problems, fmt.Errorf("the node's id must have 1 to %d bytes", certs.MaxIDBytes))
	}
	if o.Dir == "" || o.Machine == nil || o.ListenAddr == "" {
		problems = append(problems, errors.New("directory, state machine and listening address are required"))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.HeartbeatTimeout = cmp.Or(o.HeartbeatTimeout, 750*time.Millisecond)
	o.ElectionTimeout = cmp.Or(o.ElectionTimeout, max(750*time.Millisecond, o.HeartbeatTimeout))
	o.LeaderLeaseTimeout = cmp.Or(o.LeaderLeaseTimeout, o.HeartbeatTimeout/2)
	o.CommitTimeout = cmp.Or(o.CommitTimeout, 10*time.Millisecond)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 2)
	o.SnapshotInterval = cmp.Or(o.SnapshotInterval, time.Minute)
	o.SnapshotThreshold = cmp.Or(o.SnapshotThreshold, 16<<10)
	o.TrailingLogs = cmp.Or(o.TrailingLogs, 32<<10)
	o.MaxLogBytes = cmp.Or(o.MaxLogBytes, 2<<30)
	o.EchoInterval = cmp.Or(o.EchoInterval, time.Second)
	o.StabilizationTime = cmp.Or(o.StabilizationTime, health.DefaultAutopilot().ServerStabilizationTime)
	o.ForwardWait = cmp.Or(o.ForwardWait, 5*time.Second)
	o.stallAfter = cmp.Or(o.stallAfter, stallLimit)
	o.stuckAfter = cmp.Or(o.stuckAfter, stuckLimit)
	o.currentFor = cmp.Or(o.currentFor, health.CurrentWithin)
	o.compareFor = cmp.Or(o.compareFor, digest.CompareTimeout)
	return o, errors.Join(problems...)
}

func (o Options) settings() consensus.Options {
	return consensus.Options{
		ID: o.ID, Dir: o.Dir, Machine: o.Machine, Logger: o.Logger,
		HeartbeatTimeout: o.HeartbeatTimeout, ElectionTimeout: o.ElectionTimeout, LeaderLeaseTimeout: o.LeaderLeaseTimeout,
		CommitTimeout: o.CommitTimeout, MaxInFlight: o.MaxInFlight,
		SnapshotInterval: o.SnapshotInterval, SnapshotThreshold: o.SnapshotThreshold, TrailingLogs: o.TrailingLogs, MaxLogBytes: o.MaxLogBytes,
		ForwardWait: o.ForwardWait, StallAfter: o.stallAfter,
	}
}

// What members say of themselves, and what the leader makes of it: see package health.
type (
	NodeInfo        = health.NodeInfo
	Disk            = health.Disk
	AutopilotConfig = health.AutopilotConfig
	AutopilotState  = health.AutopilotState
	ServerState     = health.ServerState
)

// CurrentWithin is how old the state of a node may be.
const CurrentWithin = health.CurrentWithin

// DefaultAutopilot returns the configuration that a node starts with.
func DefaultAutopilot() AutopilotConfig { return health.DefaultAutopilot() }

// The register of members, and what the leader rejects: see package registry.
type (
	Records       = registry.Records
	Certificate   = registry.Certificate
	RejectedError = registry.RejectedError
)

// Stats are numbers for metrics. Counters count since Open.
type Stats struct {
	Term, CommitIndex, AppliedIndex, LastIndex, SnapshotIndex uint64

	Leader      bool
	Peers       int           // members, this node included
	Voters      int           // of them
	LastContact time.Duration // with the leader; 0 on the leader, negative if never
	Behind      time.Duration // how old this node's state may be, negative if not known
	Current     bool          // it is less than CurrentWithin
	DiskFailing bool          // the disk takes no writes

	Ops, Entries uint64 // operations that were proposed, and the log entries that carried them
	QueuedOps    int    // waiting for a place in an entry
	QueuedBytes  int
	ReadRequests uint64        // ReadIndex calls, and the rounds that answered them
	ReadRounds   uint64        //
	LogSyncs     uint64        // synced writes to the log's file
	LogSyncTime  time.Duration // spent in them
	LogBytes     int64         // live log, payload
	LogFoldTime  time.Duration // spent in moving entries from the journal to raft.db

	LogFolds, LogFoldBytes uint64 // how often that was, failures as well, and how many bytes moved

	TrailingLogs     uint64 // entries kept behind a snapshot, as in use
	Elections        uint64 // times this node became leader
	ForwardsIn       uint64 // requests served for other nodes, and sent to the leader
	ForwardsOut      uint64
	StallsSeen       uint64 // times the local log did not answer in time (W1)
	PipelineResets   uint64 // times a stuck follower's connection was cut (W2)
	RaftRestarts     uint64 // times Raft was rebuilt in the process (W3)
	SnapshotsSent    uint64
	HandshakesFailed uint64

	Verified       bool   // see Node.Verified
	CheckpointSeen uint64 // last entry at which this node's state was found to be the majority's
	Undecided      bool   // the voters' states differ, and no majority has the same; known to the leader
	VotesWithdrawn uint64 // from voters that had lost acknowledged entries, by this node as leader
	Differing      uint64 // times a member's state was not the majority's, seen by this node as leader

	CertificateEnds time.Time // this node's
	CAEnds          time.Time
}
