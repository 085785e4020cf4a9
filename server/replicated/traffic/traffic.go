// Package traffic is what server/replicated needs of the connections between clusters: the Link, and what it is told and asked.
//
// It promises nothing by itself: package replication/link fulfils Link, cmd/coffer joins the two, and neither imports the other. Offline is
// the Link of a server that has none. Start reading at Link.
package traffic

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

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

// With takes over what is not zero.
func (u *Upstream) With(l replication.Learned) *Upstream {
	if l.PrimaryID != "" {
		u.PrimaryID = l.PrimaryID
	}
	if len(l.Addrs) > 0 {
		u.Addrs = l.Addrs
	}
	if len(l.Cert) > 0 {
		u.Cert = l.Cert
	}
	return u
}

// Link is the traffic between clusters. Package replication/link fulfils it.
type Link interface {
	Follower
	Progress
	Caller
	Enroller
	Feed
}

// Follower is the connection of a secondary to its primary.
type Follower interface {
	// Follow makes this cluster a follower until ctx ends; it reconnects by itself. ids are those of Role. On the active
	// node of a secondary only.
	Follow(ctx context.Context, setID, clusterID string, lineage storage.Lineage, up Upstream, h replication.FollowEvents) error
	// FollowStatus describes the secondary; of this node only.
	FollowStatus() FollowStatus
	// Repair makes a connected follower compare everything with its primary.
	Repair(cause string) error
	// Conflicts lists what repairs replaced that only this cluster had, oldest first.
	Conflicts(ctx context.Context) ([]Conflict, error)
}

// Progress is how far a secondary is. It is stored below replicated.ProgressPrefix.
type Progress interface {
	// Cursor returns how far this node is, on any node of a secondary.
	Cursor(ctx context.Context) (storage.Position, error)
	// SetCursor writes the cursor of a cluster that has just been demoted, and that it has these units, whole as of at.
	SetCursor(ctx context.Context, at storage.Position, lineage storage.Lineage, units []string) error
	// Units returns the units that this secondary holds, with those that are not whole marked false.
	Units(ctx context.Context) (map[string]bool, error)
	// Reset forgets the cursor and all units, in the progress area, for a cluster that begins from the start.
	Reset(ctx context.Context) error
}

// Caller has things done by the primary that this cluster follows.
type Caller interface {
	// Call has something done by the primary that this cluster follows. The answer's position is to be waited for with
	// AwaitCursor before the caller of ours gets it. storage.ErrUnavailable: nothing was done; storage.ErrOutcomeUnknown.
	Call(ctx context.Context, kind string, payload []byte) (answer []byte, at storage.Position, err error)
	// AwaitCursor waits until everything up to a position is applied and visible on this node.
	AwaitCursor(ctx context.Context, at storage.Position) error
}

// Enroller talks to clusters that this one does not follow at that time.
type Enroller interface {
	// Enrol trades a one-time secret and a certificate request for a certificate, at the first address that answers.
	Enrol(ctx context.Context, addrs []string, ca []byte, req replication.EnrolRequest) (replication.EnrolReply, error)
	// Announce tells the primary of up, which this cluster followed, of a later one. The certificate may have expired.
	Announce(ctx context.Context, up Upstream, a replication.Announcement) (replication.AnnounceReply, error)
	// WhoIsActive asks one address of a primary, with the certificate of up: any node of it answers.
	WhoIsActive(ctx context.Context, addr string, up Upstream) (replication.ActiveReply, error)
}

// Feed is the shared data of this node, and the sessions in which secondaries get it.
type Feed interface {
	// Active does what belongs to the active node, until ctx ends. Follow counts only meanwhile.
	Active(ctx context.Context)
	// Keep makes this node keep a log of shared changes for other clusters, or remove it.
	Keep(ctx context.Context, on bool) error
	// Head returns the position of the last shared change on this node.
	Head() storage.Index
	// Oldest returns the index after which this node keeps shared changes for secondaries.
	Oldest() storage.Index
	// Root returns a digest of all shared data that replicates to here (or from here), in hexadecimal; "": being built.
	Root() string
	// Refresh tells the sessions that registry, filters or mounts have changed. Sessions of revoked secondaries end.
	Refresh()
	// SessionStatus describes the secondaries that are connected or were; of this node only.
	SessionStatus() []SessionStatus
}

// FollowStatus is how a secondary is doing.
type FollowStatus = replication.FollowStatus

// RepairStatus is the last comparison, running or done.
type RepairStatus = replication.Repair

// SessionStatus is one secondary that is connected, or was since this process began.
type SessionStatus = replication.SessionStatus

// Conflict is a value that only this cluster had.
type Conflict struct {
	Key          storage.Key
	Value        []byte
	Mine, Theirs storage.Position
	At           time.Time
}
