package system

import (
	"cmp"
	"context"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/openapi"
)

func (s *System) metaPaths() {
	r := s.router
	engines.On(r, engines.Read, "internal/specs/openapi", "The OpenAPI document of every path the server answers in this namespace.", 0, s.openAPI)
	metrics := engines.Flags(engines.AnyNode | engines.RootNamespace | engines.WorksBehind)
	if s.opts.UnauthenticatedMetrics {
		metrics |= engines.Unauthenticated
	}
	engines.On(r, engines.Read, "metrics", "The metrics of this node, for Prometheus or as JSON.", metrics, s.metrics)
}

func (s *System) openAPI(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	all, err := s.opts.Mounts.All(ctx, cmp.Or(req.Mount.NamespaceID, "root"))
	if err != nil {
		return nil, err
	}
	var mounted []openapi.Mount
	for _, m := range all {
		mounted = append(mounted, openapi.Mount{Path: m.Path, Router: m.Engine.Router(), NamespaceID: m.Namespace})
	}
	doc, err := openapi.Document("Coffer", s.opts.Version.Product, mounted)
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
	contentType, body, err := s.opts.Metrics.Render(prometheus)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Raw: &engines.Raw{ContentType: contentType, Body: body}}, nil
}
