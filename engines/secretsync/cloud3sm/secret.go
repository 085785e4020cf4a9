package cloud3sm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The annotations that we write.
const (
	markKey     = "coffer-sync"     // whose a secret is
	versionsKey = "coffer-versions" // which versions are ours
)

// The calls, by the permissions that they need.
var (
	opGet        = op{name: "secrets.get"}
	opList       = op{name: "secrets.list"}
	opCreate     = op{name: "secrets.create", writes: true}
	opUpdate     = op{name: "secrets.update", writes: true}
	opDelete     = op{name: "secrets.delete", writes: true}
	opAdd        = op{name: "versions.add", writes: true, value: true}
	opAccess     = op{name: "versions.access", value: true}
	opGetVersion = op{name: "versions.get"}
	opDestroy    = op{name: "versions.destroy", writes: true}
)

func (p *dest) parent() string { return "projects/" + p.project }

func (p *dest) path(name string) string { return p.parent() + "/secrets/" + name }

// legal keeps what is not a name out of resource names.
func legal(name string) error {
	if problem := checkName(name); problem != "" {
		return misconfigured(problem)
	}
	return nil
}

// Read implements destination.Destination.
func (p *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	defer p.enter()()
	if err := legal(name); err != nil {
		return destination.Found{}, err
	}
	s, err := p.get(ctx, opGet, name)
	if errors.Is(err, errNotFound) {
		return destination.Found{Name: name}, nil
	}
	if err != nil {
		return destination.Found{}, err
	}
	f, err := found(s)
	if err != nil {
		return destination.Found{}, err
	}
	v, err := p.latest(ctx, opAccess, s)
	if err != nil {
		return destination.Found{}, err
	}
	f.Version, f.Value, f.Known = v.id(), v.value, v.known
	return f, nil
}

func (p *dest) get(ctx context.Context, o op, name string) (*secretmanagerpb.Secret, error) {
	s, err := call(ctx, p, o, func(ctx context.Context) (*secretmanagerpb.Secret, error) {
		return p.api.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: p.path(name)})
	})
	if err == nil && last(s.GetName()) != name {
		return nil, unexpected("Secret Manager answers with another secret than was asked for")
	}
	return s, err
}

// found says what is known of a secret without its versions.
func found(s *secretmanagerpb.Secret) (destination.Found, error) {
	name := last(s.GetName())
	if checkName(name) != "" || s.GetCreateTime() == nil || s.GetEtag() == "" {
		return destination.Found{}, unexpected("Secret Manager answers with a secret that lacks its name, etag or time")
	}
	return destination.Found{
		Name: name, State: destination.Present, OwnerTag: s.Annotations[markKey], ID: identity(s), Handle: s,
	}, nil
}

// identity is the time when a secret was made: one that is created again under its name has another.
func identity(s *secretmanagerpb.Secret) string {
	return s.GetCreateTime().AsTime().UTC().Format(time.RFC3339Nano)
}

