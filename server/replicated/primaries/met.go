package primaries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// MetKey is where a cluster keeps the primaries that it has met. Local to it, and gone when replication is disabled.
const MetKey storage.Key = "l/replication/met"

// Primaries of the set that are not of this cluster's history: there are some after promotions by force. Each cluster
// keeps those that it has met and tells others of them, so that two that were promoted from one epoch hear of each other.

// Met is the entry at MetKey.
type Met struct {
	Format    int       `json:"format"` // 1
	Primaries []Primary `json:"primaries"`
}

// Primary is one of them.
type Primary struct {
	storage.EpochID
	APIAddr string    `json:"api_addr,omitempty"`
	MetAt   time.Time `json:"met_at"`
	Follows bool      `json:"follows,omitempty"` // it has enrolled here since
}

// maxMet is how many are kept: the latest ones.
const maxMet = 16

// ReadMet returns the primaries that a cluster has met; in a transaction, as a precondition.
func ReadMet(ctx context.Context, from entry.Getter) (Met, error) {
	m, err := entry.Fetch[Met](ctx, from, MetKey)
	if errors.Is(err, storage.ErrNotFound) {
		return Met{Format: 1}, nil
	}
	return m, err
}

// add reports whether a primary is news to a cluster in this role, and keeps it if so.
func (m *Met) add(r *roles.Role, o replication.OtherPrimary, now time.Time) bool {
	if o.Number == 0 || o.ClusterID == r.ClusterID || r.Lineage.Has(o.EpochID) {
		return false
	}
	i := slices.IndexFunc(m.Primaries, func(p Primary) bool { return p.EpochID == o.EpochID })
	if i >= 0 {
		if o.APIAddr == "" || m.Primaries[i].APIAddr == o.APIAddr {
			return false
		}
		m.Primaries[i].APIAddr, m.Primaries[i].MetAt = o.APIAddr, now.UTC()
		return true
	}
	m.Primaries = append(m.Primaries, Primary{EpochID: o.EpochID, APIAddr: o.APIAddr, MetAt: now.UTC()})
	slices.SortFunc(m.Primaries, func(a, b Primary) int {
		if a.After(b.EpochID) {
			return -1
		}
		return 1
	})
	m.Primaries = m.Primaries[:min(len(m.Primaries), maxMet)]
	return true
}

// without returns the primaries, but one, that are not of a history.
func (m *Met) without(e storage.EpochID, l storage.Lineage) []replication.OtherPrimary {
	var out []replication.OtherPrimary
	for _, p := range m.Primaries {
		if p.EpochID != e && !l.Has(p.EpochID) {
			out = append(out, replication.OtherPrimary{EpochID: p.EpochID, APIAddr: p.APIAddr})
		}
	}
	return out
}

// open returns the primaries about which an operator may have to do something. A secondary leaves that to its primary.
func (m *Met) open(r *roles.Role) []Primary {
	if r.Mode == roles.Secondary && !r.Demoted {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(m.Primaries), func(p Primary) bool { return p.Follows || r.Lineage.Has(p.EpochID) })
}

