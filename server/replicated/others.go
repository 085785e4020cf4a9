package replicated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Primaries of the set that are not of this cluster's history: there are some after promotions by force. Each cluster
// keeps those that it has met and tells others of them, so that two that were promoted from one epoch hear of each other.

// metPrimaries is the entry at metKey.
type metPrimaries struct {
	Format    int          `json:"format"` // 1
	Primaries []metPrimary `json:"primaries"`
}

type metPrimary struct {
	storage.EpochID
	APIAddr string    `json:"api_addr,omitempty"`
	MetAt   time.Time `json:"met_at"`
	Follows bool      `json:"follows,omitempty"` // it has enrolled here since
}

// maxMet is how many are kept: the latest ones.
const maxMet = 16

func readMet(ctx context.Context, from getter) (metPrimaries, error) {
	m, err := fetch[metPrimaries](ctx, from, metKey)
	if errors.Is(err, storage.ErrNotFound) {
		return metPrimaries{Format: 1}, nil
	}
	return m, err
}

// add reports whether a primary is news to a cluster in this role, and keeps it if so.
func (m *metPrimaries) add(r *Role, o OtherPrimary, now time.Time) bool {
	if o.Number == 0 || o.ClusterID == r.ClusterID || r.Lineage.Has(o.EpochID) {
		return false
	}
	i := slices.IndexFunc(m.Primaries, func(p metPrimary) bool { return p.EpochID == o.EpochID })
	if i >= 0 {
		if o.APIAddr == "" || m.Primaries[i].APIAddr == o.APIAddr {
			return false
		}
		m.Primaries[i].APIAddr, m.Primaries[i].MetAt = o.APIAddr, now.UTC()
		return true
	}
	m.Primaries = append(m.Primaries, metPrimary{EpochID: o.EpochID, APIAddr: o.APIAddr, MetAt: now.UTC()})
	slices.SortFunc(m.Primaries, func(a, b metPrimary) int {
		if a.After(b.EpochID) {
			return -1
		}
		return 1
	})
	m.Primaries = m.Primaries[:min(len(m.Primaries), maxMet)]
	return true
}

// without returns the primaries, but one, that are not of a history.
func (m *metPrimaries) without(e storage.EpochID, l storage.Lineage) []OtherPrimary {
	var out []OtherPrimary
	for _, p := range m.Primaries {
		if p.EpochID != e && !l.Has(p.EpochID) {
			out = append(out, OtherPrimary{EpochID: p.EpochID, APIAddr: p.APIAddr})
		}
	}
	return out
}

// open returns the primaries about which an operator may have to do something. A secondary leaves that to its primary.
func (m *metPrimaries) open(r *Role) []metPrimary {
	if r.Mode == Secondary && !r.Demoted {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(m.Primaries), func(p metPrimary) bool { return p.Follows || r.Lineage.Has(p.EpochID) })
}

// fencedBy returns the primary that this one has met and that is later; the zero one if there is none.
func (r *Role) fencedBy() OtherPrimary {
	return OtherPrimary{EpochID: storage.EpochID{Number: r.Fenced, ClusterID: r.FencedBy}, APIAddr: r.FencedAPI}
}

