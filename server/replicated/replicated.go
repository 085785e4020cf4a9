// Package replicated is this cluster's place in performance replication: whether it is a primary, a secondary or neither,
// who may follow it and what of it, and the sys/replication paths by which operators change that.
//
// What it keeps is class l, behind the barrier, below l/replication/: the Role, which is one entry that every shared write
// has as a precondition, so that a change of role stops such writes at one index; the replication CA and the registry of
// secondaries on a primary; what belongs to the connection on a secondary. The traffic itself is behind Link, which
// package replication fulfils. Start reading at Role, then Store, then paths.go.
package replicated

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Mode of a cluster. The texts are those of the API.
type Mode string

const (
	Disabled  Mode = "disabled"
	Primary   Mode = "primary"
	Secondary Mode = "secondary"
)

// Keys of what is kept. Local to the cluster.
const (
	RoleKey     storage.Key = "l/replication/role"
	caKey       storage.Key = "l/replication/ca"
	upstreamKey storage.Key = "l/replication/upstream"
	inviteKey   storage.Key = "l/replication/invite"     // private key of generate-public-key
	registry    storage.Key = "l/replication/secondary/" // + hex of the opaque id
	filters     storage.Key = "l/replication/filter/"    // + hex of the secondary's opaque id
	metKey      storage.Key = "l/replication/met"        // primaries of the set that are not of this cluster's history
	seenKeys    storage.Key = "l/replication/seen/"      // + hex of a secondary's opaque id
	formerKeys  storage.Key = "l/replication/former/"    // + hex of a cluster id: a former primary that may not know it yet
	// cursorKey is the entry without which package replication applies nothing.
	cursorKey = ProgressPrefix + "cursor"
	// ProgressPrefix is where package replication keeps a secondary's cursor, units and conflicts.
	ProgressPrefix storage.Key = "l/replication/progress/"
)

// Role is what this cluster is. Absent: Disabled, and never was anything else.
type Role struct {
	Format int  `json:"format"` // 1
	Mode   Mode `json:"mode"`
	// ClusterID names the cluster within the set. It is minted anew when replication is enabled after it was disabled.
	ClusterID string          `json:"cluster_id"`
	SetID     string          `json:"set_id,omitempty"`
	Lineage   storage.Lineage `json:"lineage,omitempty"`
	// Addr is the address that a primary gives to its secondaries; "": those of its nodes.
	Addr string `json:"addr,omitempty"`
	// Wiping is set from secondary/enable until everything the cluster had is gone.
	Wiping bool `json:"wiping,omitempty"`
	// Demoted is set on a secondary that was a primary and does not follow anybody yet.
	Demoted bool `json:"demoted,omitempty"`
	// Fenced is the epoch of a later primary that this primary has met: it takes no shared writes any more.
	Fenced uint32 `json:"fenced,omitempty"`
	// FencedBy is the cluster of that epoch, and FencedAPI the address of its API; "" if not known.
	FencedBy  string    `json:"fenced_by,omitempty"`
	FencedAPI string    `json:"fenced_api,omitempty"`
	Since     time.Time `json:"since"`
	WasUsed   bool      `json:"was_used,omitempty"` // of a disabled cluster: it had this ClusterID in a set
	// LastEpoch is the last epoch of the sets that a disabled cluster was in: its values may have positions of them.
	LastEpoch uint32 `json:"last_epoch,omitempty"`

	// Version is the index of the entry, 0 if there is none. Not stored.
	Version storage.Index `json:"-"`
}

// Upstream is what a secondary needs for its connection. The key never leaves the cluster.
type Upstream struct {
	Format      int       `json:"format"` // 1
	SecondaryID string    `json:"secondary_id"`
	SetID       string    `json:"set_id"`
	PrimaryID   string    `json:"primary_id"` // cluster id
	CA          []byte    `json:"ca"`         // PEM
	Cert        []byte    `json:"cert"`       // PEM
	Key         []byte    `json:"key"`        // PEM, secret
	Addrs       []string  `json:"addrs"`      // cluster addresses, the one that answered last first
	APIAddr     string    `json:"api_addr"`
	Since       time.Time `json:"since"`
}

// WrappingToken returns the wrapping token of an activation token that this primary has signed, exactly as it is. Nothing is
// used up. Its errors are for the operator of the secondary.
func (s *Store) WrappingToken(ctx context.Context, token string) (engines.Sensitive, error) {
	return s.registry.WrappingToken(ctx, token)
}

