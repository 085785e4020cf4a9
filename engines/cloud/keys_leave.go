package cloud

import (
	"cmp"
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/static"
	"github.com/coffer-project/coffer/storage"
)

// leaveKeys settles what is unfinished about keys: of static roles that are being made, rotated or are gone, and of the
// root key. On a secondary of a shared mount there is nothing to do: the primary does it.
func (e *engine) leaveKeys(ctx context.Context, m engines.Mount) error {
	gone, err := m.Storage.List(ctx, static.LeftPrefix, "", 0)
	if err != nil {
		return err
	}
	roles, err := m.Storage.List(ctx, static.Prefix, "", 0)
	if err != nil {
		return err
	}
	var first error
	for _, of := range []struct {
		names  []string
		settle func(ctx context.Context, m engines.Mount, name string) (accesskey.Unfinished, error)
	}{
		{gone, e.static.LeaveLeftover}, {roles, e.static.LeaveRole}, {[]string{rootLock}, e.leaveRotation},
	} {
		for _, name := range of.names {
			err := accesskey.UntilSettled(ctx, e.log, func(ctx context.Context) (accesskey.Unfinished, error) { return of.settle(ctx, m, name) })
			switch {
			case errors.Is(err, storage.ErrPrimaryOnly):
				return nil
			case ctx.Err() != nil || failure.OfStore(err):
				return cmp.Or(ctx.Err(), err)
			}
			first = cmp.Or(first, err)
		}
	}
	return first
}

// leaveRotation ends a rotation of the root key that was cut short. The key in use stays.
func (e *engine) leaveRotation(ctx context.Context, m engines.Mount, _ string) (accesskey.Unfinished, error) {
	before, err := getRotation(ctx, m.Storage)
	if err != nil || before.Pending == nil {
		return accesskey.Unfinished{}, err
	}
	_, err = e.finishRotation(ctx, m, true)
	n, getErr := getRotation(ctx, m.Storage)
	if getErr != nil || n.Pending == nil {
		return accesskey.Unfinished{}, cmp.Or(getErr, err)
	}
	u := accesskey.Unfinished{Since: n.Pending.Since, What: "a new root key of user " + n.Username}
	if errors.Is(err, accesskey.ErrUnsure) {
		u.Again, err = n.RetryAt, nil
	}
	return u, err
}
