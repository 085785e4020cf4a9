package apply

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// recordLeft writes to the audit log which names the result lets go. After as many failures to remove names as the destination allows,
// those are all: it empties the result then.
func (s *Syncer) recordLeft(ctx context.Context, t *target, l *state.Link, r *result) error {
	letsGo := s.letsGo(t, l, r)
	if letsGo {
		r.left = append(r.left, l.Orphans(t.assoc.MountPath, time.Now().UTC())...)
	}
	if len(r.left) > 0 {
		what := "/associations/sync"
		if t.assoc.IsEnding() {
			what = "/associations/remove"
		}
		if err := s.RecordLeft(ctx, &t.dest.Destination, t.assoc.Owner, what, len(r.left), r.left); err != nil {
			return err
		}
		s.Log.Warn("names stay at a destination", "destination", t.dest.Type+"/"+t.dest.Name, "association", t.assoc.ID, "names", len(r.left), "failed_removals", l.RemovalFailures)
	}
	if letsGo {
		for i := range r.items {
			r.released = append(r.released, r.items[i].Name)
		}
		r.items = nil
	}
	return nil
}

// letsGo counts a failed attempt to remove the names of a link, and reports whether it was the last that the destination allows.
func (*Syncer) letsGo(t *target, l *state.Link, r *result) bool {
	failed := (r.Status == state.ClientError || r.Status == state.ExternalError) && r.Code != destination.Throttled // it is not broken
	switch most := t.dest.RemovalAttempts; {
	case !t.assoc.IsEnding():
		l.RemovalFailures = 0
		return false
	case !failed || most == 0:
		return false
	default:
		l.RemovalFailures++
		return l.RemovalFailures >= most
	}
}

// RecordLeft writes to the audit log that names are about to be let go at a destination. what is the path below the destination's.
func (s *Syncer) RecordLeft(ctx context.Context, d *state.Destination, who engines.Principal, what string, total int, left []state.Orphan) error {
	names := make([]string, len(left))
	for i := range names {
		names[i] = left[i].Name
	}
	return s.Host.Record(ctx, engines.Event{
		NamespaceID: d.NS, Operation: engines.Delete, Path: "sys/sync/destinations/" + d.Type + "/" + d.Name + what, Who: who,
		Data: map[string]any{"left_behind": total, "external": names},
	})
}
