package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/storage"
)

// Getter is what reads need of a store or of a transaction.
type Getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// Record is what an engine stores under a key: JSON, with the field that RecordFormat leads to, which is 1. An optional field needs no
// other format: a version that does not know it ignores it, and drops it when it writes the record.
type Record interface{ RecordFormat() *int }

// GetRecord decodes what is stored under a key and reports whether there is anything.
func GetRecord(ctx context.Context, s Getter, key storage.Key, v Record) (bool, error) {
	e, err := s.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, DecodeRecord(e, v)
}

// UnreadableError says that what is stored under a key is not a record as this version writes them. It names no value.
type UnreadableError struct {
	Key     storage.Key
	Version storage.Index
}

func (e *UnreadableError) Error() string { return fmt.Sprintf("decoding %q: unknown format", e.Key) }

// DecodeRecord decodes an entry. The error is an UnreadableError.
func DecodeRecord(e storage.Entry, v Record) error {
	if err := json.Unmarshal(e.Value, v); err != nil || *v.RecordFormat() != 1 {
		return &UnreadableError{e.Key, e.Version}
	}
	return nil
}

// PutRecord has the transaction store a record.
func PutRecord(t *storage.Txn, key storage.Key, v Record) error {
	*v.RecordFormat() = 1
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	t.Put(key, value)
	return nil
}
