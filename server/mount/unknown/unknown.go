// Package unknown stands in for engines that this version of the server does not have.
package unknown

import (
	"context"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Engine stands in for the engine of a mount whose type only a newer version has: in a cluster of mixed versions, or
// after a step back. Every request to it is refused, those of standbys by the active node, which may know the type.
// Nothing of the mount is changed: what it takes to disable, move or tune it is known to the newer version alone.
type Engine struct {
	router *engines.Router
	err    error
}

// New returns the engine of a mount at a path, of a type that is not known.
func New(path, kind string, auth bool) *Engine {
	u := &Engine{router: engines.NewRouter(), err: &engines.Error{
		Kind: engines.KindUnavailable,
		Detail: fmt.Sprintf("the mount %s has type %q, which a newer version of the server has made and this one does not have: "+
			"ask a node of that version", path, kind),
		Err: storage.ErrUnavailable,
	}}
	type input struct {
		Path string `json:"path" help:"Path within the mount."`
	}
	refuse := func(context.Context, *engines.Request, *input) (*engines.Response, error) { return nil, u.err }
	const help = "This version of the server does not have the type of this mount."
	for _, op := range []engines.Operation{engines.Read, engines.List, engines.Scan, engines.Update, engines.Patch, engines.Delete} {
		flags := engines.Active
		if auth && op == engines.Update {
			flags |= engines.Unauthenticated // or who logs in would read "permission denied"
		}
		engines.On(u.router, op, "{path...?}", help, flags, refuse)
	}
	return u
}

// Router implements engines.Engine.
func (u *Engine) Router() *engines.Router { return u.router }

// RevokeLease implements engines.Leaser: the lease stays until a node can revoke it.
func (u *Engine) RevokeLease(context.Context, engines.Mount, engines.LeaseRecord) error {
	return u.err
}

// RenewLease implements engines.Leaser.
func (u *Engine) RenewLease(context.Context, engines.Mount, engines.LeaseRecord) (engines.Lease, error) {
	return engines.Lease{}, u.err
}

// RenewLogin implements engines.Renewer.
func (u *Engine) RenewLogin(context.Context, engines.Mount, engines.RenewedLogin) (engines.TokenFields, error) {
	return engines.TokenFields{}, u.err
}

// Err is why nothing can be done with the mount.
func (u *Engine) Err() error { return u.err }
