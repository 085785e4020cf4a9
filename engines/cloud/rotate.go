package cloud

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

// rotationKey has the rotation of the root key that is not finished, or failed.
const rotationKey storage.Key = "config/rotation"

// rootLock is the name of the root key's lock: no static role has this name.
const rootLock = "config/root"

// untilDropped is how long the deletion of the old key with the new one is tried before Work goes on with it.
const untilDropped = 15 * time.Second

// rotation of the root key, as JSON. It goes from making (no New) over verifying (New is stored, Old is in use) to retiring
// (New is in use, Old is to be deleted); then it goes. In each of them a key that works is stored.
type rotation struct {
	Format   int                `json:"format"`             // 1
	Username string             `json:"username,omitempty"` // whose keys these are
	Pending  *accesskey.Attempt `json:"pending,omitempty"`  // nil: nothing has begun
	Old      accesskey.Own      `json:"old,omitzero"`
	New      accesskey.Own      `json:"new,omitzero"`
	InUse    bool               `json:"in_use,omitempty"` // New is
	// At is the configuration, without its key, that the rotation began with: the keys are for no other provider.
	At *root.Root `json:"at,omitempty"`

	Failures  int       `json:"failures,omitempty"`
	LastError string    `json:"last_error,omitempty"`
	RetryAt   time.Time `json:"retry_at,omitzero"`
}

func (n *rotation) RecordFormat() *int { return &n.Format }

func getRotation(ctx context.Context, s engines.Getter) (*rotation, error) {
	n := &rotation{}
	_, err := engines.GetRecord(ctx, s, rotationKey, n)
	return n, err
}

// rotationData is what a read of the root configuration says of a rotation that fails.
func rotationData(ctx context.Context, s engines.Getter) (map[string]any, error) {
	n, err := getRotation(ctx, s)
	if err != nil || n.Failures == 0 {
		return nil, err
	}
	return map[string]any{"rotation_failures": n.Failures, "rotation_last_error": n.LastError}, nil
}

// rotateRoot replaces the root key now.
func (e *engine) rotateRoot(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	unlock, err := e.locks.Lock(ctx, rootLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := e.finishRotation(ctx, req.Mount, false)
	if err == nil && !n.InUse { // else an unfinished one was just what is asked for
		n, err = e.newRotation(ctx, req.Mount)
	}
	switch {
	case n != nil && n.InUse && err != nil && !failure.OfStore(err):
		return &engines.Response{
			Data:     map[string]any{"access_key": n.New.ID},
			Warnings: []string{"the new key is in use; the old one could not be deleted yet, which is tried again: " + failure.RecordText(err)},
		}, nil
	case err != nil && n != nil && n.New.ID != "" && !errors.Is(err, accesskey.ErrOvertaken):
		return nil, &engines.Error{Kind: engines.KindUpstream, Err: err, Detail: "the new key is made and stored, but does not work yet: the old one stays in use until it does, which is tried again: " + failure.RecordText(err)}
	case err != nil:
		return nil, accesskey.ForClient(err)
	}
	return &engines.Response{Data: map[string]any{"access_key": n.New.ID}}, nil
}

// newRotation begins a rotation and brings it to its end. The rotation that is returned with an error is what is stored.
func (e *engine) newRotation(ctx context.Context, m engines.Mount) (*rotation, error) {
	ctx, done := context.WithTimeout(ctx, accesskey.TryTime)
	defer done()
	n := &rotation{}
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		r, _, err := root.Get(ctx, t)
		if err != nil {
			return err
		}
		before, err := getRotation(ctx, t)
		if err != nil {
			return err
		}
		switch {
		case r.AccessKey == "":
			return engines.Invalid("there is no key to rotate: the provider is reached with the credentials of the machine; write access_key and secret_key to config/root first")
		case before.Pending != nil:
			return accesskey.ErrOvertaken
		}
		now := accesskey.Now()
		*n = rotation{Pending: accesskey.NextAttempt(nil, now), Failures: before.Failures, LastError: before.LastError, RetryAt: before.RetryAt}
		n.Old = accesskey.Own{ID: r.AccessKey, Secret: r.SecretKey, CreatedAt: r.KeyCreatedAt}
		n.At = r
		n.At.AccessKey, n.At.SecretKey, n.At.KeyCreatedAt = "", "", time.Time{}
		return engines.PutRecord(t, rotationKey, n)
	})
	if err != nil {
		return nil, err
	}
	if err := e.makeRootKey(ctx, m, n); err != nil {
		e.counts.RotateFailures.Add(1)
		return nil, errors.Join(err, n.failed(ctx, m, err))
	}
	return e.useRootKey(ctx, m, n)
}

