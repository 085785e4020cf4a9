package wrapping

import (
	"context"
	"encoding/json"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Routes declares the wrapping paths on the sys router.
func (s *Store) Routes(r *engines.Router) {
	const local = engines.ClusterLocal
	engines.On(r, engines.Update, "wrapping/wrap", "Wrap the fields of the request. The header X-Vault-Wrap-TTL says for how long.", local, s.wrap).
		Returns("*: any")
	engines.On(r, engines.Read, "wrapping/lookup", "Describe a wrapping token without using it.", local|engines.Unauthenticated|engines.Active, s.describe).
		Returns(wrappingLookupShape)
	engines.On(r, engines.Update, "wrapping/lookup", "Describe a wrapping token without using it.", local|engines.Unauthenticated, s.describe).
		Returns(wrappingLookupShape)
	engines.On(r, engines.Update, "wrapping/unwrap", "Take the response out of a wrapping token, which is gone then.", local, s.unwrap).
		Returns("auth empty; *: any")
	engines.On(r, engines.Update, "wrapping/rewrap", "Move the response into a new wrapping token with the same lifetime.", local, s.rewrap)
}

type tokenInput struct {
	Token engines.Sensitive `json:"token" max:"8192" help:"The wrapping token; the caller's own if it is left out."`
}

type anyInput struct {
	Fields engines.Object `json:"data" body:"true" help:"What to wrap: any fields."`
}

// wrap answers what it was given: the pipeline wraps it like every other answer.
func (s *Store) wrap(_ context.Context, req *engines.Request, in *anyInput) (*engines.Response, error) {
	if req.WrapTTL == 0 {
		return nil, engines.Invalid("endpoint requires response wrapping to be used: send the header X-Vault-Wrap-TTL")
	}
	if len(in.Fields) == 0 {
		in.Fields = engines.Object("{}")
	}
	return &engines.Response{Data: json.RawMessage(in.Fields)}, nil
}

func (s *Store) describe(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	id := in.Token
	if id == "" {
		id = req.Caller.Token
	}
	e, err := s.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	r, err := s.get(ctx, e.Key)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"creation_path": r.CreationPath, "creation_time": r.CreatedAt.Format(time.RFC3339Nano), "creation_ttl": int64(r.TTL / time.Second),
	}}, nil
}

func (s *Store) unwrap(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	r, err := s.take(ctx, req, in.Token)
	if err != nil {
		return nil, err
	}
	out := &engines.Response{Auth: r.Auth, Warnings: r.Warnings, Held: r.Lease}
	if len(r.Data) > 0 {
		out.Data = r.Data
	}
	return out, nil
}

func (s *Store) rewrap(ctx context.Context, req *engines.Request, in *tokenInput) (*engines.Response, error) {
	if req.WrapTTL != 0 {
		return nil, engines.Invalid("a rewrapped response keeps its lifetime: leave out the header X-Vault-Wrap-TTL")
	}
	r, err := s.take(ctx, req, in.Token)
	if err != nil {
		return nil, err
	}
	r.CreatedAt = time.Now().UTC()
	info, err := s.put(ctx, req.Mount.NamespaceID, r)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Wrap: info}, nil
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	wrappingLookupShape = "creation_path, creation_time, creation_ttl: integer"
)
