package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/storage"
)

// Where enabled devices are stored, through the barrier; local ones do not replicate. A device's path is
// escaped to one segment, so that no path reaches into another part of the area.
const (
	sharedPrefix storage.Key = "s/sys/audit/"
	localPrefix  storage.Key = "l/sys/audit/"
)

func storageKey(prefix storage.Key, path string) storage.Key {
	return prefix + storage.Key(url.PathEscape(path))
}

// Table keeps the enabled devices in storage and a Broker in step with them, on every node. Safe for
// concurrent use.
type Table struct {
	store  storage.Store
	files  device.Files
	broker *Broker

	declared declared

	changes atomic.Uint64 // counts changes to stored devices and headers
	seen    atomic.Uint64 // value of changes that the broker is in step with

	searching sync.Mutex

	mu     sync.Mutex
	loaded bool              // between Load and Unload
	stored map[string]string // path to the entry the broker's device was made from
}

// NewTable returns a table without devices: call Load when storage can be read, and hand every change of
// storage to Changed. store gives and takes plaintext. log may be nil.
func NewTable(store storage.Store, files device.Files, log *slog.Logger) *Table {
	t := &Table{store: store, files: files, broker: NewBroker(log)}
	t.broker.refresh = t.refresh
	return t
}

// Broker returns the broker of the enabled devices, always the same one.
func (t *Table) Broker() *Broker { return t.broker }

// Changed notes whether devices or headers changed. It runs on the apply path and reads nothing: the next record does.
func (t *Table) Changed(ch storage.Change) {
	if ch.Touches(sharedPrefix, localPrefix, headersPrefix) {
		t.changes.Add(1)
	}
}

// Load opens the stored devices. A device that cannot be opened on this node is enabled all the same and
// fails with each record.
func (t *Table) Load(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.loadLocked(ctx); err != nil {
		return err
	}
	entries, err := t.scan(ctx)
	if err != nil {
		return err
	}
	t.expect(entries)
	t.loaded = true
	t.broker.reopen()
	return nil
}

// Unload closes all devices, when the server seals: from now on every record is rejected.
func (t *Table) Unload() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded, t.stored = false, nil
	t.settle()
	return t.broker.Close()
}

// refresh loads again if something changed. Requests that come meanwhile wait: none may miss a new device.
func (t *Table) refresh(ctx context.Context) error {
	if err := t.await(ctx); err != nil {
		return err
	}
	if t.seen.Load() == t.changes.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded || t.seen.Load() == t.changes.Load() {
		return nil
	}
	return t.loadLocked(context.WithoutCancel(ctx)) // a client that hung up does not keep its request out of the audit log
}

func (t *Table) loadLocked(ctx context.Context) error {
	seen := t.changes.Load()
	recorded, err := t.loadHeaders(ctx)
	if err != nil {
		return err
	}
	entries, err := t.scan(ctx)
	if err != nil {
		return err
	}
	want := map[string]string{}
	for _, e := range entries {
		var c device.Config
		if err := json.Unmarshal(e.Value, &c); err != nil {
			return fmt.Errorf("decoding audit device %s: %w", e.Key, err)
		}
		want[c.Path] = string(e.Value)
		if t.stored[c.Path] != string(e.Value) {
			t.add(c)
		}
	}
	for path := range t.stored {
		if _, ok := want[path]; !ok {
			t.logClose(path, t.broker.Remove(path))
		}
	}
	t.broker.headers.Store(record.NewHeaders(recorded))
	t.stored = want
	t.seen.Store(seen)
	return nil
}

// scan returns the stored devices, the shared ones first.
func (t *Table) scan(ctx context.Context) ([]storage.Entry, error) {
	shared, err := t.store.Scan(ctx, sharedPrefix, "", 0)
	if err != nil {
		return nil, fmt.Errorf("reading the audit devices: %w", err)
	}
	local, err := t.store.Scan(ctx, localPrefix, "", 0)
	if err != nil {
		return nil, fmt.Errorf("reading the audit devices: %w", err)
	}
	return append(shared, local...), nil
}

// add enables a device. One that this node cannot make (a newer build enabled it, or this node's configuration does not
// name its directory) rejects every record.
func (t *Table) add(c device.Config) {
	opened, err := c.Open(t.files)
	if file := t.files.Outside(opened); file != "" && !c.Declared {
		t.broker.log.Warn("an audit device of an earlier version writes outside of the directories that the configuration names: add its directory to audit.file_roots, disable the device and enable it again", "mount", c.Path, "file", file)
	}
	if err != nil {
		opened = refusing{err}
		c.Type, c.Options = device.TypeFile, map[string]string{"file_path": "discard"}
	}
	if err := t.broker.Add(c, opened); err != nil {
		t.logClose(c.Path, err)
	}
}

func (t *Table) logClose(path string, err error) {
	if err != nil {
		t.broker.log.Warn("closing an audit device", "mount", path, "err", err)
	}
}

// refusing is a device that takes nothing.
type refusing struct{ err error }

func (r refusing) Write(context.Context, []byte) error { return r.err }
func (r refusing) Reload() error                       { return r.err }
func (r refusing) Close() error                        { return nil }

