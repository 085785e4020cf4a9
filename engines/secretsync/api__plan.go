package secretsync

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

// planDestination says what syncing would do: of everything that is associated, or of one association, which need not be there
// yet.
func (s *API) planDestination(ctx context.Context, req *engines.Request, in *associationIn) (*engines.Response, error) {
	d, err := s.findDestination(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	all := []plannedAction{}
	if in.Mount != "" || in.SecretName != "" || in.Name != "" || in.Prefix != "" {
		c, err := s.resolveSelection(ctx, req, &in.secretIn)
		if err != nil {
			return nil, err
		}
		if err := s.checkReadable(ctx, req, c); err != nil {
			return nil, err
		}
		had, err := GetAssociation(ctx, s.host.Store(), c.key())
		if err != nil {
			return nil, err
		}
		a, err := s.completeAssociation(c, *s.buildAssociation(req, c, in), had)
		if err != nil {
			return nil, err
		}
		all, err = s.planAssociation(ctx, d, a, all)
		if err != nil {
			return nil, invalid(err)
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
		return nil, invalid(err)
	}
	resp := planResponse(all)
	resp.Warnings = missingWarning(left)
	return resp, nil
}

func planResponse(all []plannedAction) *engines.Response {
	totals := map[string]int{}
	for _, p := range all {
		totals[p.Action]++
	}
	return &engines.Response{Data: map[string]any{"actions": all, "totals": totals}}
}

// planAssociation adds what would be done for an association.
func (s *API) planAssociation(ctx context.Context, d *Destination, a *Association, all []plannedAction) ([]plannedAction, error) {
	m, err := s.host.MountOf(ctx, a.MountUUID)
	if err != nil {
		return nil, err
	}
	err = s.eachSecret(ctx, a, m, func(secret string, l *Link) error {
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
