package replicated

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

const (
	retryInterval  = time.Second
	lookInterval   = 30 * time.Second // between two looks at what should be, whatever was announced
	canaryInterval = 10 * time.Second
)

// Run does, while this node is the active one, what the role asks for, until ctx ends: it finishes what a change of role
// began, follows the primary, and tells the link what has changed.
func (s *Store) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { s.heartbeats(ctx) })
	loops.Go(func() { s.others.Announce(ctx) })
	defer loops.Wait()
	f := &follower{store: s}
	defer f.stop()
	for {
		again := time.NewTimer(lookInterval)
		if err := s.step(ctx, f); err != nil && ctx.Err() == nil {
			if !errors.Is(err, storage.ErrSealed) {
				s.log.Warn("following the role of the cluster, trying again", "err", err)
			}
			again.Reset(retryInterval)
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-s.outdated:
			s.link.Refresh()
		case <-f.ended():
			again.Reset(retryInterval)
			select {
			case <-ctx.Done():
			case <-again.C:
			}
		case <-again.C:
		}
		again.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// step brings the node in line with the role. It may be repeated.
func (s *Store) step(ctx context.Context, f *follower) error {
	r, err := s.Current(ctx)
	if err != nil {
		return err
	}
	if r.Mode != roles.Secondary || r.Wiping || r.Demoted {
		f.stop()
	}
	switch {
	case r.Mode == roles.Secondary && r.Wiping:
		return s.finishWipe(ctx)
	case r.Mode == roles.Secondary && r.Demoted:
		return s.writeEnd(ctx, &r)
	case r.Mode == roles.Secondary:
		up, err := traffic.ReadUpstream(ctx, s.store)
		if err == nil {
			f.follow(ctx, &r, up)
		}
		return err
	case r.Version == 0 || r.Version == f.cleaned:
		return nil
	case r.Mode == roles.Disabled:
		err = s.cleanFor(ctx, &r, s.cleanUp)
	default:
		err = s.cleanFor(ctx, &r, s.link.Reset)
	}
	if err == nil {
		f.cleaned = r.Version
	}
	return err
}

// cleanFor removes what another role has left, unless the role has changed since: the cursor of a cluster that was demoted
// meanwhile is not left over.
func (s *Store) cleanFor(ctx context.Context, r *roles.Role, clean func(context.Context) error) error {
	s.cursorMu.Lock()
	defer s.cursorMu.Unlock()
	if now, err := s.Current(ctx); err != nil || now.Version != r.Version {
		return err
	}
	return clean(ctx)
}

// follower is the one call of Link.Follow at a time. It belongs to Run.
type follower struct {
	store *Store
	// cleaned is the version of the role, not of a secondary, for which nothing is left of another one.
	cleaned storage.Index

	to     connection
	cancel context.CancelFunc // nil: it is not running
	done   chan struct{}      // closed when Follow has returned
}

// connection is what a new Follow is needed for. What the link learns of its primary is not part of it.
type connection struct {
	setID, clusterID, secondaryID string
	since                         time.Time
}

// follow begins to follow up, or goes on with it; nil is none.
func (f *follower) follow(ctx context.Context, r *roles.Role, up *traffic.Upstream) {
	if up == nil {
		f.stop()
		return
	}
	to := connection{r.SetID, r.ClusterID, up.SecondaryID, up.Since}
	select {
	case <-f.ended():
	default:
		if f.cancel != nil && f.to == to {
			return
		}
	}
	f.stop()
	ctx, f.cancel = context.WithCancel(ctx)
	f.to, f.done = to, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		s := f.store
		if err := s.link.Follow(ctx, r.SetID, r.ClusterID, r.Lineage, *up, followed{s, to.since}); err != nil && ctx.Err() == nil {
			s.log.Error("following the primary has ended, trying again", "err", err)
		}
	}(f.done)
}

// ended returns a channel that closes when Follow returns by itself; nil while no primary is followed.
func (f *follower) ended() <-chan struct{} { return f.done }

// stop ends it, and waits for that.
func (f *follower) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
	f.cancel, f.done, f.to = nil, nil, connection{}
}

