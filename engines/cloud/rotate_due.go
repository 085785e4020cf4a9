package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// rotateRootDue ends a rotation of the root key that was cut short, and begins one when it is due.
func (e *engine) rotateRootDue(ctx context.Context, m engines.Mount) error {
	unlock := e.tryLock(rootLock)
	if unlock == nil {
		return nil // it is being rotated
	}
	defer unlock()
	n, err := getRotation(ctx, m.Storage)
	if err != nil {
		return err
	}
	now := clock()
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
	if err == nil || ofStore(err) {
		return err
	}
	e.log.Warn("the root key is not rotated: the one in use stays, and it is tried again", "err", recordText(err))
	return nil
}

// rootDue reports whether the root key is to be rotated now. A missed window is skipped.
func rootDue(ctx context.Context, m engines.Mount, now time.Time) (bool, error) {
	r, _, err := getRoot(ctx, m.Storage)
	if err != nil || !r.scheduleInvalid(now) {
		return err == nil && r.rotates() && !now.Before(r.NextRotation), err
	}
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		r, _, err := getRoot(ctx, t)
		if err != nil || !r.scheduleInvalid(now) {
			return err
		}
		r.setNextRotation(now)
		return engines.PutRecord(t, rootKey, r)
	})
	return false, err
}

// rotates reports whether the key is rotated by itself.
func (r *root) rotates() bool {
	return r.AccessKey != "" && !r.RotationDisabled && (r.RotationPeriod > 0 || r.RotationSchedule != "")
}

// scheduleInvalid reports whether the time of the next rotation is invalid: there is none, its window is over, or it was
// set by a clock that was ahead.
func (r *root) scheduleInvalid(now time.Time) bool {
	switch {
	case !r.rotates():
		return false
	case r.NextRotation.IsZero():
		return true
	case r.RotationPeriod > 0:
		return r.NextRotation.After(now.Add(r.RotationPeriod))
	}
	return r.RotationWindow > 0 && now.After(r.NextRotation.Add(r.RotationWindow))
}
