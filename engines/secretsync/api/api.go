// Package api serves the paths below sys/sync/: destinations, associations, previews and drift. It validates requests,
// stores records and waits a while for the first sync of what it has stored; the syncing itself is package reconcile's. Start reading at
// API.Routes.
package api

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/status"
)

// API serves the paths below sys/sync/.
type API struct{ status.Reporter }

// flags of all routes: the primary's active node knows what is queued and running, and has the destinations open.
const flags = engines.Primary | engines.Active

// Routes declares the paths below sys/.
func (s *API) Routes(r *engines.Router) {
	s.destinationRoutes(r)
	s.associationRoutes(r)
	s.stateRoutes(r)
}

// route declares a route whose errors about unreadable records are shown to clients.
func route[In any](r *engines.Router, op engines.Operation, pattern, help string, flags engines.Flags, do engines.Handler[In]) *engines.Route {
	if op != engines.Read && op != engines.List {
		flags |= engines.Strict // a misspelt retain or plan is never ignored
	}
	return engines.On(r, op, pattern, help, flags, WithClientErrors(do))
}

// WithClientErrors makes errors about unreadable records ones that the client may see.
func WithClientErrors[In any](do engines.Handler[In]) engines.Handler[In] {
	return func(ctx context.Context, req *engines.Request, in *In) (*engines.Response, error) {
		resp, err := do(ctx, req, in)
		return resp, ClientError(err)
	}
}

func ClientError(err error) error {
	if _, ok := errors.AsType[*engines.UnreadableError](err); ok {
		return &engines.Error{Kind: engines.KindFailed, Detail: state.UnreadableCause, Err: err}
	}
	return err
}

// missingWarning is what a response says of records that it lacks.
func missingWarning(left int) []string {
	if left == 0 {
		return nil
	}
	return []string{"something is missing here: " + state.UnreadableCause}
}

type emptyIn struct{}

// Upstream turns an error of a destination into one that the client sees: of the request, or of what is behind this server.
func Upstream(err error) error {
	switch o := state.OutcomeOf(err); o.Status {
	case state.ClientError:
		return engines.Invalid("%s", o.Cause)
	case state.ExternalError:
		return &engines.Error{Kind: engines.KindUpstream, Detail: o.Cause + "; try again later", Err: err}
	}
	return err
}

func nonNil(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}
