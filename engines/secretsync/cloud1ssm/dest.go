package cloud1ssm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const pageSize = 50

// dest is one region of one account.
type dest struct {
	*cloud1.Session
	config Config
	api    *ssm.Client
}

var _ destination.Destination = (*dest)(nil)

// tags is the Handle of what Read has found.
type tags map[string]string

// versionOf tells a version from those of a parameter of the same name that was deleted.
func versionOf(number int64, at *time.Time) string {
	return fmt.Sprintf("%d.%d", number, sdk.ToTime(at).UnixMilli())
}

// Read implements destination.Destination. A value that the credentials may not read is not known, and no error.
func (d *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	found, err := d.read(ctx, name, true)
	if (errors.Is(err, cloud1.AccessDenied) || errors.Is(err, invalidKey)) && !errors.Is(err, cloud1.ErrCredentials) {
		return d.read(ctx, name, false)
	}
	return found, err
}

// read is Read with the value, or without it.
func (d *dest) read(ctx context.Context, name string, value bool) (destination.Found, error) {
	absent := destination.Found{Name: name, State: destination.Absent}
	is, err := d.get(ctx, name, value)
	switch {
	case errors.Is(err, notFound):
		return absent, nil
	case err != nil:
		return destination.Found{}, err
	case sdk.ToString(is.Name) != name:
		return destination.Found{}, cloud1.UnexpectedResponse("GetParameter", false)
	}
	of, err := d.tags(ctx, name)
	switch {
	case errors.Is(err, notFoundByTags): // it has gone meanwhile
		return absent, nil
	case err != nil:
		return destination.Found{}, err
	}
	found := destination.Found{
		Name: name, State: destination.Present, ID: name, Version: versionOf(is.Version, is.LastModifiedDate), OwnerTag: of[cloud1.OwnerTag],
		ChangedAt: sdk.ToTime(is.LastModifiedDate), Handle: of,
	}
	if value {
		found.Value, found.Known = []byte(sdk.ToString(is.Value)), true
	}
	return found, nil
}

// get returns a parameter: its current version, or the one after a colon.
func (d *dest) get(ctx context.Context, name string, value bool) (*types.Parameter, error) {
	out, err := cloud1.Do(ctx, d.Session, "GetParameter", false, d.api.GetParameter, &ssm.GetParameterInput{Name: &name, WithDecryption: &value})
	if err != nil {
		return nil, err
	}
	if out.Parameter == nil || out.Parameter.LastModifiedDate == nil {
		return nil, cloud1.UnexpectedResponse("GetParameter", false)
	}
	return out.Parameter, nil
}

func (d *dest) tags(ctx context.Context, name string) (tags, error) {
	out, err := cloud1.Do(ctx, d.Session, "ListTagsForResource", false, d.api.ListTagsForResource, &ssm.ListTagsForResourceInput{
		ResourceType: types.ResourceTypeForTaggingParameter, ResourceId: &name,
	})
	if err != nil {
		return nil, err
	}
	all := tags{}
	for _, tag := range out.TagList {
		all[sdk.ToString(tag.Key)] = sdk.ToString(tag.Value)
	}
	return all, nil
}

// describe goes through the parameters, or those of a name. It stops after the first error. A page may be empty and not the last one.
func (d *dest) describe(ctx context.Context, name string) iter.Seq2[types.ParameterMetadata, error] {
	return func(yield func(types.ParameterMetadata, error) bool) {
		in := &ssm.DescribeParametersInput{MaxResults: sdk.Int32(pageSize)}
		if name != "" {
			in.ParameterFilters = []types.ParameterStringFilter{{Key: sdk.String("Name"), Option: sdk.String("Equals"), Values: []string{name}}}
		}
		for {
			out, err := cloud1.Do(ctx, d.Session, "DescribeParameters", false, d.api.DescribeParameters, in)
			if err != nil {
				yield(types.ParameterMetadata{}, err)
				return
			}
			next := sdk.ToString(out.NextToken)
			broken := next != "" && next == sdk.ToString(in.NextToken)
			for _, p := range out.Parameters {
				if broken = broken || p.Name == nil || p.LastModifiedDate == nil; broken {
					break
				}
				if !yield(p, nil) {
					return
				}
			}
			if broken {
				yield(types.ParameterMetadata{}, cloud1.UnexpectedResponse("DescribeParameters", false))
				return
			}
			if next == "" {
				return
			}
			in.NextToken = &next
		}
	}
}

// List implements destination.Destination. The service's listing has no tags.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		for p, err := range d.describe(ctx, "") {
			found := destination.Found{}
			if err == nil {
				found = destination.Found{
					Name: *p.Name, State: destination.Present, ID: *p.Name, Version: versionOf(p.Version, p.LastModifiedDate), ChangedAt: *p.LastModifiedDate,
				}
			}
			if !yield(found, err) {
				return
			}
		}
	}
}
