package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

// pending is what the node remembers of the logins that were started.
type pending struct{}

func (e *engine) start(context.Context, *engines.Request, *none) (*engines.Response, error) {
	panic("todo")
}

type followIn struct {
	Code string `json:"code" help:"The code of a short link."`
}

func (e *engine) follow(context.Context, *engines.Request, *followIn) (*engines.Response, error) {
	panic("todo")
}