// finishRotation ends a rotation that was cut short: a key that is stored comes into use, others are deleted. It returns
// the zero value if there was none, or if it came to nothing. When the mount goes, a key that is not in use yet goes, too.
func (e *engine) finishRotation(ctx context.Context, m engines.Mount, leaving bool) (*rotation, error) {
	ctx, done := context.WithTimeout(ctx, accesskey.TryTime)
	defer done()
	n, used, goesOn := &rotation{}, "", false
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		r, _, err := root.Get(ctx, t)
		if err != nil {
			return err
		}
		used = r.AccessKey
		*n = rotation{}
		before, err := getRotation(ctx, t)
		if err != nil || before.Pending == nil {
			return err
		}
		*n = *before
		n.Pending = n.Pending.Again()
		goesOn = n.New.ID != "" && (n.InUse && isRoot(n.New, r) || !n.InUse && isRoot(n.Old, r) && !leaving)
		return engines.PutRecord(t, rotationKey, n)
	})
	switch {
	case err != nil:
		return nil, err
	case n.Pending == nil:
		return n, nil
	case goesOn:
		return e.useRootKey(ctx, m, n)
	}
	// None of its keys is in use: the new one was not stored, or another key has been configured since.
	err = e.abandon(ctx, m, n, used)
	if aws.KindOf(err) == aws.Denied && time.Since(n.Pending.Since) > accesskey.KeepTime {
		e.log.Error("a key that a rotation of the root key made is left behind at the provider: remove it there", "user", n.Username, "err", failure.RecordText(err))
		err = nil
	}
	if err != nil {
		return nil, errors.Join(err, n.failed(ctx, m, err))
	}
	return &rotation{}, n.change(ctx, m, func(t *storage.Txn, stored *rotation) error {
		if stored.Failures == 0 {
			t.Delete(rotationKey)
			return nil
		}
		stored.Pending, stored.At, stored.Old, stored.New, stored.InUse = nil, nil, accesskey.Own{}, accesskey.Own{}, false
		return engines.PutRecord(t, rotationKey, stored)
	})
}

// isRoot reports whether a key is the one that is configured.
func isRoot(k accesskey.Own, r *root.Root) bool {
	return k.ID != "" && k.ID == r.AccessKey && k.Secret == r.SecretKey
}

// clientFor returns a client that uses one of the keys of a rotation. If a key that is not of the rotation has been configured
// since, the rest of that configuration is for that key only, so n.At is used instead.
func (e *engine) clientFor(ctx context.Context, m engines.Mount, n *rotation, key accesskey.Own) (aws.API, error) {
	r, _, err := root.Get(ctx, m.Storage)
	if err != nil {
		return nil, err
	}
	if !isRoot(n.Old, r) && !isRoot(n.New, r) && n.At != nil {
		at := *n.At
		r = &at
	}
	r.AccessKey, r.SecretKey = key.ID, key.Secret
	return e.clients.Once(ctx, r)
}

// makeRootKey makes the new key and stores it beside the old one.
func (e *engine) makeRootKey(ctx context.Context, m engines.Mount, n *rotation) error {
	api, err := e.clientFor(ctx, m, n, n.Old)
	if err != nil {
		return err
	}
	user, err := api.GetUser(ctx, "")
	if err != nil {
		return err
	}
	keys, err := api.ListAccessKeys(ctx, user.Name)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.ID != n.Old.ID {
			return engines.Invalid("the IAM user %q has another access key besides the configured one: a new one is made only if there is no other; delete it first", user.Name)
		}
	}
	n.Username = user.Name
	n.Pending.See(keys)
	err = n.change(ctx, m, func(t *storage.Txn, _ *rotation) error { return engines.PutRecord(t, rotationKey, n) })
	if err != nil {
		return err
	}
	made, err := api.CreateAccessKey(ctx, user.Name)
	if err != nil {
		n.Pending.Listed = accesskey.MaybeMade(err)
		return err
	}
	ctx, done := failure.Detached(ctx)
	defer done()
	n.New = accesskey.Own{ID: made.AccessKey, Secret: made.SecretKey.Reveal(), CreatedAt: accesskey.Now()}
	err = n.change(ctx, m, func(t *storage.Txn, _ *rotation) error { return engines.PutRecord(t, rotationKey, n) })
	if errors.Is(err, accesskey.ErrOvertaken) {
		return errors.Join(err, accesskey.Drop(ctx, api, user.Name, made.AccessKey))
	}
	return err
}

// useRootKey brings the new key, which is stored, into use once it works, and deletes the old one.
func (e *engine) useRootKey(ctx context.Context, m engines.Mount, n *rotation) (*rotation, error) {
	err := e.bringIntoUse(ctx, m, n)
	if err == nil {
		err = e.deleteOldKey(ctx, m, n)
	}
	if err != nil {
		e.counts.RotateFailures.Add(1)
		return n, errors.Join(err, n.failed(ctx, m, err))
	}
	e.counts.Rotated.Add(1)
	return n, n.change(ctx, m, func(t *storage.Txn, _ *rotation) error {
		t.Delete(rotationKey)
		return nil
	})
}