// yieldsTo reports whether a primary takes no shared writes any more once it has met another one.
func (r *Role) yieldsTo(e storage.EpochID) bool {
	return r.Mode == Primary && !r.Lineage.Has(e) && e.After(r.Lineage.Last()) && e.After(r.fencedBy().EpochID)
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

// WhyFenced says which primary has taken the place of this one, which takes no shared writes any more.
func (r *Role) WhyFenced() string {
	by := r.fencedBy()
	return "this cluster is no longer the primary of its replication set: " + by.Describe() +
		" is. Write there; here demote this cluster and make it follow that one"
}

// meet keeps the primaries that this cluster has heard of, and fences this one if one of them is later.
func (s *Store) meet(ctx context.Context, others ...OtherPrimary) error {
	var news []OtherPrimary
	var fenced bool
	var role Role
	_, err := storage.Update(ctx, s.store, func(tx *storage.Txn) error {
		news, fenced = nil, false
		r, err := readRole(ctx, tx)
		if err != nil || r.Mode == Disabled {
			return err
		}
		m, err := readMet(ctx, tx)
		if err != nil {
			return err
		}
		for _, o := range others {
			if m.add(&r, o, s.opts.Now()) {
				news = append(news, o)
			}
			if r.yieldsTo(o.EpochID) {
				r.Fenced, r.FencedBy, r.FencedAPI, fenced = o.Number, o.ClusterID, o.APIAddr, true
			}
		}
		role = r
		if len(news) > 0 {
			tx.Put(metKey, encoded(m))
		}
		if fenced {
			tx.Put(RoleKey, encoded(&r))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("storing what is known of other primaries: %w", err)
	}
	if fenced {
		s.changes.Add(1)
		nudge(s.wake)
		s.link.Refresh()
		s.log.Error("there is a later primary: this cluster takes no more writes to shared data until it is demoted",
			"primary", role.FencedBy, "api_addr", role.FencedAPI, "epoch", role.Fenced, "own_epoch", role.Lineage.Epoch(), "cluster", role.ClusterID)
	}
	for _, o := range news {
		if !fenced && role.Mode == Primary {
			s.log.Error("another cluster of the set was promoted in an epoch that is not of this primary's history: demote it, and make it follow this one",
				"other", o.ClusterID, "api_addr", o.APIAddr, "epoch", o.Number, "own_epoch", role.Lineage.Epoch(), "cluster", role.ClusterID)
		}
	}
	return nil
}

// latest returns the latest primary that this cluster knows of, which may be itself.
func (s *Store) latest(ctx context.Context, r *Role) (OtherPrimary, error) {
	m, err := readMet(ctx, s.store)
	if err != nil {
		return OtherPrimary{}, err
	}
	best := OtherPrimary{EpochID: r.Lineage.Last()}
	switch {
	case r.Mode == Primary:
		best.APIAddr = s.opts.APIAddr()
	default:
		if up, err := readUpstream(ctx, s.store); err == nil && up != nil && up.PrimaryID == best.ClusterID {
			best.APIAddr = up.APIAddr
		}
	}
	for _, o := range append(m.without(storage.EpochID{}, r.Lineage), r.fencedBy()) {
		if o.After(best.EpochID) {
			best = o
		}
	}
	return best, nil
}

// followsNow marks the primaries that a cluster was before it enrolled here.
func followsNow(ctx context.Context, tx *storage.Txn, clusterID string) error {
	m, err := readMet(ctx, tx)
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
		tx.Put(metKey, encoded(m))
	}
	return nil
}

// Fence implements Guard: a primary that has met a later epoch of its set takes no shared writes from here on.
func (s *Store) Fence(ctx context.Context, epoch storage.EpochID) {
	if r, err := s.Current(ctx); err != nil || !r.yieldsTo(epoch) {
		return
	}
	if err := s.meet(ctx, OtherPrimary{EpochID: epoch}); err != nil {
		s.log.Error("a primary of a later epoch exists, and this one could not be fenced", "epoch", epoch.Number, "primary", epoch.ClusterID, "err", err)
	}
}

// Announced implements Guard. A claim is answered without effect by a primary, and by a demoted one that another cluster
// has claimed before.
func (s *Store) Announced(ctx context.Context, p Peer, a Announcement) (AnnounceReply, error) {
	s.claims.Lock() // the first of two claims counts
	defer s.claims.Unlock()
	r, err := s.Current(ctx)
	if err != nil {
		return AnnounceReply{}, err
	}
	if r.Mode == Disabled || a.SetID != r.SetID {
		return AnnounceReply{}, engines.Invalid("the announced primary is of another replication set")
	}
	m, err := readMet(ctx, s.store)
	if err != nil {
		return AnnounceReply{}, err
	}
	taken := slices.ContainsFunc(m.without(a.EpochID, r.Lineage), func(o OtherPrimary) bool { return o.Number >= a.Number })
	if !a.Claim || r.Mode != Primary && !taken {
		if err := s.meet(ctx, a.OtherPrimary); err != nil {
			return AnnounceReply{}, err
		}
		s.log.Info("a later primary was announced", "primary", a.ClusterID, "epoch", a.Number, "by", p.ID, "claim", a.Claim)
	}
	if r, err = s.Current(ctx); err != nil {
		return AnnounceReply{}, err
	}
	if m, err = readMet(ctx, s.store); err != nil {
		return AnnounceReply{}, err
	}
	return AnnounceReply{
		EpochID: r.Lineage.Last(), Primary: r.Mode == Primary, Fenced: r.Fenced != 0, Others: m.without(a.EpochID, r.Lineage),
	}, nil
}
