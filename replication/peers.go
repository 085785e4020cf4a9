package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Protocol is the ALPN name of this traffic on the cluster port.
const Protocol = "coffer-replication"

// ServerName is the name in the certificates of a primary's nodes, whatever address they are dialled at.
const ServerName = "primary.replication.coffer.internal"

// CursorKey is where a secondary keeps how far it is. It belongs in wal.Options.CursorKey: after a promotion the log tells
// where other secondaries go on.
const CursorKey storage.Key = "l/replication/progress/cursor"

// Self is this cluster's place in its set.
type Self struct {
	Primary          bool
	Demoted          bool // a secondary that was a primary, and follows no primary yet
	SetID, ClusterID string
	Lineage          storage.Lineage
	Since            storage.Index // the entry that says so
}

// Peer is a secondary, as its primary knows it.
type Peer struct {
	ID        string // opaque
	ClusterID string // "" until it has enrolled
}

// Refusal is an error whose text may be read in another cluster. Others arrive as "internal error".
type Refusal struct{ Detail string }

func (r *Refusal) Error() string { return r.Detail }

// Upstream is what a secondary needs for its connection.
type Upstream struct {
	Format      int
	SecondaryID string
	SetID       string
	PrimaryID   string
	CA          []byte // PEM
	Cert        []byte // PEM
	Key         []byte // PEM, secret
	Addrs       []string
	APIAddr     string
	Since       time.Time
}

// EnrolRequest is what a cluster sends to become a secondary.
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

// ActiveReply describes the node that answered.
type ActiveReply struct {
	SetID, ClusterID string
	Epoch            uint32
	Active           bool
	ActiveAddr       string
	Addrs            []string
}

// OtherPrimary is a primary of the set, of another cluster, named by its epoch.
type OtherPrimary struct {
	storage.EpochID
	APIAddr string // "": not known
}

// Describe names a primary for people.
func (o *OtherPrimary) Describe() string {
	switch {
	case o.ClusterID == "":
		return fmt.Sprintf("a cluster of epoch %d", o.Number)
	case o.APIAddr == "":
		return fmt.Sprintf("cluster %s, in epoch %d", o.ClusterID, o.Number)
	}
	return fmt.Sprintf("cluster %s at %s, in epoch %d", o.ClusterID, o.APIAddr, o.Number)
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

// FollowEvents takes what happens while a cluster follows a primary.
type FollowEvents interface {
	// BeforeDrop is called before a unit is deleted, to end what was handed out of it. It returns within a minute.
	BeforeDrop(ctx context.Context, unit string)
	// Learned is called when the primary's history, cluster id or addresses have changed, or the certificate was renewed.
	Learned(ctx context.Context, l Learned)
}

// Learned is what a secondary has heard; zero fields are as before.
type Learned struct {
	PrimaryID string
	Lineage   storage.Lineage
	Addrs     []string
	Cert      []byte // PEM
	Scope     bool   // what the secondary gets may be something else
}
