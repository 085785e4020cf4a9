package cloud1ssm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const pageSize = 50

// dest is one region of one account.
type dest struct {
	*cloud1.Session
	config Config
}

var _ destination.Destination = (*dest)(nil)

// What requests and responses have.
type (
	object    = map[string]any
	tag       struct{ Key, Value string }
	parameter struct {
		Name, Type, Value, Tier, KeyID string
		Version                        int64
		LastModifiedDate               float64 // seconds
	}
)

// The tiers and types.
const (
	standard     = "Standard"
	advanced     = "Advanced"
	intelligent  = "Intelligent-Tiering"
	secureString = "SecureString"
	plainString  = "String"
)

// tags is the Handle of what Read has found.
type tags map[string]string

// version tells a version from those of a parameter of the same name that was deleted.
func (p *parameter) version() string {
	return fmt.Sprintf("%d.%d", p.Version, p.modifiedAt().UnixMilli())
}

func (p *parameter) modifiedAt() time.Time {
	return time.UnixMilli(int64(math.Round(p.LastModifiedDate * 1000)))
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
	case is.Name != name:
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
		Name: name, State: destination.Present, ID: name, Version: is.version(), OwnerTag: of[cloud1.OwnerTag],
		ChangedAt: is.modifiedAt(), Handle: of,
	}
	if value {
		found.Value, found.Known = []byte(is.Value), true
	}
	return found, nil
}

// get returns a parameter: its current version, or the one after a colon.
func (d *dest) get(ctx context.Context, name string, value bool) (*parameter, error) {
	out, err := cloud1.Call[struct{ Parameter parameter }](ctx, d.Session, "GetParameter", false, object{"Name": name, "WithDecryption": value})
	if err != nil {
		return nil, err
	}
	if out.Parameter.Version < 1 || out.Parameter.LastModifiedDate <= 0 {
		return nil, cloud1.UnexpectedResponse("GetParameter", false)
	}
	return &out.Parameter, nil
}

func (d *dest) tags(ctx context.Context, name string) (tags, error) {
	out, err := cloud1.Call[struct{ TagList []tag }](ctx, d.Session, "ListTagsForResource", false, object{"ResourceType": "Parameter", "ResourceId": name})
	if err != nil {
		return nil, err
	}
	all := tags{}
	for _, tag := range out.TagList {
		all[tag.Key] = tag.Value
	}
	return all, nil
}

// describe goes through the parameters, or those of a name. It stops after the first error. A page may be empty and not the last one.
func (d *dest) describe(ctx context.Context, name string) iter.Seq2[parameter, error] {
	return func(yield func(parameter, error) bool) {
		in, token := object{"MaxResults": pageSize}, ""
		if name != "" {
			in["ParameterFilters"] = []object{{"Key": "Name", "Option": "Equals", "Values": []string{name}}}
		}
		for {
			out, err := cloud1.Call[struct {
				Parameters []parameter
				NextToken  string
			}](ctx, d.Session, "DescribeParameters", false, in)
			if err != nil {
				yield(parameter{}, err)
				return
			}
			broken := out.NextToken != "" && out.NextToken == token
			for _, p := range out.Parameters {
				if broken = broken || p.Name == "" || p.Version < 1; broken {
					break
				}
				if !yield(p, nil) {
					return
				}
			}
			if broken {
				yield(parameter{}, cloud1.UnexpectedResponse("DescribeParameters", false))
				return
			}
			if token = out.NextToken; token == "" {
				return
			}
			in["NextToken"] = token
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
					Name: p.Name, State: destination.Present, ID: p.Name, Version: p.version(), ChangedAt: p.modifiedAt(),
				}
			}
			if !yield(found, err) {
				return
			}
		}
	}
}
