package mounts

import (
	"context"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
)

func (p Paths) uiPaths(r *engines.Router) {
	engines.On(r, engines.Read, "internal/ui/mounts", "List the mounts that the caller may see.", engines.Unauthenticated, p.uiMounts).
		Returns("auth: {*: {" + mountShape + "}}, secret: {*: {" + mountShape + "}}")
	engines.On(r, engines.Read, "internal/ui/mounts/{path...}", "Describe the mount that a path falls under.", selfAuthorised, p.uiMount).
		Returns(mountShape + ", path" + ` "Path of the mount, from the namespace of the request."`)
}

// selfAuthorised paths need a token but no policy: what they answer depends on what the token may do.
const selfAuthorised = engines.AnyToken

func (p Paths) uiMounts(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	all, err := p.Table.All(ctx, namespaceOf(req))
	if err != nil {
		return nil, err
	}
	secret, auth := map[string]any{}, map[string]any{}
	for _, m := range all {
		visible := m.Config.ListingVisibility == "unauth" || anyUnder(req, m.Path)
		about := describe(m)
		if req.Caller.Access == nil { // anybody
			about = map[string]any{"type": m.Type, "description": m.Description, "options": about["options"]}
		}
		switch {
		case !visible:
		case m.IsAuth():
			auth[strings.TrimPrefix(m.Path, mount.AuthPrefix)] = about
		default:
			secret[m.Path] = about
		}
	}
	return &engines.Response{Data: map[string]any{"secret": secret, "auth": auth}}, nil
}

// anyUnder reports whether the caller may do anything below a path of the request's namespace.
func anyUnder(req *engines.Request, path string) bool {
	return req.Caller.Access != nil && req.Caller.Access.AnyUnder(path)
}

// uiMount tells clients which engine a path belongs to, also one that leads through namespaces below that of the
// request. Where the caller may do nothing the answer is the same as where nothing is mounted, so that mounts
// cannot be probed.
func (p Paths) uiMount(ctx context.Context, req *engines.Request, in *mountPath) (*engines.Response, error) {
	ns, rest, err := p.resolveFrom(ctx, req, in.Path)
	if err != nil {
		return nil, err
	}
	m, _, err := p.Table.Resolve(ctx, ns, rest)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engines.Denied(nil)
	}
	path := strings.TrimPrefix(m.Mount.Namespace, req.Mount.Namespace) + m.Path
	if !anyUnder(req, path) {
		return nil, engines.Denied(nil)
	}
	out := describe(m)
	out["path"] = path
	return &engines.Response{Data: out}, nil
}
