package apply

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// PlannedAction is the decision about one name, as a preview shows it.
type PlannedAction struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}

func (s *Syncer) PlanSecret(ctx context.Context, d *state.Destination, a *state.Association, m *engines.Mounted, secret string, l *state.Link) ([]PlannedAction, error) {
	if l != nil && l.Unreadable {
		return []PlannedAction{{Action: plan.Reject, Reason: l.Cause}}, nil
	}
	known, err := s.Pool.Known(ctx, s.Host.Store(), d.Key())
	switch {
	case err != nil:
		return nil, err
	case known == nil || known.ID != d.ID:
		return nil, engines.NotFound("")
	}
	t := &target{key: a.LinkID(secret), dest: known, assoc: *a, mount: m}
	if l != nil {
		t.link = *l
	}
	if t.ownerTag, err = state.OwnerTagPrefix(ctx, s.Host.Store(), a); err != nil {
		return nil, err
	}
	want, err := s.desiredState(ctx, t)
	if err != nil {
		return []PlannedAction{{Action: plan.Reject, Reason: state.OutcomeOf(err).Cause}}, nil //nolint:nilerr // it is the plan
	}
	dest, err := s.Pool.Get(&t.dest.Destination, t.dest.Version)
	if err != nil {
		return nil, err
	}
	steps, err := s.planSteps(ctx, t, dest, want, false)
	if err != nil {
		return []PlannedAction{{Action: plan.Reject, Reason: state.OutcomeOf(err).Cause}}, nil //nolint:nilerr // likewise
	}
	var out []PlannedAction
	for i := range steps {
		st := &steps[i]
		if st.desired != nil {
			if other, err := s.conflictOf(ctx, t, st.Name); err != nil {
				return nil, err
			} else if other.Do != "" {
				st.Action = other
			}
		}
		out = append(out, PlannedAction{Key: st.Key, Name: st.Name, Action: st.Do, Reason: st.Reason})
	}
	return out, nil
}

// conflictOf returns the action that follows from the claim of another association on a name; the zero Action without one.
func (s *Syncer) conflictOf(ctx context.Context, t *target, name string) (plan.Action, error) {
	tx := storage.Begin(s.Host.Store()) // never committed
	st := step{Item: state.Item{Name: name}}
	err := s.claimName(ctx, tx, t, t.dest.Location, &st)
	return st.Action, err
}
