package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Upgrade implements engines.Upgrader. The secrets of version 1 stay where they are and read as the first versions of secrets
// of version 2; what changes one converts it before, and Work converts the others.
func (*engineV2) Upgrade(ctx context.Context, m engines.Mount) error {
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		c, err := getConfig(ctx, t)
		if err != nil {
			return err
		}
		c.upgraded = now()
		return c.put(t)
	})
	return err
}

// unconverted returns a secret of version 1 as a record with its data in it, nil if there is none.
func unconverted(ctx context.Context, s engines.Getter, path string) (*record, storage.Index, error) {
	c, err := getConfig(ctx, s)
	if err != nil || c.upgraded == 0 {
		return nil, 0, err
	}
	e, err := s.Get(ctx, keyV1(path))
	if errors.Is(err, storage.ErrNotFound) {
		return storedRecord(ctx, s, path) // converted since
	}
	if err != nil {
		return nil, 0, err
	}
	_, data, err := decodeHeader(e.Value)
	if err != nil {
		return nil, 0, fmt.Errorf("secret %q: %w", path, err)
	}
	return firstVersion(c.upgraded, data), e.Version, nil
}

func firstVersion(created instant, data json.RawMessage) *record {
	return &record{created: created, updated: created, current: 1, versions: []version{{number: 1, created: created}}, unconverted: data}
}

// recordToChange is getRecord for a transaction that may change the secret: one of version 1 is converted.
func recordToChange(ctx context.Context, t *storage.Txn, path string) (*record, error) {
	r, err := getRecord(ctx, t, path)
	if r != nil && r.unconverted != nil {
		r.convert(t, path)
	}
	return r, err
}

func (r *record) convert(t *storage.Txn, path string) {
	t.Put(payloadKey(path, 1), encodeHeader(int64(r.created), r.unconverted))
	t.Put(recordKey(path), r.encode())
	t.Delete(keyV1(path))
	r.unconverted = nil
}

// merged returns the names that list gives, also those of secrets that are not converted yet.
func merged(ctx context.Context, s storage.Reader, in *listIn, list func(context.Context, storage.Reader, storage.Key, *listIn) ([]string, error)) ([]string, error) {
	names, err := list(ctx, s, recordKey(""), in)
	if err != nil {
		return nil, err
	}
	c, err := getConfig(ctx, s)
	if err != nil || c.upgraded == 0 {
		return names, err
	}
	more, err := list(ctx, s, keyV1(""), in)
	names = append(names, more...)
	slices.Sort(names)
	names = slices.Compact(names)
	if in.Limit > 0 {
		names = names[:min(in.Limit, len(names))]
	}
	return names, err
}

// Work of an upgrade: it converts secrets in batches until none of version 1 is left, and none can come any more from a
// request that began before the upgrade.
const (
	convertEntries = 64
	convertBytes   = storage.MaxBatchBytes / 2
	upgradeLasts   = time.Hour // at least; longer than any request
)

// Work implements engines.Worker.
func (e *engineV2) Work(ctx context.Context, m engines.Mount, owner bool) error {
	if !owner || e.upgraded.Load() {
		return nil
	}
	c, err := getConfig(ctx, m.Storage)
	if err != nil {
		return err
	}
	if c.upgraded == 0 {
		e.upgraded.Store(true)
		return nil
	}
	found, err := convertAll(ctx, m.Storage)
	if err != nil || found || now()-c.upgraded < instant(upgradeLasts) {
		return err
	}
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		c, err := getConfig(ctx, t)
		if err != nil {
			return err
		}
		c.upgraded = 0
		return c.put(t)
	})
	return err
}

// convertAll converts what is left of version 1 and reports whether there was anything. What cannot be converted does not
// keep the rest from it.
func convertAll(ctx context.Context, s storage.Store) (found bool, err error) {
	for after := storage.Key(""); ; {
		entries, scanErr := s.Scan(ctx, keyV1(""), after, convertEntries)
		if scanErr != nil || len(entries) == 0 {
			return found, errors.Join(err, scanErr)
		}
		found, after = true, entries[len(entries)-1].Key
		for len(entries) > 0 {
			n, size := 1, len(entries[0].Value)
			for n < len(entries) && size+len(entries[n].Value) <= convertBytes {
				size += len(entries[n].Value)
				n++
			}
			if convertSome(ctx, s, entries[:n]) != nil {
				for i := range n {
					err = errors.Join(err, convertSome(ctx, s, entries[i:i+1]))
				}
			}
			entries = entries[n:]
		}
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
	}
}

func convertSome(ctx context.Context, s storage.Store, entries []storage.Entry) error {
	_, err := storage.Update(ctx, s, func(t *storage.Txn) error {
		for _, e := range entries {
			if err := convertSecret(ctx, t, strings.TrimPrefix(string(e.Key), string(keyV1("")))); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// convertSecret converts one secret. If it has become one of version 2 meanwhile, what is left of version 1 comes from a
// request that began before the upgrade and ended after it: it is the newest version.
func convertSecret(ctx context.Context, t *storage.Txn, path string) error {
	e, err := t.Get(ctx, keyV1(path))
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, data, err := decodeHeader(e.Value)
	if err != nil {
		return fmt.Errorf("secret %q: %w", path, err)
	}
	r, err := recordToChange(ctx, t, path)
	if err != nil {
		return err
	}
	if _, err := t.Get(ctx, keyV1(path)); errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	c, err := getConfig(ctx, t)
	if err != nil {
		return err
	}
	t.Delete(keyV1(path))
	_, err = r.put(t, path, c, data)
	return err
}
