package adoptions

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/adoption"
	"github.com/coffer-project/coffer/engines/secretsync/api"
)

type importIn struct {
	api.AssociationsIn
	Mount  string             `json:"mount" form:"path" max:"512" required:"true" help:"Mount that gets the secrets: its path, or its accessor. A KV version 2 engine."`
	Prefix string             `json:"path_prefix" max:"512" help:"What the names of the secrets begin with; the name at the destination follows."`
	Names  engines.StringList `json:"names" max:"200" help:"Names at the destination to import; * stands for any text. Without any: all."`
	Plan   bool               `json:"plan" help:"Change nothing, and say what would be created and what not."`
	After  string             `json:"after" max:"1024" help:"The next of the response before, for the page behind it."`
}

// importNames copies values of a destination into a mount.
func (s *API) importNames(ctx context.Context, req *engines.Request, in *importIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Destination)
	if err != nil {
		return nil, err
	}
	if !s.Pool.Types[d.Type].Rules.Readable {
		return nil, engines.Invalid("values cannot be read back from destinations of type %s, so there is nothing to import", d.Type)
	}
	m, _, err := s.SourceAt(ctx, req, in.Mount)
	if err != nil {
		return nil, err
	}
	report, err := s.adopter().Import(ctx, &adoption.Import{
		Dest: d, Mount: m, Prefix: in.Prefix, Patterns: in.Names, Plan: in.Plan, Caller: req.Caller,
		Check: func(name string) string { return api.CheckSecretName(name, false) },
	}, in.After)
	if err != nil {
		return nil, api.Upstream(err)
	}
	return respondReport(report), nil
}
