package apply

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// letGo ends the attempts to remove the names of a link after as many failures as its destination allows: the names stay there, without
// an owner. It empties the result then, and returns the names.
func (s *Syncer) letGo(ctx context.Context, t *target, l *state.Link, r *result) ([]state.Orphan, error) {
	failed := (r.Status == state.ClientError || r.Status == state.ExternalError) && r.Code != destination.Throttled // it is not broken
	switch most := t.dest.RemovalAttempts; {
	case !t.assoc.IsEnding():
		l.RemovalFailures = 0
		return nil, nil
	case !failed || most == 0:
		return nil, nil
	default:
		if l.RemovalFailures++; l.RemovalFailures < most {
			return nil, nil
		}
	}
	left := l.Orphans(t.assoc.MountPath, time.Now().UTC())
	if err := s.RecordLeft(ctx, &t.dest, t.assoc.Owner, "/associations/remove", len(left), left); err != nil {
		return nil, err
	}
	s.Log.Warn("what could not be removed from a destination stays there", "destination", t.dest.Type+"/"+t.dest.Name, "association", t.assoc.ID, "names", len(left), "attempts", l.RemovalFailures)
	for i := range r.items {
		r.released = append(r.released, r.items[i].Name)
	}
	r.items = nil
	return left, nil
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
