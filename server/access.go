package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/wrapping"
	"github.com/coffer-project/coffer/storage"
)

// limit holds the request to the rate limits that concern it, before anything is spent on it.
func (s *Server) limit(ctx context.Context, c *call) error {
	d, err := s.quotas.Rate(ctx, s.quotaOf(ctx, c))
	if err != nil {
		return err
	}
	c.header = d.Header()
	if d.Allowed {
		return nil
	}
	if !d.Audit {
		c.unrecorded = true
	}
	return d.Err(c.path)
}

// limitLost holds a request that leads to no namespace to the limits of the root: guessing must not be free.
func (s *Server) limitLost(ctx context.Context, c *call, lost error) error {
	if !answered(lost) {
		return lost
	}
	d, err := s.quotas.Rate(ctx, quota.Request{ClientIP: c.Remote.Addr()})
	if err != nil {
		return err
	}
	if !d.Allowed {
		return d.Err(c.Request.Path)
	}
	return lost
}

// quotaOf is what quotas need to know of a request.
func (s *Server) quotaOf(ctx context.Context, c *call) quota.Request {
	r := quota.Request{NamespacePath: c.ns.Path, Path: c.storedPath(), ClientIP: c.Remote.Addr()}
	if c.mount == nil {
		return r
	}
	r.MountPath = c.mount.Path
	if c.has(engines.Unauthenticated) && c.mount.IsAuth() {
		if named, ok := c.mount.Engine.(engines.RoleNamer); ok {
			r.FindRole = func() string {
				if c.fetch() != nil {
					return "" // the request fails of it, after it was counted
				}
				return named.LoginRole(ctx, c.inner)
			}
		}
	}
	return r
}

// admitToken holds a new token to the lease count quotas that concern it.
func (s *Server) admitToken(ctx context.Context, e *token.Entry) error {
	if err := s.admitWrapped(ctx, e); err != nil {
		return err
	}
	m, _, err := s.mounts.Resolve(ctx, e.Namespace, e.Path)
	if err != nil {
		return err
	}
	mountPath := ""
	if m != nil {
		mountPath = m.Path
	}
	return s.admitLease(ctx, e.Namespace, mountPath, e.Path, e.Role)
}

// admitLease holds a new lease or token to the lease count quotas that concern it.
func (s *Server) admitLease(ctx context.Context, ns, mountPath, path, role string) error {
	return s.quotas.Leases(ctx, quota.Request{
		NamespacePath: s.namespacePath(ns), MountPath: mountPath, Path: path, Role: role,
	}, s.countLeases)
}

// countLeases counts the leases and tokens in a quota's scope.
func (s *Server) countLeases(ctx context.Context, scope quota.Scope) (int, error) {
	in, _, err := s.namespaces.Resolve(ctx, scope.Namespace, "")
	if err != nil {
		return 0, err
	}
	concerns := func(ns string) bool { return ns == in.ID || scope.Below && s.below(ctx, in.ID, ns) }
	prefix, more := strings.CutSuffix(scope.Mount+scope.Path, "*")
	below := func(path string) bool {
		if scope.Path != "" && !more {
			return path == prefix
		}
		return strings.HasPrefix(path, prefix)
	}
	n, _, err := s.tokens.CountStored(ctx, func(ns, path, role string) bool {
		return concerns(ns) && below(path) && (scope.Role == "" || scope.Role == role)
	})
	if err != nil || scope.Role != "" {
		return n, err
	}
	if scope.Path == "" {
		if err := s.awaitCounts(ctx); err != nil {
			return 0, err
		}
		return n + s.leases.CountWhere(func(ns, mountPath string) bool { return concerns(ns) && strings.HasPrefix(mountPath, scope.Mount) }), nil
	}
	if !more {
		prefix += "/"
	}
	leases, err := s.leases.CountPrefix(ctx, in.ID, prefix)
	return n + leases, err
}

// awaitCounts waits until the leases are counted, which they are soon after the node became the active one.
func (s *Server) awaitCounts(ctx context.Context) error {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for !s.leases.Counted() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
		if !s.node.Active() {
			return storage.ErrReadOnly
		}
	}
	return nil
}

