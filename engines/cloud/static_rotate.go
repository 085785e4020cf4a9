package cloud

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

// errOvertaken means that a later attempt has claimed the same record.
var errOvertaken = errors.New("overtaken: another request changes the same key")

// namedLocks are mutexes by name: one goroutine of this node at a time changes the keys of a name. The zero value is ready.
type namedLocks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is free again
}

// lock waits for the lock of a name.
func (l *namedLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		unlock, busy := l.try(name)
		if busy == nil {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-busy:
		}
	}
}

// try returns the function that unlocks, or a channel that is closed when the lock is free again.
func (l *namedLocks) try(name string) (unlock func(), busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch, ok := l.held[name]; ok {
		return nil, ch
	}
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	ch := make(chan struct{})
	l.held[name] = ch
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, name)
		close(ch)
	}, nil
}

// lock waits for the lock of a name, or of the root key. Its holder may create keys, so Leave waits until it is free.
func (e *engine) lock(ctx context.Context, name string) (unlock func(), err error) {
	end, err := e.begin()
	if err != nil {
		return nil, err
	}
	free, err := e.keyLocks.lock(ctx, name)
	if err != nil {
		end()
		return nil, err
	}
	return func() { free(); end() }, nil
}

// tryLock is lock without waiting; unlock is nil if the lock is held.
func (e *engine) tryLock(name string) (unlock func()) {
	end, err := e.begin()
	if err != nil {
		return nil
	}
	free, busy := e.keyLocks.try(name)
	if busy != nil {
		end()
		return nil
	}
	return func() { free(); end() }
}

// rotate replaces the key of a static role. With due, only if that still is when the record says that it is due, since
// otherwise another node or request has rotated it; r is nil then.
func (e *engine) rotate(ctx context.Context, m engines.Mount, name string, due *time.Time) (*staticRole, error) {
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, done := context.WithTimeout(ctx, tryTime)
	defer done()
	r, err := claimStatic(ctx, m, name, due)
	if err != nil || r == nil {
		return nil, err
	}
	if r.retireOnly {
		return r, e.retirePrevious(ctx, m, r)
	}
	fresh, err := e.replace(ctx, m, r)
	if err == nil {
		e.counts.Rotated.Add(1)
		if fresh.retires() {
			err = e.retirePrevious(ctx, m, fresh)
		}
		return fresh, err
	}
	e.counts.RotateFailures.Add(1)
	if !errors.Is(err, errOvertaken) {
		err = errors.Join(err, noteFailure(ctx, m, r, err))
	}
	return nil, err
}

// claimStatic stores the attempt before anything is asked of the provider: a node that may not write fails here.
func claimStatic(ctx context.Context, m engines.Mount, name string, due *time.Time) (r *staticRole, err error) {
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		if r, err = getStatic(ctx, t, name); err != nil {
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
		case due != nil && r.retires() && clock().Before(r.rotationDue()):
			r.retireOnly = true
			return nil
		}
		r.Pending = nextAttempt(r.Pending, clock())
		return r.put(t)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// replace makes the new key and stores it.
func (e *engine) replace(ctx context.Context, m engines.Mount, r *staticRole) (*staticRole, error) {
	api, err := e.api(ctx, m, r.Way.roles()...)
	if err != nil {
		return nil, err
	}
	user, err := api.GetUser(ctx, r.Username)
	if err != nil {
		return nil, err
	}
	if user.ID != r.UserID {
		if err := e.sameAccount(ctx, api, made{Name: r.Username, Account: r.Account}); err != nil {
			return nil, err
		}
		return nil, engines.Invalid("the IAM user %q is not the one that the static role was made for: it was removed and made again; delete the static role and make it again, too", r.Username)
	}
	root, err := rootID(ctx, m)
	if err != nil {
		return nil, err
	}
	keys, lost, err := deleteLostKeys(ctx, api, r.Username, r.Pending, r.Key.ID, r.Previous, root)
	if err != nil {
		return nil, err
	}
	if err := rejectRootUser(root, r.Username, keys); err != nil {
		return nil, err
	}
	r.settled = !r.Pending.Listed || lost > 0
	if !r.Pending.Listed {
		r.Pending.see(keys)
		if _, err = changeStatic(ctx, m, r, func(stored *staticRole) { stored.Pending = r.Pending }); err != nil {
			return nil, err
		}
	}
	key, keys, err := makeKey(ctx, api, r.Username, keys, r.Key.ID)
	if err != nil {
		return nil, err
	}
	return storeKey(ctx, m, api, r, key, keys)
}

// storeKey makes a new key the current one. keys are those that the user had just before.
func storeKey(ctx context.Context, m engines.Mount, api aws.API, r *staticRole, key ownKey, keys []aws.Key) (*staticRole, error) {
	ctx, done := detached(ctx)
	defer done()
	fresh, err := changeStatic(ctx, m, r, func(stored *staticRole) {
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
	if errors.Is(err, errOvertaken) {
		return nil, errors.Join(err, dropKey(ctx, api, r.Username, key.ID))
	}
	return fresh, err
}

// changeStatic changes a static role that r's attempt is still the one of.
func changeStatic(ctx context.Context, m engines.Mount, r *staticRole, fn func(stored *staticRole)) (*staticRole, error) {
	var stored *staticRole
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) (err error) {
		if stored, err = getStatic(ctx, t, r.name); err != nil {
			return err
		}
		if stored == nil || stored.Pending == nil || stored.Pending.ID != r.Pending.ID {
			return errOvertaken
		}
		fn(stored)
		return stored.put(t)
	})
	if err != nil {
		return nil, err
	}
	return stored, nil
}

// noteFailure stores why a rotation failed and when it is tried again. The key that is there stays.
func noteFailure(ctx context.Context, m engines.Mount, r *staticRole, cause error) error {
	ctx, done := detached(ctx)
	defer done()
	_, err := changeStatic(ctx, m, r, func(stored *staticRole) {
		now := clock()
		if !stored.Pending.Listed || r.settled && !maybeMade(cause) {
			stored.Pending = nil
		} else {
			stored.Pending.ended(now)
		}
		stored.Failures++
		stored.LastError = recordText(cause)
		if stored.Pending != nil || !now.Before(stored.NextRotation) {
			stored.RetryAt = now.Add(backoff(stored.Failures))
		}
	})
	if errors.Is(err, errOvertaken) {
		return nil
	}
	return err
}
