package cloud1ssm

import (
	"context"
	"crypto/rand"
	"strings"

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
		_, err := cloud1.Call[struct{}](ctx, d.Session, "DescribeParameters", false, object{"MaxResults": 1})
		return err
	})
	list.Nameless = true
	tags := p.Try(func() error {
		_, err := d.tags(ctx, p.Name)
		return err
	})
	tag := p.Try(func() error { return d.tag(ctx, p.Name, map[string]string{cloud1.OwnerTag: "verify"}) })
	untag := p.Try(func() error { return d.untag(ctx, p.Name, []string{cloud1.OwnerTag}) })
	remove := p.Try(func() error { return d.remove(ctx, p.Name) })
	named := read.Err == nil || tags.Err == nil || tag.Err == nil || remove.Err == nil // of the calls on this name
	p.Report("read", named, probed, list, read, tags)
	p.Add(destination.Check{Name: "create", Unknown: true, Text: "it cannot be tried without writing: the credentials need PutParameter and AddTagsToResource"})
	p.Add(destination.Check{Name: "write", Unknown: true, Text: "it cannot be tried without writing: the credentials need PutParameter, and the use of the key of KMS"})
	p.Report("delete", named, probed, remove)
	p.Report("tags", named, probed, tag, untag)
	return p.Checks
}
