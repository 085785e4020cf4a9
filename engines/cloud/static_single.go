package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

// retires reports whether the key before is to go without waiting for the next rotation.
func (r *staticRole) retires() bool { return r.SingleKey && r.Previous != "" && r.Pending == nil }

// retirePrevious deletes the key before the one in use, as soon as that one works. Errors of the
// provider are logged, and the deletion is retried; the error is one of the storage. It needs the name's lock.
func (e *engine) retirePrevious(ctx context.Context, m engines.Mount, r *staticRole) error {
	failure := e.dropPrevious(ctx, m, r)
	if failure != nil {
		e.log.Warn("the key that a static role had before is not deleted yet", "role", r.name, "err", recordText(failure))
	}
	ctx, done := detached(ctx)
	defer done()
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		stored, err := getStatic(ctx, t, r.name)
		if err != nil || stored == nil || stored.Key.ID != r.Key.ID || stored.Previous != r.Previous {
			return err // another request has changed the role
		}
		if failure == nil {
			stored.Previous, stored.RetireAt, stored.RetireTries = "", time.Time{}, 0
		} else {
			stored.RetireTries++
			stored.RetireAt = clock().Add(backoff(stored.RetireTries))
		}
		return stored.put(t)
	})
	if err == nil && failure == nil {
		r.Previous = ""
	}
	return err
}

func (e *engine) dropPrevious(ctx context.Context, m engines.Mount, r *staticRole) error {
	api, err := e.api(ctx, m, r.Way.roles()...)
	if err != nil {
		return err
	}
	err = retryUntil(ctx, untilValid, func(ctx context.Context) error {
		_, err := api.CallerIdentity(ctx, aws.Credentials{AccessKey: r.Key.ID, SecretKey: engines.Sensitive(r.Key.Secret)})
		return err
	})
	if err != nil {
		return err
	}
	err = api.DeleteAccessKey(ctx, r.Username, r.Previous)
	if aws.KindOf(err) == aws.NotFound {
		return e.sameAccount(ctx, api, made{Name: r.Username, Account: r.Account})
	}
	return err
}
