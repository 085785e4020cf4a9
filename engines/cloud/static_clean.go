package cloud

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

// manyTries is the number of attempts after which an administrator must act.
const manyTries = 20

// clean removes what is left of a static role, which takes more than one try if it is not certain yet what that is. It
// needs the name's lock.
func (e *engine) clean(ctx context.Context, m engines.Mount, name string) error {
	l, err := claimLeftover(ctx, m, name)
	if err != nil || l == nil {
		return err
	}
	sure, err := e.removeKeys(ctx, m, l)
	if err != nil {
		noted := changeLeftover(ctx, m, l, func(t *storage.Txn, stored *leftover) error {
			stored.LastError = recordText(err)
			return stored.put(t)
		})
		return errors.Join(err, noted)
	}
	return changeLeftover(ctx, m, l, func(t *storage.Txn, stored *leftover) error {
		if !sure {
			stored.Keys, stored.NextTry = nil, stored.Pending.Until.Add(surelyListed)
			return stored.put(t)
		}
		t.Delete(leftPrefix + storage.Key(name))
		key, has := staticUserPrefix+storage.Key(stored.UserID), &staticUser{}
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
		l.claimedAt = clock()
		if l.Since.IsZero() {
			l.Since = l.claimedAt
		}
		l.Pending = l.Pending.again()
		l.Tries++
		l.NextTry = l.claimedAt.Add(max(time.Minute, backoff(l.Tries)))
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
func (e *engine) removeKeys(ctx context.Context, m engines.Mount, l *leftover) (sure bool, err error) {
	if len(l.Keys) == 0 && !l.Pending.Listed {
		return true, nil // nothing was made
	}
	api, err := e.api(ctx, m, l.Way.roles()...)
	if err != nil {
		return false, err
	}
	switch user, err := api.GetUser(ctx, l.Username); {
	case aws.KindOf(err) == aws.NotFound || err == nil && user.ID != l.UserID:
		// And the keys with it, unless the root credentials have come to be of another account.
		err := e.sameAccount(ctx, api, made{Name: l.Username, Account: l.Account})
		return err == nil, err
	case err != nil:
		return false, err
	}
	for _, id := range l.Keys {
		if err := dropKey(ctx, api, l.Username, id); err != nil {
			return false, err
		}
	}
	if !l.Pending.Listed {
		return true, nil
	}
	root, err := rootID(ctx, m)
	if err != nil {
		return false, err
	}
	_, lost, err := deleteLostKeys(ctx, api, l.Username, l.Pending, append(l.known, root)...)
	return lost > 0 || l.Pending.surely(l.claimedAt), err
}

// cleanDue removes the leftovers whose time has come.
func (e *engine) cleanDue(ctx context.Context, m engines.Mount) error {
	entries, err := m.Storage.Scan(ctx, leftPrefix, "", 0)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		name := string(entry.Key[len(leftPrefix):])
		if err := e.cleanIfDue(ctx, m, name); err != nil {
			return err
		}
	}
	return nil
}

// cleanIfDue logs errors of the provider and returns those of the storage.
func (e *engine) cleanIfDue(ctx context.Context, m engines.Mount, name string) error {
	unlock := e.tryLock(name)
	if unlock == nil {
		return nil // it is being worked on
	}
	defer unlock()
	l, err := getLeftover(ctx, m.Storage, name)
	if err != nil || l == nil || clock().Before(l.NextTry) {
		return err
	}
	ctx, done := context.WithTimeout(ctx, tryTime)
	defer done()
	err = e.clean(ctx, m, name)
	switch {
	case err == nil || ofStore(err):
		return err
	case l.Tries+1 >= manyTries:
		e.log.Error("an access key of a static role that is gone cannot be deleted", "role", name, "tries", l.Tries+1, "err", recordText(err))
	default:
		e.log.Warn("an access key of a static role that is gone is not deleted yet", "role", name, "tries", l.Tries+1, "err", recordText(err))
	}
	return nil
}
