package webhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// dest is one project in some environments. Safe for concurrent use.
type dest struct {
	client  *client
	targets []string // in the order of environments
	hook    string   // deploy_hook_url
}

func open(c destination.Config, env destination.Env) (*dest, error) {
	config, ok := c.(*Config)
	if !ok {
		return nil, destination.InternalError(fmt.Sprintf("webhost-project: a configuration of the type %T", c))
	}
	cl, err := newClient(config, env)
	if err != nil {
		return nil, err
	}
	return &dest{client: cl, targets: both(environments, config.Environments), hook: config.DeployHook.Reveal()}, nil
}

// Close implements destination.Destination.
func (d *dest) Close() error { return d.client.Close() }

// ours reports whether a record has a name in one of our environments.
func (d *dest) ours(r record) bool {
	return r.Branch == "" && len(both(d.targets, r.Targets)) > 0
}

// named returns the records of a name in our environments.
func (d *dest) named(ctx context.Context, name string) ([]record, error) {
	all, hidden, _, err := d.client.list(ctx)
	if err != nil {
		return nil, err
	}
	rs := slices.DeleteFunc(all, func(r record) bool { return r.Key != name || !d.ours(r) })
	if len(rs) == 0 && hidden > 0 && slices.Contains(d.targets, production) {
		return nil, hiddenError(hidden)
	}
	return rs, nil
}

func hiddenError(n int) error {
	return &destination.Error{Class: destination.Client, Code: destination.Denied,
		Text: fmt.Sprintf("access_token may not see %d variables of production: it needs a role that manages them", n)}
}

// Read implements destination.Destination.
func (d *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	if p := checkName(name); p != "" {
		return destination.Found{}, &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: p}
	}
	rs, err := d.named(ctx, name)
	if err != nil {
		return destination.Found{}, err
	}
	return sum(name, rs), nil
}

// List implements destination.Destination.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		all, _, _, err := d.client.list(ctx)
		if err != nil {
			yield(destination.Found{}, err)
			return
		}
		names := map[string][]record{}
		for _, r := range all {
			if d.ours(r) {
				names[r.Key] = append(names[r.Key], r)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !yield(sum(name, names[name]), nil) {
				return
			}
		}
	}
}

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	if err := checkItem(it, was); err != nil {
		return destination.Held{}, err
	}
	var rs []record
	var err error
	if was.State == destination.Absent {
		rs, err = d.create(ctx, it, d.targets)
	} else {
		rs, err = d.replace(ctx, it, was)
	}
	if err != nil {
		return destination.Held{}, err
	}
	f := sum(it.Name, rs)
	return destination.Held{ID: f.ID, Version: f.Version}, nil
}

func checkItem(it destination.Item, was destination.Found) error {
	reject := func(code, text string) error {
		return &destination.Error{Class: destination.Client, Code: code, Text: text}
	}
	p := checkName(it.Name)
	switch {
	case p != "":
		return reject(destination.BadRequest, p)
	case len(it.Value) > maxTotal:
		return reject(destination.TooLarge, fmt.Sprintf("the value has %d bytes, all variables of an environment have at most %d (64 KB) together", len(it.Value), maxTotal))
	case !utf8.Valid(it.Value) || bytes.IndexByte(it.Value, 0) >= 0:
		return reject(destination.BadRequest, "the value is not text in UTF-8 without NUL, which environment variables are")
	case markOf(comment(it.OwnerTag)) != it.OwnerTag || it.OwnerTag == "":
		return destination.InternalError("webhost-project: the mark is not one")
	case was.State == destination.Deleted:
		return destination.InternalError("webhost-project: variables of Vercel cannot be recovered")
	}
	return nil
}

// variables returns the records that a name needs in some environments.
func variables(it destination.Item, targets []string) []variable {
	value := string(it.Value)
	var out []variable
	add := func(kind string, targets []string) {
		if len(targets) > 0 {
			out = append(out, variable{Key: it.Name, Value: &value, Type: kind, Target: targets, Comment: comment(it.OwnerTag)})
		}
	}
	add(sensitive, without(targets, []string{development}))
	add(encrypted, both(targets, []string{development}))
	return out
}

// create makes the records of a name in some environments, all or none: what was made of it is taken back.
func (d *dest) create(ctx context.Context, it destination.Item, targets []string) ([]record, error) {
	vars := variables(it, targets)
	a, err := d.client.create(ctx, vars)
	if err != nil {
		return nil, err
	}
	for _, r := range a.Created {
		if r.Key != it.Name {
			return nil, destination.UnexpectedResponse("Vercel", true)
		}
	}
	if len(a.Failed) == 0 {
		if len(a.Created) != len(vars) {
			return nil, destination.UnexpectedResponse("Vercel", true)
		}
		return a.Created, nil
	}
	e := &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: "Vercel does not take the variable" + vendorCode(a.Failed[0].Error.Code)}
	for _, f := range a.Failed {
		switch {
		case taken(f.Error.Code):
			e.Code, e.Text = destination.Exists, "a variable of this name is there in one of the environments"
		case full(f.Error.Code, "") && e.Code != destination.Exists:
			e.Code, e.Text = destination.Quota, "the project has no room for it: 1,000 variables of 64 KB together for an environment"
		}
	}
	for _, r := range a.Created {
		if err := d.client.remove(ctx, r.ID); err != nil && !gone(err) {
			e.Unknown = true
		}
	}
	return nil, e
}

