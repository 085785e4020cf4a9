package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

func (e *engine) callback(context.Context, *engines.Request, *none) (*engines.Response, error) {
	panic("todo")
}
