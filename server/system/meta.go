package system

import (
	"context"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
)

func (s *System) metaPaths() {
	r := s.router
	engines.On(r, engines.Read, "internal/ui/mounts", "List the mounts that the caller may see.", engines.Unauthenticated, s.uiMounts)
	engines.On(r, engines.Read, "internal/ui/mounts/{path...}", "Describe the mount that a path falls under.", selfAuthorised, s.uiMount)
	engines.On(r, engines.Read, "internal/specs/openapi", "The OpenAPI document of every path the server answers in this namespace.", 0, s.openAPI)
	metrics := engines.Flags(engines.AnyNode | engines.RootNamespace | engines.WorksBehind)
	if s.opts.UnauthenticatedMetrics {
		metrics |= engines.Unauthenticated
	}
	engines.On(r, engines.Read, "metrics", "The metrics of this node, for Prometheus or as JSON.", metrics, s.metrics)
}

// selfAuthorised paths need a token but no policy: what they answer depends on what the token may do.
const selfAuthorised = engines.AnyToken

func (s *System) uiMounts(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	all, err := s.opts.Mounts.All(ctx, namespaceOf(req))
	if err != nil {
		return nil, err
	}
	secret, auth := map[string]any{}, map[string]any{}
	for _, m := range all {
		visible := m.Config.ListingVisibility == "unauth" || s.anyUnder(req, m.Path)
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
func (s *System) anyUnder(req *engines.Request, path string) bool {
	return req.Caller.Access != nil && req.Caller.Access.AnyUnder(path)
}

// uiMount tells clients which engine a path belongs to, also one that leads through namespaces below that of the
// request. Where the caller may do nothing the answer is the same as where nothing is mounted, so that mounts
// cannot be probed.
func (s *System) uiMount(ctx context.Context, req *engines.Request, in *mountPath) (*engines.Response, error) {
	ns, rest, err := s.resolveFrom(ctx, req, in.Path)
	if err != nil {
		return nil, err
	}
	m, _, err := s.opts.Mounts.Resolve(ctx, ns, rest)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, engines.Denied(nil)
	}
	path := strings.TrimPrefix(m.Mount.Namespace, req.Mount.Namespace) + m.Path
	if !s.anyUnder(req, path) {
		return nil, engines.Denied(nil)
	}
	out := describe(m)
	out["path"] = path
	return &engines.Response{Data: out}, nil
}

// resolveFrom follows a path from the request's namespace through those below it.
func (s *System) resolveFrom(ctx context.Context, req *engines.Request, path string) (ns, rest string, err error) {
	if s.opts.ResolveFrom == nil {
		return namespaceOf(req), path, nil
	}
	return s.opts.ResolveFrom(ctx, namespaceOf(req), path)
}

func (s *System) openAPI(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	all, err := s.opts.Mounts.All(ctx, namespaceOf(req))
	if err != nil {
		return nil, err
	}
	var mounted []engines.MountedRouter
	for _, m := range all {
		mounted = append(mounted, engines.MountedRouter{Path: m.Path, Router: m.Engine.Router(), NamespaceID: m.Namespace})
	}
	doc, err := engines.OpenAPI("Coffer", s.opts.Version.Product, mounted)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Raw: &engines.Raw{ContentType: "application/json", Body: doc}}, nil
}

type metricsInput struct {
	Format string `json:"format" enum:",prometheus,json" help:"\"prometheus\" for the text format; default JSON."`
}

func (s *System) metrics(_ context.Context, req *engines.Request, in *metricsInput) (*engines.Response, error) {
	prometheus := in.Format == "prometheus" || in.Format == "" && strings.Contains(req.Header.Get("Accept"), "text/plain")
	contentType, body, err := s.opts.Metrics(prometheus)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Raw: &engines.Raw{ContentType: contentType, Body: body}}, nil
}
