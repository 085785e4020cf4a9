package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

// rotateRootDue ends a rotation of the root key that was cut short, and begins one when it is due.
func (e *engine) rotateRootDue(ctx context.Context, m engines.Mount) error {
	unlock := e.locks.TryLock(rootLock)
	if unlock == nil {
		return nil // it is being rotated
	}
	defer unlock()
	n, err := getRotation(ctx, m.Storage)
	if err != nil {
		return err
	}
	now := accesskey.Now()
	if now.Before(n.RetryAt) {
		return nil
	}
	if n.Pending != nil {
		_, err := e.finishRotation(ctx, m, false)
		return e.logUnlessStorage(err)
	}
	due, err := rootDue(ctx, m, now)
	if err != nil || !due {
		return err
	}
	_, err = e.newRotation(ctx, m)
	return e.logUnlessStorage(err)
}

// logUnlessStorage returns errors of the storage and logs others.
func (e *engine) logUnlessStorage(err error) error {
	if err == nil || failure.OfStore(err) {
		return err
	}
	e.log.Warn("the root key is not rotated: the one in use stays, and it is tried again", "err", failure.RecordText(err))
	return nil
}

// rootDue reports whether the root key is to be rotated now. A missed window is skipped.
func rootDue(ctx context.Context, m engines.Mount, now time.Time) (bool, error) {
	r, _, err := root.Get(ctx, m.Storage)
	if err != nil || !r.ScheduleInvalid(now) {
		return err == nil && r.Rotates() && !now.Before(r.NextRotation), err
	}
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		r, _, err := root.Get(ctx, t)
		if err != nil || !r.ScheduleInvalid(now) {
			return err
		}
		r.SetNextRotation(now)
		return engines.PutRecord(t, root.Key, r)
	})
	return false, err
}
