package barrier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/storage"
)

// rawPrefixes hold what a sealed node must read. It is stored as it is, and not through the barrier.
var rawPrefixes = [...]storage.Key{"l/seal/", "l/barrier/"}

// checkKeys reports, as an error, the first key that is not behind the barrier, or prefix that would list such keys.
func checkKeys(keys ...storage.Key) error {
	for _, key := range keys {
		for _, p := range rawPrefixes {
			if strings.HasPrefix(string(key), string(p)) {
				return fmt.Errorf("key %q is not behind the barrier", key)
			}
		}
	}
	return nil
}

// Get implements storage.Reader. A value that does not open is a *storage.CorruptError. Unlike that of other
// stores, the value belongs to the caller.
func (b *Barrier) Get(ctx context.Context, key storage.Key) (storage.Entry, error) {
	k, err := b.current(ctx)
	if err != nil {
		return storage.Entry{}, err
	}
	if err := checkKeys(key); err != nil {
		return storage.Entry{}, err
	}
	e, err := b.raw.Get(ctx, key)
	if err != nil {
		return storage.Entry{}, err
	}
	return b.openEntry(ctx, k, e)
}

// List implements storage.Reader. It names what is stored, so "l/" has the folders of the raw entries too.
func (b *Barrier) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	if _, err := b.current(ctx); err != nil {
		return nil, err
	}
	if err := checkKeys(prefix); err != nil {
		return nil, err
	}
	return b.raw.List(ctx, prefix, after, limit)
}

// Scan implements storage.Reader. It leaves out what is not behind the barrier.
func (b *Barrier) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	k, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(prefix); err != nil {
		return nil, err
	}
	var out []storage.Entry
	for {
		rest := max(limit, 0) - len(out) // 0 or less only without a limit
		entries, err := b.raw.Scan(ctx, prefix, after, rest)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if checkKeys(e.Key) != nil {
				continue
			}
			if e, err = b.openEntry(ctx, k, e); err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		if limit <= 0 || len(entries) < rest || len(out) == limit {
			return out, nil
		}
		after = entries[len(entries)-1].Key
	}
}

// Commit implements storage.Committer. The limits hold for the plaintext; the raw store checks the keys. What is sealed is
// written only if the key ring is still the one it was sealed with: when the state was replaced meanwhile, it could never be
// read. It is then sealed again.
func (b *Barrier) Commit(ctx context.Context, batch storage.Batch) (storage.Index, error) {
	k, err := b.current(ctx)
	if err != nil {
		return 0, err
	}
	if err := checkKeys(batch.Keys()...); err != nil {
		return 0, err
	}
	if err := batch.CheckSize(0); err != nil {
		return 0, err
	}
	for {
		index, err := b.raw.Commit(ctx, k.sealBatch(batch))
		if len(batch.Puts) == 0 || !errors.Is(err, storage.ErrConflict) {
			return index, err
		}
		fresh, failed := b.reload(ctx, k)
		if failed != nil {
			return 0, failed
		}
		if fresh.version == k.version {
			return index, err
		}
		k = fresh
	}
}

// sealBatch returns the batch with sealed values.
func (k *keys) sealBatch(batch storage.Batch) storage.Batch {
	sealed := storage.Batch{Reads: batch.Reads, Deletes: batch.Deletes}
	if len(batch.Puts) == 0 {
		return sealed
	}
	sealed.Reads = append(slices.Clip(batch.Reads), storage.Read{Key: ringKey, Version: k.version})
	sealed.Puts = make([]storage.Put, len(batch.Puts))
	for i, p := range batch.Puts {
		sealed.Puts[i] = storage.Put{Key: p.Key, Value: k.seal(string(p.Key), p.Value), Origin: p.Origin}
	}
	return sealed
}

// OpenValue opens a value as the raw store keeps it under key, read there or in a copy of what was written (a Record).
// Errors are those of Get. The result belongs to the caller.
func (b *Barrier) OpenValue(ctx context.Context, key storage.Key, sealed []byte) ([]byte, error) {
	k, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(key); err != nil {
		return nil, err
	}
	e, err := b.openEntry(ctx, k, storage.Entry{Key: key, Value: sealed})
	return e.Value, err
}

// openEntry returns e with its plaintext.
func (b *Barrier) openEntry(ctx context.Context, k *keys, e storage.Entry) (storage.Entry, error) {
	plain, err := k.open(string(e.Key), e.Value)
	if err != nil {
		plain, err = b.openAgain(ctx, k, string(e.Key), e.Value, err)
	}
	if bad, ok := errors.AsType[badValue](err); ok {
		err = &storage.CorruptError{File: stateFile, Detail: fmt.Sprintf("entry %q: %v", e.Key, bad)}
	}
	if err != nil {
		return storage.Entry{}, err
	}
	e.Value = plain
	return e, nil
}

// openAgain opens what k does not open, if the ring has changed since: the value may be
// newer than k, sealed after a rotation that this node has not taken notice of, or come with another ring
// when the state was replaced. Otherwise it returns err, that of k.
func (b *Barrier) openAgain(ctx context.Context, k *keys, name string, sealed []byte, err error) ([]byte, error) {
	fresh, failed := b.reload(ctx, k)
	if failed != nil {
		return nil, failed
	}
	if bytes.Equal(fresh.stored, k.stored) {
		return nil, err
	}
	return fresh.open(name, sealed)
}

// bytesName keeps what SealBytes makes apart from entries: no key begins with a NUL.
func bytesName(aad string) string { return "\x00" + aad }

// SealBytes seals plain under the active key for a place that is not an entry. aad says what it is for; only
// OpenBytes with the same aad opens it. The result is Overhead bytes longer than plain.
func (b *Barrier) SealBytes(aad string, plain []byte) ([]byte, error) {
	k, err := b.current(context.Background())
	if err != nil {
		return nil, err
	}
	return k.seal(bytesName(aad), plain), nil
}

// OpenBytes opens what SealBytes made, on any node of the cluster, also after rotations. Anything else, and
// another aad, is ErrForged.
func (b *Barrier) OpenBytes(aad string, sealed []byte) ([]byte, error) {
	k, err := b.current(context.Background())
	if err != nil {
		return nil, err
	}
	plain, err := k.open(bytesName(aad), sealed)
	if err != nil {
		plain, err = b.openAgain(context.Background(), k, bytesName(aad), sealed, err)
	}
	if _, ok := errors.AsType[badValue](err); ok {
		return nil, ErrForged
	}
	return plain, err
}
