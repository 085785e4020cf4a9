package cloud

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/engines/cloud/username"
)

// issueSession issues temporary credentials. They expire at the provider and cannot be revoked before, so no lease is stored:
// the response says how long they last.
func (e *engine) issueSession(ctx context.Context, req *engines.Request, r *role.Role, g role.Grant) (*engines.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, makeTime)
	defer cancel()
	conf, _, err := root.Get(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	api, err := e.clients.For(ctx, conf, through(r.AssumeRoleARNs))
	if err != nil {
		return nil, err
	}
	c, err := newSession(ctx, api, conf, req.Caller, r, g)
	if err != nil {
		return nil, err
	}
	ttl := g.TTL
	if left := time.Until(c.ExpiresAt).Round(time.Second); left > 0 && left < ttl {
		ttl = left
	}
	data := map[string]any{
		"access_key":     c.AccessKey,
		"secret_key":     c.SecretKey.Reveal(),
		"security_token": c.SessionToken.Reveal(),
		"session_token":  c.SessionToken.Reveal(),
		"ttl":            int64(ttl / time.Second),
	}
	if c.ARN != "" {
		data["arn"] = c.ARN
	}
	return &engines.Response{Data: data, Lease: &engines.Lease{TTL: ttl, ID: req.Mount.Path + req.Path + "/" + rand.Text()}}, nil
}

func newSession(ctx context.Context, api aws.API, conf *root.Root, caller engines.Caller, r *role.Role, g role.Grant) (aws.Credentials, error) {
	if g.Type == role.SessionToken {
		return api.GetSessionToken(ctx, g.TTL, g.MFA)
	}
	policy, arns, err := sessionPolicy(ctx, api, r)
	if err != nil {
		return aws.Credentials{}, err
	}
	if g.Type == role.FederationToken {
		name, err := username.New(conf.UsernameTemplate, username.STS, caller.DisplayName, r.Name)
		if err != nil {
			return aws.Credentials{}, err
		}
		return api.GetFederationToken(ctx, aws.Federation{Name: name, Policy: policy, PolicyARNs: arns, TTL: g.TTL})
	}
	name := g.SessionName
	if name == "" {
		if name, err = username.New(conf.UsernameTemplate, username.IAM, caller.DisplayName, r.Name); err != nil {
			return aws.Credentials{}, err
		}
	}
	return api.AssumeRole(ctx, aws.AssumeRole{
		RoleARN: g.RoleARN, Session: name, ExternalID: r.ExternalID, Policy: policy, PolicyARNs: arns, Tags: r.SessionTags, SourceIdentity: r.SourceIdentity, TTL: g.TTL,
	})
}
