package aws

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"

	"github.com/coffer-project/coffer/engines"
)

const (
	// fallbackTime is how long a fallback is tried first after the endpoint before it did not respond.
	fallbackTime = 5 * time.Minute
	// expiryWindow is how long before their end the credentials of an assumed role are replaced.
	expiryWindow = 5 * time.Minute
	// chainSession is the session of roles that are only gone through.
	chainSession = "coffer"
)

// ask calls STS with the given credentials, at one endpoint after the other while one cannot be reached or fails.
func ask[Out any](ctx context.Context, c *Client, as sdk.CredentialsProvider, call func(context.Context, *sts.Client, func(*sts.Options)) (*Out, error)) (*Out, error) {
	option := func(o *sts.Options) { o.Credentials = as }
	var first *Error
	start := c.startAt()
	for i := range c.sts {
		at := (start + i) % len(c.sts)
		last := i == len(c.sts)-1
		out, err := askOne(ctx, c, c.sts[at], last, option, call)
		if err == nil {
			if i > 0 {
				c.answered(at)
			}
			return out, nil
		}
		e := c.failed(err)
		if first == nil {
			first = e
		}
		if e.Kind != Unavailable || ctx.Err() != nil {
			return nil, e
		}
	}
	return nil, first
}

func askOne[Out any](ctx context.Context, c *Client, at *sts.Client, last bool, option func(*sts.Options), call func(context.Context, *sts.Client, func(*sts.Options)) (*Out, error)) (*Out, error) {
	if !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	return call(ctx, at, option)
}

// startAt returns the index of the endpoint to try first.
func (c *Client) startAt() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.until) {
		return 0
	}
	return c.fallback
}

func (c *Client) answered(at int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fallback, c.until = at, time.Now().Add(fallbackTime)
}

// AssumeRole implements API.
func (c *Client) AssumeRole(ctx context.Context, a AssumeRole) (Credentials, error) {
	return c.assumeRole(ctx, c.as, a)
}

func (c *Client) assumeRole(ctx context.Context, as sdk.CredentialsProvider, a AssumeRole) (Credentials, error) {
	in := &sts.AssumeRoleInput{
		RoleArn: &a.RoleARN, RoleSessionName: &a.Session, ExternalId: given(a.ExternalID), Policy: given(a.Policy),
		PolicyArns: policies(a.PolicyARNs), Tags: sessionTags(a.Tags), DurationSeconds: seconds(a.TTL),
		SourceIdentity: given(a.SourceIdentity),
	}
	out, err := ask(ctx, c, as, func(ctx context.Context, at *sts.Client, o func(*sts.Options)) (*sts.AssumeRoleOutput, error) {
		return at.AssumeRole(ctx, in, o)
	})
	if err != nil {
		return Credentials{}, err
	}
	var arn *string
	if out.AssumedRoleUser != nil {
		arn = out.AssumedRoleUser.Arn
	}
	return temporary("AssumeRole", out.Credentials, arn)
}

// GetFederationToken implements API.
func (c *Client) GetFederationToken(ctx context.Context, f Federation) (Credentials, error) {
	in := &sts.GetFederationTokenInput{
		Name: &f.Name, Policy: given(f.Policy), PolicyArns: policies(f.PolicyARNs), Tags: sessionTags(f.Tags), DurationSeconds: seconds(f.TTL),
	}
	out, err := ask(ctx, c, c.as, func(ctx context.Context, at *sts.Client, o func(*sts.Options)) (*sts.GetFederationTokenOutput, error) {
		return at.GetFederationToken(ctx, in, o)
	})
	if err != nil {
		return Credentials{}, err
	}
	var arn *string
	if out.FederatedUser != nil {
		arn = out.FederatedUser.Arn
	}
	return temporary("GetFederationToken", out.Credentials, arn)
}

// GetSessionToken implements API.
func (c *Client) GetSessionToken(ctx context.Context, ttl time.Duration, mfa MFA) (Credentials, error) {
	in := &sts.GetSessionTokenInput{DurationSeconds: seconds(ttl), SerialNumber: given(mfa.Serial), TokenCode: given(mfa.Code)}
	out, err := ask(ctx, c, c.as, func(ctx context.Context, at *sts.Client, o func(*sts.Options)) (*sts.GetSessionTokenOutput, error) {
		return at.GetSessionToken(ctx, in, o)
	})
	if err != nil {
		return Credentials{}, err
	}
	return temporary("GetSessionToken", out.Credentials, nil)
}

