package api

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/status"
)

// planDestination says what syncing would do: of everything that is associated, or of one association, which need not be there
// yet.
func (s *API) planDestination(ctx context.Context, req *engines.Request, in *associationIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	all := []apply.PlannedAction{}
	if in.Mount != "" || in.SecretName != "" || in.Name != "" || in.Prefix != "" {
		c, err := s.ResolveSelection(ctx, req, &in.SecretIn)
		if err != nil {
			return nil, err
		}
		if err := s.CheckReadable(ctx, req, c); err != nil {
			return nil, err
		}
		had, err := state.GetAssociation(ctx, s.Host.Store(), c.key())
		if err != nil {
			return nil, err
		}
		a, err := s.CompleteAssociation(c.Dest, *s.buildAssociation(req, c, in), had, givenOf(req))
		if err != nil {
			return nil, err
		}
		all, err = s.planAssociation(ctx, d, a, all)
		if err != nil {
			return nil, Upstream(err)
		}
		return planResponse(all), nil
	}
	associations, left, err := s.associationsFor(ctx, req, d)
	for _, a := range associations {
		if err == nil {
			all, err = s.planAssociation(ctx, d, a, all)
		}
	}
	if err != nil {
		return nil, Upstream(err)
	}
	resp := planResponse(all)
	resp.Warnings = missingWarning(left)
	return resp, nil
}

func planResponse(all []apply.PlannedAction) *engines.Response {
	totals := map[string]int{}
	for _, p := range all {
		totals[p.Action]++
	}
	return &engines.Response{Data: map[string]any{"actions": all, "totals": totals}}
}

// planAssociation adds what would be done for an association.
func (s *API) planAssociation(ctx context.Context, d *state.Destination, a *state.Association, all []apply.PlannedAction) ([]apply.PlannedAction, error) {
	m, err := s.Host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return nil, err
	}
	err = s.EachSecret(ctx, a, m, func(secret string, l *state.Link) error {
		if secret == "" {
			return nil
		}
		more, err := s.PlanSecret(ctx, d, a, m, secret, l)
		for i := range more {
			more[i].Mount, more[i].Secret = status.MountPath(a, m), secret
		}
		all = append(all, more...)
		return err
	})
	return all, err
}
