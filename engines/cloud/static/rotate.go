package static

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

// Rotate replaces the key of a static role. With due, only if that still is when the record says that it is due, since
// otherwise another node or request has rotated it; r is nil then.
func (roles *Roles) Rotate(ctx context.Context, m engines.Mount, name string, due *time.Time) (*Role, error) {
	unlock, err := roles.locks.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, done := context.WithTimeout(ctx, accesskey.TryTime)
	defer done()
	r, err := claim(ctx, m, name, due)
	if err != nil || r == nil {
		return nil, err
	}
	if r.retireOnly {
		return r, roles.retirePrevious(ctx, m, r)
	}
	fresh, err := roles.replace(ctx, m, r)
	if err == nil {
		roles.rotated.Add(1)
		if fresh.retires() {
			err = roles.retirePrevious(ctx, m, fresh)
		}
		return fresh, err
	}
	roles.failures.Add(1)
	if !errors.Is(err, accesskey.ErrOvertaken) {
		err = errors.Join(err, noteFailure(ctx, m, r, err))
	}
	return nil, err
}

// claim stores the attempt before anything is asked of the provider: a node that may not write fails here.
func claim(ctx context.Context, m engines.Mount, name string, due *time.Time) (r *Role, err error) {
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		if r, err = Get(ctx, t, name); err != nil {
			return err
		}
		switch {
		case r == nil && due != nil:
			return nil
		case r == nil:
			return engines.NotFound("no static role has this name")
		case due != nil && !due.Equal(r.due()):
			r = nil
			return nil
		case due != nil && r.retires() && accesskey.Now().Before(r.rotationDue()):
			r.retireOnly = true
			return nil
		}
		r.Pending = accesskey.NextAttempt(r.Pending, accesskey.Now())
		return r.Put(t)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// replace makes the new key and stores it.
func (roles *Roles) replace(ctx context.Context, m engines.Mount, r *Role) (*Role, error) {
	api, err := roles.clients.API(ctx, m, r.Way.roles()...)
	if err != nil {
		return nil, err
	}
	user, err := api.GetUser(ctx, r.Username)
	if err != nil {
		return nil, err
	}
	if user.ID != r.UserID {
		if err := root.SameAccount(ctx, api, r.Username, r.Account); err != nil {
			return nil, err
		}
		return nil, engines.Invalid("the IAM user %q is not the one that the static role was made for: it was removed and made again; delete the static role and make it again, too", r.Username)
	}
	rootKey, err := rootID(ctx, m)
	if err != nil {
		return nil, err
	}
	keys, lost, err := accesskey.DeleteLost(ctx, api, r.Username, r.Pending, r.Key.ID, r.Previous, rootKey)
	if err != nil {
		return nil, err
	}
	if err := rejectRootUser(rootKey, r.Username, keys); err != nil {
		return nil, err
	}
	r.settled = !r.Pending.Listed || lost > 0
	if !r.Pending.Listed {
		r.Pending.See(keys)
		if _, err = change(ctx, m, r, func(stored *Role) { stored.Pending = r.Pending }); err != nil {
			return nil, err
		}
	}
	key, keys, err := accesskey.Make(ctx, api, r.Username, keys, r.Key.ID)
	if err != nil {
		return nil, err
	}
	return storeKey(ctx, m, api, r, key, keys)
}

// storeKey makes a new key the current one. keys are those that the user had just before.
func storeKey(ctx context.Context, m engines.Mount, api aws.API, r *Role, key accesskey.Own, keys []aws.Key) (*Role, error) {
	ctx, done := failure.Detached(ctx)
	defer done()
	fresh, err := change(ctx, m, r, func(stored *Role) {
		stored.Previous = ""
		for _, k := range keys {
			if k.ID == stored.Key.ID {
				stored.Previous = k.ID
			}
		}
		stored.Key, stored.Pending = key, nil
		stored.NextRotation = key.CreatedAt.Add(stored.Period)
		stored.RetireAt, stored.RetireTries = time.Time{}, 0
		stored.Failures, stored.LastError, stored.RetryAt = 0, "", time.Time{}
	})
	if errors.Is(err, accesskey.ErrOvertaken) {
		return nil, errors.Join(err, accesskey.Drop(ctx, api, r.Username, key.ID))
	}
	return fresh, err
}

// change changes a static role that r's attempt is still the one of.
func change(ctx context.Context, m engines.Mount, r *Role, fn func(stored *Role)) (*Role, error) {
	var stored *Role
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) (err error) {
		if stored, err = Get(ctx, t, r.name); err != nil {
			return err
		}
		if stored == nil || stored.Pending == nil || stored.Pending.ID != r.Pending.ID {
			return accesskey.ErrOvertaken
		}
		fn(stored)
		return stored.Put(t)
	})
	if err != nil {
		return nil, err
	}
	return stored, nil
}

// noteFailure stores why a rotation failed and when it is tried again. The key that is there stays.
func noteFailure(ctx context.Context, m engines.Mount, r *Role, cause error) error {
	ctx, done := failure.Detached(ctx)
	defer done()
	_, err := change(ctx, m, r, func(stored *Role) {
		now := accesskey.Now()
		if !stored.Pending.Listed || r.settled && !accesskey.MaybeMade(cause) {
			stored.Pending = nil
		} else {
			stored.Pending.Ended(now)
		}
		stored.Failures++
		stored.LastError = failure.RecordText(cause)
		if stored.Pending != nil || !now.Before(stored.NextRotation) {
			stored.RetryAt = now.Add(failure.Backoff(stored.Failures))
		}
	})
	if errors.Is(err, accesskey.ErrOvertaken) {
		return nil
	}
	return err
}
