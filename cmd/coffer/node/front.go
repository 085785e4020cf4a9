package node

import (
	"encoding/json"
	"net/http"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/admission"
	"github.com/coffer-project/coffer/server/httpapi"
)

// Descriptors that the connections of listeners do not get: a share, or this many if that is more. They are those of the
// data, the logs, the cluster port and the connections to other services.
const keptDescriptors = 64

// mostConnections of a listener unless its configuration says more: each may take some 50 KiB.
const mostConnections = 8192

// connections returns the bounds of a listener's connections, of which there are so many listeners: all, and those of one
// address, which gets a quarter.
func connections(c config.Listener, listeners int) (total, each int) {
	var files syscall.Rlimit
	most := uint64(mostConnections)
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil { // as raised by the runtime to what is allowed
		limit := uint64(files.Cur)
		most = min(most, (limit-min(limit, max(limit/4, keptDescriptors)))/uint64(listeners))
	}
	total, each = int(max(most, 8)), int(c.MaxConnectionsEach)
	if c.MaxConnections > 0 {
		total = int(c.MaxConnections)
	}
	if each == 0 {
		each = max(total/4, 8)
	}
	return total, min(each, total)
}

var (
	hsts    = []string{"max-age=31536000; includeSubDomains"}
	nosniff = []string{"nosniff"}

	openCeremonies = []string{"1"}
)

// front is what the listener does to every request before it reaches the node: it finds the client's address, says what
// browsers must know, and bounds the time of a body that nothing reads.
func (l *listener) front(next http.Handler) http.Handler {
	c := l.config
	forwarded := admission.Forwarded{
		Authorized: c.Forwarded.Authorized, HopSkips: c.Forwarded.HopSkips,
		RejectNotPresent: c.Forwarded.RejectNotPresent, RejectNotAuthorized: c.Forwarded.RejectNotAuthorized,
	}
	redaction := httpapi.Redaction{Addresses: c.RedactAddresses, Version: c.RedactVersion, ClusterName: c.RedactClusterName}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["X-Content-Type-Options"] = nosniff
		if !c.TLSDisable {
			h["Strict-Transport-Security"] = hsts
		}
		if r.Body != nil && r.Body != http.NoBody {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(admission.Grace))
		}
		remote, err := forwarded.Client(r)
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
		redaction.Mark(r.Header)
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
