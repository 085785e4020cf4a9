package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

// metadata answers what an identity provider has to know of this service provider.
func metadata(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }
