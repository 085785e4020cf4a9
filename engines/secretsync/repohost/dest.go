package repohost

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const (
	pageSize = 100
	maxPages = 20
	// trust is for how long a response shows that the destination is there and lets us in. GitHub answers 404 for a secret that is not
	// there, and for a destination that we may not see.
	trust = 30 * time.Second
	// looks is how often a write looks for its own effect.
	looks = 4
)

// dest is one destination. Safe for concurrent use.
type dest struct {
	config Config
	client *client
	pause  time.Duration // before the second look, doubling

	mu       sync.Mutex
	key      *publicKey
	seen     time.Time     // when the destination has let us in
	pages    map[int]*page // as last seen
	selected []int64       // ids of the selected repositories
	chosen   time.Time     // when they were looked up
}

func open(c destination.Config, env destination.Env) (*dest, error) {
	config, ok := c.(*Config)
	if !ok {
		return nil, destination.InternalError(fmt.Sprintf("repohost: a configuration of the type %T", c))
	}
	getenv := env.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	resolved, problems := config.resolved(getenv)
	if len(problems) > 0 {
		return nil, &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: strings.Join(problems, "; ")}
	}
	cl, err := newClient(resolved, env)
	if err != nil {
		return nil, err
	}
	return &dest{config: resolved, client: cl, pause: 250 * time.Millisecond, pages: map[int]*page{}}, nil
}

// Close implements destination.Destination.
func (d *dest) Close() error { return d.client.Close() }

// Read implements destination.Destination.
func (d *dest) Read(ctx context.Context, name string) (destination.Found, error) {
	if p := checkName(name); p != "" {
		return destination.Found{}, &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: p}
	}
	name = strings.ToUpper(name)
	s, _, err := d.client.get(ctx, name, nil)
	if err == nil && s == nil {
		err = d.there(ctx)
	}
	if err != nil {
		return destination.Found{}, err
	}
	if s == nil {
		return destination.Found{Name: name, State: destination.Absent}, nil
	}
	d.saw()
	return found(s), nil
}

func found(s *secret) destination.Found {
	return destination.Found{Name: s.name, State: destination.Present, ID: s.id, Version: s.version, ChangedAt: s.updated, Handle: s}
}

// saw notes that the destination is there.
func (d *dest) saw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = time.Now()
}

// there makes sure that the destination is there, so that a name which is not found is one that is not there.
func (d *dest) there(ctx context.Context) error {
	d.mu.Lock()
	fresh := time.Since(d.seen) < trust
	d.mu.Unlock()
	if fresh {
		return nil
	}
	_, err := d.fetchKey(ctx)
	return err
}

// fetchKey asks for the key that values are sealed to.
func (d *dest) fetchKey(ctx context.Context) (*publicKey, error) {
	k, _, err := d.client.publicKey(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.key, d.seen = k, time.Now()
	return k, nil
}

func (d *dest) currentKey(ctx context.Context) (*publicKey, error) {
	d.mu.Lock()
	k := d.key
	d.mu.Unlock()
	if k != nil {
		return k, nil
	}
	return d.fetchKey(ctx)
}

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	if err := checkItem(it, was); err != nil {
		return destination.Held{}, err
	}
	name := strings.ToUpper(it.Name)
	now, err := d.unchanged(ctx, name, was)
	if err != nil {
		return destination.Held{}, err
	}
	ids, err := d.repositories(ctx)
	if err != nil {
		return destination.Held{}, err
	}
	created, date, err := d.put(ctx, name, it.Value, ids)
	if err != nil {
		return destination.Held{}, err
	}
	if now == nil && !created {
		return destination.Held{}, &destination.Error{Class: destination.Client, Code: destination.Exists, Unknown: true,
			Text: "another client created " + name + " in the very moment in which it was written, and GitHub has no call that only creates: it has been replaced"}
	}
	return d.awaitVisible(ctx, name, now, date)
}

func checkItem(it destination.Item, was destination.Found) error {
	p := checkName(it.Name)
	switch {
	case p != "":
		return &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: p}
	case len(it.Value) > maxValue:
		return &destination.Error{Class: destination.Client, Code: destination.TooLarge,
			Text: fmt.Sprintf("the value has %d bytes, an Actions secret takes at most %d (48 KB)", len(it.Value), maxValue)}
	case was.State == destination.Deleted:
		return destination.InternalError("repohost: secrets of GitHub cannot be recovered")
	}
	return nil
}

// unchanged looks whether there still is what was found, and returns it: nil if it is nothing.
func (d *dest) unchanged(ctx context.Context, name string, was destination.Found) (*secret, error) {
	var before *secret
	if s, ok := was.Handle.(*secret); ok && was.State == destination.Present && s.id == was.ID && s.version == was.Version {
		before = s
	}
	now, _, err := d.client.get(ctx, name, before)
	switch {
	case err != nil:
		return nil, err
	case was.State == destination.Absent && now != nil:
		return nil, &destination.Error{Class: destination.Client, Code: destination.Exists, Text: name + " has been created by another client"}
	case was.State == destination.Present && now == nil:
		if err := d.there(ctx); err != nil {
			return nil, err
		}
		return nil, &destination.Error{Class: destination.Client, Code: destination.Changed, Text: name + " has been deleted by another client"}
	case was.State == destination.Present && (now.id != was.ID || now.version != was.Version):
		return nil, &destination.Error{Class: destination.Client, Code: destination.Changed, Text: name + " has been changed by another client"}
	}
	return now, nil
}

