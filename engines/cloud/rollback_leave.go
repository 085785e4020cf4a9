package cloud

import (
	"cmp"
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

const (
	// seenTime is how old a note must be for a user that is not found to be one that is not there. It is shorter than
	// settleTime, because no request is in progress in the mount any more.
	seenTime = 30 * time.Second
	// keepTime is how long a note keeps its mount: roots whose account is closed must not do so for ever.
	keepTime = 24 * time.Hour
	// leavePause is the interval between checks for requests that are still creating a user.
	leavePause = 50 * time.Millisecond
)

// Leave implements engines.Leaver: it undoes all that is noted, due or not, as the notes go with the mount. Keys that are in
// use stay, those of static roles and the root key: workloads still use them, and so does a mount that only moves.
func (e *engine) Leave(ctx context.Context, m engines.Mount) error {
	for !e.making.TryLock() { // the server does not wait for requests as long as they may take
		if err := pause(ctx, leavePause); err != nil {
			return err
		}
	}
	defer e.making.Unlock()
	err := e.leaveUsers(ctx, m)
	if ctx.Err() != nil || isOurs(err) {
		return err
	}
	return cmp.Or(err, e.leaveKeys(ctx, m))
}

// begin permits a request to create something at the provider until end is called. It fails while Leave runs: the mount could
// be gone before there is a record of it.
func (e *engine) begin() (end func(), err error) {
	if !e.making.TryRLock() {
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "the mount is being disabled or moved"}
	}
	return e.making.RUnlock, nil
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
			err := e.leave(ctx, m, entry)
			if ctx.Err() != nil || isOurs(err) || aws.KindOf(err) == aws.Throttled {
				return cmp.Or(ctx.Err(), clientError(err))
			}
			first = cmp.Or(first, err)
		}
	}
}

func (e *engine) leave(ctx context.Context, m engines.Mount, entry storage.Entry) error {
	n, ok := decodeNote(entry)
	if !ok {
		return engines.Invalid("a rollback is of another version, which has to undo it")
	}
	was, err := e.undo(ctx, m, n)
	if wait := time.Until(n.CreatedAt.Add(seenTime)); err == nil && !was && wait > 0 {
		if err := pause(ctx, min(wait, seenTime)); err != nil {
			return err
		}
		was, err = e.undo(ctx, m, n)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return e.undone(ctx, m, entry, n, was)
	case time.Since(n.CreatedAt) > keepTime:
		e.log.Error("a user that belongs to nothing is left behind at the provider: remove it there", "user", n.Name, "err", err)
		return nil
	}
	if err := e.postpone(ctx, m, entry.Key, err); err != nil {
		return err
	}
	return &engines.Error{Kind: engines.KindUpstream, Err: err,
		Detail: "user " + n.Name + ", which belongs to nothing, cannot be removed now, it is tried again: " + textOf(err)}
}
