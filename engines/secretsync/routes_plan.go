package secretsync

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// planned is one name of a plan.
type planned struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}

// planDestination says what syncing would do: of everything that is associated, or of one association, which need not be there
// yet.
func (s *Service) planDestination(ctx context.Context, req *engines.Request, in *setIn) (*engines.Response, error) {
	d, err := s.get(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	all := []planned{}
	if in.Mount != "" || in.SecretName != "" || in.Name != "" || in.Prefix != "" {
		c, err := s.choose(ctx, req, &in.secretIn)
		if err != nil {
			return nil, err
		}
		if err := s.checkReadable(ctx, req, c); err != nil {
			return nil, err
		}
		had, err := associationAt(ctx, s.host.Store(), c.key())
		if err != nil {
			return nil, err
		}
		a, err := s.completed(c, *s.build(req, c, in), had)
		if err != nil {
			return nil, err
		}
		all, err = s.planAssociation(ctx, d, a, all)
		if err != nil {
			return nil, invalid(err)
		}
		return plannedAnswer(all), nil
	}
	associations, left, err := s.associationsFor(ctx, req, d)
	for _, a := range associations {
		if err == nil {
			all, err = s.planAssociation(ctx, d, a, all)
		}
	}
	if err != nil {
		return nil, invalid(err)
	}
	resp := plannedAnswer(all)
	resp.Warnings = leftOut(left)
	return resp, nil
}

func plannedAnswer(all []planned) *engines.Response {
	totals := map[string]int{}
	for _, p := range all {
		totals[p.Action]++
	}
	return &engines.Response{Data: map[string]any{"actions": all, "totals": totals}}
}

// planAssociation adds what would be done for an association.
func (s *Service) planAssociation(ctx context.Context, d *destinationRecord, a *associationRecord, all []planned) ([]planned, error) {
	m, err := s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return nil, err
	}
	err = s.eachSecret(ctx, a, m, func(secret string, l *link) error {
		if secret == "" {
			return nil
		}
		more, err := s.planSecret(ctx, d, a, m, secret, l)
		for i := range more {
			more[i].Mount, more[i].Secret = mountPath(a, m), secret
		}
		all = append(all, more...)
		return err
	})
	return all, err
}

func (s *Service) planSecret(ctx context.Context, d *destinationRecord, a *associationRecord, m *engines.Mounted, secret string, l *link) ([]planned, error) {
	if l != nil && l.lost {
		return []planned{{Action: actRefuse, Reason: l.Cause}}, nil
	}
	t := &target{key: jobKey{a.NS, a.Destination, a.ID, secret}, dest: *d, assoc: *a, kind: s.types[d.Type], mount: m}
	if l != nil {
		t.link = *l
	}
	version, err := getDestination(ctx, s.host.Store(), d.key(), new(destinationRecord))
	if err != nil {
		return nil, err
	}
	t.version = version
	if t.mark, err = s.markOf(ctx, a); err != nil {
		return nil, err
	}
	want, err := s.aim(ctx, t)
	if err != nil {
		return []planned{{Action: actRefuse, Reason: failure(err).Cause}}, nil //nolint:nilerr // it is the plan
	}
	dest, err := s.open(t)
	if err != nil {
		return nil, err
	}
	steps, err := s.plan(ctx, t, dest, want, false)
	if err != nil {
		return []planned{{Action: actRefuse, Reason: failure(err).Cause}}, nil //nolint:nilerr // likewise
	}
	var out []planned
	for i := range steps {
		st := &steps[i]
		if st.wanted != nil {
			if other, err := s.claimedBy(ctx, t, st.Name); err != nil {
				return nil, err
			} else if other.Do != "" {
				st.action = other
			}
		}
		out = append(out, planned{Key: st.Key, Name: st.Name, Action: st.Do, Reason: st.Reason})
	}
	return out, nil
}

// claimedBy says what follows from somebody else's claim of a name; nothing if nobody has made one.
func (s *Service) claimedBy(ctx context.Context, t *target, name string) (action, error) {
	place, err := s.place(&t.dest)
	if err != nil {
		return action{}, err
	}
	tx := storage.Begin(s.host.Store()) // never committed
	st := step{item: item{Name: name}}
	err = s.claim(ctx, tx, t, place, &st)
	return st.action, err
}
