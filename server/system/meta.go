package system

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/openapi"
	"github.com/coffer-project/coffer/storage"
)

func (s *System) metaPaths() {
	r := s.router
	engines.On(r, engines.Read, "internal/specs/openapi", "The OpenAPI document of every path the server answers in this namespace.", 0, s.openAPI)
	metrics := engines.Flags(engines.AnyNode | engines.RootNamespace | engines.WorksBehind)
	if s.opts.UnauthenticatedMetrics {
		metrics |= engines.Unauthenticated
	}
	engines.On(r, engines.Read, "metrics", "The metrics of this node, for Prometheus or as JSON.", metrics, s.metrics).
		Returns(`json; Timestamp, Gauges: [{Name, Value: number, Labels: {*: string}}], Counters: [{Name, Value: number, Labels: {*: string}}],
			Samples: [{Name, Value: number "Sum of what was measured.", Count: integer "How often it was measured.", Labels: {*: string}}]`)
}

// How many engines are asked at a time for the documents that only they have, and how long for all of them.
const (
	maxDescriptions    = 8
	descriptionTimeout = 20 * time.Second
)

func (s *System) openAPI(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	all, err := s.opts.Mounts.All(ctx, cmp.Or(req.Mount.NamespaceID, "root"))
	if err != nil {
		return nil, err
	}
	mounted := make([]openapi.Mount, len(all))
	ctx, cancel := context.WithTimeout(ctx, descriptionTimeout)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(maxDescriptions)
	for i, m := range all {
		mounted[i] = openapi.Mount{Path: m.Path, Router: m.Engine.Router(), NamespaceID: m.Namespace}
		if d, ok := m.Engine.(engines.Documenter); ok {
			asking.Go(func() error {
				text, err := d.Description(ctx)
				mounted[i].Foreign, mounted[i].Missing = text, err != nil
				if errors.Is(err, storage.ErrReadOnly) {
					return err // the active node knows it
				}
				return nil
			})
		}
	}
	if err := asking.Wait(); err != nil {
		return nil, err
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
