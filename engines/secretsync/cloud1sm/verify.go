package cloud1sm

import (
	"context"
	"crypto/rand"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const probed = "vault/" // begins the name that is tried

type probing struct {
	*dest
	cloud1.Probe
}

// Verify implements destination.Destination. What may be done to a secret is tried on one with a random name that does not
// exist, below "vault/", where names are by default: a policy for other names only rejects it, too.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	p := &probing{d, cloud1.Probe{Name: probed + "coffer-verify-" + strings.ToLower(rand.Text()), Missing: []cloud1.Code{cloud1.NotFound}}}
	describe := p.Try(func() error {
		_, err := cloud1.Do(ctx, d.Session, "DescribeSecret", false, d.api.DescribeSecret, &secretsmanager.DescribeSecretInput{SecretId: &p.Name})
		return err
	})
	if p.Reach(d.Session, describe) {
		p.permissions(ctx, describe)
	}
	return p.Checks
}

func (p *probing) permissions(ctx context.Context, describe cloud1.Tried) {
	id, token := &p.Name, sdk.String(rand.Text()+rand.Text())
	read := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "GetSecretValue", false, p.api.GetSecretValue, &secretsmanager.GetSecretValueInput{SecretId: id})
		return err
	})
	list := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "ListSecrets", false, p.api.ListSecrets, &secretsmanager.ListSecretsInput{MaxResults: sdk.Int32(1)})
		return err
	})
	put := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "PutSecretValue", false, p.api.PutSecretValue, &secretsmanager.PutSecretValueInput{
			SecretId: id, ClientRequestToken: token, SecretString: sdk.String("nothing"), VersionStages: []string{written},
		})
		return err
	})
	move := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "UpdateSecretVersionStage", false, p.api.UpdateSecretVersionStage, &secretsmanager.UpdateSecretVersionStageInput{
			SecretId: id, VersionStage: sdk.String(written), MoveToVersionId: token,
		})
		return err
	})
	remove := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "DeleteSecret", false, p.api.DeleteSecret, &secretsmanager.DeleteSecretInput{
			SecretId: id, RecoveryWindowInDays: sdk.Int64(defaultRecoveryDays),
		})
		return err
	})
	restore := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "RestoreSecret", false, p.api.RestoreSecret, &secretsmanager.RestoreSecretInput{SecretId: id})
		return err
	})
	tag := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "TagResource", false, p.api.TagResource, &secretsmanager.TagResourceInput{
			SecretId: id, Tags: []types.Tag{{Key: sdk.String(cloud1.OwnerTag), Value: sdk.String("verify")}},
		})
		return err
	})
	untag := p.Try(func() error {
		_, err := cloud1.Do(ctx, p.Session, "UntagResource", false, p.api.UntagResource, &secretsmanager.UntagResourceInput{SecretId: id, TagKeys: []string{cloud1.OwnerTag}})
		return err
	})
	named := describe.Err == nil || put.Err == nil || remove.Err == nil || tag.Err == nil // of the calls on this name
	p.Report("read", named, probed, cloud1.Tried{Err: list.Err, Nameless: true}, describe, read)
	p.Add(destination.Check{Name: "create", Unknown: true, Text: "it cannot be tried without writing: the credentials need CreateSecret and TagResource"})
	p.Report("write", named, probed, put, move)
	p.Report("delete", named, probed, remove, restore)
	p.Report("tags", named, probed, tag, untag)
}
