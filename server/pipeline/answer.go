package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/login"
)

// complete turns what an engine answered into what the caller gets: a login gets its token, a secret its lease, and
// all of it goes into a wrapping token if the client wants that.
func (p *Pipeline) complete(ctx context.Context, c *call, r *engines.Response) (*engines.Response, error) {
	if r == nil {
		return nil, nil
	}
	var err error
	if r.Auth != nil && r.Auth.Login != nil {
		at := login.Attempt{Mount: c.mount, Path: c.storedPath(), From: c.Remote.Addr(), Codes: c.Header.Values("X-Vault-MFA")}
		if err = p.Logins.Complete(ctx, at, r); err != nil {
			return nil, err
		}
	}
	if r.Lease != nil {
		if err = p.lease(ctx, c, r); err != nil {
			return nil, err
		}
	}
	if r.Auth != nil && r.Auth.MFARequirement != nil {
		return r, nil // a question to the caller: the answer to wrap is still to come
	}
	if c.wrapTTL == 0 || r.Wrap != nil || r.Raw != nil || r.Data == nil && r.Auth == nil && r.Held == nil {
		return r, nil
	}
	if c.token == nil && r.Auth == nil {
		// Anybody could leave wrapping tokens behind, as many as they like, for as long as these may live.
		r.Warnings = append(r.Warnings, "the answer is not wrapped: that takes a token, or a login")
		return r, nil
	}
	info, err := p.Wraps.Wrap(ctx, c.ns.ID, c.ns.Path+c.path, c.wrapTTL, r)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Wrap: info}, nil
}

// lease hands out a lease. What has no kind is only told how long it is good for.
func (p *Pipeline) lease(ctx context.Context, c *call, response *engines.Response) error {
	m, l := c.mount.Mount, response.Lease
	if l.Kind == "" {
		ttl := l.TTL
		if ttl == 0 {
			ttl = m.DefaultLeaseTTL
		}
		response.Held = &engines.HeldLease{ID: l.ID, Seconds: int64(min(ttl, m.MaxLeaseTTL) / time.Second)}
		return nil
	}
	if c.token == nil {
		return errors.New("a lease without a token to hold it")
	}
	r := lease.Registration{
		NamespaceID: c.ns.ID, MountUUID: m.UUID, MountPath: m.Path, Path: c.inner.Path, Lease: *l,
		DefaultTTL: m.DefaultLeaseTTL, MaxTTL: m.MaxLeaseTTL,
	}
	if c.token.Batch() {
		r.TokenExpiresAt = c.token.ExpiresAt // nothing is done when it ends
		r.TokenKey = c.token.Parent          // unless its parent ends before
	} else {
		r.TokenKey = c.token.Key
	}
	info, err := p.Leases.Register(ctx, r)
	if err != nil {
		return err
	}
	response.Held = &engines.HeldLease{ID: info.ID, Seconds: int64(info.TTL / time.Second), Renewable: info.Renewable}
	response.Warnings = append(response.Warnings, info.Warnings...)
	return nil
}
