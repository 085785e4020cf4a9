// Package members has the contract between the life of a node and the cluster that it is a member of: what it writes to, who leads,
// who belongs, and whether its data can be trusted. Package cluster fulfils it; server/lifecycle uses it.
package members

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/storage"
)

// Cluster is this node's running part in Raft and in the traffic between nodes.
type Cluster interface {
	Log
	Leadership
	Membership
	Trust
	// Behind returns how old this node's state may be: the leader had no more so long ago. Negative: not known. Current
	// reports whether it is less than ten seconds. Until a node has caught up after it was unsealed its state may be as old
	// as its last stop; and one that is cut off, or whose disk is full, does not hear of tokens that are revoked.
	Behind() time.Duration
	Current() bool
	// Forward sends the request to the active node and relays the response; see storage.ErrUnavailable and
	// storage.ErrOutcomeUnknown.
	Forward(w http.ResponseWriter, r *http.Request) error
	// Numbers are gauges and counters by metric name.
	Numbers() map[string]float64
	// Drain refuses requests that other nodes forward, waits for those under way, and hands over: before the
	// node forgets what serving them takes. Close does what is left.
	Drain(ctx context.Context)
	Close(ctx context.Context) error
}

// Log is what is written to all nodes, and made durable.
type Log interface {
	storage.Committer
	ReadIndex(ctx context.Context) (storage.Index, error)
	// AwaitDurable waits, on the leader, until what a sealed node reads has everything up to index on the disks of a
	// majority. The error says which voters have not reported that when ctx ended.
	AwaitDurable(ctx context.Context, index storage.Index) error
	// AwaitMembers waits, on the leader, until all members that it is in contact with have the log as it is now. It waits for patience, and longer while a
	// snapshot is on its way to one that has not. When patience or ctx ends, the error names those that have not.
	AwaitMembers(ctx context.Context, patience time.Duration) error
	// FoldNow makes what this node has applied durable where a sealed node reads it, and reports it. It does not wait.
	FoldNow()
	// DiskFault returns why the disk takes no writes at the moment, or nil.
	DiskFault() error
	Restore(ctx context.Context, state io.Reader) error
}

// Leadership tells who leads, who may, and hands it over.
type Leadership interface {
	IsLeader() bool
	Leader() (Peer, bool)
	// Changes signals (capacity 1) that leadership may have changed.
	Changes() <-chan struct{}
	// Roomier reports whether there is another node that could lead and has room on its disk for more data.
	Roomier() bool
	StepDown(ctx context.Context) error
	// SetVote gives a member its vote, or takes it; Autopilot.NonVoters keeps autopilot from giving it back. KindInvalid: it cannot be.
	SetVote(ctx context.Context, id string, votes bool) error
}

// Membership is who belongs to the cluster, and by which certificates.
type Membership interface {
	// Bootstrap makes this node the only voter of a new cluster. Doing it again changes nothing.
	Bootstrap(ctx context.Context) error
	Peers() ([]Peer, error)
	// Admit makes a node with this public key a member. The answer is what the node goes by until it has the state.
	Admit(ctx context.Context, a join.Answer) (trust []byte, err error)
	// RemovePeer ends a node's membership, and with it the node's certificate.
	RemovePeer(ctx context.Context, id string) error
	// RotateCA replaces the CA and every member's certificate.
	RotateCA(ctx context.Context) error
	Certificates() Certificates
	// Removed reports whether the others have told this node that it is not a member any more.
	Removed() bool
	SetAutopilot(Autopilot)
}

// Trust is whether a node's data is its cluster's.
type Trust interface {
	// TrustChanged says that the record of Records.Trust may have changed.
	TrustChanged()
	// Verified reports whether this node's data is known to be its cluster's. Until it is, nothing is served from it. Changes
	// signals when it is, which it stays.
	Verified() bool
	// Distrusted returns why this node's data is not its cluster's, or nil.
	Distrusted() error
	// Compare returns nil if the leader's data, as of the call or later, is found to be its cluster's; see Distrusted.
	Compare(ctx context.Context) error
	// FormatsAgreed reports whether no member is of a version that may not read what this one adds.
	FormatsAgreed() bool
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
	NonVoters                      []string `json:",omitempty"` // ids of members that get no vote
}
