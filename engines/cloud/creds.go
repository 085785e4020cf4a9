package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/role"
)

type credsIn struct {
	Name        string            `json:"name" help:"Name of the role."`
	RoleARN     string            `json:"role_arn" query:"true" max:"2048" help:"ARN of the role to assume, for assumed_role: one that the role allows. Required if it allows several."`
	SessionName string            `json:"role_session_name" query:"true" help:"Name of the session, for assumed_role. What is longer than 64 characters is cut off; without it one is made."`
	TTL         engines.Duration  `json:"ttl" query:"true" help:"How long temporary credentials are to last; without it the role's default_sts_ttl, or an hour."`
	MFACode     engines.Sensitive `json:"mfa_code" query:"true" max:"16" help:"What the role's MFA device shows now, for session_token."`
}

// issue handles creds/ and sts/, which differ for legacy roles only.
func (e *engine) issue(path string) engines.Handler[credsIn] {
	return func(ctx context.Context, req *engines.Request, in *credsIn) (*engines.Response, error) {
		stored, err := role.Get(ctx, req.Mount.Storage, in.Name)
		if err != nil {
			return nil, err
		}
		if stored == nil {
			return nil, engines.Invalid("role %q not found", in.Name)
		}
		r, err := stored.Filled(req.Caller)
		if err != nil {
			return nil, err
		}
		g, err := r.Grant(role.Wish{
			Path: path, RoleARN: in.RoleARN, SessionName: in.SessionName, TTL: time.Duration(in.TTL), MFACode: in.MFACode.Reveal(),
		}, req.Mount.MaxLeaseTTL)
		if err != nil {
			return nil, err
		}
		how := e.issueSession
		if g.Type == role.IAMUser {
			how = e.issueUser
		}
		resp, err := how(ctx, req, r, g)
		if err != nil {
			return nil, failure.ForClient(err)
		}
		resp.Warnings = append(g.Warnings, resp.Warnings...)
		e.counts.Issued.Add(1)
		return resp, nil
	}
}

// through are roles to assume one after the other before anything else.
func through(arns []string) []aws.AssumeRole {
	var roles []aws.AssumeRole
	for _, arn := range arns {
		roles = append(roles, aws.AssumeRole{RoleARN: arn})
	}
	return roles
}
