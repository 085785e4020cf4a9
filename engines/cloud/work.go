package cloud

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
)

// Work implements engines.Worker: it undoes what was begun and belongs to nothing, and rotates the keys that are due.
func (e *engine) Work(ctx context.Context, m engines.Mount, owner bool) error {
	err := e.rollBack(ctx, m)
	if owner {
		err = errors.Join(err, e.rotateDue(ctx, m))
	}
	return err
}
