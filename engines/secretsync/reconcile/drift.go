package reconcile

import (
	"cmp"
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
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
			it.Drift = drift
			if drift != "" {
				found = append(found, DriftFinding{Mount: a.MountPath, Secret: l.Secret, Key: it.Key, Name: it.Name, Drift: drift, Done: repair(a)})
			}
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

// RecordDrift stores what a scan has found about the names of a link, but for those that were written meanwhile, and has it repaired
// if it is to be.
func (s *Reconciler) RecordDrift(ctx context.Context, a *state.Association, l *state.Link) error {
	key := state.LinkKey(a.NS, a.Destination, a.ID, l.Secret)
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		var now state.Link
		found, err := engines.GetRecord(ctx, tx, key, &now)
		if err != nil || !found {
			return err
		}
		differs := false
		for i := range now.Items {
			it, seen := &now.Items[i], l.Item(now.Items[i].Name, s.Pool.Types[a.Type].Rules)
			if seen != nil && it.Drift != seen.Drift && it.Intent == nil && it.ID == seen.ID && it.Version == seen.Version {
				it.Drift, differs = seen.Drift, true
			}
		}
		if !differs {
			return nil
		}
		return engines.PutRecord(tx, key, &now)
	})
	if err == nil && a.Drift == state.DriftRepair {
		s.Queue.Push(a.LinkID(l.Secret), time.Time{}, true, nil)
	}
	return err
}

// DriftInterval is how often destinations are scanned.
const DriftInterval = time.Hour

// maxDriftScan bounds the scan of one destination, for which the others wait.
const maxDriftScan = DriftInterval / 2

// runDriftScans scans all destinations again and again, until ctx ends.
func (s *Reconciler) runDriftScans(ctx context.Context) {
	for apply.Sleep(ctx, DriftInterval) {
		if !s.Host.Owner() {
			continue
		}
		err := s.eachDestination(ctx, func(d *state.Destination) error {
			c, err := s.Config(ctx)
			if err != nil || c.Disabled || d.Paused || !d.PurgeAt.IsZero() {
				return err
			}
			within, cancel := context.WithTimeout(ctx, maxDriftScan)
			defer cancel()
			var found []DriftFinding
			var n int
			err = s.RecoverPanic("scanning for drift", func() (err error) {
				found, n, err = s.ScanDrift(within, d, func(string) bool { return true })
				return err
			})
			switch {
			case err != nil:
				s.Log.Warn("a destination could not be scanned for drift", "destination", d.Type+"/"+d.Name, "err", apply.OutcomeOf(err).Cause)
			case len(found) > 0:
				s.Log.Warn("a destination has drifted", "destination", d.Type+"/"+d.Name, "names", n, "drifted", len(found))
			}
			s.Counts.Drifted.Add(int64(len(found)))
			return nil
		})
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("destinations could not be scanned for drift", "err", err)
		}
	}
}