// Peer is a connected or registered secondary, as its primary knows it.
type Peer struct {
	ID        string // opaque, from secondary-token
	ClusterID string // "" until it has enrolled
}

// Link is the traffic between clusters. Package replication fulfils it.
type Link interface {
	// Follow makes this cluster a follower until ctx ends; it reconnects by itself. ids are those of Role. On the active
	// node of a secondary only.
	Follow(ctx context.Context, setID, clusterID string, lineage storage.Lineage, up Upstream, h FollowHooks) error
	// Active does what belongs to the active node, until ctx ends. Follow counts only meanwhile.
	Active(ctx context.Context)
	// Keep makes this node keep a log of shared changes for other clusters, or remove it.
	Keep(ctx context.Context, on bool) error
	// Enrol trades a one-time secret and a certificate request for a certificate, at the first address that answers.
	Enrol(ctx context.Context, addrs []string, ca []byte, req EnrolRequest) (EnrolReply, error)
	// Announce tells the primary of up, which this cluster followed, of a later one. The certificate may have expired.
	Announce(ctx context.Context, up Upstream, a Announcement) (AnnounceReply, error)
	// WhoIsActive asks one address of a primary, with the certificate of up: any node of it answers.
	WhoIsActive(ctx context.Context, addr string, up Upstream) (ActiveReply, error)
	// Call has something done by the primary that this cluster follows. The answer's position is to be waited for with
	// AwaitCursor before the caller of ours gets it. storage.ErrUnavailable: nothing was done; storage.ErrOutcomeUnknown.
	Call(ctx context.Context, kind string, payload []byte) (answer []byte, at storage.Position, err error)
	// AwaitCursor waits until everything up to a position is applied and visible on this node.
	AwaitCursor(ctx context.Context, at storage.Position) error
	// Cursor returns how far this node is, on any node of a secondary.
	Cursor(ctx context.Context) (storage.Position, error)
	// Refresh tells the sessions that registry, filters or mounts have changed. Sessions of revoked secondaries end.
	Refresh()
	// FollowStatus describes the secondary, SessionStatus those of a primary that are connected or were; of this node only.
	FollowStatus() FollowStatus
	SessionStatus() []SessionStatus
	// Head returns the position of the last shared change on this node.
	Head() storage.Index
	// Oldest returns the index after which this node keeps shared changes for secondaries.
	Oldest() storage.Index
	// Root returns a digest of all shared data that replicates to here (or from here), in hexadecimal; "": being built.
	Root() string
	// Repair makes a connected follower compare everything with its primary.
	Repair(cause string) error
	// Conflicts lists what repairs replaced that only this cluster had, oldest first.
	Conflicts(ctx context.Context) ([]Conflict, error)
	// Reset forgets the cursor and all units, in the progress area, for a cluster that begins anew.
	Reset(ctx context.Context) error
	// SetCursor writes the cursor of a cluster that has just been demoted, and that it has these units, whole as of at.
	SetCursor(ctx context.Context, at storage.Position, lineage storage.Lineage, units []string) error
	// Units returns the units that this secondary holds, with those that are not whole marked false.
	Units(ctx context.Context) (map[string]bool, error)
}

// FollowHooks are what a Link asks while it follows.
type FollowHooks struct {
	// BeforeDrop is called before a unit is deleted, to end what was handed out of it. It returns within a minute.
	BeforeDrop func(ctx context.Context, unit string)
	// Learned is called when the primary's history, cluster id or addresses have changed, or the certificate was renewed.
	Learned func(ctx context.Context, l Learned)
}

// Learned is what a secondary has heard; zero fields are as before.
type Learned struct {
	PrimaryID string
	Lineage   storage.Lineage
	Addrs     []string
	Cert      []byte // PEM
	Scope     bool   // what the secondary gets may be something else
}

// EnrolRequest is what a secondary sends to become one.
type EnrolRequest struct {
	SetID, ClusterID, SecondaryID string
	Secret                        string
	CSR                           []byte       // DER
	Latest                        OtherPrimary // the latest primary that the cluster knows of; zero: none
}

// EnrolReply is what it gets.
type EnrolReply struct {
	Cert      []byte // PEM
	SetID     string
	PrimaryID string
	Lineage   storage.Lineage
	Addrs     []string
	APIAddr   string
}

// OtherPrimary is a primary of the set, of another cluster, named by its epoch.
type OtherPrimary struct {
	storage.EpochID
	APIAddr string // "": not known
}

