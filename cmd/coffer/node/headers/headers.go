// Package headers adds the headers of the configuration to responses.
package headers

import (
	"net/http"
	"os"
	"strconv"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

// Own are the headers of every response that say which node it is from.
func Own(c *config.Config, id string) http.Header {
	h := http.Header{}
	if name, err := os.Hostname(); err == nil && c.HostnameHeader {
		h.Set("X-Vault-Hostname", name)
	}
	if c.NodeIDHeader {
		h.Set("X-Vault-Raft-Node-ID", id)
	}
	return h
}

// Wrap returns a writer that adds the headers of a listener.
func Wrap(w http.ResponseWriter, byStatus map[string]map[string][]string) http.ResponseWriter {
	return &headed{ResponseWriter: w, byStatus: byStatus}
}

// headed adds the operator's headers to a response once its status is known: those for every response, for its class, and for its
// status, of which the last counts.
type headed struct {
	http.ResponseWriter
	byStatus map[string]map[string][]string
	written  bool
}

// Unwrap is for http.ResponseController.
func (w *headed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *headed) WriteHeader(status int) {
	if !w.written && status >= 200 {
		w.written = true
		text := strconv.Itoa(status)
		for _, key := range []string{"default", text[:1] + "xx", text} {
			for name, values := range w.byStatus[key] {
				w.Header()[name] = values
			}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *headed) Write(b []byte) (int, error) {
	if !w.written {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (w *headed) Flush() {
	if !w.written {
		w.WriteHeader(http.StatusOK)
	}
	http.NewResponseController(w.ResponseWriter).Flush()
}
