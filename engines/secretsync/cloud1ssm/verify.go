package cloud1ssm

import (
	"context"
	"crypto/rand"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const probed = "/vault/" // begins the name that is tried

// Verify implements destination.Destination. What may be done to a parameter is tried on one with a random name that does not exist,
// below "/vault/", where names are by default: a policy for other names only rejects it, too.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	p := &cloud1.Probe{Name: probed + "coffer-verify-" + strings.ToLower(rand.Text()), Missing: []cloud1.Code{notFound, notFoundByTags}}
	read := p.Try(func() error {
		_, err := d.get(ctx, p.Name, false)
		return err
	})
	if !p.Reach(d.Session, read) {
		return p.Checks
	}
	list := p.Try(func() error {
		_, err := cloud1.Do(ctx, d.Session, "DescribeParameters", false, d.api.DescribeParameters, &ssm.DescribeParametersInput{MaxResults: sdk.Int32(1)})
		return err
	})
	list.Nameless = true
	tags := p.Try(func() error {
		_, err := d.tags(ctx, p.Name)
		return err
	})
	tag := p.Try(func() error {
		_, err := cloud1.Do(ctx, d.Session, "AddTagsToResource", false, d.api.AddTagsToResource, &ssm.AddTagsToResourceInput{
			ResourceType: types.ResourceTypeForTaggingParameter, ResourceId: &p.Name, Tags: listOf(map[string]string{cloud1.OwnerTag: "verify"}),
		})
		return err
	})
	untag := p.Try(func() error {
		_, err := cloud1.Do(ctx, d.Session, "RemoveTagsFromResource", false, d.api.RemoveTagsFromResource, &ssm.RemoveTagsFromResourceInput{
			ResourceType: types.ResourceTypeForTaggingParameter, ResourceId: &p.Name, TagKeys: []string{cloud1.OwnerTag},
		})
		return err
	})
	remove := p.Try(func() error {
		_, err := cloud1.Do(ctx, d.Session, "DeleteParameter", false, d.api.DeleteParameter, &ssm.DeleteParameterInput{Name: &p.Name})
		return err
	})
	named := read.Err == nil || tags.Err == nil || tag.Err == nil || remove.Err == nil // of the calls on this name
	p.Report("read", named, probed, list, read, tags)
	p.Add(destination.Check{Name: "create", Unknown: true, Text: "it cannot be tried without writing: the credentials need PutParameter and AddTagsToResource"})
	p.Add(destination.Check{Name: "write", Unknown: true, Text: "it cannot be tried without writing: the credentials need PutParameter, and the use of the key of KMS"})
	p.Report("delete", named, probed, remove)
	p.Report("tags", named, probed, tag, untag)
	return p.Checks
}