// put writes a value. A key that has been replaced since we asked for it is asked for again: nothing was written with it.
func (d *dest) put(ctx context.Context, name string, value []byte, ids []int64) (created bool, date time.Time, err error) {
	k, err := d.currentKey(ctx)
	if err != nil {
		return false, date, err
	}
	created, resp, err := d.putWith(ctx, k, name, value, ids)
	if err != nil && resp != nil && resp.Status == http.StatusUnprocessableEntity {
		newer, ferr := d.fetchKey(ctx)
		if ferr != nil {
			return false, date, ferr
		}
		if *newer != *k {
			created, resp, err = d.putWith(ctx, newer, name, value, ids)
		}
	}
	if err != nil {
		return false, date, err
	}
	d.saw()
	date, _ = http.ParseTime(resp.Header.Get("Date"))
	return created, date, nil
}

func (d *dest) putWith(ctx context.Context, k *publicKey, name string, value []byte, ids []int64) (bool, *wire.Response, error) {
	sealed, err := k.seal(value)
	if err != nil {
		return false, nil, err
	}
	body := map[string]any{"key_id": k.id, "encrypted_value": sealed}
	if d.config.SecretsLocation == inOrganization {
		body["visibility"] = d.config.Visibility
		if ids != nil {
			body["selected_repository_ids"] = ids
		}
	}
	return d.client.put(ctx, name, body)
}

// awaitVisible reads what a write has left. GitHub may go on answering what was there before for a moment; date is when it said
// that it had written.
func (d *dest) awaitVisible(ctx context.Context, name string, before *secret, date time.Time) (destination.Held, error) {
	pause := d.pause
	for n := 0; ; n++ {
		now, _, err := d.client.get(ctx, name, nil)
		if err != nil {
			return destination.Held{}, unknown(err)
		}
		// The same time as before is the time of our write if that was in the same second.
		if now != nil && (before == nil || *now != (secret{name: now.name, id: before.id, version: before.version, updated: before.updated, etag: now.etag}) || date.Sub(before.updated) < 2*time.Second) {
			return destination.Held{ID: now.id, Version: now.version}, nil
		}
		if n+1 == looks {
			return destination.Held{}, &destination.Error{Class: destination.External, Code: destination.Unexpected, Unknown: true,
				Text: "GitHub has taken " + name + ", but does not show it yet"}
		}
		select {
		case <-ctx.Done():
			return destination.Held{}, destination.NoResponse("GitHub", ctx.Err(), true)
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// unknown returns an error of a call that came after a write.
func unknown(err error) error {
	var e *destination.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Unknown = true
	return &out
}

// repositories returns the ids of the repositories that see a secret of the organization, nil if none are selected.
func (d *dest) repositories(ctx context.Context) ([]int64, error) {
	if d.config.Visibility != "selected" {
		return nil, nil
	}
	d.mu.Lock()
	ids, fresh := d.selected, time.Since(d.chosen) < 10*time.Minute
	d.mu.Unlock()
	if ids != nil && fresh {
		return ids, nil
	}
	ids = make([]int64, 0, len(d.config.Selected))
	for _, name := range d.config.Selected {
		id, err := d.client.repositoryID(ctx, d.config.Organization, name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.selected, d.chosen = ids, time.Now()
	return ids, nil
}

// Delete implements destination.Destination.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	if was.State == destination.Absent {
		return nil
	}
	if p := checkName(was.Name); p != "" {
		return &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: p}
	}
	name := strings.ToUpper(was.Name)
	before, _ := was.Handle.(*secret)
	now, _, err := d.client.get(ctx, name, before)
	switch {
	case err != nil:
		return err
	case now == nil:
		return d.gone(ctx)
	case now.id != was.ID || now.version != was.Version:
		return &destination.Error{Class: destination.Client, Code: destination.Changed, Text: name + " has been changed by another client"}
	}
	resp, err := d.client.do(ctx, call{method: http.MethodDelete, path: d.client.base + "/" + name, writes: true})
	if err != nil && resp != nil && resp.Status == http.StatusNotFound {
		return d.gone(ctx)
	}
	return err
}

// gone makes sure that a name which is not found for Delete is not one that may not be seen any more. What was deleted is
// forgotten, so no earlier look will do.
func (d *dest) gone(ctx context.Context) error {
	_, err := d.fetchKey(ctx)
	return err
}

// List implements destination.Destination. Pages that have not changed cost nothing of the budget that GitHub counts.
func (d *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		for n := 1; n != 0; {
			if n > maxPages {
				yield(destination.Found{}, destination.UnexpectedResponse("GitHub", false))
				return
			}
			d.mu.Lock()
			before := d.pages[n]
			d.mu.Unlock()
			p, _, err := d.client.list(ctx, n, pageSize, before)
			if err != nil {
				yield(destination.Found{}, err)
				return
			}
			d.mu.Lock()
			d.pages[n], d.seen = p, time.Now()
			d.mu.Unlock()
			for _, s := range p.secrets {
				f := found(s)
				f.Handle = nil
				if !yield(f, nil) {
					return
				}
			}
			n = p.next
		}
	}
}
