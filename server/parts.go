package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/mfa"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/passpolicy"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// The parts know nothing of each other: what one needs of another is a function that is joined here.

func (s *Server) newNamespaces() *namespace.Store {
	each := func(do func(ctx context.Context, id string) (int, error)) func(context.Context, string) error {
		return func(ctx context.Context, id string) error { _, err := do(ctx, id); return err }
	}
	return namespace.NewStore(namespace.Options{
		Store: s.barrier, Logger: s.log,
		FirstPuts: func(id string) ([]storage.Put, error) { return namespacePuts(id), nil },
		Reserve: func(ctx context.Context, tx *storage.Txn, parent, path string) error {
			return s.mounts.Reserve(ctx, tx, parent, path)
		},
		Drain: s.flights.Drain, Elsewhere: s.secondary, MayEnter: s.mayEnter,
		Steps: []namespace.Step{
			{Name: "revoke tokens", Do: each(func(ctx context.Context, id string) (int, error) { return s.tokens.RevokeNamespace(ctx, id) })},
			{Name: "remove synced secrets", Do: s.namespaceGoes},
			{Name: "disable mounts", Do: func(ctx context.Context, id string) error { return s.mounts.DropNamespace(ctx, id) }},
			{Name: "delete identities", Do: func(ctx context.Context, id string) error { return s.identity.DropNamespace(ctx, id) }},
			{Name: "delete configuration", Do: s.dropNamespaceConfig},
		},
	})
}

// dropNamespaceConfig removes all that is left of a namespace: policies, token roles, password policies.
func (s *Server) dropNamespaceConfig(ctx context.Context, id string) error {
	if path := s.namespaces.Path(id); path != "" {
		if err := s.quotas.Drop(ctx, path); err != nil {
			return err
		}
	}
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		if err := storage.DeletePrefix(ctx, s.barrier, storage.NewKey(class, "sys", id+"/")); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) newTokens() *token.Store {
	return token.New(token.Options{
		Store: s.barrier, Logger: s.log,
		DefaultTTL: s.opts.DefaultLeaseTTL, MaxTTL: s.opts.MaxLeaseTTL,
		OnRevoke:      s.tokenRevoked,
		RenewTerms:    s.renewTerms,
		BatchKey:      s.batchKey,
		BatchKeyEntry: setKeysKey,
		Below:         s.below,
		Admit:         s.admitToken,
		NamespacePath: s.namespacePath,
		EntityByAlias: s.entityByAlias,
		IdentityPolicies: func(ctx context.Context, e *token.Entry) ([]string, error) {
			who, err := s.identity.Effective(ctx, e.EntityID, e.Namespace)
			if errors.Is(err, storage.ErrNotFound) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			return who.Policies[e.Namespace], nil
		},
		ExternalPolicies: s.externalPolicies,
		Background:       s.background.start,
	})
}

// externalPolicies are those that a token has in its own namespace through its entity and groups of namespaces above, by id.
func (s *Server) externalPolicies(ctx context.Context, e *token.Entry) (map[string][]string, error) {
	who, err := s.identity.Effective(ctx, e.EntityID, e.Namespace)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return policiesElsewhere(e, who), nil
}

// below is namespace.Store.Below, which is not there yet when the parts are made.
func (s *Server) below(ctx context.Context, ancestor, id string) bool {
	return s.namespaces.Below(ctx, ancestor, id)
}

// entityByAlias finds or makes the entity that an auth mount knows by a name.
func (s *Server) entityByAlias(ctx context.Context, ns, accessor, name string) (string, error) {
	m, err := s.mounts.ByAccessor(ctx, ns, accessor)
	if err != nil {
		return "", err
	}
	if m == nil {
		return "", engines.Invalid("no auth method has the accessor")
	}
	return s.entityFor(ctx, m.Mount, engines.Alias{Name: name}, nil)
}

// tokenRevoked removes what belongs to a token: its leases, its cubbyhole, the answer it wraps.
func (s *Server) tokenRevoked(ctx context.Context, e *token.Entry) error {
	if err := s.leases.RevokeToken(ctx, e.Key); err != nil {
		return fmt.Errorf("revoking the leases of a token: %w", err)
	}
	if err := s.wraps.Drop(ctx, e.Key); err != nil {
		return fmt.Errorf("dropping a wrapped answer: %w", err)
	}
	m, err := s.mounts.Get(ctx, e.Namespace, "cubbyhole/")
	if err != nil || m == nil {
		return err
	}
	if err := storage.DeletePrefix(ctx, m.Mount.ClusterStorage, storage.Key(e.Key+"/")); err != nil {
		return fmt.Errorf("wiping the cubbyhole of a revoked token: %w", err)
	}
	return nil
}

