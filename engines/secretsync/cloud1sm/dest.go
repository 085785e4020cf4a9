package cloud1sm

import (
	"context"
	"errors"
	"iter"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	current  = "AWSCURRENT" // the label of the version that is read
	written  = "COFFER"     // that of the one we wrote last
	pageSize = 100
)

// dest is one region of one account.
type dest struct {
	*cloud1.Session
	config Config
	api    *secretsmanager.Client
}

var _ destination.Destination = (*dest)(nil)

// seen is the Handle of what Read has found.
type seen struct {
	tags     map[string]string
	stages   map[string][]string // the labels of each version
	key      string              // "" is the account's own
	replicas map[string]replica  // by region
}

// Read implements destination.Destination. A value that the credentials may not read is not known, and no error.
func (d *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	found, err := d.describe(ctx, name)
	if err != nil || found.State != destination.Present || found.Version == "" {
		return found, err
	}
	out, err := cloud1.Do(ctx, d.Session, "GetSecretValue", false, d.api.GetSecretValue, &secretsmanager.GetSecretValueInput{
		SecretId: &found.ID, VersionId: &found.Version,
	})
	switch {
	case err == nil:
	case unreadable(err):
		return found, nil
	case errors.Is(err, cloud1.NotFound), errors.Is(err, cloud1.InvalidRequest): // it has changed meanwhile
		return d.describe(ctx, name)
	default:
		return destination.Found{}, err
	}
	switch {
	case out.SecretString != nil:
		found.Value, found.Known = []byte(*out.SecretString), true
	case out.SecretBinary != nil:
		found.Value, found.Known = out.SecretBinary, true
	}
	return found, nil
}

// unreadable reports whether it is the value, and not the destination, that we are kept from.
func unreadable(err error) bool {
	return (errors.Is(err, cloud1.AccessDenied) || errors.Is(err, cloud1.Decryption)) && !errors.Is(err, cloud1.ErrCredentials)
}

// describe is Read without the value. It takes an ARN, too.
func (d *dest) describe(ctx context.Context, name string) (destination.Found, error) {
	out, err := cloud1.Do(ctx, d.Session, "DescribeSecret", false, d.api.DescribeSecret, &secretsmanager.DescribeSecretInput{SecretId: &name})
	if errors.Is(err, cloud1.NotFound) {
		return destination.Found{Name: name, State: destination.Absent}, nil
	}
	if err != nil {
		return destination.Found{}, err
	}
	if out.ARN == nil || out.Name == nil || *out.Name != name && *out.ARN != name {
		return destination.Found{}, cloud1.UnexpectedResponse("DescribeSecret", false)
	}
	found := foundOf(*out.Name, *out.ARN, out.DeletedDate != nil, out.Tags, out.VersionIdsToStages)
	found.ChangedAt = sdk.ToTime(out.LastChangedDate)
	found.Handle = &seen{tagsOf(out.Tags), out.VersionIdsToStages, sdk.ToString(out.KmsKeyId), replicasOf(out.ReplicationStatus)}
	return found, nil
}

func foundOf(name, arn string, deleted bool, tags []types.Tag, versions map[string][]string) destination.Found {
	found := destination.Found{Name: name, State: destination.Present, ID: arn, OwnerTag: tagsOf(tags)[cloud1.OwnerTag]}
	if deleted {
		found.State = destination.Deleted
	}
	for id, labels := range versions {
		if slices.Contains(labels, current) {
			found.Version = id
		}
	}
	return found
}

func tagsOf(list []types.Tag) map[string]string {
	tags := map[string]string{}
	for _, tag := range list {
		tags[sdk.ToString(tag.Key)] = sdk.ToString(tag.Value)
	}
	return tags
}

// List implements destination.Destination. The service's listing may be some minutes old.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		in := &secretsmanager.ListSecretsInput{IncludePlannedDeletion: sdk.Bool(true), MaxResults: sdk.Int32(pageSize)}
		for {
			out, err := cloud1.Do(ctx, d.Session, "ListSecrets", false, d.api.ListSecrets, in)
			if err != nil {
				yield(destination.Found{}, err)
				return
			}
			if out.SecretList == nil {
				yield(destination.Found{}, destination.UnexpectedResponse("AWS", false))
				return
			}
			for _, s := range out.SecretList {
				if s.Name == nil || s.ARN == nil {
					yield(destination.Found{}, cloud1.UnexpectedResponse("ListSecrets", false))
					return
				}
				found := foundOf(*s.Name, *s.ARN, s.DeletedDate != nil, s.Tags, s.SecretVersionsToStages)
				found.ChangedAt = sdk.ToTime(s.LastChangedDate)
				if !yield(found, nil) {
					return
				}
			}
			next := sdk.ToString(out.NextToken)
			if next == "" {
				return
			}
			if next == sdk.ToString(in.NextToken) {
				yield(destination.Found{}, cloud1.UnexpectedResponse("ListSecrets", false))
				return
			}
			in.NextToken = &next
		}
	}
}
