package static

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

// retires reports whether the key before is to go without waiting for the next rotation.
func (r *Role) retires() bool { return r.SingleKey && r.Previous != "" && r.Pending == nil }

// retirePrevious deletes the key before the one in use, as soon as that one works. Errors of the
// provider are logged, and the deletion is retried; the error is one of the storage. It needs the name's lock.
func (roles *Roles) retirePrevious(ctx context.Context, m engines.Mount, r *Role) error {
	cause := roles.dropPrevious(ctx, m, r)
	if cause != nil {
		roles.log.Warn("the key that a static role had before is not deleted yet", "role", r.name, "err", failure.RecordText(cause))
	}
	ctx, done := failure.Detached(ctx)
	defer done()
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		stored, err := Get(ctx, t, r.name)
		if err != nil || stored == nil || stored.Key.ID != r.Key.ID || stored.Previous != r.Previous {
			return err // another request has changed the role
		}
		if cause == nil {
			stored.Previous, stored.RetireAt, stored.RetireTries = "", time.Time{}, 0
		} else {
			stored.RetireTries++
			stored.RetireAt = accesskey.Now().Add(failure.Backoff(stored.RetireTries))
		}
		return stored.Put(t)
	})
	if err == nil && cause == nil {
		r.Previous = ""
	}
	return err
}

func (roles *Roles) dropPrevious(ctx context.Context, m engines.Mount, r *Role) error {
	api, err := roles.clients.API(ctx, m, r.Way.roles()...)
	if err != nil {
		return err
	}
	err = accesskey.RetryUntil(ctx, accesskey.UntilValid, func(ctx context.Context) error {
		_, err := api.CallerIdentity(ctx, aws.Credentials{AccessKey: r.Key.ID, SecretKey: engines.Sensitive(r.Key.Secret)})
		return err
	})
	if err != nil {
		return err
	}
	err = api.DeleteAccessKey(ctx, r.Username, r.Previous)
	if aws.KindOf(err) == aws.NotFound {
		return root.SameAccount(ctx, api, r.Username, r.Account)
	}
	return err
}