func last(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// Write implements destination.Destination.
func (p *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	defer p.enter()()
	if err := legal(it.Name); err != nil {
		return destination.Held{}, err
	}
	switch n := len(it.Value); {
	case n == 0:
		return destination.Held{}, misconfigured("the value is empty, which Secret Manager does not take")
	case n > maxValue:
		return destination.Held{}, &destination.Error{
			Class: destination.Client, Code: destination.TooLarge,
			Text: fmt.Sprintf("the value has %d bytes, Secret Manager takes %d", n, maxValue),
		}
	}
	write := p.replace
	if was.State == destination.Absent {
		write = p.create
	}
	s, err := write(ctx, it, was)
	if err != nil {
		return destination.Held{}, err
	}
	// From here on a part of the write may have been done, whatever comes.
	n, err := p.add(ctx, it, was.State == destination.Absent)
	if err != nil {
		return destination.Held{}, err
	}
	held := destination.Held{ID: identity(s), Version: strconv.FormatInt(n, 10)}
	p.made.Store(it.Name, held)
	p.retire(ctx, s, n)
	return held, nil
}

// create makes a secret without a version, or fails if there is one of the name.
func (p *dest) create(ctx context.Context, it destination.Item, _ destination.Found) (*secretmanagerpb.Secret, error) {
	return call(ctx, p, opCreate, func(ctx context.Context) (*secretmanagerpb.Secret, error) {
		return p.api.CreateSecret(ctx, &secretmanagerpb.CreateSecretRequest{
			Parent: p.parent(), SecretId: it.Name,
			Secret: &secretmanagerpb.Secret{
				Replication: p.replication.message(), Labels: it.Tags,
				Annotations: map[string]string{markKey: it.OwnerTag, versionsKey: "1"}, // which the first will have
			},
		})
	})
}

// replace makes sure that a secret is still what was read, and has our ownership tag and labels. Whatever is annotated or labelled
// besides stays.
func (p *dest) replace(ctx context.Context, it destination.Item, was destination.Found) (*secretmanagerpb.Secret, error) {
	old, ok := was.Handle.(*secretmanagerpb.Secret)
	if !ok || last(old.Name) != it.Name {
		return nil, &destination.Error{Class: destination.Internal, Code: destination.Unexpected, Text: "a write needs what a read has found"}
	}
	if err := p.replication.check(old); err != nil {
		return nil, err
	}
	v, err := p.latest(ctx, opAccess.change(), old)
	if err != nil {
		return nil, err
	}
	if v.id() != was.Version {
		return nil, changed("the secret has another version than when it was read")
	}
	labels, annotations := wanted(old, it)
	var s *secretmanagerpb.Secret
	if maps.Equal(labels, old.Labels) && maps.Equal(annotations, old.Annotations) {
		s, err = p.get(ctx, opGet.change(), it.Name)
	} else {
		s, err = p.update(ctx, &secretmanagerpb.Secret{Name: p.path(it.Name), Etag: old.Etag, Labels: labels, Annotations: annotations}, "labels", "annotations")
	}
	switch {
	case errors.Is(err, errNotFound):
		return nil, changed("the secret has been deleted since it was read")
	case errors.Is(err, errPrecondition):
		return nil, changed("the secret has been changed since it was read")
	case err != nil:
		return nil, err
	case identity(s) != was.ID:
		return nil, changed("the secret has been deleted and created again since it was read")
	case maps.Equal(labels, s.Labels) && maps.Equal(annotations, s.Annotations):
		return s, nil
	}
	return nil, changed("the labels or annotations of the secret have been changed since it was read")
}

// wanted returns the labels and annotations that a secret is to have.
func wanted(s *secretmanagerpb.Secret, it destination.Item) (labels, annotations map[string]string) {
	labels = maps.Clone(s.Labels)
	for _, key := range it.OldTags {
		delete(labels, key)
	}
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, it.Tags)
	annotations = maps.Clone(s.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	if annotations[markKey] != it.OwnerTag { // the versions of its former owner are not ours
		delete(annotations, versionsKey)
	}
	annotations[markKey] = it.OwnerTag
	return labels, annotations
}

func (p *dest) update(ctx context.Context, s *secretmanagerpb.Secret, fields ...string) (*secretmanagerpb.Secret, error) {
	return call(ctx, p, opUpdate, func(ctx context.Context) (*secretmanagerpb.Secret, error) {
		return p.api.UpdateSecret(ctx, &secretmanagerpb.UpdateSecretRequest{Secret: s, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}})
	})
}

// add adds a version and returns its number. Its error is always one of a write that may have been done in part: the secret
// has been made, or is marked as ours.
func (p *dest) add(ctx context.Context, it destination.Item, created bool) (int64, error) {
	v, err := call(ctx, p, opAdd, func(ctx context.Context) (*secretmanagerpb.SecretVersion, error) {
		return p.api.AddSecretVersion(ctx, &secretmanagerpb.AddSecretVersionRequest{
			Parent:  p.path(it.Name),
			Payload: &secretmanagerpb.SecretPayload{Data: it.Value, DataCrc32C: checksum(it.Value)},
		})
	})
	switch {
	case errors.Is(err, errNotFound) && created: // the service is consistent in the end only
		err = &destination.Error{Class: destination.External, Code: destination.Unavailable, Text: "Secret Manager does not see yet the secret that was made just now"}
	case errors.Is(err, errNotFound):
		err = changed("the secret has been deleted since it was read")
	}
	var n int64
	if err == nil {
		n, err = number(v.GetName(), it.Name)
	}
	if e := (*destination.Error)(nil); errors.As(err, &e) {
		e.Unknown = true
	}
	return n, err
}

// Delete implements destination.Destination.
func (p *dest) Delete(ctx context.Context, was destination.Found) error {
	defer p.enter()()
	if was.State == destination.Absent {
		return nil
	}
	if err := legal(was.Name); err != nil {
		return err
	}
	s, ok := was.Handle.(*secretmanagerpb.Secret)
	if !ok { // all that is known is what was written down
		var err error
		if s, err = p.get(ctx, opGet.change(), was.Name); errors.Is(err, errNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		if identity(s) != was.ID {
			return changed("the secret has been deleted and created again")
		}
	}
	if was.Version != "" { // the etag does not stand for the versions
		v, err := p.latest(ctx, opAccess.change(), s)
		if err != nil {
			return err
		}
		if v.id() != was.Version && v.n > 0 {
			return changed("the secret has another version than when it was read")
		}
	}
	p.made.Delete(was.Name)
	_, err := call(ctx, p, opDelete, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.api.DeleteSecret(ctx, &secretmanagerpb.DeleteSecretRequest{Name: p.path(was.Name), Etag: s.Etag})
	})
	switch {
	case errors.Is(err, errNotFound):
		return nil
	case errors.Is(err, errPrecondition):
		return changed("the secret has been changed since it was read")
	}
	return err
}
