package reconcile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/workqueue"
	"github.com/coffer-project/coffer/storage"
)

// Drift of a name: how the destination differs from the last applied state.
const (
	driftMissing = "missing"
	DriftChanged = "changed"
)

// Actions on drift. A repair is queued, or waits for syncing to be resumed.
const (
	driftReported = "reported"
	driftRepaired = "repaired"
	driftPaused   = "repaired when resumed"
)

// DriftFinding is a finding.
type DriftFinding struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Drift  string `json:"drift"`
	Done   string `json:"action"`

	isNew bool // the last check did not find it
}

// ScanDrift compares the list of a destination with what we own there, of the mounts that of chooses. n is how many names that is.
// Reading no value, it costs a page of the list for every hundred names or so, whatever they hold.
func (s *Reconciler) ScanDrift(ctx context.Context, d *state.Destination, of func(mount string) bool) (found []DriftFinding, n int, err error) {
	found = []DriftFinding{}
	rules := s.Pool.Types[d.Type].Rules
	if rules.WriteOnly {
		return found, 0, nil
	}
	version, err := state.GetDestination(ctx, s.Host.Store(), d.Key(), new(state.Destination))
	if err != nil {
		return nil, 0, err
	}
	dest, err := s.Pool.Get(d, version)
	if err != nil {
		return nil, 0, err
	}
	config, err := s.Config(ctx)
	if err != nil {
		return nil, 0, err
	}
	repair := func(a *state.Association) string {
		switch {
		case a.Drift != state.DriftRepair:
			return driftReported
		case d.Paused || a.Paused || config.Disabled:
			return driftPaused
		}
		return driftRepaired
	}
	began := time.Now()
	there := map[string]destination.Found{}
	for f, err := range dest.List(ctx) {
		if err != nil {
			return nil, 0, err
		}
		there[state.Fold(rules, f.Name)] = f
	}
	type changed struct {
		a *state.Association
		l *state.Link
	}
	var all []changed
	var failed error
	err = s.EachLink(ctx, d, func(a *state.Association, l *state.Link) {
		if a.Drift == state.DriftIgnore || !of(a.MountUUID) || a.IsEnding() || failed != nil {
			return
		}
		differs := false
		for i := range l.Items {
			it := &l.Items[i]
			if !it.Owned || it.Retained || it.Intent != nil || it.Status == state.Unsyncing {
				continue
			}
			n++
			drift := driftOf(it, there[state.Fold(rules, it.Name)])
			if drift != "" && it.WrittenAt.After(began.Add(-listDelay)) {
				var f destination.Found
				if f, failed = dest.Read(ctx, it.Name); failed != nil {
					return
				}
				drift = driftOf(it, f)
			}
			differs = differs || drift != it.Drift || drift != "" && a.Drift == state.DriftRepair
			if drift != "" {
				found = append(found, DriftFinding{Mount: a.MountPath, Secret: l.Secret, Key: it.Key, Name: it.Name, Drift: drift, Done: repair(a), isNew: it.Drift == ""})
			}
			it.Drift = drift
		}
		if differs {
			all = append(all, changed{a, l})
		}
	})
	err = cmp.Or(err, failed)
	for _, c := range all {
		if err == nil {
			err = s.RecordDrift(ctx, c.a, c.l)
		}
	}
	return found, n, err
}

// listDelay is how long after a write the list of a destination may not show it. Names written since are read one by one.
const listDelay = 10 * time.Minute

// driftOf compares the last applied state of a name with the destination.
func driftOf(it *state.Item, f destination.Found) string {
	switch {
	case f.State != destination.Present:
		return driftMissing
	case f.ID != "" && it.ID != "" && f.ID != it.ID || f.Version != "" && f.Version != it.Version:
		return DriftChanged
	}
	return ""
}

// RecordDrift stores what a check has found about the names of a link, but for those that were written meanwhile, and has it repaired
// if it is to be. It counts each finding once.
func (s *Reconciler) RecordDrift(ctx context.Context, a *state.Association, l *state.Link) error {
	key := state.LinkKey(a.NS, a.Destination, a.ID, l.Secret)
	var now state.Link
	var found int64
	at, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		now, found = state.Link{}, 0
		stored, err := engines.GetRecord(ctx, tx, key, &now)
		if err != nil || !stored {
			return err
		}
		differs := false
		for i := range now.Items {
			it, seen := &now.Items[i], l.Item(now.Items[i].Name, s.Pool.Types[a.Type].Rules)
			if seen == nil || it.Drift == seen.Drift || it.Intent != nil || it.ID != seen.ID || it.Version != seen.Version {
				continue
			}
			if it.Drift == "" {
				found++
			}
			it.Drift, differs = seen.Drift, true
		}
		if !differs {
			return nil
		}
		return engines.PutRecord(tx, key, &now)
	})
	if err != nil {
		return err
	}
	if now.StoredAt = at; at > 0 {
		s.UpdateCounters(a.LinkID(l.Secret), a.MountUUID, &now)
	}
	s.Counts.Drifted.Add(found)
	s.Notices.Drift(a, int(found))
	if a.Drift == state.DriftRepair {
		s.Queue.Push(a.LinkID(l.Secret), time.Time{}, true, nil)
	}
	return nil
}

// DriftCheck returns the last drift check of a destination.
func (s *Reconciler) DriftCheck(ctx context.Context, d *state.Destination) (check state.DriftCheck, err error) {
	_, err = engines.GetRecord(ctx, s.Host.Store(), state.DriftCheckKey(d.NS, d.ID), &check)
	if s.Unreadable(err) { // the next check replaces it
		return state.DriftCheck{}, nil
	}
	return check, err
}

