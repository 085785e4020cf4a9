package cloud

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

// leaveKeys settles what is unfinished about keys: of static roles that are being made, rotated or are gone, and of the
// root key. On a secondary of a shared mount there is nothing to do: the primary does it.
func (e *engine) leaveKeys(ctx context.Context, m engines.Mount) error {
	gone, err := m.Storage.List(ctx, leftPrefix, "", 0)
	if err != nil {
		return err
	}
	static, err := m.Storage.List(ctx, staticPrefix, "", 0)
	if err != nil {
		return err
	}
	var first error
	for _, of := range []struct {
		names  []string
		settle func(ctx context.Context, m engines.Mount, name string) (unfinished, error)
	}{
		{gone, e.leaveLeftover}, {static, e.leaveStatic}, {[]string{rootLock}, e.leaveRotation},
	} {
		for _, name := range of.names {
			err := e.untilSettled(ctx, func(ctx context.Context) (unfinished, error) { return of.settle(ctx, m, name) })
			switch {
			case errors.Is(err, storage.ErrPrimaryOnly):
				return nil
			case ctx.Err() != nil || isOurs(err):
				return cmp.Or(ctx.Err(), err)
			}
			first = cmp.Or(first, err)
		}
	}
	return first
}

// unfinished is what a try to settle something has found; the zero value is nothing.
type unfinished struct {
	since time.Time // of what is unfinished
	again time.Time // when it will be certain what was made
	what  string    // for error texts
}

// untilSettled repeats settle until there is nothing unfinished, if that is soon. What has failed for keepTime is left.
func (e *engine) untilSettled(ctx context.Context, settle func(context.Context) (unfinished, error)) error {
	for {
		try, done := context.WithTimeout(ctx, tryTime)
		u, err := settle(try)
		done()
		switch {
		case ctx.Err() != nil || isOurs(err):
			return cmp.Or(ctx.Err(), err)
		case err != nil && time.Since(u.since) > keepTime && !u.since.IsZero():
			e.log.Error("an access key that belongs to nothing may be left behind at the provider: remove it there", "of", u.what, "err", recordText(err))
			return nil
		case err != nil:
			return &engines.Error{Kind: engines.KindUpstream, Err: err,
				Detail: "what was made of " + u.what + " cannot be removed now, it is tried again: " + textOf(keyError(err))}
		case u.again.IsZero():
			return nil
		}
		if wait := time.Until(u.again); wait > seenTime {
			return errUnsure
		} else if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// leaveLeftover removes what is left of a static role.
func (e *engine) leaveLeftover(ctx context.Context, m engines.Mount, name string) (unfinished, error) {
	err := e.clean(ctx, m, name)
	l, getErr := getLeftover(ctx, m.Storage, name)
	if l == nil || getErr != nil {
		return unfinished{}, cmp.Or(err, getErr)
	}
	return unfinished{since: l.Since, again: l.NextTry, what: "the key of user " + l.Username}, err
}

// leaveStatic deletes the keys that an unfinished rotation of a static role has made. The role stays, and its key.
func (e *engine) leaveStatic(ctx context.Context, m engines.Mount, name string) (unfinished, error) {
	r, err := getStatic(ctx, m.Storage, name)
	if err != nil || r == nil || r.Pending == nil {
		return unfinished{}, err
	}
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) (err error) {
		if r, err = getStatic(ctx, t, name); err != nil || r == nil || r.Pending == nil {
			return err
		}
		r.Pending = r.Pending.again()
		return r.put(t)
	})
	if err != nil || r == nil || r.Pending == nil {
		return unfinished{}, err
	}
	u := unfinished{since: r.Pending.Since, what: "a new key of user " + r.Username}
	l := &leftover{
		Username: r.Username, UserID: r.UserID, Account: r.Account, Way: r.Way, Pending: r.Pending,
		known: []string{r.Key.ID, r.Previous}, claimedAt: clock(),
	}
	sure, err := e.removeKeys(ctx, m, l)
	if err != nil {
		return u, err
	}
	if !sure {
		u.again = r.Pending.Until.Add(surelyListed)
		return u, nil
	}
	_, err = changeStatic(ctx, m, r, func(stored *staticRole) { stored.Pending = nil })
	return unfinished{}, err
}

// leaveRotation ends a rotation of the root key that was cut short. The key in use stays.
func (e *engine) leaveRotation(ctx context.Context, m engines.Mount, _ string) (unfinished, error) {
	before, err := getRotation(ctx, m.Storage)
	if err != nil || before.Pending == nil {
		return unfinished{}, err
	}
	_, err = e.finishRotation(ctx, m, true)
	n, getErr := getRotation(ctx, m.Storage)
	if getErr != nil || n.Pending == nil {
		return unfinished{}, cmp.Or(getErr, err)
	}
	u := unfinished{since: n.Pending.Since, what: "a new root key of user " + n.Username}
	if errors.Is(err, errUnsure) {
		u.again, err = n.RetryAt, nil
	}
	return u, err
}

// keyInvalid reports whether an error says that a key is not valid any more, or not yet.
func keyInvalid(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	if !ok || e.Kind != aws.Denied {
		return false
	}
	switch e.Code {
	case "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch", "UnrecognizedClient":
		return true
	}
	return false
}
