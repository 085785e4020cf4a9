package state

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Get reads a record and the index it was written at, 0: there is none.
func Get(ctx context.Context, s engines.Getter, key storage.Key, v engines.Record) (storage.Index, error) {
	e, err := s.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return e.Version, engines.DecodeRecord(e, v)
}

// Scan calls do with every record below a prefix, in the order of keys, until it returns false.
func Scan[T any, P interface {
	*T
	engines.Record
}](ctx context.Context, s storage.Reader, prefix storage.Key, do func(key storage.Key, v P) bool) error {
	return ScanReadable(ctx, s, prefix, do, func(_ storage.Key, err error) error { return err })
}

// ScanReadable is scan that asks pass what to do about records that cannot be read: nil goes on.
func ScanReadable[T any, P interface {
	*T
	engines.Record
}](ctx context.Context, s storage.Reader, prefix storage.Key, do func(key storage.Key, v P) bool, pass func(storage.Key, error) error) error {
	const page = 500
	for after := storage.Key(""); ; {
		entries, err := s.Scan(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			v := P(new(T))
			after = e.Key
			if err := engines.DecodeRecord(e, v); err != nil {
				if err := pass(e.Key, err); err != nil {
					return err
				}
				continue
			}
			if l, ok := any(v).(interface{ setStoredAt(storage.Index) }); ok {
				l.setStoredAt(e.Version)
			}
			if !do(e.Key, v) {
				return nil
			}
		}
		if len(entries) < page {
			return nil
		}
	}
}
