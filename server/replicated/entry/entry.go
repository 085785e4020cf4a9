// Package entry reads and writes what is kept below l/replication/: JSON with the number of its format.
//
// It promises that what this version does not understand is an error, never a zero value. Its callers are in server/replicated.
package entry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/storage"
)

// Getter is a storage.Reader or a storage.Txn.
type Getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// Read decodes an entry into v, which stays as it is if there is none. The entry's Version is 0 then, and in a
// transaction that wrote it.
func Read(ctx context.Context, from Getter, key storage.Key, v any) (storage.Entry, error) {
	e, err := from.Get(ctx, key)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return storage.Entry{}, nil
	case err != nil:
		return storage.Entry{}, err
	}
	if err := json.Unmarshal(e.Value, v); err != nil {
		return storage.Entry{}, fmt.Errorf("decoding %s: %w", key, err)
	}
	return e, nil
}

// Encode returns the stored form of one of this package's records.
func Encode(v any) []byte {
	value, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts, numbers and times only
	}
	return value
}

// Fetch returns what a key holds. storage.ErrNotFound.
func Fetch[T any](ctx context.Context, from Getter, key storage.Key) (T, error) {
	e, err := from.Get(ctx, key)
	if err != nil {
		var none T
		return none, err
	}
	return Decode[T](e)
}

// Decode decodes the value of an entry, which is JSON of format 1.
func Decode[T any](e storage.Entry) (T, error) {
	var v, none T
	var f struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(e.Value, &f) != nil || f.Format != 1 || json.Unmarshal(e.Value, &v) != nil {
		return none, fmt.Errorf("reading %s: unknown format", e.Key)
	}
	return v, nil
}
