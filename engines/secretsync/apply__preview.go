package secretsync

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// planned is one name of a plan.
type plannedAction struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}

func (s *Syncer) planSecret(ctx context.Context, d *Destination, a *Association, m *engines.Mounted, secret string, l *Link) ([]plannedAction, error) {
	if l != nil && l.Unreadable {
		return []plannedAction{{Action: actReject, Reason: l.Cause}}, nil
	}
	t := &target{key: LinkID{a.NS, a.Destination, a.ID, secret}, dest: *d, assoc: *a, destType: s.pool.Types[d.Type], mount: m}
	if l != nil {
		t.link = *l
	}
	version, err := GetDestination(ctx, s.host.Store(), d.Key(), new(Destination))
	if err != nil {
		return nil, err
	}
	t.version = version
	if t.ownerTag, err = OwnerTagPrefix(ctx, s.host.Store(), a); err != nil {
		return nil, err
	}
	want, err := s.desiredState(ctx, t)
	if err != nil {
		return []plannedAction{{Action: actReject, Reason: outcomeOf(err).Cause}}, nil //nolint:nilerr // it is the plan
	}
	dest, err := s.pool.Get(&t.dest, t.version)
	if err != nil {
		return nil, err
	}
	steps, err := s.planSteps(ctx, t, dest, want, false)
	if err != nil {
		return []plannedAction{{Action: actReject, Reason: outcomeOf(err).Cause}}, nil //nolint:nilerr // likewise
	}
	var out []plannedAction
	for i := range steps {
		st := &steps[i]
		if st.desired != nil {
			if other, err := s.conflictOf(ctx, t, st.Name); err != nil {
				return nil, err
			} else if other.Do != "" {
				st.Action = other
			}
		}
		out = append(out, plannedAction{Key: st.Key, Name: st.Name, Action: st.Do, Reason: st.Reason})
	}
	return out, nil
}

// claimedBy says what follows from somebody else's claim of a name; nothing if nobody has made one.
func (s *Syncer) conflictOf(ctx context.Context, t *target, name string) (Action, error) {
	place, err := s.pool.Location(&t.dest)
	if err != nil {
		return Action{}, err
	}
	tx := storage.Begin(s.host.Store()) // never committed
	st := step{Item: Item{Name: name}}
	err = s.claimName(ctx, tx, t, place, &st)
	return st.Action, err
}