// CheckDrift is ScanDrift of all that is at a destination. It records when that was, or why it has failed.
func (s *Reconciler) CheckDrift(ctx context.Context, d *state.Destination) (found []DriftFinding, n int, err error) {
	err = s.RecoverPanic("checking for drift", func() (err error) {
		found, n, err = s.ScanDrift(ctx, d, func(string) bool { return true })
		return err
	})
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // of the caller, or this node does not sync any more
		return found, n, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = &destination.Error{Class: destination.External, Code: destination.Unreachable, Text: "the names at the destination could not be compared in time", Err: err}
	}
	return found, n, cmp.Or(err, s.recordDriftCheck(context.WithoutCancel(ctx), d, err))
}

// recordDriftCheck stores the outcome of a drift check, and logs failures that are new.
func (s *Reconciler) recordDriftCheck(ctx context.Context, d *state.Destination, failed error) error {
	var before, check state.DriftCheck
	exists := false
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		var now state.Destination
		_, err := state.GetDestination(ctx, tx, d.Key(), &now)
		if exists = err == nil && now.ID == d.ID; !exists {
			return err
		}
		before, check = state.DriftCheck{}, state.DriftCheck{}
		if _, err := engines.GetRecord(ctx, tx, state.DriftCheckKey(d.NS, d.ID), &before); err != nil && !s.Unreadable(err) {
			return err
		}
		if check.At = time.Now().UTC(); failed != nil {
			o := state.OutcomeOf(workqueue.CauseOf(failed))
			check = state.DriftCheck{At: before.At, FailedAt: check.At, Code: o.Code, Cause: o.Cause}
		}
		return engines.PutRecord(tx, state.DriftCheckKey(d.NS, d.ID), &check)
	})
	if err != nil || !exists {
		return err
	}
	s.Gauges.SetDriftCheck(d.Key(), check)
	if check.Cause != "" && check.Cause != before.Cause {
		s.Log.Warn("a destination could not be checked for drift", "namespace", d.NS, "destination", d.Type+"/"+d.Name, "code", check.Code, "err", failed)
	}
	return nil
}

const (
	// maxDriftCheck bounds a check of one destination.
	maxDriftCheck = 30 * time.Minute
	// maxDriftChecks is how many destinations are checked at once.
	maxDriftChecks = 8
	// firstDriftCheck is when the first check is made at the latest, after a destination was created or a node became the active one.
	firstDriftCheck = 5 * time.Minute
	// driftRetry is how long after a failed check the next one is made, at the latest.
	driftRetry = 10 * time.Minute
	// driftPoll is how often the configuration and the destinations are read, at least.
	driftPoll = time.Minute
)

// driftCheckAt returns when the next check of a destination is due, on a node that is the active one since a time. The checks of several
// destinations are spread over a while.
func driftCheckAt(d *state.Destination, last state.DriftCheck, interval time.Duration, since time.Time) time.Time {
	sum := sha256.Sum256([]byte(d.ID))
	spread := time.Duration(binary.BigEndian.Uint32(sum[:])) * time.Microsecond % min(firstDriftCheck, interval)
	at := d.CreatedAt.Add(spread)
	switch {
	case last.FailedAt.After(last.At):
		at = last.FailedAt.Add(min(interval, driftRetry))
	case !last.At.IsZero():
		at = last.At.Add(interval)
	}
	if first := since.Add(spread); at.Before(first) {
		return first
	}
	return at
}

// runDriftChecks checks all destinations again and again, until ctx ends.
func (s *Reconciler) runDriftChecks(ctx context.Context) {
	var mu sync.Mutex
	running := map[string]bool{} // destination ids
	var checks sync.WaitGroup
	defer checks.Wait()
	free := make(chan struct{}, maxDriftChecks)
	since := time.Now()
	for wait := time.Duration(0); workqueue.Sleep(ctx, wait); {
		wait = driftPoll
		if !s.Host.Owner() {
			since = time.Now()
			continue
		}
		err := s.eachDestination(ctx, func(d *state.Destination) error {
			if _, err := s.Pool.ConfigOf(d); err != nil {
				return nil //nolint:nilerr // a full scan logs it
			}
			c, err := s.Config(ctx)
			if err != nil || c.Disabled || d.Paused || !d.PurgeAt.IsZero() {
				return err
			}
			last, err := s.DriftCheck(ctx, d)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			due := time.Until(driftCheckAt(d, last, c.DriftIntervalOrDefault(), since))
			if due > 0 || running[d.ID] {
				if !running[d.ID] {
					wait = min(wait, due)
				}
				return nil
			}
			running[d.ID] = true
			checks.Go(func() {
				free <- struct{}{}
				s.checkDriftOnce(ctx, d)
				<-free
				mu.Lock()
				defer mu.Unlock()
				delete(running, d.ID)
			})
			return nil
		})
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("destinations could not be checked for drift", "err", err)
		}
	}
}

func (s *Reconciler) checkDriftOnce(ctx context.Context, d *state.Destination) {
	within, cancel := context.WithTimeout(ctx, maxDriftCheck)
	defer cancel()
	found, n, err := s.CheckDrift(within, d)
	if err == nil && slices.ContainsFunc(found, func(f DriftFinding) bool { return f.isNew }) {
		s.Log.Warn("a destination has drifted", "namespace", d.NS, "destination", d.Type+"/"+d.Name, "names", n, "drifted", len(found))
	}
}
