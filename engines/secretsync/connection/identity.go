package connection

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

// identityTokens returns what issues tokens for a destination.
func (p *Pool) identityTokens(d *state.Destination) func(context.Context, string, time.Duration) (string, error) {
	if p.opts.Tokens == nil {
		return nil
	}
	ns, subject := d.NS, "sync:"+d.Type+"/"+d.Name
	return func(ctx context.Context, audience string, ttl time.Duration) (string, error) {
		token, err := p.opts.Tokens.IdentityToken(ctx, ns, subject, audience, ttl)
		if e, ok := errors.AsType[*engines.Error](err); ok {
			failure := &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: e.Detail}
			if e.Kind != engines.KindInvalid {
				failure.Class, failure.Code = destination.Internal, destination.Unavailable
			}
			return "", failure
		}
		return token.Reveal(), err
	}
}
