package cloud

import (
	"context"
	"errors"
	"sync"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/storage"
)

// Work implements engines.Worker: it undoes what was begun and belongs to nothing, and rotates the keys that are due.
func (e *engine) Work(ctx context.Context, m engines.Mount, owner bool) error {
	err := e.rollBack(ctx, m)
	if owner {
		err = errors.Join(err, e.rotateDue(ctx, m))
	}
	return err
}

// rotateDue rotates the keys whose time has come, and removes what is left of static roles that are gone.
func (e *engine) rotateDue(ctx context.Context, m engines.Mount) error {
	var under sync.WaitGroup
	var rootErr error
	under.Go(func() { // which may wait for a key to work
		rootErr = failure.Safely(e.log, func() error { return e.rotateRootDue(ctx, m) })
	})
	err := e.static.RotateDue(ctx, m)
	under.Wait()
	return errors.Join(rootErr, err)
}

// Changed implements engines.Invalidator.
func (e *engine) Changed(class storage.Class, keys []storage.Key, reset bool) {
	e.static.Changed(class, keys, reset)
}
