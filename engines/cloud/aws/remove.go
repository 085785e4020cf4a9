package aws

import (
	"cmp"
	"context"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/iam/types"

	"github.com/coffer-project/coffer/engines"
)

// removeTries bounds how often RemoveUser starts again because of Conflict: another client still adds to the user, or a
// deletion has not reached all of the provider.
const removeTries = 6

// removeBackoff is 0.2, 0.4, 0.8, 1.6, 3 seconds.
func removeBackoff(attempt int) time.Duration {
	return engines.Backoff(200*time.Millisecond, 3*time.Second, attempt)
}

// RemoveUser implements API.
func (c *Client) RemoveUser(ctx context.Context, name string) error {
	if name == "" { // to the provider that is the user of the root credentials
		return &Error{Kind: Invalid, Action: "DeleteUser", Text: "no name"}
	}
	for try := 1; ; try++ {
		err := c.removeUser(ctx, name)
		if KindOf(err) != Conflict || try == removeTries {
			return err
		}
		select {
		case <-ctx.Done():
			return c.failed(ctx.Err())
		case <-time.After(c.backoff(try)):
		}
	}
}

// A step removes one sort of thing from a user. What is not there is removed.
type step func(c *Client, ctx context.Context, user string) error

// usual are the things that the engine gives a user, keys first: they must stop working before the rest is removed. rare are
// the things that only other clients add. They are listed only if the user cannot be removed otherwise: that saves five calls
// of each revocation, and the policy of the root credentials needs those calls only for users that have such things.
var (
	usual = []step{(*Client).removeKeys, (*Client).detachPolicies, (*Client).removePolicies, (*Client).leaveGroups}
	rare  = []step{
		(*Client).removeLoginProfile, (*Client).removeMFA, (*Client).removeCertificates, (*Client).removeSSHKeys, (*Client).removeServiceCredentials,
	}
)

func (c *Client) removeUser(ctx context.Context, name string) error {
	denied, err := c.removeThings(ctx, name, usual)
	if err != nil {
		return err
	}
	if err := c.deleteUser(ctx, name); KindOf(err) != Conflict {
		return err
	}
	deniedToo, err := c.removeThings(ctx, name, rare)
	if err != nil {
		return err
	}
	err = c.deleteUser(ctx, name)
	if missing := cmp.Or(denied, deniedToo); KindOf(err) == Conflict && missing != nil {
		return missing // it will not help to try again
	}
	return err
}

// removeThings returns in denied the error of the first thing that may not be listed or removed.
func (c *Client) removeThings(ctx context.Context, user string, steps []step) (denied, err error) {
	for _, remove := range steps {
		err := remove(c, ctx, user)
		if accessDenied(err) {
			denied = cmp.Or(denied, err)
		} else if err != nil {
			return nil, err
		}
	}
	return denied, nil
}

func (c *Client) deleteUser(ctx context.Context, name string) error {
	_, err := c.iam.DeleteUser(ctx, &iam.DeleteUserInput{UserName: &name})
	return gone(c.result(err))
}

// accessDenied reports whether only this call is not allowed, unlike with credentials that are not valid.
func accessDenied(err error) bool {
	e, ok := err.(*Error)
	return ok && e.Kind == Denied && e.Code == "AccessDenied"
}

// gone makes NotFound a success.
func gone(err error) error {
	if KindOf(err) == NotFound {
		return nil
	}
	return err
}

