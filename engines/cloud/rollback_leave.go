package cloud

import (
	"cmp"
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/storage"
)

// leavePause is the interval between checks for requests that are still creating a user.
const leavePause = 50 * time.Millisecond

// Leave implements engines.Leaver: it undoes all that is noted, due or not, as the notes go with the mount. Keys that are in
// use stay, those of static roles and the root key: workloads still use them, and so does a mount that only moves.
func (e *engine) Leave(ctx context.Context, m engines.Mount) error {
	resume := e.locks.Stop()
	for ; resume == nil; resume = e.locks.Stop() { // the server does not wait for requests as long as they may take
		if err := failure.Pause(ctx, leavePause); err != nil {
			return err
		}
	}
	defer resume()
	err := e.leaveUsers(ctx, m)
	if ctx.Err() != nil || failure.OfStore(err) {
		return err
	}
	return cmp.Or(err, e.leaveKeys(ctx, m))
}

// leaveUsers undoes the notes of users.
func (e *engine) leaveUsers(ctx context.Context, m engines.Mount) error {
	var first error
	for after := storage.Key(""); ; {
		entries, err := m.ClusterStorage.Scan(ctx, rollbackPrefix, after, scanCount)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return first
		}
		for _, entry := range entries {
			after = entry.Key
			err := e.undoOrAbandon(ctx, m, entry)
			if ctx.Err() != nil || failure.OfStore(err) || aws.KindOf(err) == aws.Throttled {
				return cmp.Or(ctx.Err(), failure.ForClient(err))
			}
			first = cmp.Or(first, err)
		}
	}
}

// undoOrAbandon undoes a rollback before its mount is removed. One that still fails after accesskey.KeepTime is only logged.
func (e *engine) undoOrAbandon(ctx context.Context, m engines.Mount, entry storage.Entry) error {
	n, ok := decodeNote(entry)
	if !ok {
		return engines.Invalid("a rollback is of another version, which has to undo it")
	}
	was, err := e.undo(ctx, m, n)
	if wait := time.Until(n.CreatedAt.Add(accesskey.SeenTime)); err == nil && !was && wait > 0 {
		if err := failure.Pause(ctx, min(wait, accesskey.SeenTime)); err != nil {
			return err
		}
		was, err = e.undo(ctx, m, n)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return e.undone(ctx, m, entry, n, was)
	case time.Since(n.CreatedAt) > accesskey.KeepTime:
		e.log.Error("a user that belongs to nothing is left behind at the provider: remove it there", "user", n.Name, "err", err)
		return nil
	}
	if err := e.postpone(ctx, m, entry.Key, err); err != nil {
		return err
	}
	return &engines.Error{Kind: engines.KindUpstream, Err: err,
		Detail: "user " + n.Name + ", which belongs to nothing, cannot be removed now, it is tried again: " + failure.Detail(err)}
}
