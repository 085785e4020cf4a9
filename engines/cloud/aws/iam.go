package aws

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/iam/types"

	"github.com/coffer-project/coffer/engines"
)

// maxPages of a list. Everything listed is bounded by small quotas of the provider.
const maxPages = 100

// pager is a paginator of the SDK.
type pager[Out any] interface {
	HasMorePages() bool
	NextPage(ctx context.Context, options ...func(*iam.Options)) (*Out, error)
}

// list returns what is on all pages.
func list[Out, T any](ctx context.Context, c *Client, p pager[Out], items func(*Out) []T) ([]T, error) {
	var all []T
	for range maxPages {
		if !p.HasMorePages() {
			return all, nil
		}
		page, err := p.NextPage(ctx)
		if err != nil {
			return nil, c.failed(err)
		}
		all = append(all, items(page)...)
	}
	return nil, endless
}

var endless = &Error{Kind: Other, Action: "listing", Text: "the list has no end"}

// GetUser implements API.
func (c *Client) GetUser(ctx context.Context, name string) (User, error) {
	out, err := c.iam.GetUser(ctx, &iam.GetUserInput{UserName: given(name)})
	if err != nil {
		return User{}, c.failed(err)
	}
	return user("GetUser", out.User)
}

// CreateUser implements API.
func (c *Client) CreateUser(ctx context.Context, u NewUser) (User, error) {
	in := &iam.CreateUserInput{UserName: &u.Name, Path: given(u.Path), PermissionsBoundary: given(u.BoundaryARN)}
	for _, k := range slices.Sorted(maps.Keys(u.Tags)) {
		in.Tags = append(in.Tags, types.Tag{Key: &k, Value: sdk.String(u.Tags[k])})
	}
	w := &watched{RetryerV2: c.retryer}
	out, err := c.iam.CreateUser(ctx, in, w.option)
	if err == nil {
		return user("CreateUser", out.User)
	}
	e := c.failed(err)
	if !w.unsure {
		return User{}, e
	}
	if e.Kind != Exists {
		e.Kind = Unavailable // whatever the last attempt returned
		return User{}, e
	}
	// It exists, and an attempt before may have made it.
	there, err := c.GetUser(ctx, u.Name)
	if err != nil || len(u.Tags) == 0 {
		e.Kind, e.Text = Unavailable, "the user exists, and it is not known who made it"
		return User{}, e
	}
	for k, v := range u.Tags {
		if got, ok := there.Tags[k]; !ok || got != v {
			return User{}, e
		}
	}
	return there, nil
}

func user(action string, u *types.User) (User, error) {
	if u == nil || sdk.ToString(u.UserName) == "" && sdk.ToString(u.Arn) == "" {
		return User{}, &Error{Kind: Unavailable, Action: action, Text: "an answer without a user"}
	}
	tags := make(map[string]string, len(u.Tags))
	for _, t := range u.Tags {
		tags[sdk.ToString(t.Key)] = sdk.ToString(t.Value)
	}
	return User{
		Name: sdk.ToString(u.UserName), ID: sdk.ToString(u.UserId), ARN: sdk.ToString(u.Arn), Path: sdk.ToString(u.Path),
		CreatedAt: sdk.ToTime(u.CreateDate), Tags: tags,
	}, nil
}

// AttachUserPolicy implements API.
func (c *Client) AttachUserPolicy(ctx context.Context, user, policyARN string) error {
	_, err := c.iam.AttachUserPolicy(ctx, &iam.AttachUserPolicyInput{UserName: &user, PolicyArn: &policyARN})
	return c.result(err)
}

// PutUserPolicy implements API.
func (c *Client) PutUserPolicy(ctx context.Context, user, name, document string) error {
	_, err := c.iam.PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: &user, PolicyName: &name, PolicyDocument: &document})
	return c.result(err)
}

// AddUserToGroup implements API.
func (c *Client) AddUserToGroup(ctx context.Context, user, group string) error {
	_, err := c.iam.AddUserToGroup(ctx, &iam.AddUserToGroupInput{UserName: &user, GroupName: &group})
	return c.result(err)
}

// result is failed for calls that return nothing else.
func (c *Client) result(err error) error {
	if err == nil {
		return nil
	}
	return c.failed(err)
}

// CreateAccessKey implements API.
func (c *Client) CreateAccessKey(ctx context.Context, user string) (Credentials, error) {
	w := &watched{RetryerV2: c.retryer, once: true}
	out, err := c.iam.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: given(user)}, w.option)
	if err != nil {
		return Credentials{}, c.failed(err)
	}
	k := out.AccessKey
	if k == nil || sdk.ToString(k.AccessKeyId) == "" || sdk.ToString(k.SecretAccessKey) == "" {
		return Credentials{}, &Error{Kind: Unavailable, Action: "CreateAccessKey", Text: "an answer without a key"}
	}
	return Credentials{AccessKey: *k.AccessKeyId, SecretKey: engines.Sensitive(*k.SecretAccessKey)}, nil
}

// DeleteAccessKey implements API.
func (c *Client) DeleteAccessKey(ctx context.Context, user, id string) error {
	_, err := c.iam.DeleteAccessKey(ctx, &iam.DeleteAccessKeyInput{UserName: given(user), AccessKeyId: &id})
	return c.result(err)
}

// ListAccessKeys implements API.
func (c *Client) ListAccessKeys(ctx context.Context, user string) ([]Key, error) {
	found, err := list(ctx, c, iam.NewListAccessKeysPaginator(c.iam, &iam.ListAccessKeysInput{UserName: given(user)}),
		func(p *iam.ListAccessKeysOutput) []types.AccessKeyMetadata { return p.AccessKeyMetadata })
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, k := range found {
		keys = append(keys, Key{ID: sdk.ToString(k.AccessKeyId), CreatedAt: sdk.ToTime(k.CreateDate), Active: k.Status == types.StatusTypeActive})
	}
	slices.SortStableFunc(keys, func(a, b Key) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return keys, nil
}

// GroupPolicies implements API.
func (c *Client) GroupPolicies(ctx context.Context, group string) (documents, arns []string, err error) {
	names, err := list(ctx, c, iam.NewListGroupPoliciesPaginator(c.iam, &iam.ListGroupPoliciesInput{GroupName: &group}),
		func(p *iam.ListGroupPoliciesOutput) []string { return p.PolicyNames })
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		out, err := c.iam.GetGroupPolicy(ctx, &iam.GetGroupPolicyInput{GroupName: &group, PolicyName: &name})
		if err != nil {
			return nil, nil, c.failed(err)
		}
		document, err := url.PathUnescape(sdk.ToString(out.PolicyDocument)) // encoded as RFC 3986 has it
		if err != nil {
			return nil, nil, &Error{Kind: Other, Action: "GetGroupPolicy", Text: "a document that cannot be decoded"}
		}
		documents = append(documents, document)
	}
	arns, err = list(ctx, c, iam.NewListAttachedGroupPoliciesPaginator(c.iam, &iam.ListAttachedGroupPoliciesInput{GroupName: &group}),
		func(p *iam.ListAttachedGroupPoliciesOutput) []string { return policyARNs(p.AttachedPolicies) })
	if err != nil {
		return nil, nil, err
	}
	return documents, arns, nil
}

func policyARNs(attached []types.AttachedPolicy) []string {
	var arns []string
	for _, p := range attached {
		arns = append(arns, sdk.ToString(p.PolicyArn))
	}
	return arns
}