// each does something with all of a list, and NotFound is done.
func each[T any](all []T, err error, do func(T) error) error {
	if err != nil {
		return gone(err)
	}
	for _, one := range all {
		if err := gone(do(one)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) removeKeys(ctx context.Context, user string) error {
	all, err := c.ListAccessKeys(ctx, user)
	return each(all, err, func(k Key) error { return c.DeleteAccessKey(ctx, user, k.ID) })
}

func (c *Client) detachPolicies(ctx context.Context, user string) error {
	all, err := list(ctx, c, iam.NewListAttachedUserPoliciesPaginator(c.iam, &iam.ListAttachedUserPoliciesInput{UserName: &user}),
		func(p *iam.ListAttachedUserPoliciesOutput) []string { return policyARNs(p.AttachedPolicies) })
	return each(all, err, func(arn string) error {
		_, err := c.iam.DetachUserPolicy(ctx, &iam.DetachUserPolicyInput{UserName: &user, PolicyArn: &arn})
		return c.result(err)
	})
}

func (c *Client) removePolicies(ctx context.Context, user string) error {
	all, err := list(ctx, c, iam.NewListUserPoliciesPaginator(c.iam, &iam.ListUserPoliciesInput{UserName: &user}),
		func(p *iam.ListUserPoliciesOutput) []string { return p.PolicyNames })
	return each(all, err, func(name string) error {
		_, err := c.iam.DeleteUserPolicy(ctx, &iam.DeleteUserPolicyInput{UserName: &user, PolicyName: &name})
		return c.result(err)
	})
}

func (c *Client) leaveGroups(ctx context.Context, user string) error {
	all, err := list(ctx, c, iam.NewListGroupsForUserPaginator(c.iam, &iam.ListGroupsForUserInput{UserName: &user}),
		func(p *iam.ListGroupsForUserOutput) []types.Group { return p.Groups })
	return each(all, err, func(g types.Group) error {
		_, err := c.iam.RemoveUserFromGroup(ctx, &iam.RemoveUserFromGroupInput{UserName: &user, GroupName: g.GroupName})
		return c.result(err)
	})
}

func (c *Client) removeLoginProfile(ctx context.Context, user string) error {
	_, err := c.iam.DeleteLoginProfile(ctx, &iam.DeleteLoginProfileInput{UserName: &user})
	return gone(c.result(err))
}

// removeMFA deactivates devices, and deletes those that are only software: those have an ARN for a serial number.
func (c *Client) removeMFA(ctx context.Context, user string) error {
	all, err := list(ctx, c, iam.NewListMFADevicesPaginator(c.iam, &iam.ListMFADevicesInput{UserName: &user}),
		func(p *iam.ListMFADevicesOutput) []types.MFADevice { return p.MFADevices })
	return each(all, err, func(d types.MFADevice) error {
		_, err := c.iam.DeactivateMFADevice(ctx, &iam.DeactivateMFADeviceInput{UserName: &user, SerialNumber: d.SerialNumber})
		if err := gone(c.result(err)); err != nil || !strings.Contains(sdk.ToString(d.SerialNumber), ":mfa/") {
			return err
		}
		_, err = c.iam.DeleteVirtualMFADevice(ctx, &iam.DeleteVirtualMFADeviceInput{SerialNumber: d.SerialNumber})
		return c.result(err)
	})
}

func (c *Client) removeCertificates(ctx context.Context, user string) error {
	all, err := list(ctx, c, iam.NewListSigningCertificatesPaginator(c.iam, &iam.ListSigningCertificatesInput{UserName: &user}),
		func(p *iam.ListSigningCertificatesOutput) []types.SigningCertificate { return p.Certificates })
	return each(all, err, func(s types.SigningCertificate) error {
		_, err := c.iam.DeleteSigningCertificate(ctx, &iam.DeleteSigningCertificateInput{UserName: &user, CertificateId: s.CertificateId})
		return c.result(err)
	})
}

func (c *Client) removeSSHKeys(ctx context.Context, user string) error {
	all, err := list(ctx, c, iam.NewListSSHPublicKeysPaginator(c.iam, &iam.ListSSHPublicKeysInput{UserName: &user}),
		func(p *iam.ListSSHPublicKeysOutput) []types.SSHPublicKeyMetadata { return p.SSHPublicKeys })
	return each(all, err, func(k types.SSHPublicKeyMetadata) error {
		_, err := c.iam.DeleteSSHPublicKey(ctx, &iam.DeleteSSHPublicKeyInput{UserName: &user, SSHPublicKeyId: k.SSHPublicKeyId})
		return c.result(err)
	})
}

func (c *Client) removeServiceCredentials(ctx context.Context, user string) error {
	all, err := list(ctx, c, &serviceCredentials{c: c.iam, in: iam.ListServiceSpecificCredentialsInput{UserName: &user}, more: true},
		func(p *iam.ListServiceSpecificCredentialsOutput) []types.ServiceSpecificCredentialMetadata {
			return p.ServiceSpecificCredentials
		})
	return each(all, err, func(s types.ServiceSpecificCredentialMetadata) error {
		_, err := c.iam.DeleteServiceSpecificCredential(ctx, &iam.DeleteServiceSpecificCredentialInput{
			UserName: &user, ServiceSpecificCredentialId: s.ServiceSpecificCredentialId,
		})
		return c.result(err)
	})
}

// serviceCredentials is a pager of the one list for which the SDK has none.
type serviceCredentials struct {
	c    *iam.Client
	in   iam.ListServiceSpecificCredentialsInput
	more bool
}

// HasMorePages implements pager.
func (s *serviceCredentials) HasMorePages() bool { return s.more }

// NextPage implements pager.
func (s *serviceCredentials) NextPage(ctx context.Context, options ...func(*iam.Options)) (*iam.ListServiceSpecificCredentialsOutput, error) {
	out, err := s.c.ListServiceSpecificCredentials(ctx, &s.in, options...)
	if err != nil {
		return nil, err
	}
	s.in.Marker = out.Marker
	s.more = out.IsTruncated && sdk.ToString(out.Marker) != ""
	return out, nil
}
