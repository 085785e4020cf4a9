package pipeline

import (
	"context"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// Place says where a request must run: reads run where they arrive, what writes runs on the active node, and
// some paths say so themselves.
func (p *Pipeline) Place(ctx context.Context, req *Request) (Place, error) {
	if p.Node.Active() || p.Node.Sealed() {
		return Here, nil
	}
	flags, known := p.flags(ctx, req)
	switch {
	case known && flags.Has(engines.AnyNode):
		return Only, nil
	case req.wraps():
		return Active, nil // the answer is stored
	case known && flags.Has(engines.Active):
		return Active, nil
	case (req.Op == engines.Read || req.Op.Lists() || req.Help) && p.Node.Current():
		return Here, nil
	}
	return Active, nil
}

// WantsRawBody reports whether the route streams its body.
func (p *Pipeline) WantsRawBody(ctx context.Context, req *Request) bool {
	if req.Op != engines.Update || !strings.HasPrefix(req.Path, sysPrefix) {
		return false
	}
	flags, _ := p.flags(ctx, req)
	return flags.Has(engines.RawBody)
}

// BodyRule returns what the body of the request may be, as far as this node knows.
func (p *Pipeline) BodyRule(ctx context.Context, req *Request) BodyRule {
	flags, _ := p.flags(ctx, req)
	return bodyRule(req.Op, flags)
}

// WantsForeignForm reports whether the route takes forms that pages of other sites send. While the node is sealed only its
// own paths are known; the others are answered without being run.
func (p *Pipeline) WantsForeignForm(ctx context.Context, req *Request) bool {
	if p.Node.Sealed() {
		return !strings.HasPrefix(req.Path, sysPrefix)
	}
	flags, _ := p.flags(ctx, req)
	return req.Op == engines.Update && flags.Has(engines.ForeignForm)
}

// flags returns the flags of the request's route.
func (p *Pipeline) flags(ctx context.Context, req *Request) (engines.Flags, bool) {
	if route, _ := p.systemRoute(req); route != nil {
		return route.Flags, true
	}
	if p.Node.Sealed() {
		return 0, false
	}
	at, err := p.find(ctx, req)
	if err != nil || at.mount == nil {
		return 0, false
	}
	route, _, err := at.mount.Engine.Router().Match(req.Op, at.rest)
	if err != nil {
		return 0, false
	}
	return route.Flags, true
}
