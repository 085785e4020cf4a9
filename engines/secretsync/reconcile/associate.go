package reconcile

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// CompleteAssociation fills in what the request does not say. had is the stored association, or nil: its own settings are kept, so that
// setting it again widens nothing; the defaults of its destination are read again. If given is nil, a is complete.
func (s *Reconciler) CompleteAssociation(d *state.Destination, a state.Association, had *state.Association, given func(field string) bool) (*state.Association, error) {
	rules := s.Pool.Types[d.Type].Rules
	if had != nil && had.IsEnding() {
		had = nil // the new one starts from defaults
	}
	if had != nil {
		a.CreatedAt, a.Paused = had.CreatedAt, had.Paused
	}
	if given == nil {
		return &a, nil
	}
	if shapes := a.NewerShape(); shapes != "" && !s.Host.FormatsAgreed() {
		return nil, engines.Invalid("%s: not every node of the cluster is known to run a version that has this, and others would ignore it: "+
			"finish the upgrade (sys/storage/raft/autopilot/state shows the nodes), then repeat the request", shapes)
	}
	if had != nil {
		a.KeepUnset(had, given)
	}
	if !a.OwnGranularity {
		a.Granularity = cmp.Or(d.Granularity, rules.Granularity)
	}
	if !a.OwnTemplate {
		a.Template = d.Template
	}
	if problems := a.Plan(rules).Check(); len(problems) > 0 {
		return nil, engines.Invalid("%s", strings.Join(problems, "; "))
	}
	return &a, nil
}

// PutAssociation completes and stores an association with a pending link, and returns the destination as it is in that transaction.
func (s *Reconciler) PutAssociation(ctx context.Context, d *state.Destination, a *state.Association, given func(field string) bool) (*state.Destination, error) {
	config, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	s.Capacity.SetLimit(config.QueueCapacity)
	link := a.LinkID(a.Secret)
	var whole *state.Association
	var pending *state.Link
	var now state.Destination
	_, err = storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		now = state.Destination{}
		if _, err := state.GetDestination(ctx, tx, d.Key(), &now); err != nil {
			return err
		}
		switch {
		case now.ID != d.ID:
			return engines.NotFound("")
		case !now.PurgeAt.IsZero():
			return engines.Invalid("the destination is being purged")
		}
		had, err := state.GetAssociation(ctx, tx, a.Key())
		if err != nil {
			return err
		}
		switch n := s.Associations.Len(); {
		case had != nil:
		case n >= config.QueueCapacity:
			return engines.Invalid("there are %d associations, and queue_capacity of sync/config allows %d", n, config.QueueCapacity)
		case !a.Selector && s.Capacity.IsFull(link):
			return engines.Invalid("%s", s.Capacity.Cause())
		}
		if whole, err = s.CompleteAssociation(&now, *a, had, given); err != nil {
			return err
		}
		if had == nil {
			if err := engines.PutRecord(tx, state.NewestKey(d.NS, d.ID), &state.Newest{At: a.CreatedAt}); err != nil {
				return err
			}
		}
		if !a.Selector {
			if pending, err = s.putPending(ctx, tx, whole); err != nil {
				return err
			}
		}
		return engines.PutRecord(tx, a.Key(), whole)
	})
	if err != nil {
		return nil, err
	}
	if *a = *whole; !a.Selector {
		s.Capacity.Add(link)
		if pending != nil {
			s.Gauges.SetLink(link, a.MountUUID, pending)
		}
	}
	return &now, nil
}

// putPending stores a link for an association that has none, and returns it; nil: there is one.
func (s *Reconciler) putPending(ctx context.Context, tx *storage.Txn, a *state.Association) (*state.Link, error) {
	key := state.LinkKey(a.NS, a.Destination, a.ID, a.Secret)
	var l state.Link
	found, err := engines.GetRecord(ctx, tx, key, &l)
	if found || err != nil {
		return nil, err
	}
	l = state.Link{Secret: a.Secret, Outcome: state.Outcome{Status: state.Pending}, UpdatedAt: a.UpdatedAt}
	return &l, engines.PutRecord(tx, key, &l)
}

// RemoveAssociation records that an association is to go, and returns it, nil if there is none. With retain its names stay.
func (s *Reconciler) RemoveAssociation(ctx context.Context, key storage.Key, retain bool) (a *state.Association, err error) {
	_, err = storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		if a, err = state.GetAssociation(ctx, tx, key); err != nil || a == nil {
			return err
		}
		a.Removing, a.Retain, a.Paused, a.UpdatedAt = true, retain, false, time.Now().UTC()
		return engines.PutRecord(tx, a.Key(), a)
	})
	return a, err
}
