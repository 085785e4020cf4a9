// Package trace sends a span for each request to an OpenTelemetry collector, if the operator has named one. A span
// says what was asked (operation, pattern of the route, type of mount), how it ended and how long it took; never a
// path, a field or a name that users chose. A request that travels to the active node is one trace.
//
// Without a collector there is no Tracer, and a nil *Tracer costs nothing: Wrap returns the handler it is given.
// Start reading at New, then Wrap.
package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options of New.
type Options struct {
	Endpoint string // host:port of the collector's OTLP/gRPC port; "": no traces
	Insecure bool   // without TLS
	// SampleRatio is the part of requests that get a span, 0 to 1. It depends on nothing but the trace's id, so all
	// nodes with the same ratio decide alike, whatever a client wishes.
	SampleRatio float64
	NodeID      string
	Version     string
	Logger      *slog.Logger     // nil discards
	Exporter    sdk.SpanExporter // instead of Endpoint, for tests
}

// Tracer makes spans and sends them in the background; if the collector does not keep up, they are dropped. The nil
// Tracer makes none. Safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	carrier  propagation.TraceContext
}

// New returns a Tracer, or nil if there is no collector. Close it. The collector need not be there yet.
func New(ctx context.Context, o Options) (*Tracer, error) {
	exporter := o.Exporter
	if exporter == nil {
		if o.Endpoint == "" {
			return nil, nil
		}
		how := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(o.Endpoint)}
		if o.Insecure {
			how = append(how, otlptracegrpc.WithInsecure())
		}
		var err error
		if exporter, err = otlptracegrpc.New(ctx, how...); err != nil {
			return nil, fmt.Errorf("preparing traces: %w", err)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	about := resource.NewSchemaless(
		attribute.String("service.name", "coffer"), attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.NodeID),
	)
	provider := sdk.NewTracerProvider(
		sdk.WithSampler(sdk.TraceIDRatioBased(o.SampleRatio)), sdk.WithResource(about),
		sdk.WithBatcher(&quiet{SpanExporter: exporter, log: o.Logger}, sdk.WithMaxQueueSize(4096)),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("coffer")}, nil
}

// quiet logs what goes wrong instead of handing it to the library's global handler.
type quiet struct {
	sdk.SpanExporter
	log    *slog.Logger
	failed bool // the batcher exports one batch after the other
}

func (q *quiet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !q.failed:
		q.log.Warn("traces do not reach the collector", "err", err)
	case err == nil && q.failed:
		q.log.Info("traces reach the collector again")
	}
	q.failed = err != nil
	return nil
}

// Close sends what is left, for at most five seconds, and ends. Twice is fine.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("sending the last traces: %w", err)
	}
	return nil
}

// Wrap returns a handler that makes a span of each request. The span continues the trace that the request says it
// belongs to, and a request that the handler forwards with its headers says that it belongs to the span.
func (t *Tracer) Wrap(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers := propagation.HeaderCarrier(r.Header)
		ctx, span := t.tracer.Start(t.carrier.Extract(r.Context(), headers), method(r.Method), trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		t.carrier.Inject(ctx, headers)
		if !span.IsRecording() {
			next.ServeHTTP(w, r)
			return
		}
		sw := &statusWriter{ResponseWriter: w}
		next.ServeHTTP(sw, r.WithContext(ctx))
		span.SetAttributes(attribute.String("http.request.method", method(r.Method)), attribute.Int("http.response.status_code", sw.status))
		if sw.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// method keeps what clients invent out of the spans.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "LIST", "SCAN":
		return m
	}
	return "_OTHER"
}

// Route says on the request's span, if there is one, which route it takes: the operation, the declared pattern and
// the type of the mount. None of them may hold anything that a user chose.
func Route(ctx context.Context, requestID, op, mountType, pattern string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetName(op + " " + mountType + "/" + pattern)
	span.SetAttributes(
		attribute.String("http.route", pattern), attribute.String("coffer.operation", op),
		attribute.String("coffer.mount_type", mountType), attribute.String("coffer.request_id", requestID),
	)
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
