package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

var versionsPrefix = storage.NewKey(storage.Local, "sys", "root/versions/")

// VersionHistory remembers which versions of the product have been active in this cluster, and since when.
type VersionHistory struct {
	Store   storage.Store
	Version string // that runs here
	Built   string // RFC 3339, may be empty
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// installed is what is stored for a version.
type installed struct {
	Format   int       `json:"format"` // 1
	At       time.Time `json:"at"`
	Previous string    `json:"previous,omitempty"`
	Built    string    `json:"built,omitempty"`

	version string
}

// Routes declares sys/version-history.
func (v VersionHistory) Routes(r *engines.Router) {
	engines.On(r, engines.List, "version-history", "List the versions that have been active in this cluster, oldest first.", engines.RootNamespace, v.list).
		Returns("key_info: {*: {build_date, previous_version: string?, timestamp_installed}}, keys: [string]")
}

// Record notes the running version when it is active for the first time. Call it when the node becomes active.
func (v VersionHistory) Record(ctx context.Context) error {
	now := v.Now
	if now == nil {
		now = time.Now
	}
	key := versionsPrefix + storage.Key(v.Version)
	_, err := storage.Update(ctx, v.Store, func(t *storage.Txn) error {
		if _, err := t.Get(ctx, key); !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		all, err := v.all(ctx)
		if err != nil {
			return err
		}
		entry := installed{Format: 1, At: now().UTC(), Built: v.Built}
		if len(all) > 0 {
			entry.Previous = all[len(all)-1].version
		}
		value, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		t.Put(key, value)
		return nil
	})
	if err != nil {
		return fmt.Errorf("recording the version: %w", err)
	}
	return nil
}

// all returns what is stored, oldest first.
func (v VersionHistory) all(ctx context.Context) ([]installed, error) {
	entries, err := v.Store.Scan(ctx, versionsPrefix, "", 0)
	if err != nil {
		return nil, err
	}
	all := make([]installed, len(entries))
	for i, e := range entries {
		if err := json.Unmarshal(e.Value, &all[i]); err != nil {
			return nil, fmt.Errorf("decoding the entry of a version: %w", err)
		}
		if all[i].Format != 1 {
			return nil, fmt.Errorf("the entry of a version has format %d, this build knows 1", all[i].Format)
		}
		all[i].version = string(e.Key[len(versionsPrefix):])
	}
	slices.SortStableFunc(all, func(a, b installed) int { return a.At.Compare(b.At) })
	return all, nil
}

func (v VersionHistory) list(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	all, err := v.all(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, engines.NotFound("")
	}
	keys, info := []string{}, map[string]any{}
	for _, i := range all {
		keys = append(keys, i.version)
		about := map[string]any{"timestamp_installed": rfc3339(i.At), "previous_version": nil, "build_date": i.Built}
		if i.Previous != "" {
			about["previous_version"] = i.Previous
		}
		info[i.version] = about
	}
	data := map[string]any{"keys": keys, "key_info": info}
	return &engines.Response{Data: data}, nil
}
