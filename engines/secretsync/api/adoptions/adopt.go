package adoptions

import (
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/adoption"
	"github.com/coffer-project/coffer/engines/secretsync/api"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

type adoptIn struct {
	api.SecretIn
	Names engines.StringList `json:"external_names" max:"1000" help:"Names at the destination to adopt; without any, all that the secrets are in conflict with."`
	Equal bool               `json:"equal" help:"Adopt only names that have the same value already. Not for destinations whose values cannot be read back."`
	All   bool               `json:"all" help:"Without a secret_name and a secret_prefix, and neither plan nor equal: adopt all that is in conflict, of the mount, or of the destination."`
	Plan  bool               `json:"plan" help:"Change nothing, and say what would be adopted and what not."`
	After string             `json:"after" max:"1024" help:"With plan: next of the response before, for the page behind it."`
}

// adopt requests the adoption of names that belong to other clients: of one secret, of those whose names begin with a prefix, of a mount,
// or of all that are associated with the destination.
func (s *API) adopt(ctx context.Context, req *engines.Request, in *adoptIn) (*engines.Response, error) {
	scope := &adoption.Scope{Names: in.Names, Equal: in.Equal, MayRead: mayRead(req)}
	var one *api.LinkedSecret
	var err error
	switch {
	case in.SecretName != "" || in.Name != "":
		one, err = s.resolveOne(ctx, req, &in.SecretIn, scope)
	case in.Prefix != "" || in.All || in.Plan || in.Equal:
		err = s.resolveMany(ctx, req, &in.SecretIn, scope)
	default: // a client that has forgotten it does not mean everything
		err = engines.Invalid(`field "secret_name", or "secret_prefix", is required: all=true adopts, and overwrites, all that is in conflict`)
	}
	if err != nil {
		return nil, err
	}
	if in.Equal && !s.Pool.Types[scope.Dest.Type].Rules.Readable {
		return nil, engines.Invalid(`field "equal": values cannot be read back from destinations of type %s, so it is not known which are equal: adopt without it, which overwrites them`, scope.Dest.Type)
	}
	if in.Plan {
		report, err := s.adopter().Plan(ctx, scope, in.After)
		if err != nil {
			return nil, api.Upstream(err)
		}
		return respondReport(report), nil
	}
	report, links, err := s.adopter().Request(ctx, scope)
	switch {
	case err != nil:
		return nil, err
	case one == nil:
		for _, id := range links {
			s.Queue.Push(id, time.Time{}, true, nil)
		}
		return respondReport(report), nil
	case report.Totals[adoption.Adopt] == 0:
		return nil, engines.Invalid("no such name of the secret is in conflict with a name of another client at the destination: there is nothing to adopt")
	}
	s.SyncAndWait(ctx, one.LinkID())
	return s.RespondSecret(ctx, one.Dest, one.Assoc, one.Mount, one.Secret)
}

// mayRead reports for a secret whether the caller of a request sees and may read it.
func mayRead(req *engines.Request) func(*state.Association, *engines.Mounted, string) bool {
	return func(_ *state.Association, m *engines.Mounted, secret string) bool {
		source, ok := m.Engine.(engines.SecretSource)
		return ok && req.Caller.Sees(m.UUID) && req.Caller.Access.Allowed(engines.Read, m.Path+source.ReadPath(secret))
	}
}

// resolveOne finds the secret that a request is about.
func (s *API) resolveOne(ctx context.Context, req *engines.Request, in *api.SecretIn, scope *adoption.Scope) (*api.LinkedSecret, error) {
	c, err := s.ResolveSelection(ctx, req, in)
	if err != nil {
		return nil, err
	}
	if err := s.CheckReadable(ctx, req, c); err != nil {
		return nil, err
	}
	l, err := s.LinkedSecretOf(ctx, c)
	if err != nil {
		return nil, err
	}
	if l.Link == nil {
		return nil, engines.NotFound("nothing was done for the secret yet")
	}
	scope.Dest, scope.Mount, scope.Secret, scope.Exact = c.Dest, c.Mount.UUID, c.Secret, true
	return l, nil
}

// resolveMany finds the destination and the prefix that a request is about. Without a mount it is about all of them.
func (s *API) resolveMany(ctx context.Context, req *engines.Request, in *api.SecretIn, scope *adoption.Scope) (err error) {
	if in.Mount == "" && in.Prefix == "" {
		scope.Dest, err = s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
		return err
	}
	all := *in
	if all.Prefix == "" {
		all.Prefix = "*"
	}
	c, err := s.ResolveSelection(ctx, req, &all)
	if err != nil {
		return err
	}
	scope.Dest, scope.Mount, scope.Secret = c.Dest, c.Mount.UUID, c.Secret
	return nil
}

// respondReport returns the response about many names.
func respondReport(r *adoption.Report) *engines.Response {
	if r == nil {
		return nil
	}
	entries, totals := r.Entries, r.Totals
	if entries == nil {
		entries, totals = []adoption.Entry{}, map[string]int{}
	}
	resp := &engines.Response{Data: map[string]any{"actions": entries, "totals": totals, "next": r.Next}}
	if r.Hidden > 0 {
		resp.Warnings = append(resp.Warnings, fmt.Sprintf("secrets that you cannot read (%d) were skipped", r.Hidden))
	}
	return resp
}
