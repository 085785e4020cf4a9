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

// manyTries is the number of attempts after which an administrator must act.
const manyTries = 20

// clean removes what is left of a static role, which takes more than one try if it is not certain yet what that is. It
// needs the name's lock.
func (roles *Roles) clean(ctx context.Context, m engines.Mount, name string) error {
	l, err := claimLeftover(ctx, m, name)
	if err != nil || l == nil {
		return err
	}
	sure, err := roles.removeKeys(ctx, m, l)
	if err != nil {
		noted := changeLeftover(ctx, m, l, func(t *storage.Txn, stored *leftover) error {
			stored.LastError = failure.RecordText(err)
			return stored.put(t)
		})
		return errors.Join(err, noted)
	}
	return changeLeftover(ctx, m, l, func(t *storage.Txn, stored *leftover) error {
		if !sure {
			stored.Keys, stored.NextTry = nil, stored.Pending.Until.Add(accesskey.SurelyListed)
			return stored.put(t)
		}
		t.Delete(LeftPrefix + storage.Key(name))
		key, has := userPrefix+storage.Key(stored.UserID), &userHolder{}
		found, err := engines.GetRecord(ctx, t, key, has)
		if found && has.Name == name {
			t.Delete(key)
		}
		return err
	})
}

// claimLeftover claims the leftover of a name for this attempt, and invalidates earlier ones; nil if there is none.
func claimLeftover(ctx context.Context, m engines.Mount, name string) (l *leftover, err error) {
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		if l, err = getLeftover(ctx, t, name); err != nil || l == nil {
			return err
		}
		l.claimedAt = accesskey.Now()
		if l.Since.IsZero() {
			l.Since = l.claimedAt
		}
		l.Pending = l.Pending.Again()
		l.Tries++
		l.NextTry = l.claimedAt.Add(max(time.Minute, failure.Backoff(l.Tries)))
		if l.Tries > manyTries {
			l.NextTry = l.claimedAt.Add(24 * time.Hour)
		}
		return l.put(t)
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// removeKeys deletes the keys of a leftover, and reports whether those were all.
func (roles *Roles) removeKeys(ctx context.Context, m engines.Mount, l *leftover) (sure bool, err error) {
	if len(l.Keys) == 0 && !l.Pending.Listed {
		return true, nil // nothing was made
	}
	api, err := roles.clients.API(ctx, m, l.Way.roles()...)
	if err != nil {
		return false, err
	}
	switch user, err := api.GetUser(ctx, l.Username); {
	case aws.KindOf(err) == aws.NotFound || err == nil && user.ID != l.UserID:
		// And the keys with it, unless the root credentials have come to be of another account.
		err := root.SameAccount(ctx, api, l.Username, l.Account)
		return err == nil, err
	case err != nil:
		return false, err
	}
	for _, id := range l.Keys {
		if err := accesskey.Drop(ctx, api, l.Username, id); err != nil {
			return false, err
		}
	}
	if !l.Pending.Listed {
		return true, nil
	}
	rootKey, err := rootID(ctx, m)
	if err != nil {
		return false, err
	}
	_, lost, err := accesskey.DeleteLost(ctx, api, l.Username, l.Pending, append(l.known, rootKey)...)
	return lost > 0 || l.Pending.Surely(l.claimedAt), err
}

// cleanDue removes the leftovers whose time has come.
func (roles *Roles) cleanDue(ctx context.Context, m engines.Mount) error {
	entries, err := m.Storage.Scan(ctx, LeftPrefix, "", 0)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		name := string(entry.Key[len(LeftPrefix):])
		if err := roles.cleanIfDue(ctx, m, name); err != nil {
			return err
		}
	}
	return nil
}

// cleanIfDue logs errors of the provider and returns those of the storage.
func (roles *Roles) cleanIfDue(ctx context.Context, m engines.Mount, name string) error {
	unlock := roles.locks.TryLock(name)
	if unlock == nil {
		return nil // it is being worked on
	}
	defer unlock()
	l, err := getLeftover(ctx, m.Storage, name)
	if err != nil || l == nil || accesskey.Now().Before(l.NextTry) {
		return err
	}
	ctx, done := context.WithTimeout(ctx, accesskey.TryTime)
	defer done()
	err = roles.clean(ctx, m, name)
	switch {
	case err == nil || failure.OfStore(err):
		return err
	case l.Tries+1 >= manyTries:
		roles.log.Error("an access key of a static role that is gone cannot be deleted", "role", name, "tries", l.Tries+1, "err", failure.RecordText(err))
	default:
		roles.log.Warn("an access key of a static role that is gone is not deleted yet", "role", name, "tries", l.Tries+1, "err", failure.RecordText(err))
	}
	return nil
}
