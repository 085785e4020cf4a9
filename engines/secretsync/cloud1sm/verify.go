package cloud1sm

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// probing tries calls on a secret that there is not: who may make them is told that it is not there.
type probing struct {
	*dest
	name   string
	checks []destination.Check
}

// Verify implements destination.Destination. What may be done to a secret is tried on one with a random name that does not
// exist, below "vault/", where names are by default: a policy for other names only rejects it, too.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	p := &probing{dest: d, name: "vault/coffer-verify-" + strings.ToLower(rand.Text())}
	describe := p.try(func() error {
		_, err := cloud1.Do(ctx, d.Session, "DescribeSecret", false, d.api.DescribeSecret, &secretsmanager.DescribeSecretInput{SecretId: &p.name})
		return err
	})
	e := describe.err
	switch {
	case e == nil || e.Code == destination.Denied:
		p.add(destination.Check{Name: "reachable", OK: true, Text: "AWS Secrets Manager answers in region " + d.Region})
	default:
		p.add(destination.Check{Name: "reachable", Text: e.Text})
		return p.checks
	}
	p.add(p.ClockCheck())
	letsIn := e == nil || errors.Is(e, cloud1.AccessDenied) && !errors.Is(e, cloud1.ErrCredentials)
	if !letsIn {
		p.add(destination.Check{Name: "credentials", Text: e.Text})
		return p.checks
	}
	p.add(destination.Check{Name: "credentials", OK: true, Text: "AWS takes them"})
	p.permissions(ctx, describe)
	return p.checks
}

func (p *probing) add(c destination.Check) { p.checks = append(p.checks, c) }

// tried is how a call on the missing secret went: it may be made if err is nil.
type tried struct {
	err      *destination.Error
	nameless bool // the call is not about a secret
}

func (p *probing) try(call func() error) tried {
	err := call()
	if err == nil || errors.Is(err, cloud1.NotFound) {
		return tried{}
	}
	e, ok := errors.AsType[*destination.Error](err)
	if !ok {
		e = cloud1.Internal("the call failed")
	}
	return tried{err: e}
}

func (p *probing) permissions(ctx context.Context, describe tried) {
	id, token := &p.name, sdk.String(rand.Text()+rand.Text())
	read := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "GetSecretValue", false, p.api.GetSecretValue, &secretsmanager.GetSecretValueInput{SecretId: id})
		return err
	})
	list := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "ListSecrets", false, p.api.ListSecrets, &secretsmanager.ListSecretsInput{MaxResults: sdk.Int32(1)})
		return err
	})
	put := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "PutSecretValue", false, p.api.PutSecretValue, &secretsmanager.PutSecretValueInput{
			SecretId: id, ClientRequestToken: token, SecretString: sdk.String("nothing"), VersionStages: []string{written},
		})
		return err
	})
	move := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "UpdateSecretVersionStage", false, p.api.UpdateSecretVersionStage, &secretsmanager.UpdateSecretVersionStageInput{
			SecretId: id, VersionStage: sdk.String(written), MoveToVersionId: token,
		})
		return err
	})
	remove := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "DeleteSecret", false, p.api.DeleteSecret, &secretsmanager.DeleteSecretInput{
			SecretId: id, RecoveryWindowInDays: sdk.Int64(defaultRecoveryDays),
		})
		return err
	})
	restore := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "RestoreSecret", false, p.api.RestoreSecret, &secretsmanager.RestoreSecretInput{SecretId: id})
		return err
	})
	tag := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "TagResource", false, p.api.TagResource, &secretsmanager.TagResourceInput{
			SecretId: id, Tags: []types.Tag{{Key: sdk.String(cloud1.OwnerTag), Value: sdk.String("verify")}},
		})
		return err
	})
	untag := p.try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "UntagResource", false, p.api.UntagResource, &secretsmanager.UntagResourceInput{SecretId: id, TagKeys: []string{cloud1.OwnerTag}})
		return err
	})
	named := describe.err == nil || put.err == nil || remove.err == nil || tag.err == nil // of the calls on this name
	p.report("read", named, tried{list.err, true}, describe, read)
	p.add(destination.Check{Name: "create", Unknown: true, Text: "it cannot be tried without writing: the credentials need CreateSecret and TagResource"})
	p.report("write", named, put, move)
	p.report("delete", named, remove, restore)
	p.report("tags", named, tag, untag)
}

// report joins calls into a check. If nothing at all is allowed on the name that was tried, it may be for its name.
func (p *probing) report(name string, certain bool, calls ...tried) {
	c := destination.Check{Name: name, OK: true, Text: "it is allowed"}
	for _, call := range calls {
		if call.err == nil {
			continue
		}
		c.OK, c.Text = false, call.err.Text
		if call.err.Code == destination.Denied && !certain && !call.nameless {
			c.Unknown = true
			c.Text += "; the name that was tried begins with vault/: if the policy is for other names, this says nothing"
		}
		break
	}
	p.add(c)
}