func (s *Server) newIdentity() *identity.Store {
	return identity.NewStore(identity.Options{
		Store: s.barrier, Above: func(ctx context.Context, ns string) []string { return s.namespaces.Above(ctx, ns) },
		MountByAccessor: func(ctx context.Context, ns, accessor string) (path, kind string, local, ok bool) {
			m, err := s.mounts.ByAccessor(ctx, ns, accessor)
			if err != nil || m == nil {
				return "", "", false, false
			}
			return m.Path, m.Type, m.Local, true
		},
	})
}

func (s *Server) newLeases() *lease.Manager {
	return lease.New(lease.Options{
		Store: s.barrier, Logger: s.log, Below: s.below, Admit: func(ctx context.Context, ns, mountPath, path string) error {
			return s.admitLease(ctx, ns, mountPath, mountPath+path, "")
		},
		Mount: func(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool) {
			m, err := s.mounts.ByUUID(ctx, uuid)
			switch {
			case err != nil:
				return nil, engines.Mount{}, true // to be tried again: only a mount that is gone has no leases
			case m == nil:
				return nil, engines.Mount{}, false
			}
			return m.Engine, m.Mount, true
		},
		Tokens: s.revokePath,
		TokenValid: func(ctx context.Context, key string) error {
			_, err := s.tokens.LookupKey(ctx, key)
			return err
		},
	})
}

func (s *Server) newMounts() *mount.Table {
	factories := map[string]engines.Factory{
		"system":   func(engines.Mount) (engines.Engine, error) { return s.system, nil },
		"token":    func(engines.Mount) (engines.Engine, error) { return s.tokenPaths, nil },
		"identity": s.identity.Engine,
	}
	for kind, f := range s.opts.Factories {
		factories[kind] = f
	}
	return mount.NewTable(mount.Options{
		Store: s.barrier, Factories: factories, Logger: s.log,
		DefaultLeaseTTL: s.opts.DefaultLeaseTTL, MaxLeaseTTL: s.opts.MaxLeaseTTL, Lockout: s.opts.Lockout,
		NamespacePath: s.namespacePath, NamespaceAt: s.namespaces.At, Guard: s.namespaces.Guard,
		Admit: s.admitBytes, OnDisable: s.mountGoes, OnMove: s.mountMoves, Elsewhere: s.secondary,
	})
}

func (s *Server) newMFA() *mfa.Store {
	return mfa.New(mfa.Options{
		Store: s.barrier, NamespacePath: s.namespacePath, Above: s.namespaces.Above,
		Entity: func(ctx context.Context, id string) (mfa.Entity, error) {
			who, err := s.identity.Effective(ctx, id, "")
			if err != nil {
				return mfa.Entity{}, err
			}
			if who.Entity.Disabled {
				return mfa.Entity{}, engines.Denied(errors.New("the entity is disabled"))
			}
			return mfa.Entity{
				ID: who.Entity.ID, Merged: who.Entity.MergedIDs, Name: who.Entity.Name,
			}, nil
		},
		InGroup:     s.identity.InGroup,
		GroupExists: s.identity.HasGroup,
		AccessorExists: func(ctx context.Context, ns, accessor string) (bool, error) {
			m, err := s.mounts.ByAccessor(ctx, ns, accessor)
			return m != nil, err
		},
	})
}

func (s *Server) newQuotas() *quota.Quotas {
	return quota.New(quota.Options{
		Store: s.barrier, Logger: s.log,
		Resolve: func(ctx context.Context, path string) (string, string, error) {
			ns, rest, err := s.namespaces.Resolve(ctx, "", path)
			if err != nil {
				return "", "", err
			}
			m, _, err := s.mounts.Resolve(ctx, ns.ID, rest)
			if err != nil || m == nil {
				return ns.Path, "", err
			}
			return ns.Path, m.Path, nil
		},
	})
}

// mountGoes is what happens before the data of a mount is deleted.
func (s *Server) mountGoes(ctx context.Context, m *mount.Mounted) error {
	if s.sync != nil && (m.Local || !s.secondary()) {
		if err := s.sync.MountGone(ctx, m.UUID); err != nil {
			return err
		}
	}
	return s.mountDisabled(ctx, m)
}

