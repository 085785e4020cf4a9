package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/storage"
)

// declared are the devices of the configuration. The active node stores them as local devices, which no caller of the API changes.
type declared struct {
	devices atomic.Pointer[[]device.Config]
	active  func() bool // this node stores them
	// pending is closed when they are stored; nil: they are. Records of the active node wait for it.
	pending atomic.Pointer[chan struct{}]
}

// Declare sets the devices of the configuration, which have no salt, before Load or later; Apply stores them. active reports whether
// this node is the active one.
func (t *Table) Declare(devices []device.Config, active func() bool) {
	t.declared.devices.Store(&devices)
	if active != nil {
		t.declared.active = active
	}
}

// same reports whether a stored device is what the configuration says.
func same(stored, want device.Config) bool {
	return stored.Declared && stored.Type == want.Type && stored.Description == want.Description && maps.Equal(stored.Options, want.Options)
}

// difference returns what has to be stored and removed, and the error for each path that a device of the API has.
func (t *Table) difference(entries []storage.Entry) (b storage.Batch, conflicts error) {
	devices := t.declared.devices.Load()
	if devices == nil {
		return b, nil
	}
	want := map[string]device.Config{}
	for _, c := range *devices {
		want[c.Path] = c
	}
	for _, e := range entries {
		var have device.Config
		if err := json.Unmarshal(e.Value, &have); err != nil {
			return b, fmt.Errorf("decoding audit device %s: %w", e.Key, err)
		}
		c, wanted := want[have.Path]
		switch {
		case wanted && same(have, c):
			delete(want, have.Path)
		case wanted && !have.Declared:
			delete(want, have.Path)
			conflicts = errors.Join(conflicts, fmt.Errorf(
				"an audit device that was enabled over the API has the path %s/: disable it, or give the stanza of the configuration another path", have.Path))
		case wanted:
			c.Salt = have.Salt // hashes stay comparable
			want[have.Path] = c
		case have.Declared:
			b.Deletes = append(b.Deletes, e.Key)
		}
	}
	for path, c := range want {
		if c.Salt == nil {
			c.Salt = device.NewSalt()
		}
		c.Created, c.Local, c.Confined, c.Declared = time.Now().UTC().Truncate(time.Second), true, true, true
		value, err := json.Marshal(c)
		if err != nil {
			return b, err
		}
		b.Puts = append(b.Puts, storage.Put{Key: storageKey(localPrefix, path), Value: value})
	}
	return b, conflicts
}

// expect has the records of the active node wait for Apply if the configuration and the stored devices differ.
func (t *Table) expect(entries []storage.Entry) {
	if b, _ := t.difference(entries); len(b.Puts)+len(b.Deletes) > 0 {
		pending := make(chan struct{})
		t.declared.pending.Store(&pending)
	}
}

// settle lets waiting records go on.
func (t *Table) settle() {
	if pending := t.declared.pending.Swap(nil); pending != nil {
		close(*pending)
	}
}

// await waits until the devices of the configuration are stored, on the active node.
func (t *Table) await(ctx context.Context) error {
	pending := t.declared.pending.Load()
	if pending == nil || t.declared.active == nil || !t.declared.active() {
		return nil
	}
	select {
	case <-*pending:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the audit devices of the configuration: %w", ctx.Err())
	}
}

// Apply stores the devices of the configuration on the active node, and removes those that it no longer has. A device that cannot be
// written is enabled all the same, so that it is noticed. Errors name paths that devices of the API have.
func (t *Table) Apply(ctx context.Context) error {
	defer t.settle()
	entries, err := t.scan(ctx)
	if err != nil {
		return err
	}
	b, conflicts := t.difference(entries)
	if len(b.Puts)+len(b.Deletes) == 0 {
		return conflicts
	}
	if _, err := t.store.Commit(ctx, b); err != nil {
		return errors.Join(conflicts, err)
	}
	t.changes.Add(1)
	for _, p := range b.Puts {
		var c device.Config
		if err := json.Unmarshal(p.Value, &c); err != nil {
			return err
		}
		if err := t.probe(ctx, c); err != nil {
			conflicts = errors.Join(conflicts, fmt.Errorf("the audit device %s/ of the configuration cannot be written: %w", c.Path, err))
		}
	}
	return conflicts
}

// checkDeclared rejects what callers want to do with a device of the configuration.
func checkDeclared(value []byte) error {
	var c device.Config
	if err := json.Unmarshal(value, &c); err != nil {
		return err
	}
	if c.Declared {
		return engines.Invalid("the audit device %s/ is in the server's configuration: remove its stanza there, and restart the active node or send it SIGHUP", c.Path)
	}
	return nil
}
