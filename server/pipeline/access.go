package pipeline

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/rights"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/wrapping"
	"github.com/coffer-project/coffer/storage"
)

// limit holds the request to the rate limits that concern it, before anything is spent on it.
func (p *Pipeline) limit(ctx context.Context, c *call) error {
	d, err := p.Quotas.Rate(ctx, func() quota.Request { return p.quotaOf(ctx, c) })
	if err != nil || d.Quota == "" {
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
func (p *Pipeline) limitLost(ctx context.Context, c *call, lost error) error {
	if !answered(lost) {
		return lost
	}
	d, err := p.Quotas.Rate(ctx, func() quota.Request { return quota.Request{ClientIP: c.Remote.Addr()} })
	if err != nil {
		return err
	}
	if !d.Allowed {
		return d.Err(c.Request.Path)
	}
	return lost
}

// quotaOf is what quotas need to know of a request.
func (p *Pipeline) quotaOf(ctx context.Context, c *call) quota.Request {
	r := quota.Request{NamespacePath: c.ns.Path, Path: c.storedPath(), Synonym: c.synonym, ClientIP: c.Remote.Addr()}
	if c.mount == nil {
		return r
	}
	r.MountPath = c.mount.Path
	if c.flags.Has(engines.Unauthenticated) && c.mount.IsAuth() {
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

// admit authenticates and authorises. What exists behind a path is not revealed to those who may not use it.
func (p *Pipeline) admit(ctx context.Context, c *call) error {
	if c.ns.Locked() && !c.unlocks() {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "API access to this namespace has been locked by an administrator"}
	}
	if err := p.readWrapTTL(c); err != nil {
		return err
	}
	if c.Token == "" {
		if c.open {
			return c.fetch()
		}
		if c.flags.Has(engines.Ceremony) {
			return &engines.Error{Kind: engines.KindDenied, Detail: "missing client token: key ceremonies need a token with sudo on this path, " +
				"or a listener with enable_unauthenticated_ceremonies = true"}
		}
		return &engines.Error{Kind: engines.KindDenied, Detail: "missing client token: send one in the X-Vault-Token header"}
	}
	err := p.authenticate(ctx, c)
	if err != nil {
		if c.open && answered(err) {
			return c.fetch() // a token that is not needed may also be wrong
		}
		return err
	}
	if err := c.fetch(); err != nil {
		return err
	}
	if c.open || c.flags.Has(engines.AnyToken) {
		return nil
	}
	return p.authorise(ctx, c)
}

// unlocks reports whether the request is the one that a locked namespace takes.
func (c *call) unlocks() bool {
	return c.Op == engines.Update && (c.path == "sys/namespaces/api-lock/unlock")
}

// readWrapTTL takes the client's wish for a wrapped answer.
func (p *Pipeline) readWrapTTL(c *call) error {
	text := c.Header.Get(wrapHeader)
	if text == "" {
		return nil
	}
	ttl, err := input.ParseDuration(text)
	if err != nil || ttl > wrapping.MaxTTL || ttl > 0 && ttl < time.Second {
		return engines.Invalid("header X-Vault-Wrap-TTL must be a duration from 1s to %d hours, such as 5m", int(wrapping.MaxTTL.Hours()))
	}
	if ttl > 0 && c.flags.Has(engines.AnyNode) && !p.Node.Active() {
		return engines.Invalid("header X-Vault-Wrap-TTL: what concerns one node is wrapped by the active node only: leave it out, or ask that node")
	}
	c.wrapTTL, c.inner.WrapTTL = ttl, ttl
	return nil
}

// authenticate turns the token into a caller.
func (p *Pipeline) authenticate(ctx context.Context, c *call) error {
	if c.path == wrapping.UnwrapPath && enrol.IsToken(c.Token.Reveal()) {
		var err error
		if c.Token, err = p.Replicated.WrappingToken(ctx, c.Token.Reveal()); err != nil {
			return err
		}
	}
	entry, err := p.Tokens.Lookup(ctx, c.Token.Reveal())
	if errors.Is(err, token.ErrInvalid) && !p.Node.Active() {
		// It may be so new that only the active node knows it.
		if !c.flags.Has(engines.AnyNode) {
			return storage.ErrReadOnly
		}
		if err := p.Node.ReadIndex(ctx); err != nil {
			return err
		}
		entry, err = p.Tokens.Lookup(ctx, c.Token.Reveal())
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
	who, acl, err := p.Rights.Of(ctx, entry, c.ns.ID)
	if err != nil {
		return err
	}
	c.token, c.who, c.acl = entry, who, acl.In(c.ns.Path)
	p.Flights.Identify(&c.flight, cmp.Or(entry.EntityID, entry.Accessor))
	c.inner.Caller = engines.Caller{
		Accessor: entry.Accessor, DisplayName: entry.DisplayName, EntityID: entry.EntityID,
		Policies: rights.Policies(entry, who), TokenPolicies: entry.Policies, Root: acl.Root(), TokenKey: entry.Key, Token: c.Token,
		NamespaceID: entry.Namespace, Access: c.acl,
	}
	if who != nil {
		c.inner.Caller.Identity = func(name string) (string, bool) { return who.FillIn(entry.Namespace, name) }
	}
	return nil
}

// authorise asks the caller's policies.
func (p *Pipeline) authorise(ctx context.Context, c *call) error {
	if c.Op == engines.Update && c.flags.Has(engines.TellsCreate) {
		if err := c.tellCreate(ctx); err != nil {
			return err
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
		if denied = c.permits(ctx, acl); denied == nil {
			break
		}
	}
	return denied
}

// tellCreate finds out, once, whether a write creates its object.
func (c *call) tellCreate(ctx context.Context) error {
	if c.told || c.Op != engines.Update || c.route == nil || c.route.Exists == nil {
		return nil
	}
	exists, err := c.route.CheckExists(ctx, c.inner, c.params)
	if err != nil && !answered(err) {
		return err
	}
	if c.told = true; err == nil && !exists {
		c.inner.Op = engines.Create
	}
	return nil
}

// permits asks the policies of one level. Whether a write creates its object is found out only if they tell that from an update.
func (c *call) permits(ctx context.Context, acl *policy.ACL) error {
	d := c.check(acl, c.inner.Op)
	if d.Splits && !c.told {
		if err := c.tellCreate(ctx); err != nil {
			return err
		}
		d = c.check(acl, c.inner.Op)
	}
	switch op := c.inner.Op; {
	case d.Err != nil:
		return d.Err // rules that cannot be applied allow nothing, and the caller reads what the engine would have said
	case !d.Allowed:
		return engines.Denied(errors.New("no policy allows " + string(op)))
	case !d.Sudo && c.flags.Has(engines.Sudo):
		return engines.Denied(errors.New("the path needs the sudo capability"))
	case !d.AllowsWrap(c.wrapTTL):
		return engines.Denied(errors.New("the policy asks for a wrapped response, or for another lifetime of it"))
	}
	return nil
}
