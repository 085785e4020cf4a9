package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// dest is one namespace. Safe for concurrent use.
type dest struct {
	*client
	namespace string
	kind      string // of new Secrets; "": Opaque
	token     string
}

func open(c destination.Config, env destination.Env) (*dest, error) {
	config, ok := c.(*Config)
	if !ok {
		return nil, destination.InternalError(fmt.Sprintf("kubernetes: a configuration of the type %T", c))
	}
	cl, err := newClient(config, env)
	if err != nil {
		return nil, err
	}
	return &dest{client: cl, namespace: config.Namespace, kind: config.SecretType, token: config.Token.Reveal()}, nil
}

// Read implements destination.Destination.
func (d *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	if p := checkName(name); p != "" {
		return destination.Found{}, invalid(p)
	}
	s, err := d.get(ctx, name)
	if errors.Is(err, missing) {
		return destination.Found{Name: name, State: destination.Absent}, nil
	}
	if err != nil {
		return destination.Found{}, err
	}
	f := s.Metadata.found()
	f.Value, f.Known = s.value()
	f.Handle = &seen{keys: slices.Collect(maps.Keys(s.Data)), kind: s.Type, immutable: s.Immutable, deleting: s.Metadata.DeletionTimestamp != ""}
	return f, nil
}

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	if p := checkName(it.Name); p != "" {
		return destination.Held{}, invalid(p)
	}
	if !it.Object && len(it.Value) > maxData {
		return destination.Held{}, tooLarge(len(it.Value))
	}
	data, layout, err := lay(it)
	if err != nil {
		return destination.Held{}, err
	}
	annotations := map[string]string{annotationOwner: it.OwnerTag, annotationLayout: layout}
	var now *secret
	if was.State == destination.Absent {
		labels := map[string]string{labelManagedBy: "coffer"}
		maps.Copy(labels, it.Tags)
		now, _, err = d.create(ctx, d.blank(it.Name, labels, annotations, data), false)
	} else {
		now, err = d.replace(ctx, it, was, annotations, data)
	}
	if err != nil {
		return destination.Held{}, err
	}
	return destination.Held{ID: now.Metadata.UID, Version: now.Metadata.ResourceVersion}, nil
}

// blank returns a new Secret.
func (d *dest) blank(name string, labels, annotations map[string]string, data map[string][]byte) *secret {
	kind := d.kind
	if kind == "" {
		kind = opaque
	}
	return &secret{APIVersion: "v1", Kind: "Secret", Metadata: metadata{Name: name, Labels: labels, Annotations: annotations}, Type: kind, Data: data}
}

// replace gives a Secret other data, if it still is as it was read.
func (d *dest) replace(ctx context.Context, it destination.Item, was destination.Found, annotations map[string]string, data map[string][]byte) (*secret, error) {
	old, ok := was.Handle.(*seen)
	switch {
	case !ok:
		return nil, destination.InternalError("kubernetes: a Secret that was not read")
	case old.deleting:
		return nil, &destination.Error{Class: destination.External, Code: destination.Recovering, Text: "the Secret is being deleted, and waits for its finalizers"}
	case old.immutable:
		return nil, invalid("the Secret is immutable: delete it, and it is created again")
	case d.kind != "" && d.kind != old.kind:
		return nil, invalid(fmt.Sprintf("the Secret has the type %s, which Kubernetes does not change to that of secret_type, %s: delete it, and it is created again", old.kind, d.kind))
	}
	p := new(patch)
	p.Metadata.UID, p.Metadata.ResourceVersion, p.Metadata.Annotations = was.ID, was.Version, annotations
	managed := "coffer"
	p.Metadata.Labels = map[string]*string{labelManagedBy: &managed}
	for _, tag := range it.OldTags {
		p.Metadata.Labels[tag] = nil
	}
	for tag, value := range it.Tags {
		p.Metadata.Labels[tag] = &value
	}
	p.Data = data
	for _, key := range old.keys {
		if _, still := data[key]; !still {
			p.Data[key] = nil
		}
	}
	return d.patch(ctx, it.Name, p)
}

// Delete implements destination.Destination.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	if was.State == destination.Absent {
		return nil
	}
	return d.remove(ctx, was.Name, was.ID, was.Version)
}

// List implements destination.Destination.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		err := d.list(ctx, func(m *metadata) bool { return yield(m.found(), nil) })
		if err != nil {
			yield(destination.Found{}, err)
		}
	}
}

// Verify implements destination.Destination. Permissions are asked for; creating goes through a dry run, too, which finds a missing
// namespace, quotas and admission policies.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	checks := []destination.Check{
		{Name: "reachable", OK: true, Text: "Kubernetes answers"},
		{Name: "credentials", OK: true, Text: "token is accepted"},
	}
	var header http.Header
	for _, of := range []struct{ check, verb string }{{"read", "get"}, {"list", "list"}, {"create", "create"}, {"write", "patch"}, {"delete", "delete"}} {
		allowed, h, err := d.may(ctx, d.namespace, of.verb)
		switch {
		case err != nil && header == nil:
			return destination.FailedChecks("Kubernetes", err)
		case err != nil:
			checks = append(checks, destination.FailedCheck(of.check, err))
		case !allowed:
			checks = append(checks, destination.Check{Name: of.check, Text: fmt.Sprintf("the service account of token may not %s Secrets of the namespace %s: give it a Role with this verb", of.verb, d.namespace)})
		case of.check == "create":
			checks = append(checks, d.verifyCreate(ctx))
		default:
			checks = append(checks, destination.Check{Name: of.check, OK: true, Text: "the service account of token may " + of.verb + " Secrets"})
		}
		if err == nil {
			header = h
		}
	}
	return append(checks, expiry(d.token), destination.ClockCheck("Kubernetes", header.Get("Date"), time.Now()))
}
