package apply

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// Unreadable reports whether an error is about a record that cannot be decoded. Each is logged once, without its content.
func (s *Syncer) Unreadable(err error) bool {
	e, ok := errors.AsType[*engines.UnreadableError](err)
	if ok && s.Gauges.AddUnreadable(e) {
		kind, owner := state.DescribeKey(e.Key)
		s.Log.Warn("a record of secret sync cannot be read and is left alone: it was written by a newer version, or is damaged", "kind", kind, "owner", owner)
	}
	return ok
}

// Survey is state.Scan that skips unreadable records. left is their number.
func Survey[T any, P interface {
	*T
	engines.Record
}](ctx context.Context, s *Syncer, prefix storage.Key, do func(key storage.Key, v P) bool) (left int, err error) {
	err = state.ScanReadable(ctx, s.Host.Store(), prefix, do, func(_ storage.Key, err error) error {
		if !s.Unreadable(err) {
			return err
		}
		left++
		return nil
	})
	return left, err
}

// errUnreadable is the error of a name whose records cannot be read.
func errUnreadable(err error) error {
	return &destination.Error{Class: destination.Internal, Code: state.CodeUnreadable, Text: state.UnreadableCause, Err: err}
}