// namespaceGoes has what was synced from a namespace removed before its mounts are.
func (s *Server) namespaceGoes(ctx context.Context, id string) error {
	if s.sync == nil {
		return nil
	}
	return s.sync.NamespaceGone(ctx, id)
}

// syncSecrets is secret sync's work on the active node.
func (s *Server) syncSecrets(ctx context.Context) {
	if s.sync != nil {
		s.sync.Run(ctx)
	}
}

// mountDisabled removes what a mount gave out: its leases, the tokens of its logins, the names it knew people by.
func (s *Server) mountDisabled(ctx context.Context, m *mount.Mounted) error {
	if s.secondary() && !m.Local { // the rest is the primary's
		return s.revokeAllOf(ctx, m)
	}
	if err := s.quotas.Drop(ctx, m.Mount.Namespace+m.Path); err != nil {
		return err
	}
	if err := s.revokeAllOf(ctx, m); err != nil || !m.IsAuth() {
		return err
	}
	return s.identity.DropMount(ctx, m.Namespace, m.Accessor)
}

// mountMoves does so before a mount leaves its path. The names stay, unless the people behind them stay behind.
func (s *Server) mountMoves(ctx context.Context, m *mount.Mounted, to mount.Target) error {
	if to.Namespace != m.Namespace {
		return s.mountDisabled(ctx, m)
	}
	if err := s.revokeAllOf(ctx, m); err != nil {
		return err
	}
	return s.quotas.Move(ctx, m.Mount.Namespace+m.Path, m.Mount.Namespace+to.Path)
}

func (s *Server) revokeAllOf(ctx context.Context, m *mount.Mounted) error {
	if _, err := s.leases.RevokeMount(ctx, m.UUID); err != nil {
		return err
	}
	if leaver, ok := m.Engine.(engines.Leaver); ok {
		if err := leaver.Leave(ctx, m.Mount); err != nil {
			return err
		}
	}
	if !m.IsAuth() {
		return nil
	}
	_, err := s.tokens.RevokeMount(ctx, m.UUID)
	return err
}

// declareShared lets the packages that own sys paths declare them.
func (s *Server) declareShared() {
	r := s.system.Router()
	policy.Routes(r, policy.Deps{
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
	})
	s.audit.Routes(r)
	s.namespaces.Routes(r)
	s.leases.Routes(r)
	s.quotas.Routes(r)
	passpolicy.Routes(r, passpolicy.NewStore(s.barrier))
	s.mfa.Validate(r, s.validated)
	s.mfa.Routes(s.identity.Router())
	if s.sync != nil {
		s.sync.Routes(r)
	}
	s.wraps.Routes(r)
	s.flights.Routes(r)
	s.cors.Routes(r)
	s.uiHeaders.Routes(r)
	s.versions.Routes(r)
	system.Host{DataDir: s.opts.DataDir}.Routes(r)
	new(system.Profiles).Routes(r)
	system.ConfigState{Sanitized: s.opts.Config}.Routes(r)
	if s.opts.Loggers != nil {
		s.opts.Loggers.Routes(r)
	}
	s.tokenPaths = token.NewEngine(token.EngineOptions{Tokens: s.tokens, Policies: s.policies})
}

// aclFor returns what a token that was looked up for a request may do there. Tokens of other namespaces than the
// request's and those below it are not found.
func (s *Server) aclFor(ctx context.Context, req *engines.Request, entry *token.Entry, err error) (*policy.ACL, error) {
	if err != nil {
		return nil, err
	}
	if !s.below(ctx, req.Mount.NamespaceID, entry.Namespace) {
		return nil, token.ErrInvalid
	}
	return s.aclOf(ctx, entry, req.Mount.NamespaceID)
}

// mayEnter reports whether a caller may do anything in a namespace. Groups there count, too.
func (s *Server) mayEnter(ctx context.Context, c engines.Caller, n *namespace.Namespace, _ string) (bool, error) {
	entry, err := s.tokens.Lookup(ctx, c.Token.Reveal())
	if err != nil {
		return false, err
	}
	acl, err := s.aclOf(ctx, entry, n.ID)
	return err == nil && acl.AnyUnder(""), err
}

// generateRoot creates a root token for those who hold enough key shares.
func (s *Server) generateRoot(ctx context.Context) (string, error) {
	t, err := s.tokens.CreateRoot(ctx, "")
	return t.Reveal(), err
}

// rootToken creates a root token for a new cluster.
func (s *Server) rootToken(ctx context.Context) (string, error) {
	t, err := s.tokens.CreateRoot(ctx, s.opts.RootTokenID)
	return t.Reveal(), err
}
