package trace_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/server/trace"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// kept keeps spans; the library's own exporter forgets them when it ends.
type kept struct {
	mu    sync.Mutex
	spans tracetest.SpanStubs
}

func (k *kept) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spans = append(k.spans, tracetest.SpanStubsFromReadOnlySpans(spans)...)
	return nil
}

func (*kept) Shutdown(context.Context) error { return nil }

func newTracer(t *testing.T, ratio float64) (*trace.Tracer, *kept) {
	t.Helper()
	k := &kept{}
	tracer, err := trace.New(t.Context(), trace.Options{Exporter: k, SampleRatio: ratio, NodeID: "n1", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	return tracer, k
}

func TestOffCostsNothing(t *testing.T) {
	tracer, err := trace.New(t.Context(), trace.Options{})
	if err != nil || tracer != nil {
		t.Fatalf("without a collector: %v, %v", tracer, err)
	}
	next := http.NewServeMux()
	if got := tracer.Wrap(next); got != http.Handler(next) {
		t.Error("without a collector the handler is wrapped")
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := testing.AllocsPerRun(100, func() { trace.Route(t.Context(), "id", "read", "kv", "data/{path...}") }); n != 0 {
		t.Errorf("Route allocates %v times", n)
	}
}

func TestForwardedRequestIsOneTrace(t *testing.T) {
	tracer, k := newTracer(t, 1)
	active := tracer.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trace.Route(r.Context(), "id-2", "update", "kv", "data/{path...}")
		w.WriteHeader(http.StatusInternalServerError)
	}))
	standby := tracer.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trace.Route(r.Context(), "id-1", "update", "kv", "data/{path...}")
		again := httptest.NewRequest(r.Method, "/v1/secret/data/customer-acme", nil)
		again.Header = r.Header
		active.ServeHTTP(w, again)
	}))
	req := httptest.NewRequest("POST", "/v1/secret/data/customer-acme?list=customer", strings.NewReader(`{"data":{"password":"hunter2"}}`))
	req.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	req.Header.Set("X-Vault-Token", "hvs.token")
	standby.ServeHTTP(httptest.NewRecorder(), req)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(k.spans) != 2 {
		t.Fatalf("%d spans, want one of each node", len(k.spans))
	}
	inner, outer := k.spans[0], k.spans[1]
	if got := outer.SpanContext.TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" || outer.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("the client's trace is not continued: %s", got)
	}
	if inner.Parent.SpanID() != outer.SpanContext.SpanID() || inner.SpanContext.TraceID() != outer.SpanContext.TraceID() {
		t.Error("the span of the active node is not below that of the standby")
	}
	if inner.Name != "update kv/data/{path...}" || inner.Status.Code.String() != "Error" {
		t.Errorf("span %q, status %v", inner.Name, inner.Status)
	}
	all := fmt.Sprintf("%+v", k.spans)
	for _, secret := range []string{"customer", "hunter2", "hvs."} {
		if strings.Contains(all, secret) {
			t.Errorf("the spans tell %q", secret)
		}
	}
	for _, want := range []string{"http.response.status_code", "coffer.operation", "http.route", "id-1"} {
		if !strings.Contains(all, want) {
			t.Errorf("the spans lack %q", want)
		}
	}
}

func TestSampleRatio(t *testing.T) {
	tracer, k := newTracer(t, 0)
	served := 0
	h := tracer.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	req := httptest.NewRequest("MADE-UP", "/", nil)
	req.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") // wishes to be sampled
	h.ServeHTTP(httptest.NewRecorder(), req)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if served != 1 || len(k.spans) != 0 {
		t.Errorf("served %d, spans %d; want 1 and none", served, len(k.spans))
	}
}

// receiver is a collector.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	names chan string // buffered for the one span of the test
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range req.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				r.names <- span.Name
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSendsToACollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, r := grpc.NewServer(), &receiver{names: make(chan string, 8)}
	collector.RegisterTraceServiceServer(server, r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() { server.Stop(); <-done }()
	tracer, err := trace.New(t.Context(), trace.Options{Endpoint: l.Addr().String(), Insecure: true, SampleRatio: 1})
	if err != nil {
		t.Fatal(err)
	}
	tracer.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if name := <-r.names; name != "GET" {
		t.Errorf("the collector got %q", name)
	}
}