// admit authenticates and authorises. What exists behind a path is not revealed to those who may not use it.
func (s *Server) admit(ctx context.Context, c *call) error {
	if c.ns.Locked() && !c.unlocks() {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "API access to this namespace has been locked by an administrator"}
	}
	if err := s.readWrapTTL(c); err != nil {
		return err
	}
	open := c.open()
	if c.Token == "" {
		if open {
			return c.fetch()
		}
		if c.has(engines.Ceremony) {
			return &engines.Error{Kind: engines.KindDenied, Detail: "missing client token: key ceremonies need a token with sudo on this path, " +
				"or a listener with enable_unauthenticated_ceremonies = true"}
		}
		return &engines.Error{Kind: engines.KindDenied, Detail: "missing client token: send one in the X-Vault-Token header"}
	}
	err := s.authenticate(ctx, c)
	if err != nil {
		if open && answered(err) {
			return c.fetch() // a token that is not needed may also be wrong
		}
		return err
	}
	if err := c.fetch(); err != nil {
		return err
	}
	if open || c.has(engines.AnyToken) {
		return nil
	}
	return s.authorise(ctx, c)
}

// unlocks reports whether the request is the one that a locked namespace takes.
func (c *call) unlocks() bool {
	return c.Op == engines.Update && (c.path == "sys/namespaces/api-lock/unlock")
}

// readWrapTTL takes the client's wish for a wrapped answer.
func (s *Server) readWrapTTL(c *call) error {
	text := c.Header.Get(wrapHeader)
	if text == "" {
		return nil
	}
	ttl, err := engines.ParseDuration(text)
	if err != nil || ttl > wrapping.MaxTTL || ttl > 0 && ttl < time.Second {
		return engines.Invalid("header X-Vault-Wrap-TTL must be a duration from 1s to %d hours, such as 5m", int(wrapping.MaxTTL.Hours()))
	}
	if ttl > 0 && c.has(engines.AnyNode) && !s.node.Active() {
		return engines.Invalid("header X-Vault-Wrap-TTL: what concerns one node is wrapped by the active node only: leave it out, or ask that node")
	}
	c.wrapTTL, c.inner.WrapTTL = ttl, ttl
	return nil
}

// authenticate turns the token into a caller.
func (s *Server) authenticate(ctx context.Context, c *call) error {
	if c.path == wrapping.UnwrapPath && enrol.IsToken(c.Token.Reveal()) {
		var err error
		if c.Token, err = s.replicated.WrappingToken(ctx, c.Token.Reveal()); err != nil {
			return err
		}
	}
	entry, err := s.tokens.Lookup(ctx, c.Token.Reveal())
	if errors.Is(err, token.ErrInvalid) && !s.node.Active() {
		// It may be so new that only the active node knows it.
		if !c.has(engines.AnyNode) {
			return storage.ErrReadOnly
		}
		if err := s.node.ReadIndex(ctx); err != nil {
			return err
		}
		entry, err = s.tokens.Lookup(ctx, c.Token.Reveal())
	}
	if errors.Is(err, token.ErrInvalid) && wrapping.Takes(c.path) {
		return wrapping.ErrInvalid // it tells the client that another party may have unwrapped it
	}
	if errors.Is(err, token.ErrInvalid) {
		return engines.Denied(err)
	}
	if err != nil {
		return err
	}
	if !entry.AllowsIP(c.Remote.Addr()) {
		return engines.Denied(errors.New("the token is bound to other addresses"))
	}
	who, acl, err := s.rights(ctx, entry, c.ns.ID)
	if err != nil {
		return err
	}
	c.token, c.who, c.acl = entry, who, acl.In(c.ns.Path)
	s.flights.Identify(&c.flight, cmp.Or(entry.EntityID, entry.Accessor))
	c.inner.Caller = engines.Caller{
		Accessor: entry.Accessor, DisplayName: entry.DisplayName, EntityID: entry.EntityID,
		Policies: policiesIn(entry, who), TokenPolicies: entry.Policies, Root: acl.Root(), TokenKey: entry.Key, Token: c.Token,
		NamespaceID: entry.Namespace, Access: c.acl,
	}
	if who != nil {
		c.inner.Caller.Identity = func(name string) (string, bool) { return who.FillIn(entry.Namespace, name) }
	}
	return nil
}

// policiesIn returns the policies that a token has in its own namespace.
func policiesIn(entry *token.Entry, who *identity.Effective) []string {
	if who == nil || len(who.Policies[entry.Namespace]) == 0 {
		return entry.Policies
	}
	all := slices.Concat(entry.Policies, who.Policies[entry.Namespace])
	slices.Sort(all)
	return slices.Compact(all)
}