// Meet keeps the primaries that this cluster has heard of, and fences this one if one of them is later.
func (k *Known) Meet(ctx context.Context, others ...replication.OtherPrimary) error {
	var news []replication.OtherPrimary
	var fenced bool
	var role roles.Role
	_, err := storage.Update(ctx, k.o.Store, func(tx *storage.Txn) error {
		news, fenced = nil, false
		r, err := roles.Read(ctx, tx)
		if err != nil || r.Mode == roles.Disabled {
			return err
		}
		m, err := ReadMet(ctx, tx)
		if err != nil {
			return err
		}
		for _, o := range others {
			if m.add(&r, o, time.Now()) {
				news = append(news, o)
			}
			if r.YieldsTo(o.EpochID) {
				r.Fenced, r.FencedBy, r.FencedAPI, fenced = o.Number, o.ClusterID, o.APIAddr, true
			}
		}
		role = r
		if len(news) > 0 {
			tx.Put(MetKey, entry.Encode(m))
		}
		if fenced {
			tx.Put(roles.RoleKey, entry.Encode(&r))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("storing what is known of other primaries: %w", err)
	}
	if fenced {
		k.o.Cluster.RoleWritten()
		k.o.Logger.Error("there is a later primary: this cluster takes no more writes to shared data until it is demoted",
			"primary", role.FencedBy, "api_addr", role.FencedAPI, "epoch", role.Fenced, "own_epoch", role.Lineage.Epoch(), "cluster", role.ClusterID)
	}
	for _, o := range news {
		if !fenced && role.Mode == roles.Primary {
			k.o.Logger.Error("another cluster of the set was promoted in an epoch that is not of this primary's history: demote it, and make it follow this one",
				"other", o.ClusterID, "api_addr", o.APIAddr, "epoch", o.Number, "own_epoch", role.Lineage.Epoch(), "cluster", role.ClusterID)
		}
	}
	return nil
}

// Latest returns the latest primary that this cluster knows of, which may be itself.
func (k *Known) Latest(ctx context.Context, r *roles.Role) (replication.OtherPrimary, error) {
	m, err := ReadMet(ctx, k.o.Store)
	if err != nil {
		return replication.OtherPrimary{}, err
	}
	best := replication.OtherPrimary{EpochID: r.Lineage.Last()}
	switch {
	case r.Mode == roles.Primary:
		best.APIAddr = k.o.Cluster.APIAddr()
	default:
		if up, err := traffic.ReadUpstream(ctx, k.o.Store); err == nil && up != nil && up.PrimaryID == best.ClusterID {
			best.APIAddr = up.APIAddr
		}
	}
	for _, o := range append(m.without(storage.EpochID{}, r.Lineage), r.LaterPrimary()) {
		if o.After(best.EpochID) {
			best = o
		}
	}
	return best, nil
}

// FollowsNow is part of the commit by which a cluster enrols here: it marks the primaries that the cluster was before.
func (*Known) FollowsNow(ctx context.Context, tx *storage.Txn, clusterID string) error {
	tx.Delete(formerKey(clusterID)) // it knows
	m, err := ReadMet(ctx, tx)
	if err != nil {
		return err
	}
	changed := false
	for i := range m.Primaries {
		if p := &m.Primaries[i]; p.ClusterID == clusterID && !p.Follows {
			p.Follows, changed = true, true
		}
	}
	if changed {
		tx.Put(MetKey, entry.Encode(m))
	}
	return nil
}

// Fence answers link.Announcements: a primary that has met a later epoch of its set takes no shared writes from here on.
func (k *Known) Fence(ctx context.Context, epoch storage.EpochID) {
	if r, err := k.o.Cluster.Current(ctx); err != nil || !r.YieldsTo(epoch) {
		return
	}
	if err := k.Meet(ctx, replication.OtherPrimary{EpochID: epoch}); err != nil {
		k.o.Logger.Error("a primary of a later epoch exists, and this one could not be fenced", "epoch", epoch.Number, "primary", epoch.ClusterID, "err", err)
	}
}

// Announced answers link.Announcements. A claim is answered without effect by a primary, and by a demoted one that another cluster
// has claimed before.
func (k *Known) Announced(ctx context.Context, p roles.Peer, a replication.Announcement) (replication.AnnounceReply, error) {
	k.claims.Lock() // the first of two claims counts
	defer k.claims.Unlock()
	r, err := k.o.Cluster.Current(ctx)
	if err != nil {
		return replication.AnnounceReply{}, err
	}
	if r.Mode == roles.Disabled || a.SetID != r.SetID {
		return replication.AnnounceReply{}, engines.Invalid("the announced primary is of another replication set")
	}
	m, err := ReadMet(ctx, k.o.Store)
	if err != nil {
		return replication.AnnounceReply{}, err
	}
	taken := slices.ContainsFunc(m.without(a.EpochID, r.Lineage), func(o replication.OtherPrimary) bool { return o.Number >= a.Number })
	if !a.Claim || r.Mode != roles.Primary && !taken {
		if err := k.Meet(ctx, a.OtherPrimary); err != nil {
			return replication.AnnounceReply{}, err
		}
		k.o.Logger.Info("a later primary was announced", "primary", a.ClusterID, "epoch", a.Number, "by", p.ID, "claim", a.Claim)
	}
	if r, err = k.o.Cluster.Current(ctx); err != nil {
		return replication.AnnounceReply{}, err
	}
	if m, err = ReadMet(ctx, k.o.Store); err != nil {
		return replication.AnnounceReply{}, err
	}
	return replication.AnnounceReply{
		EpochID: r.Lineage.Last(), Primary: r.Mode == roles.Primary, Fenced: r.Fenced != 0, Others: m.without(a.EpochID, r.Lineage),
	}, nil
}

// LaterThan returns a primary of a later epoch than a cluster's history has; nil if none was met.
func (m *Met) LaterThan(r *roles.Role) *replication.OtherPrimary {
	for _, o := range m.without(storage.EpochID{}, r.Lineage) {
		if o.Number > r.Lineage.Epoch() {
			return &o
		}
	}
	return nil
}

// Open returns the primaries of the set, met outside of its history, about which an operator may have to do something.
func (k *Known) Open(ctx context.Context, r *roles.Role) ([]Primary, error) {
	m, err := ReadMet(ctx, k.o.Store)
	if err != nil {
		return nil, err
	}
	return m.open(r), nil
}
