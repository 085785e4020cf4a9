package kv

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// engineV2 is a mount of version 2, whose secrets others may be given.
type engineV2 struct {
	engine
	upgraded atomic.Bool // nothing of version 1 is left
}

// LatestSecret implements engines.SecretSource.
func (*engineV2) LatestSecret(ctx context.Context, m engines.Mount, name string) (engines.Secret, error) {
	r, v, data, err := load(ctx, m.Storage, name, 0)
	var e *engines.Error
	if errors.As(err, &e) && e.Kind == engines.KindNotFound {
		return engines.Secret{}, nil
	}
	if err != nil {
		return engines.Secret{}, err
	}
	out := engines.Secret{Version: int(r.current)}
	out.CreatedAt = time.Unix(0, int64(v.created)).UTC()
	if v.deletion != 0 {
		out.DeletedAt = time.Unix(0, int64(v.deletion)).UTC()
	}
	if !v.destroyed && !v.deleted(now()) {
		out.Live, out.Data = true, data
	}
	return out, nil
}

// SecretNames implements engines.SecretSource.
func (*engineV2) SecretNames(ctx context.Context, m engines.Mount, prefix, after string, limit int) ([]string, error) {
	from := storage.Key("")
	if after != "" {
		from = recordKey(after)
	}
	entries, err := m.Storage.Scan(ctx, recordKey(prefix), from, limit)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimPrefix(string(e.Key), string(recordKey("")))
	}
	return names, err
}

// SecretOf implements engines.SecretSource.
func (*engineV2) SecretOf(key storage.Key) (string, bool) {
	return strings.CutPrefix(string(key), string(recordKey("")))
}

// ReadPath implements engines.SecretSource.
func (*engineV2) ReadPath(name string) string { return "data/" + name }