// policiesElsewhere returns those that a token has through its entity and groups of other namespaces, by namespace id.
func policiesElsewhere(entry *token.Entry, who *identity.Effective) map[string][]string {
	out := map[string][]string{}
	for ns, names := range who.Policies {
		if ns != entry.Namespace {
			out[ns] = names
		}
	}
	return out
}

// rights returns the entity that a token belongs to, nil if it has none, and what the token may do in the namespace with
// the id ns, looking from root. A token whose entity is gone or disabled may do nothing.
func (s *Server) rights(ctx context.Context, entry *token.Entry, ns string) (*identity.Effective, *policy.ACL, error) {
	if entry.EntityID == "" {
		scope, ok := s.scope(ctx, entry.Namespace, entry.Policies)
		if !ok {
			return nil, nil, engines.Denied(errors.New("the token's namespace is gone"))
		}
		acl, err := s.policies.ACL(ctx, nil, scope)
		return nil, acl, err
	}
	who, err := s.identity.Effective(ctx, entry.EntityID, ns)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return nil, nil, engines.Denied(errors.New("the token's entity is gone"))
	case err != nil:
		return nil, nil, err
	case who.Entity.Disabled:
		return nil, nil, engines.Denied(errors.New("the token's entity is disabled"))
	}
	own, ok := s.scope(ctx, entry.Namespace, policiesIn(entry, who))
	if !ok {
		return nil, nil, engines.Denied(errors.New("the token's namespace is gone"))
	}
	scopes := []policy.Scope{own}
	for in, names := range who.Policies {
		if in == entry.Namespace {
			continue
		}
		if scope, ok := s.scope(ctx, in, names); ok {
			scopes = append(scopes, scope)
		}
	}
	slices.SortFunc(scopes, func(a, b policy.Scope) int { return cmp.Compare(a.Path, b.Path) })
	acl, err := s.policies.ACL(ctx, subject{who}, scopes...)
	return who, acl, err
}

// subject is the entity that templates are filled for.
type subject struct{ *identity.Effective }

// Tag implements policy.Subject.
func (s subject) Tag() string { return s.Effective.Tag }

// scope places policies in their namespace; false if that is gone.
func (s *Server) scope(ctx context.Context, ns string, names []string) (policy.Scope, bool) {
	if ns == namespace.RootID {
		return policy.Scope{Namespace: ns, Names: names}, true
	}
	n, err := s.namespaces.ByID(ctx, ns)
	if err != nil || n == nil {
		return policy.Scope{}, false
	}
	return policy.Scope{Namespace: ns, Path: n.Path, Names: names}, true
}

// aclOf returns what a token may do in a namespace, looking from there.
func (s *Server) aclOf(ctx context.Context, entry *token.Entry, ns string) (*policy.ACL, error) {
	_, acl, err := s.rights(ctx, entry, ns)
	if err != nil {
		return nil, err
	}
	return acl.In(s.namespacePath(ns)), nil
}

// authorise asks the caller's policies.
func (s *Server) authorise(ctx context.Context, c *call) error {
	op := c.Op
	if op == engines.Update && c.route != nil && c.route.Exists != nil {
		exists, err := c.route.CheckExists(ctx, c.inner, c.params)
		if err != nil && !answered(err) {
			return err
		}
		if err == nil && !exists {
			op = engines.Create
		}
	}
	if c.Help {
		if !c.acl.AnyUnder(c.path) {
			return engines.Denied(nil)
		}
		return nil
	}
	var denied error
	for acl := range c.acl.Levels() {
		if denied = c.permits(acl, op); denied == nil {
			break
		}
	}
	return denied
}

// permits asks the policies of one level.
func (c *call) permits(acl *policy.ACL, op engines.Operation) error {
	d := c.check(acl, op)
	switch {
	case d.Err != nil:
		return d.Err // rules that cannot be applied allow nothing, and the caller reads what the engine would have said
	case !d.Allowed:
		return engines.Denied(errors.New("no policy allows " + string(op)))
	case c.has(engines.Sudo) && !d.Sudo:
		return engines.Denied(errors.New("the path needs the sudo capability"))
	case !d.AllowsWrap(c.wrapTTL):
		return engines.Denied(errors.New("the policy asks for a wrapped response, or for another lifetime of it"))
	}
	return nil
}