func gone(err error) bool {
	var e *destination.Error
	return errors.As(err, &e) && e.Code == destination.NoLocation
}

func changed(name string) error {
	return &destination.Error{Class: destination.Client, Code: destination.Changed, Text: name + " has been changed or deleted by another client"}
}

// replace gives the records of a name another value, and makes those that are missing. A record of another client that is
// adopted keeps its other environments with its old value.
func (d *dest) replace(ctx context.Context, it destination.Item, was destination.Found) ([]record, error) {
	now, err := d.named(ctx, it.Name)
	if err != nil {
		return nil, err
	}
	if f := sum(it.Name, now); f.ID != was.ID || f.Version != was.Version {
		return nil, changed(it.Name)
	}
	if slices.ContainsFunc(now, func(r record) bool { return r.Type == system }) {
		return nil, &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: it.Name + " is a variable that Vercel sets itself"}
	}
	var out []record
	missing, touched := d.targets, false
	for _, r := range now {
		kept, err := d.adopt(ctx, it, r)
		if err != nil {
			return nil, after(touched, it.Name, err)
		}
		touched = true
		if kept != nil {
			out = append(out, *kept)
			missing = without(missing, r.Targets)
		}
	}
	if len(missing) > 0 {
		made, err := d.create(ctx, it, missing)
		if err != nil {
			return nil, after(touched, it.Name, err)
		}
		out = append(out, made...)
	}
	if slices.ContainsFunc(out, func(r record) bool { return !r.complete() }) {
		out, err = d.named(ctx, it.Name)
		return out, after(true, it.Name, err)
	}
	return out, nil
}

// adopt makes one record ours, with the new value, and returns it; nil if it cannot be that, and is out of the way instead.
func (d *dest) adopt(ctx context.Context, it destination.Item, r record) (*record, error) {
	inside, mine := both(d.targets, r.Targets), r.Mark == it.OwnerTag
	switch {
	case !mine && d.shared(r):
		return nil, d.release(ctx, r)
	case r.Type != sensitive && r.Type != encrypted: // plain text, which a secret must not be: the type of a record stays
		return nil, d.client.remove(ctx, r.ID)
	}
	value := string(it.Value)
	v := variable{Value: &value, Target: inside, Comment: comment(it.OwnerTag)}
	if len(r.Custom) > 0 {
		v.Custom = new([]string)
		*v.Custom = []string{}
	}
	kept, err := d.client.edit(ctx, r.ID, v)
	return &kept, err
}

// shared reports whether a record has environments that are not ours.
func (d *dest) shared(r record) bool {
	return len(without(r.Targets, d.targets)) > 0 || len(r.Custom) > 0
}

// release takes our environments from a record.
func (d *dest) release(ctx context.Context, r record) error {
	v := variable{Target: without(r.Targets, d.targets)}
	if len(r.Custom) > 0 {
		v.Custom = &r.Custom
	}
	_, err := d.client.edit(ctx, r.ID, v)
	return err
}

// after is the error of one of several steps: those before it have had their effect. A record that is not there any more, or
// an environment that has been taken meanwhile, is a change by another client.
func after(touched bool, name string, err error) error {
	if err == nil {
		return nil
	}
	var e *destination.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	if out.Code == destination.NoLocation || out.Code == destination.Exists {
		out = *changed(name).(*destination.Error)
	}
	out.Unknown = e.Unknown || touched
	return &out
}

// Delete implements destination.Destination. The records are checked again: what has been changed since is left alone.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	if was.State == destination.Absent {
		return nil
	}
	rs, err := d.named(ctx, was.Name)
	if err != nil {
		return err
	}
	if f := sum(was.Name, rs); f.State == destination.Present && (f.ID != was.ID || f.Version != was.Version) {
		return changed(was.Name)
	}
	missing := false
	for i, r := range rs {
		err := d.drop(ctx, r)
		if gone(err) {
			missing = true
		} else if err != nil {
			return after(i > 0, was.Name, err)
		}
	}
	if missing { // the record, or all that we could see
		_, _, _, err := d.client.list(ctx)
		return err
	}
	return nil
}

func (d *dest) drop(ctx context.Context, r record) error {
	if r.Mark == "" && d.shared(r) {
		return d.release(ctx, r)
	}
	return d.client.remove(ctx, r.ID)
}
