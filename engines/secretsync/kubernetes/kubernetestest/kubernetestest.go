// Package kubernetestest is the Secrets of a Kubernetes cluster for tests: an API server on loopback.
//
//	s := kubernetestest.New(t)
//	s.AddNamespace("shop")
//	// api_server is s.TLS and ca_cert is s.CA, or the operator's URL is s.URL; token is kubernetestest.Token
//
// It rejects what an API server rejects: names, labels and data keys that are not legal, Secrets that are too large, another type,
// writes and deletions of another uid or resourceVersion, a namespace that does not exist, calls without the permission. Requests and
// responses are held against Kubernetes' own OpenAPI description, and a difference fails the test, as does a list with values.
package kubernetestest

import (
	_ "embed"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/openapitest"
)

// Token may do everything with Secrets; ReadOnly may get and list them.
const (
	Token    = "eyJhbGciOiJub25lIn0.e30.service-account-that-writes"
	ReadOnly = "eyJhbGciOiJub25lIn0.e30.service-account-that-reads"
)

//go:embed testdata/kubernetes-secrets.json
var description []byte

const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

var contract = sync.OnceValue(func() *openapitest.Contract {
	c := openapitest.Load(description)
	c.Unlisted = map[int]bool{400: true, 403: true, 404: true, 409: true, 410: true, 413: true, 415: true, 422: true, 429: true, 503: true}
	c.Ignore = func(path string) bool { return path == reviews }
	return c
})

// Secret is one Secret.
type Secret struct {
	Name        string
	UID         string
	Version     string // resourceVersion
	Type        string
	Labels      map[string]string
	Annotations map[string]string
	Data        map[string][]byte
	Immutable   bool
	Finalizers  bool // a deletion waits
	deleting    bool
}

// Server is an API server. Safe for concurrent use.
type Server struct {
	desttest.Front        // without TLS, for the operator's endpoint
	TLS            string // with a certificate of CA
	CA             string // PEM

	t testing.TB

	mu         sync.Mutex
	version    int
	namespaces map[string]map[string]*Secret
	full       bool
}

// New starts a Server that lives as long as the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, version: 1000, namespaces: map[string]map[string]*Secret{}}
	s.Listen(t, &desttest.Faults{
		Next: contract().Handler(t, "", s), Throttled: throttled, Troubled: refuses(http.StatusServiceUnavailable, "ServiceUnavailable"), Rejected: refuses(http.StatusUnauthorized, "Unauthorized"),
		Reads: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodGet || r.URL.Path == reviews || r.URL.Query().Has("dryRun")
		},
	})
	secure := httptest.NewUnstartedServer(s.Faults)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that do not trust it
	secure.StartTLS()
	t.Cleanup(secure.Close)
	s.TLS = secure.URL
	s.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	return s
}

// AddNamespace makes a namespace.
func (s *Server) AddNamespace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.namespaces[name] = map[string]*Secret{}
}

// Full has new Secrets rejected by a ResourceQuota.
func (s *Server) Full(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// Put writes one data key of a Secret as another client would, which takes our annotations away.
func (s *Server) Put(namespace, name, key, value string) {
	s.Apply(namespace, Secret{Name: name, Type: "Opaque", Data: map[string][]byte{key: []byte(value)}})
}

// Apply replaces a Secret, or creates it.
func (s *Server) Apply(namespace string, now Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.namespaces[namespace][now.Name]; old != nil {
		now.UID = old.UID
	}
	s.store(namespace, &now)
}

// store gives a Secret its next version, and a uid if it has none. The lock is held.
func (s *Server) store(namespace string, now *Secret) {
	s.version++
	now.Version = strconv.Itoa(s.version)
	if now.UID == "" {
		now.UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.version)
	}
	s.namespaces[namespace][now.Name] = now
}

// Drop deletes a Secret as another client would.
func (s *Server) Drop(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.namespaces[namespace], name)
}

// Get returns a Secret.
func (s *Server) Get(namespace, name string) (Secret, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.namespaces[namespace][name]
	if now == nil {
		return Secret{}, false
	}
	out := *now
	out.Data, out.Labels, out.Annotations = maps.Clone(now.Data), maps.Clone(now.Labels), maps.Clone(now.Annotations)
	return out, true
}

func throttled(w http.ResponseWriter, _ *http.Request, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	fail(w, http.StatusTooManyRequests, "TooManyRequests", "", "the server has received too many requests")
}

func refuses(status int, reason string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { fail(w, status, reason, "", strings.ToLower(reason)) }
}

// Value returns a Secret as one text: its data key "value" if it is the only one, else all of them as a JSON object.
func (s *Server) Value(namespace, name string) (string, bool) {
	now, ok := s.Get(namespace, name)
	if !ok {
		return "", false
	}
	if value, has := now.Data["value"]; has && len(now.Data) == 1 {
		return string(value), true
	}
	texts := map[string]string{}
	for key, value := range now.Data {
		texts[key] = string(value)
	}
	out, _ := json.Marshal(texts)
	return string(out), true
}
