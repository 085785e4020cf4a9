package cloud

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

// rollBack undoes what is due.
func (e *engine) rollBack(context.Context, engines.Mount) error { return nil }
