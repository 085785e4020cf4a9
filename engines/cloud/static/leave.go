package static

import (
	"cmp"
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/storage"
)

// LeaveLeftover removes what is left of a static role.
func (roles *Roles) LeaveLeftover(ctx context.Context, m engines.Mount, name string) (accesskey.Unfinished, error) {
	err := roles.clean(ctx, m, name)
	l, getErr := getLeftover(ctx, m.Storage, name)
	if l == nil || getErr != nil {
		return accesskey.Unfinished{}, cmp.Or(err, getErr)
	}
	return accesskey.Unfinished{Since: l.Since, Again: l.NextTry, What: "the key of user " + l.Username}, err
}

// LeaveRole deletes the keys that an unfinished rotation of a static role has made. The role stays, and its key.
func (roles *Roles) LeaveRole(ctx context.Context, m engines.Mount, name string) (accesskey.Unfinished, error) {
	r, err := Get(ctx, m.Storage, name)
	if err != nil || r == nil || r.Pending == nil {
		return accesskey.Unfinished{}, err
	}
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) (err error) {
		if r, err = Get(ctx, t, name); err != nil || r == nil || r.Pending == nil {
			return err
		}
		r.Pending = r.Pending.Again()
		return r.Put(t)
	})
	if err != nil || r == nil || r.Pending == nil {
		return accesskey.Unfinished{}, err
	}
	u := accesskey.Unfinished{Since: r.Pending.Since, What: "a new key of user " + r.Username}
	l := &leftover{
		Username: r.Username, UserID: r.UserID, Account: r.Account, Way: r.Way, Pending: r.Pending,
		known: []string{r.Key.ID, r.Previous}, claimedAt: accesskey.Now(),
	}
	sure, err := roles.removeKeys(ctx, m, l)
	if err != nil {
		return u, err
	}
	if !sure {
		u.Again = r.Pending.Until.Add(accesskey.SurelyListed)
		return u, nil
	}
	_, err = change(ctx, m, r, func(stored *Role) { stored.Pending = nil })
	return accesskey.Unfinished{}, err
}