// Enable tests a device with a real record and stores it; Salt and Created are set here. Errors of
// engines.KindInvalid say what to change; the device is then not enabled.
func (t *Table) Enable(ctx context.Context, c device.Config) error {
	c.Path, c.Salt, c.Created = device.CleanPath(c.Path), device.NewSalt(), time.Now().UTC().Truncate(time.Second)
	c.Confined = true
	if err := c.Validate(); err != nil {
		return err
	}
	if err := free(ctx, t.store, c.Path); err != nil {
		return err
	}
	if err := t.probe(ctx, c); err != nil {
		return &engines.Error{Kind: engines.KindInvalid, Detail: fmt.Sprintf("the audit device cannot be written: %v", err), Err: err}
	}
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	prefix := sharedPrefix
	if c.Local {
		prefix = localPrefix
	}
	_, err = storage.Update(ctx, t.store, func(tx *storage.Txn) error {
		if err := free(ctx, tx, c.Path); err != nil {
			return err
		}
		tx.Put(storageKey(prefix, c.Path), value)
		return nil
	})
	t.changes.Add(1)
	return err
}

// free reports, as an error for the client, that a path is in use.
func free(ctx context.Context, r interface {
	Get(context.Context, storage.Key) (storage.Entry, error)
}, path string) error {
	for _, prefix := range []storage.Key{sharedPrefix, localPrefix} {
		switch _, err := r.Get(ctx, storageKey(prefix, path)); {
		case err == nil:
			return engines.Invalid("path is already in use at %s/", path)
		case !errors.Is(err, storage.ErrNotFound):
			return err
		}
	}
	return nil
}

// probe writes one record to a device that is not enabled yet.
func (t *Table) probe(ctx context.Context, c device.Config) error {
	opened, err := c.Open(t.files)
	if err != nil {
		return err
	}
	test := NewBroker(nil)
	if err := test.Add(c, opened); err != nil {
		return err
	}
	r := &record.Record{Request: record.Request{Operation: "update", NamespaceID: "root", Path: "sys/audit/test"}}
	return errors.Join(test.write(ctx, test.sinks[0], record.Event{Record: r, At: time.Now(), Headers: test.headers.Load()}), test.Close())
}

// Disable forgets the device at path. One that does not exist is fine.
func (t *Table) Disable(ctx context.Context, path string) error {
	path = device.CleanPath(path)
	_, err := storage.Update(ctx, t.store, func(tx *storage.Txn) error {
		for _, prefix := range []storage.Key{sharedPrefix, localPrefix} {
			key := storageKey(prefix, path)
			switch e, err := tx.Get(ctx, key); {
			case err == nil:
				if err := checkDeclared(e.Value); err != nil {
					return err
				}
				tx.Delete(key)
			case !errors.Is(err, storage.ErrNotFound):
				return err
			}
		}
		return nil
	})
	t.changes.Add(1)
	return err
}

// List returns the stored devices by path, without their salts.
func (t *Table) List(ctx context.Context) ([]device.Config, error) {
	entries, err := t.scan(ctx)
	if err != nil {
		return nil, err
	}
	var list []device.Config
	for _, e := range entries {
		var c device.Config
		if err := json.Unmarshal(e.Value, &c); err != nil {
			return nil, fmt.Errorf("decoding audit device %s: %w", e.Key, err)
		}
		c.Salt = nil
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b device.Config) int { return cmp.Compare(a.Path, b.Path) })
	return list, nil
}

// Hash returns input as the device at path writes it, or ErrNoDevice.
func (t *Table) Hash(ctx context.Context, path, input string) (string, error) {
	if err := t.refresh(ctx); err != nil {
		return "", err
	}
	return t.broker.Hash(device.CleanPath(path), input)
}

// Numbers are the counters for the metrics. Devices are counted by type: their paths are names that users chose.
func (t *Table) Numbers() map[string]float64 {
	stats := t.broker.Stats()
	n := map[string]float64{
		"audit_request_records_total":  float64(stats.Requests),
		"audit_response_records_total": float64(stats.Responses),
		"audit_failures_total":         float64(stats.Failures),
		"audit_device_errors_total":    float64(stats.Errors),
		"audit_lost_records_total":     float64(stats.Lost),
		"audit_seconds_total":          stats.Seconds,
		"audit_devices":                float64(stats.Devices),
		"audit_devices_failing":        0,
	}
	for _, d := range t.broker.Devices() {
		n["audit_"+d.Type+"_written_records"] += float64(d.Records)
		n["audit_"+d.Type+"_failed_records"] += float64(d.Errors)
		n["audit_"+d.Type+"_skipped_records"] += float64(d.Skipped)
		if d.Failing {
			n["audit_devices_failing"]++
		}
	}
	return n
}

// Dirs returns the directories that devices of this node write files in, or may.
func (t *Table) Dirs() []string { return append(t.broker.dirs(), t.files.Roots...) }

// Reload reopens all devices, on SIGHUP.
func (t *Table) Reload() error { return t.broker.Reload() }