// Announcement tells a former primary of a later one.
type Announcement struct {
	SetID string
	OtherPrimary
	// Claim asks, of a primary that was demoted, to be the only one that is promoted at what it has said last.
	Claim bool
}

// AnnounceReply is what it answers.
type AnnounceReply struct {
	storage.EpochID // the cluster that answers, and the last epoch of its history
	Primary, Fenced bool
	Others          []OtherPrimary // primaries that it has met, without the announced one
}

// ActiveReply describes the node that answered.
type ActiveReply struct {
	SetID, ClusterID string
	Epoch            uint32
	Active           bool
	ActiveAddr       string
	Addrs            []string
}

// Guard is what a Link on a primary asks before it serves anybody. Store fulfils it.
type Guard interface {
	// ServerTLS returns this node's certificate and the CA that secondaries' certificates must be of; nil while the
	// cluster is not a primary.
	ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error)
	// Admit returns whose certificate it is. It asks the registry each time: revoked ones are refused.
	Admit(ctx context.Context, cert *x509.Certificate) (Peer, error)
	// Enrol redeems a one-time secret. Active node only.
	Enrol(ctx context.Context, req EnrolRequest) (EnrolReply, error)
	// Renew issues another certificate to a secondary that has a valid one.
	Renew(ctx context.Context, p Peer, csr []byte) (cert []byte, err error)
	// Scope returns the units that the secondary may have at present, and a number that changes with them.
	Scope(ctx context.Context, p Peer) (units map[string]bool, version uint64, err error)
	// Self returns the set, the cluster and its history; mode says whether it is a primary.
	Self() (mode Mode, setID, clusterID string, lineage storage.Lineage)
	// Fence is called when a secondary has shown a later epoch.
	Fence(ctx context.Context, epoch storage.EpochID)
	// Announced takes what a secondary says of a later primary, itself for instance.
	Announced(ctx context.Context, p Peer, a Announcement) (AnnounceReply, error)
	// Addrs are the cluster addresses to give to secondaries; Active says whether this node serves them, and where the
	// one is that does.
	Addrs() []string
	Active() (self bool, addr string)
	// Call runs something for a secondary; the index is to be waited for there.
	Call(ctx context.Context, p Peer, kind string, payload []byte) (answer []byte, at storage.Index, err error)
}

// FollowStatus is how a secondary is doing.
type FollowStatus struct {
	State      string // of package replication: disconnected, connecting, backfill, catching-up, streaming, repairing
	Reason     string // why it is not connected, for people
	Paused     string // why nothing is taken from the primary at the moment
	Terminal   string // "", "revoked", "fenced", "rejected": needs an operator
	Cursor     storage.Position
	Head       storage.Position // of the primary, as last heard
	LagEntries uint64
	LagBytes   int64
	LagSeconds float64
	EntriesIn  uint64 // since the node became active
	BytesIn    int64
	RateIn     float64 // entries each second, lately
	BytesRate  float64 // bytes each second, lately
	ETASeconds float64 // until it has caught up; negative: it does not
	Connected  string  // address
	Final      bool    // the primary has said that it is none any more, and everything that it had is here
	LastHeard  time.Time
	EqualAt    time.Time // the last moment at which this cluster had everything that the primary had; zero: not known
	ClockSkew  time.Duration
	Repair     *RepairStatus
	Exact      bool
	Units      map[string]string // unit: phase
	KeysDone   int64             // of a backfill
	KeysTotal  int64
	CanKeepUp  bool
}

// RepairStatus is the last comparison, running or done.
type RepairStatus struct {
	Cause     string
	StartedAt time.Time
	Seconds   float64
	Running   bool
	Units     int
	UnitsAll  int
	Buckets   int
	Keys      int
	Bytes     int64
}

// SessionStatus is one secondary that is connected, or was since this process began.
type SessionStatus struct {
	Peer          Peer
	Addr          string // where it connects from
	APIAddr       string
	ClusterAddr   string
	ConnectedAt   time.Time
	LastHeartbeat time.Time
	Cursor        storage.Position
	LagEntries    uint64
	LagSeconds    float64   // since EqualAt; 0 also if that is not known
	EqualAt       time.Time // the last moment at which both sides are known to have been equal; zero: not known
	EndedAt       time.Time // zero: it is connected
	EntriesOut    uint64
	BytesOut      int64
	RateOut       float64
	ClockSkew     time.Duration
	Exact         bool
}

// Conflict is a value that only this cluster had.
type Conflict struct {
	Key          storage.Key
	Value        []byte
	Mine, Theirs storage.Position
	At           time.Time
}
