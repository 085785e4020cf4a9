package health

import (
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/storage"
)

// NodeInfo is what is known of one node.
type NodeInfo struct {
	ID          certs.NodeID
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
	Durable     storage.Index // in its state file
	Behind      time.Duration // how old its state may be; negative if not known
	Disk        Disk
	FollowKey   []byte

	Formats        uint32        // newest generation of formats that it reads
	ClusterFormats uint32        // the one that it knows the cluster to write
	DigestIndex    storage.Index // checkpoint at which it last computed its state's digest; 0: none
	Digest         []byte
	Unverified     bool // see Node.Verified
}

// AutopilotConfig is the automatic care of membership. The names are the field's.
type AutopilotConfig struct {
	CleanupDeadServers             bool
	LastContactThreshold           time.Duration // silent for longer: unhealthy
	DeadServerLastContactThreshold time.Duration // silent for longer: dead, removed if CleanupDeadServers
	MaxTrailingLogs                uint64        // further behind: unhealthy
	MinQuorum                      int           // voters that are never removed automatically
	ServerStabilizationTime        time.Duration // healthy for so long before a joiner votes
	NonVoters                      []string      // ids of members that get no vote
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
	Leader           certs.NodeID
	Voters           []certs.NodeID // sorted
	Servers          []ServerState
}

// ServerState is one node in an AutopilotState.
type ServerState struct {
	NodeInfo
	StableSince time.Time // since when Healthy has its value, on the leader's clock
}

// Disk says how the disk of a node's data directory is. Nodes tell each other the numbers.
type Disk uint8

const (
	DiskOK      Disk = iota
	DiskLow          // it is almost full
	DiskFull         // it has no room for writes of clients
	DiskFailing      // it takes no writes
)

func (d Disk) String() string {
	if d > DiskFailing {
		return "unknown"
	}
	return [...]string{"ok", "low", "full", "failing"}[d]
}
