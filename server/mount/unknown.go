package mount

import (
	"context"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// unknown stands in for the engine of a mount whose type only a newer version has: in a cluster of mixed versions, or
// after a step back. Every request to it is refused, those of standbys by the active node, which may know the type.
// Nothing of the mount is changed: what it takes to disable, move or tune it is known to the newer version alone.
type unknown struct {
	router *engines.Router
	err    error
}

func newUnknown(e *Entry) *unknown {
	u := &unknown{router: engines.NewRouter(), err: &engines.Error{
		Kind: engines.KindUnavailable,
		Detail: fmt.Sprintf("the mount %s has type %q, which a newer version of the server has made and this one does not have: "+
			"ask a node of that version", e.Path, e.Type),
		Err: storage.ErrUnavailable,
	}}
	type input struct {
		Path string `json:"path" help:"Path within the mount."`
	}
	refuse := func(context.Context, *engines.Request, *input) (*engines.Response, error) { return nil, u.err }
	const help = "This version of the server does not have the type of this mount."
	for _, op := range []engines.Operation{engines.Read, engines.List, engines.Update, engines.Patch, engines.Delete} {
		flags := engines.Active
		if e.IsAuth() && op == engines.Update {
			flags |= engines.Unauthenticated // or who logs in would read "permission denied"
		}
		engines.On(u.router, op, "{path...?}", help, flags, refuse)
	}
	return u
}

// Router implements engines.Engine.
func (u *unknown) Router() *engines.Router { return u.router }

// RevokeLease implements engines.Leaser: the lease stays until a node can revoke it.
func (u *unknown) RevokeLease(context.Context, engines.Mount, engines.LeaseRecord) error {
	return u.err
}

// RenewLease implements engines.Leaser.
func (u *unknown) RenewLease(context.Context, engines.Mount, engines.LeaseRecord) (engines.Lease, error) {
	return engines.Lease{}, u.err
}

// RenewLogin implements engines.Renewer.
func (u *unknown) RenewLogin(context.Context, engines.Mount, engines.RenewedLogin) (engines.TokenFields, error) {
	return engines.TokenFields{}, u.err
}

// known returns why this version cannot change the mount, or nil.
func (m *Mounted) known() error {
	if u, ok := m.Engine.(*unknown); ok {
		return u.err
	}
	return nil
}

func allKnown(mounts []*Mounted) error {
	for _, m := range mounts {
		if err := m.known(); err != nil {
			return err
		}
	}
	return nil
}
