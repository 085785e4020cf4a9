package node

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/node/headers"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/admission"
	"github.com/coffer-project/coffer/server/httpapi"
)

var (
	hsts    = []string{"max-age=31536000; includeSubDomains"}
	nosniff = []string{"nosniff"}

	openCeremonies = []string{"1"}
)

// front is what the listener does to every request before it reaches the node: it finds the client's address, says what
// browsers must know, and bounds the time of a body that nothing reads. own are headers of every response.
func (l *listener) front(next http.Handler, own http.Header) http.Handler {
	c := l.config
	forwarded := admission.Forwarded{
		Authorized: c.Forwarded.Authorized, HopSkips: c.Forwarded.HopSkips,
		RejectNotPresent: c.Forwarded.RejectNotPresent, RejectNotAuthorized: c.Forwarded.RejectNotAuthorized,
		CertHeader: http.CanonicalHeaderKey(c.Forwarded.CertHeader), CertDecoders: c.Forwarded.CertDecoders,
	}
	redact := httpapi.Redaction{Addresses: c.RedactAddresses, Version: c.RedactVersion, ClusterName: c.RedactClusterName}.Mark()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.Unix {
			r.RemoteAddr = "127.0.0.1:0" // it is on this machine
		}
		if metrics := strings.TrimSuffix(r.URL.Path, "/") == "/v1/sys/metrics"; metrics && c.NoMetrics || !metrics && c.MetricsOnly {
			http.NotFound(w, r)
			return
		}
		if byStatus := *l.headers.Load(); len(byStatus) > 0 {
			w = headers.Wrap(w, byStatus)
		}
		h := w.Header()
		maps.Copy(h, own)
		h["X-Content-Type-Options"] = nosniff
		if !c.TLSDisable {
			h["Strict-Transport-Security"] = hsts
		}
		if r.Body != nil && r.Body != http.NoBody {
			grace := admission.Grace
			if c.ReadTimeout > 0 {
				grace = min(grace, c.ReadTimeout)
			}
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(grace))
		}
		remote, err := forwarded.Client(r)
		if err == nil {
			err = forwarded.Certificates(r)
		}
		if err != nil {
			text, err := json.Marshal(map[string][]string{"errors": {err.Error()}})
			if err != nil {
				panic(err) // a text
			}
			h.Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			w.Write(append(text, '\n'))
			return
		}
		r.RemoteAddr = remote
		if delete(r.Header, engines.CeremonyHeader); c.OpenCeremonies {
			r.Header[engines.CeremonyHeader] = openCeremonies
		}
		redact(r.Header)
		next.ServeHTTP(w, r)
	})
}

// admissions are the metrics of connections and of bodies in memory.
func admissions(bodies *httpapi.Bodies, listeners []*listener) map[string]float64 {
	out := map[string]float64{
		"request_body_bytes":            float64(bodies.Open.Used() + bodies.Token.Used()),
		"request_bodies_rejected_total": float64(bodies.Open.Rejected() + bodies.Token.Rejected()),
		"connections":                   0, "connections_evicted_total": 0, "connections_rejected_total": 0,
	}
	for _, l := range listeners {
		open, evicted, rejected := l.gate.Numbers()
		out["connections"] += float64(open)
		out["connections_evicted_total"] += float64(evicted)
		out["connections_rejected_total"] += float64(rejected)
	}
	return out
}