func (e *engine) bringIntoUse(ctx context.Context, m engines.Mount, n *rotation) error {
	if n.InUse {
		return nil
	}
	api, err := e.clientFor(ctx, m, n, n.Old)
	if err != nil {
		return err
	}
	err = accesskey.RetryUntil(ctx, accesskey.UntilValid, func(ctx context.Context) error {
		_, err := api.CallerIdentity(ctx, aws.Credentials{AccessKey: n.New.ID, SecretKey: engines.Sensitive(n.New.Secret)})
		return err
	})
	if err != nil {
		return err
	}
	err = n.change(ctx, m, func(t *storage.Txn, stored *rotation) error {
		r, _, err := root.Get(ctx, t)
		if err != nil {
			return err
		}
		if !isRoot(n.Old, r) {
			return accesskey.ErrOvertaken // another key has been configured
		}
		r.AccessKey, r.SecretKey, r.KeyCreatedAt = n.New.ID, n.New.Secret, n.New.CreatedAt
		r.SetNextRotation(accesskey.Now())
		stored.InUse = true
		return errors.Join(engines.PutRecord(t, root.Key, r), engines.PutRecord(t, rotationKey, stored))
	})
	n.InUse = err == nil
	return err
}

// deleteOldKey deletes the old key with the new one.
func (e *engine) deleteOldKey(ctx context.Context, m engines.Mount, n *rotation) error {
	api, err := e.clientFor(ctx, m, n, n.New)
	if err != nil {
		return err
	}
	return accesskey.RetryUntil(ctx, untilDropped, func(ctx context.Context) error { return accesskey.Drop(ctx, api, n.Username, n.Old.ID) })
}

// abandon deletes what a rotation has created and is not in use. If none of its keys is valid any more, there is nothing left to
// do.
func (e *engine) abandon(ctx context.Context, m engines.Mount, n *rotation, used string) error {
	if n.New.ID == "" && !n.Pending.Listed {
		return nil // nothing was made
	}
	if n.New.ID == "" {
		err := e.dropLost(ctx, m, n, used)
		if accesskey.IsInvalid(err) && n.Old.ID != used {
			return e.logLeftBehind(n)
		}
		return err
	}
	if n.InUse && n.Old.ID != used { // the old one was replaced for good
		if err := e.deleteOldKey(ctx, m, n); err != nil && !accesskey.IsInvalid(err) {
			return err
		}
	}
	if n.New.ID == used {
		return nil
	}
	var denied error // of a key that is valid
	for _, as := range []accesskey.Own{n.New, n.Old} {
		api, err := e.clientFor(ctx, m, n, as)
		if err != nil {
			return err
		}
		err = accesskey.Drop(ctx, api, n.Username, n.New.ID)
		if aws.KindOf(err) != aws.Denied {
			return err
		}
		if !accesskey.IsInvalid(err) {
			denied = err
		}
	}
	if denied != nil {
		return denied
	}
	return e.logLeftBehind(n)
}

// dropLost deletes a key that was created and whose secret was lost.
func (e *engine) dropLost(ctx context.Context, m engines.Mount, n *rotation, used string) error {
	api, err := e.clientFor(ctx, m, n, n.Old)
	if err != nil {
		return err
	}
	_, lost, err := accesskey.DeleteLost(ctx, api, n.Username, n.Pending, n.Old.ID, used)
	if err == nil && lost == 0 && !n.Pending.Surely(accesskey.Now()) {
		return accesskey.ErrUnsure
	}
	return err
}

// logLeftBehind reports a key that no valid key can delete.
func (e *engine) logLeftBehind(n *rotation) error {
	e.log.Warn("a key that a rotation of the root key made may still be there: no key that could delete it works any more", "user", n.Username)
	return nil
}

// change runs fn in a transaction with what is stored of the rotation, if n's attempt is still the one of it.
func (n *rotation) change(ctx context.Context, m engines.Mount, fn func(t *storage.Txn, stored *rotation) error) error {
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		stored, err := getRotation(ctx, t)
		if err != nil {
			return err
		}
		if stored.Pending == nil || stored.Pending.ID != n.Pending.ID {
			return accesskey.ErrOvertaken
		}
		return fn(t, stored)
	})
	return err
}

// failed stores why a rotation failed and when it is tried again.
func (n *rotation) failed(ctx context.Context, m engines.Mount, cause error) error {
	ctx, done := failure.Detached(ctx)
	defer done()
	err := n.change(ctx, m, func(t *storage.Txn, stored *rotation) error {
		if stored.New.ID == "" && !n.Pending.Listed { // nothing was made
			stored.Pending, stored.At, stored.Old = nil, nil, accesskey.Own{}
		}
		now := accesskey.Now()
		if errors.Is(cause, accesskey.ErrUnsure) {
			stored.RetryAt = stored.Pending.Until.Add(accesskey.SurelyListed)
			return engines.PutRecord(t, rotationKey, stored)
		}
		if stored.Pending != nil {
			stored.Pending.Ended(now)
		}
		stored.Failures++
		stored.LastError = failure.RecordText(cause)
		stored.RetryAt = now.Add(failure.Backoff(stored.Failures))
		return engines.PutRecord(t, rotationKey, stored)
	})
	if errors.Is(err, accesskey.ErrOvertaken) {
		return nil
	}
	return err
}
