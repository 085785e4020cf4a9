package server

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	leaseapi "github.com/coffer-project/coffer/server/lease/api"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/passpolicy"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/server/policy"
	policyapi "github.com/coffer-project/coffer/server/policy/api"
	"github.com/coffer-project/coffer/server/system/mounts"
	"github.com/coffer-project/coffer/server/system/process"
	"github.com/coffer-project/coffer/server/token"
	tokenapi "github.com/coffer-project/coffer/server/token/api"
)

func (s *Server) newMounts() *mount.Table {
	factories := map[string]engines.Factory{
		"system":   func(engines.Mount) (engines.Engine, error) { return s.system, nil },
		"token":    func(engines.Mount) (engines.Engine, error) { return s.tokenPaths, nil },
		"identity": func(m engines.Mount) (engines.Engine, error) { return s.identity.Engine(m) },
	}
	for kind, f := range s.opts.Factories {
		factories[kind] = f
	}
	var plugins mount.Plugins
	if s.plugins != nil {
		plugins = s.plugins
	}
	return mount.NewTable(mount.Options{
		Store: s.barrier, Factories: factories, Logger: s.log,
		DefaultLeaseTTL: s.opts.DefaultLeaseTTL, MaxLeaseTTL: s.opts.MaxLeaseTTL, Lockout: s.opts.Lockout,
		Namespaces: s.namespaces, Cluster: s, Quotas: s.quotas, Dependents: dependents{s}, IdentityToken: s.issuer.Token, Plugins: plugins,
	})
}

// syncSecrets is secret sync's work on the active node.
func (s *Server) syncSecrets(ctx context.Context) {
	if s.sync != nil {
		s.sync.Run(ctx)
	}
}

// declareShared lets the packages that own sys paths declare them.
func (s *Server) declareShared() {
	r := s.system.Router()
	policyapi.Routes(r, policyapi.Deps{
		Store: s.policies,
		OfToken: func(ctx context.Context, req *engines.Request, id string) (*policy.ACL, error) {
			entry, err := s.tokens.Lookup(ctx, id)
			return s.aclFor(ctx, req, entry, err)
		},
		OfAccessor: func(ctx context.Context, req *engines.Request, accessor string) (*policy.ACL, error) {
			entry, err := s.tokens.LookupAccessor(ctx, accessor)
			return s.aclFor(ctx, req, entry, err)
		},
		OfCaller: func(_ context.Context, req *engines.Request) (*policy.ACL, error) {
			return req.Caller.Access.(*policy.ACL), nil // as authenticate put it there
		},
		Synonym: func(path string) (other, neutral string) { return pipeline.Synonym(r, path) },
	})
	s.audit.Routes(r)
	s.namespaces.Routes(r)
	leaseapi.Routes(r, s.leases, s.revokePath)
	s.quotas.Routes(r)
	passpolicy.Routes(r, passpolicy.NewStore(s.barrier))
	s.mfa.Validate(r, s.logins.Validated)
	s.mfa.Routes(s.identity.Router())
	s.issuer.Routes(s.identity.Router())
	if s.sync != nil {
		s.sync.Routes(r)
	}
	if s.plugins != nil {
		s.plugins.Routes(r)
	}
	s.wraps.Routes(r)
	s.flights.Routes(r)
	s.cors.Routes(r)
	s.uiHeaders.Routes(r)
	s.versions.Routes(r)
	mounts.Paths{Table: s.mounts, Namespaces: s.namespaces, Members: host{s}}.Routes(r)
	process.Host{DataDir: s.opts.DataDir}.Routes(r)
	new(process.Profiles).Routes(r)
	process.ConfigState{Sanitized: s.opts.Config}.Routes(r)
	if s.opts.Loggers != nil {
		s.opts.Loggers.Routes(r)
	}
	s.tokenPaths = tokenapi.New(tokenapi.Options{Tokens: s.tokens, Policies: s.policies})
}

// aclFor returns what a token that was looked up for a request may do there. Tokens of other namespaces than the
// request's and those below it are not found.
func (s *Server) aclFor(ctx context.Context, req *engines.Request, entry *token.Entry, err error) (*policy.ACL, error) {
	if err != nil {
		return nil, err
	}
	if !s.namespaces.Below(ctx, req.Mount.NamespaceID, entry.Namespace) {
		return nil, token.ErrInvalid
	}
	return s.rights.In(ctx, entry, req.Mount.NamespaceID)
}

// GenerateRoot creates a root token for those who hold enough key shares.
func (v service) GenerateRoot(ctx context.Context) (string, error) {
	t, err := v.s.tokens.CreateRoot(ctx, "")
	return t.Reveal(), err
}

// RootToken creates a root token for a new cluster.
func (v service) RootToken(ctx context.Context) (string, error) {
	t, err := v.s.tokens.CreateRoot(ctx, v.s.opts.RootTokenID)
	return t.Reveal(), err
}

// revokePath revokes the tokens that were made by requests to a path or below it.
func (s *Server) revokePath(ctx context.Context, ns, path string) (int, error) {
	m, rest, err := s.mounts.Resolve(ctx, ns, path)
	if err != nil {
		return 0, err
	}
	return s.tokens.RevokePath(ctx, ns, pipeline.StoredPath(m, path, rest))
}