// followed takes the events of a primary that is followed since then.
type followed struct {
	*Store
	since time.Time
}

// BeforeDrop implements replication.FollowEvents.
func (f followed) BeforeDrop(ctx context.Context, unit string) { f.opts.Data.BeforeDrop(ctx, unit) }

// Learned stores what the link has learned about its primary. It does not return before that is stored: a cluster that is
// promoted must know every epoch that there was.
func (f followed) Learned(ctx context.Context, l replication.Learned) {
	if l.Scope {
		signal(f.ask) // before the primary is demoted, and responds no more
	}
	for {
		err := f.storeLearned(ctx, l)
		if err == nil || ctx.Err() != nil {
			return
		}
		f.log.Warn("what the primary has told of itself is not stored yet", "err", err)
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return
		}
	}
}

func (f followed) storeLearned(ctx context.Context, l replication.Learned) error {
	_, err := storage.Update(ctx, f.store, func(tx *storage.Txn) error {
		r, err := roles.Read(ctx, tx)
		if err != nil || r.Mode != roles.Secondary || r.Demoted {
			return err
		}
		up, err := traffic.ReadUpstream(ctx, tx)
		if err != nil || up == nil || !up.Since.Equal(f.since) { // of one that is not followed any more
			return err
		}
		if len(l.Lineage) > 0 && !slices.Equal(l.Lineage, r.Lineage) {
			r.Lineage = l.Lineage
			tx.Put(roles.RoleKey, entry.Encode(&r))
		}
		if old := string(entry.Encode(up)); string(entry.Encode(up.With(l))) != old {
			tx.Put(traffic.UpstreamKey, entry.Encode(up))
		}
		return nil
	})
	return err
}

// heartbeats does what is done every few seconds: a primary writes the canary, a secondary asks for its filter.
func (s *Store) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(canaryInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.ask:
		}
		r, err := s.Current(ctx)
		switch {
		case err != nil:
		case r.Mode == roles.Primary:
			if r.Fenced == 0 {
				err = s.writeCanary(ctx, &r)
			}
			err = errors.Join(err, s.storeSeen(ctx, &r))
		case r.Mode == roles.Secondary && !r.Wiping && !r.Demoted:
			_, err = s.Given(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Debug("looking after replication", "err", err)
		}
	}
}

// CanaryKey is a shared entry that a primary writes from time to time, so that a secondary can be seen to get what is
// written, and how late.
const CanaryKey storage.Key = "s/sys/set/canary"

type canary struct {
	Format int   `json:"format"` // 1
	TimeMS int64 `json:"time_ms"`
}

// writeCanary writes the canary if there is a secondary.
func (s *Store) writeCanary(ctx context.Context, r *roles.Role) error {
	list, err := s.registry.List(ctx)
	if err != nil || !slices.ContainsFunc(list, func(p registry.Registered) bool { return p.State == registry.Active }) {
		return err
	}
	_, err = s.store.Commit(ctx, storage.Batch{
		Reads: []storage.Read{{Key: roles.RoleKey, Version: r.Version}},
		Puts:  []storage.Put{{Key: CanaryKey, Value: entry.Encode(canary{Format: 1, TimeMS: time.Now().UnixMilli()})}},
	})
	return err
}

// CanaryAge returns how late a secondary gets what its primary writes; false if that is not known, and on a primary.
func (s *Store) CanaryAge(ctx context.Context) (time.Duration, bool) {
	if r, err := s.Current(ctx); err != nil || r.Mode != roles.Secondary || r.Demoted {
		return 0, false
	}
	return s.CanaryAgeAt(ctx, s.link.FollowStatus().ClockSkew)
}

// CanaryAgeAt returns how long ago the canary that is here was written, by the clocks of both clusters; false if there is
// none.
func (s *Store) CanaryAgeAt(ctx context.Context, skew time.Duration) (time.Duration, bool) {
	var c canary
	if found, err := entry.Read(ctx, s.store, CanaryKey, &c); err != nil || found.Key == "" {
		return 0, false
	}
	return max(0, time.Since(time.UnixMilli(c.TimeMS))-skew), true
}
