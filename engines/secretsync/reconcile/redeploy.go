package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// QueueRedeploy queues the redeployment of a destination if one is due.
func (s *Reconciler) QueueRedeploy(ctx context.Context, d *state.Destination) error {
	if s.Pool.RedeploysBy(d) == "" || d.IsPaused() {
		return nil
	}
	var r state.Redeploy
	if _, err := engines.GetRecord(ctx, s.Host.Store(), d.RedeployKey(), &r); err != nil || !r.IsDue() {
		return err
	}
	s.Redeploys.Push(d.Key(), nextRedeploy(&r, d), false, nil)
	return nil
}

// nextRedeploy returns when a redeployment is due. After a change of the destination the backoff of a failed one ends.
func nextRedeploy(r *state.Redeploy, d *state.Destination) time.Time {
	at := r.ChangedAt
	if r.DoneAt.After(at) {
		at = r.DoneAt
	}
	at = at.Add(workqueue.RedeployInterval)
	if r.RetryAt.After(at) && !d.UpdatedAt.After(r.FailedAt) {
		return r.RetryAt
	}
	return at
}

// redeployJob is the queue's Do: it redeploys a destination.
func (s *Reconciler) redeployJob(ctx context.Context, key storage.Key, _ bool) {
	if !s.Host.Owner() {
		return // the full scan after a promotion queues it again
	}
	var again time.Time
	err := s.RecoverPanic("redeploying a destination", func() (err error) { again, err = s.redeploy(ctx, key); return err })
	if err != nil && ctx.Err() == nil && !s.Unreadable(err) {
		s.Log.Warn("a destination could not be redeployed", "err", err)
		again = time.Now().Add(workqueue.RedeployInterval)
	}
	if !again.IsZero() {
		s.Redeploys.Push(key, again, false, nil)
	}
}

// redeploy redeploys a destination if that is due, and returns when the next attempt is; zero: after a change. That it was started is
// stored before, so that one whose outcome is unknown is repeated. An error is one of the store.
func (s *Reconciler) redeploy(ctx context.Context, key storage.Key) (again time.Time, err error) {
	var d state.Destination
	version, err := state.GetDestination(ctx, s.Host.Store(), key, &d)
	if err != nil || d.ID == "" {
		return time.Time{}, err
	}
	what := s.Pool.RedeploysBy(&d)
	if c, err := s.Config(ctx); what == "" || d.IsPaused() || err != nil || c.Disabled {
		return time.Time{}, err // changing the destination or the configuration queues it again
	}
	r, started, err := s.startRedeploy(ctx, &d)
	switch {
	case err != nil || !r.IsDue():
		return time.Time{}, err
	case !started:
		return nextRedeploy(r, &d), nil
	}
	failed := s.Host.Record(ctx, engines.Event{
		NamespaceID: d.NS, Operation: engines.Update, Who: r.Owner, Path: "sys/sync/destinations/" + d.Type + "/" + d.Name + "/redeploy",
		Data: map[string]any{"redeploy": what},
	})
	if failed == nil {
		failed = s.callRedeploy(ctx, &d, version)
	}
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	s.Counts.Redeploys.Add(1)
	if failed != nil {
		s.Counts.RedeploysFailed.Add(1)
		s.Log.Warn("redeploying a destination has failed", "destination", d.Type+"/"+d.Name, "err", failed)
	}
	if r, err = s.recordRedeploy(ctx, &d, failed); err != nil || !r.IsDue() {
		return time.Time{}, err
	}
	return nextRedeploy(r, &d), nil
}

func (s *Reconciler) callRedeploy(ctx context.Context, d *state.Destination, version storage.Index) error {
	dest, err := s.Pool.Get(d, version)
	if err != nil {
		return err
	}
	return dest.Redeploy(ctx)
}

// startRedeploy stores that a redeployment is started, if one is due now. Changes from then on need another one.
func (s *Reconciler) startRedeploy(ctx context.Context, d *state.Destination) (r *state.Redeploy, started bool, err error) {
	r, err = s.updateRedeploy(ctx, d, func(r *state.Redeploy) bool {
		now := time.Now()
		if started = r.IsDue() && !nextRedeploy(r, d).After(now); started {
			r.StartedAt, r.ChangedAt = now, time.Time{}
		}
		return started
	})
	return r, started, err
}

// recordRedeploy stores the outcome of a redeployment; failed is nil if it succeeded.
func (s *Reconciler) recordRedeploy(ctx context.Context, d *state.Destination, failed error) (*state.Redeploy, error) {
	now := time.Now()
	return s.updateRedeploy(ctx, d, func(r *state.Redeploy) bool {
		r.StartedAt = time.Time{}
		if failed == nil {
			r.DoneAt, r.FailedAt, r.RetryAt, r.Outcome, r.Attempts = now, time.Time{}, time.Time{}, state.Outcome{}, 0
			return true
		}
		if r.ChangedAt.IsZero() {
			r.ChangedAt = now
		}
		r.FailedAt, r.Outcome, r.Attempts = now, state.OutcomeOf(failed), r.Attempts+1
		wait := engines.Backoff(workqueue.RedeployInterval, workqueue.LongestWait, r.Attempts)
		if e, ok := errors.AsType[*destination.Error](failed); ok {
			wait = max(wait, min(e.RetryAfter, workqueue.LongestWait))
		}
		r.RetryAt = now.Add(wait)
		return true
	})
}

// updateRedeploy changes what is stored of the redeployments of a destination, unless change returns false. It returns the result.
func (s *Reconciler) updateRedeploy(ctx context.Context, d *state.Destination, change func(*state.Redeploy) bool) (*state.Redeploy, error) {
	var r state.Redeploy
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		r = state.Redeploy{}
		if found, err := engines.GetRecord(ctx, tx, d.RedeployKey(), &r); !found || err != nil || !change(&r) {
			return err
		}
		return engines.PutRecord(tx, d.RedeployKey(), &r)
	})
	return &r, err
}

// DescribeRedeploy adds to what readers see of a destination when it was redeployed, if it is.
func (s *Reconciler) DescribeRedeploy(ctx context.Context, d *state.Destination, out map[string]any) error {
	var r state.Redeploy
	found, err := engines.GetRecord(ctx, s.Host.Store(), d.RedeployKey(), &r)
	configured := s.Pool.RedeploysBy(d) != ""
	if err != nil || !found && !configured {
		return err
	}
	out["redeploy_pending"] = configured && r.IsDue()
	if !r.DoneAt.IsZero() {
		out["redeployed_at"] = r.DoneAt
	}
	if r.Status != "" {
		out["redeploy_error"], out["redeploy_retry_at"] = r.Cause, r.RetryAt
	}
	return nil
}
