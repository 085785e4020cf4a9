// Package roles is what a cluster is in its replication set: a primary, a secondary, or neither.
//
// It promises that the Role is one entry, which every shared write has as a precondition: a change of role stops such writes at one
// index. Package server/replicated makes the changes. Start reading at Role.
package roles

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/storage"
)

// Mode of a cluster. The texts are those of the API.
type Mode string

const (
	Disabled  Mode = "disabled"
	Primary   Mode = "primary"
	Secondary Mode = "secondary"
)

// RoleKey is where the Role is kept. Every shared write has it as a precondition.
const RoleKey storage.Key = "l/replication/role"

// Role is what this cluster is. Absent: Disabled, and never was anything else.
type Role struct {
	Format int  `json:"format"` // 1
	Mode   Mode `json:"mode"`
	// ClusterID names the cluster within the set. A new one is made when replication is enabled after it was disabled.
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

// TakesWrites reports whether a cluster in this role writes shared data by itself. A secondary does not, and neither does a
// primary that knows of a later one.
func (r *Role) TakesWrites() bool { return r.Mode == Disabled || r.Mode == Primary && r.Fenced == 0 }

// LaterPrimary returns the primary that this one has met and that is later; the zero one if there is none.
func (r *Role) LaterPrimary() replication.OtherPrimary {
	return replication.OtherPrimary{EpochID: storage.EpochID{Number: r.Fenced, ClusterID: r.FencedBy}, APIAddr: r.FencedAPI}
}

// YieldsTo reports whether a primary takes no shared writes any more once it has met another one.
func (r *Role) YieldsTo(e storage.EpochID) bool {
	return r.Mode == Primary && !r.Lineage.Has(e) && e.After(r.Lineage.Last()) && e.After(r.LaterPrimary().EpochID)
}

// WhyFenced says which primary has taken the place of this one, which takes no shared writes any more.
func (r *Role) WhyFenced() string {
	by := r.LaterPrimary()
	return "this cluster is no longer the primary of its replication set: " + by.Describe() +
		" is. Write there; here demote this cluster and make it follow that one"
}

// End is where a demoted cluster's time as the primary has ended. While it is demoted its role is not written again.
func (r *Role) End() storage.Position {
	return storage.Position{Epoch: r.Lineage.Epoch(), Index: r.Version}
}

// Peer is a connected or registered secondary, as its primary knows it.
type Peer = replication.Peer

// Read returns the stored role; an absent one is Disabled.
func Read(ctx context.Context, from entry.Getter) (Role, error) {
	r := Role{Format: 1, Mode: Disabled}
	found, err := entry.Read(ctx, from, RoleKey, &r)
	if err != nil || found.Key == "" {
		return r, err
	}
	if r.Format != 1 {
		return Role{}, fmt.Errorf("the replication role has format %d, this version knows 1", r.Format)
	}
	r.Version = found.Version
	// The index at which a primary became one is that of the entry that says so: it is not known before that is written.
	if n := len(r.Lineage); n > 0 && r.Lineage[n-1].Base == 0 && r.Lineage[n-1].ClusterID == r.ClusterID {
		r.Lineage = slices.Clone(r.Lineage)
		r.Lineage[n-1].Base = found.Version
	}
	return r, nil
}

// WantPrimary makes it a precondition that this cluster is a primary.
func WantPrimary(ctx context.Context, from entry.Getter) error {
	r, err := Read(ctx, from)
	if err == nil && r.Mode != Primary {
		return engines.Invalid("this cluster is not a replication primary (mode: %s): send the request to the primary", r.Mode)
	}
	return err
}

// PrimaryRole returns the role of a cluster that is a primary and may let others in; in a transaction, as a precondition.
func PrimaryRole(ctx context.Context, from entry.Getter) (Role, error) {
	role, err := Read(ctx, from)
	switch {
	case err == nil && role.Mode != Primary:
		return role, engines.Invalid("this cluster is not a primary: enable replication with primary/enable, or make a secondary a primary with secondary/promote")
	case err == nil && role.Fenced != 0:
		return role, engines.Invalid("%s", role.WhyFenced())
	}
	return role, err
}
