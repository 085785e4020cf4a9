package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

func (e *engine) token(context.Context, *engines.Request, *none) (*engines.Response, error) {
	panic("todo")
}