// CallerIdentity implements API.
func (c *Client) CallerIdentity(ctx context.Context, who Credentials) (string, error) {
	as := c.as
	if who.AccessKey != "" {
		as = credentials.NewStaticCredentialsProvider(who.AccessKey, who.SecretKey.Reveal(), who.SessionToken.Reveal())
	}
	out, err := ask(ctx, c, as, func(ctx context.Context, at *sts.Client, o func(*sts.Options)) (*sts.GetCallerIdentityOutput, error) {
		return at.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{}, o)
	})
	if err != nil {
		return "", err
	}
	return sdk.ToString(out.Arn), nil
}

// assumed are credentials of a role that is gone through.
type assumed struct {
	c       *Client
	through sdk.CredentialsProvider
	role    AssumeRole
}

// Retrieve implements aws.CredentialsProvider. The cache around it calls it without the deadline of the request; the
// timeout of attempts bounds it.
func (a assumed) Retrieve(ctx context.Context) (sdk.Credentials, error) {
	if a.role.Session == "" {
		a.role.Session = chainSession
	}
	got, err := a.c.assumeRole(ctx, a.through, a.role)
	if err != nil {
		return sdk.Credentials{}, err
	}
	return sdk.Credentials{
		AccessKeyID: got.AccessKey, SecretAccessKey: got.SecretKey.Reveal(), SessionToken: got.SessionToken.Reveal(),
		Source: "AssumeRole", CanExpire: true, Expires: got.ExpiresAt,
	}, nil
}

// webIdentity are the credentials of a role that is assumed with a token.
type webIdentity struct {
	c  *Client
	of WebIdentity
}

// Retrieve implements aws.CredentialsProvider.
func (w webIdentity) Retrieve(ctx context.Context) (sdk.Credentials, error) {
	const action = "AssumeRoleWithWebIdentity"
	token, err := w.of.Token(ctx)
	if err != nil {
		return sdk.Credentials{}, &Error{Kind: Denied, Action: action, Text: "no identity token could be issued", Err: err}
	}
	in := &sts.AssumeRoleWithWebIdentityInput{RoleArn: &w.of.RoleARN, RoleSessionName: sdk.String(chainSession), WebIdentityToken: sdk.String(token.Reveal())}
	out, err := ask(ctx, w.c, sdk.AnonymousCredentials{}, func(ctx context.Context, at *sts.Client, o func(*sts.Options)) (*sts.AssumeRoleWithWebIdentityOutput, error) {
		return at.AssumeRoleWithWebIdentity(ctx, in, o)
	})
	if err != nil {
		return sdk.Credentials{}, err
	}
	got, err := temporary(action, out.Credentials, nil)
	if err != nil {
		return sdk.Credentials{}, err
	}
	return sdk.Credentials{
		AccessKeyID: got.AccessKey, SecretAccessKey: got.SecretKey.Reveal(), SessionToken: got.SessionToken.Reveal(),
		Source: action, CanExpire: true, Expires: got.ExpiresAt,
	}, nil
}

// temporary converts a response of STS; one without credentials is an error.
func temporary(action string, t *types.Credentials, arn *string) (Credentials, error) {
	if t == nil || sdk.ToString(t.AccessKeyId) == "" || sdk.ToString(t.SecretAccessKey) == "" || sdk.ToString(t.SessionToken) == "" || t.Expiration == nil {
		return Credentials{}, &Error{Kind: Unavailable, Action: action, Text: "an answer without credentials"}
	}
	return Credentials{
		AccessKey: *t.AccessKeyId, SecretKey: engines.Sensitive(*t.SecretAccessKey), SessionToken: engines.Sensitive(*t.SessionToken),
		ExpiresAt: *t.Expiration, ARN: sdk.ToString(arn),
	}, nil
}

func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// seconds returns a duration as the services want it, nil for none.
func seconds(d time.Duration) *int32 {
	if d <= 0 {
		return nil
	}
	n := int32(min(int64(d/time.Second), math.MaxInt32)) //nolint:gosec // it fits
	return &n
}

func policies(arns []string) []types.PolicyDescriptorType {
	var out []types.PolicyDescriptorType
	for _, arn := range arns {
		out = append(out, types.PolicyDescriptorType{Arn: &arn})
	}
	return out
}

func sessionTags(tags map[string]string) []types.Tag {
	var out []types.Tag
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, types.Tag{Key: &k, Value: sdk.String(tags[k])})
	}
	return out
}
