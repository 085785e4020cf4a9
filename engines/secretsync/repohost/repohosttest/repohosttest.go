// Package repohosttest is the Actions secrets of GitHub for tests: an HTTP server on loopback with repositories, environments
// and organizations, each with a real key, that opens every box it is sent.
//
//	s := repohosttest.New(t)
//	s.AddRepository("octo", "app")
//	// the operator's URL is s.URL, access_token is repohosttest.Token
//
// It rejects what GitHub rejects: names, sizes, counts, boxes for another key, tokens that may not. Names are stored in capitals,
// times are whole seconds of a clock of its own, lists come in pages with ETags, and every response has the headers of the rate
// limit. Requests and answers are held against GitHub's own OpenAPI description, and a difference fails the test.
package repohosttest

import (
	"crypto/rand"
	_ "embed"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/nacl/box"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/openapitest"
)

// Token may read and write all there is; ReadOnly may only read; Blind is valid and sees nothing.
const (
	Token    = "github_pat_11AAAAAAA0write0write0write"
	ReadOnly = "github_pat_11AAAAAAA0read00read00read0"
	Blind    = "github_pat_11AAAAAAA0blind0blind0blind"
)

// Prefix is where the API begins, as on one's own premises.
const Prefix = "/api/v3"

//go:embed testdata/github-secrets.json
var description []byte

var contract = sync.OnceValue(func() *openapitest.Contract {
	c := openapitest.Load(description)
	c.Unlisted = map[int]bool{301: true, 304: true, 401: true, 403: true, 404: true, 422: true, 429: true}
	c.Ignore = func(path string) bool { return strings.Count(path, "/") == 3 && strings.HasPrefix(path, "/repos/") }
	return c
})

// Server is GitHub. Safe for concurrent use.
type Server struct {
	desttest.Front // at the URL of the API

	t      testing.TB
	client *http.Client

	mu        sync.Mutex
	now       time.Time
	tick      time.Duration // that a write takes
	locations map[string]*location
	repos     map[string]*repository
	moved     map[string]string // repositories that have another name now
	limit     int               // calls that are left
	put       func()
	stale     int
	expiry    time.Time
	apps      map[string]*app // by iss
	tokens    map[string]time.Time
	workflows map[string]bool // by path
	runs      []string
}

type repository struct {
	id    int64
	owner string
	name  string
}

// location is a set of names.
type location struct {
	org     bool
	owner   string
	max     int
	keyID   string
	public  *[32]byte
	private *[32]byte
	secrets map[string]*entry
}

type entry struct {
	value      string
	created    time.Time
	updated    time.Time
	visibility string
	selected   []int64
	before     *entry // what a stale read shows
}

// New starts a Server that lives as long as the test.
func New(t testing.TB) *Server {
	t.Helper()
	return start(t, httptest.NewServer)
}

// NewTLS starts a Server that speaks TLS, at https://127.0.0.1:PORT as a GitHub Enterprise Server does. ca is what to trust, in PEM.
func NewTLS(t testing.TB) (s *Server, enterpriseURL string, ca []byte) {
	t.Helper()
	var l *httptest.Server
	s = start(t, func(h http.Handler) *httptest.Server {
		l = httptest.NewTLSServer(h)
		return l
	})
	return s, l.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Certificate().Raw})
}

func start(t testing.TB, listen func(http.Handler) *httptest.Server) *Server {
	t.Helper()
	s := &Server{
		t: t, now: time.Now().UTC().Truncate(time.Second), tick: time.Second, limit: 5000, expiry: time.Now().Add(90 * 24 * time.Hour),
		locations: map[string]*location{}, repos: map[string]*repository{}, moved: map[string]string{},
		apps: map[string]*app{}, tokens: map[string]time.Time{}, workflows: map[string]bool{},
	}
	s.Faults = &desttest.Faults{Next: contract().Handler(t, Prefix, s), Throttled: s.throttled, Troubled: s.troubled, Rejected: s.rejected}
	l := listen(s.Faults)
	s.client = l.Client()
	t.Cleanup(l.Close)
	s.URL = l.URL + Prefix
	return s
}

// Client returns a client that trusts the Server.
func (s *Server) Client() *http.Client { return s.client }

func (s *Server) add(key string, p *location) {
	p.secrets = map[string]*entry{}
	s.locations[key] = p
	s.rotate(p)
}

// AddRepository makes a repository and returns its id.
func (s *Server) AddRepository(owner, name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.ToLower("repos/" + owner + "/" + name)
	s.repos[key] = &repository{id: int64(1000 + len(s.repos)), owner: owner, name: name}
	s.add(key, &location{owner: owner, max: 100})
	return s.repos[key].id
}

// AddEnvironment makes an environment of a repository.
func (s *Server) AddEnvironment(owner, repo, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(Environment(owner, repo, name), &location{owner: owner, max: 100})
}

// AddOrganization makes an organization.
func (s *Server) AddOrganization(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(Organization(name), &location{org: true, owner: name, max: 1000})
}

// Repository, Environment and Organization name destinations.
func Repository(owner, name string) string { return strings.ToLower("repos/" + owner + "/" + name) }

// Environment names that of a repository.
func Environment(owner, repo, name string) string {
	return strings.ToLower("repos/" + owner + "/" + repo + "/environments/" + name)
}

// Organization names that of an organization.
func Organization(name string) string { return strings.ToLower("orgs/" + name) }

// Rename gives a repository another name. The old one redirects.
func (s *Server) Rename(owner, from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := Repository(owner, from), Repository(owner, to)
	s.locations[b], s.repos[b] = s.locations[a], s.repos[a]
	delete(s.locations, a)
	delete(s.repos, a)
	s.moved[a] = b
}

// Remove has a repository, environment or organization go.
func (s *Server) Remove(location string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locations, location)
}

// RotateKey gives a destination another key. Boxes for the old one are rejected.
func (s *Server) RotateKey(location string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(s.locations[location])
}

func (s *Server) rotate(p *location) {
	var err error
	if p.public, p.private, err = box.GenerateKey(rand.Reader); err != nil {
		s.t.Fatal(err)
	}
	p.keyID = rand.Text()[:18]
}

// Tick says how long a write takes on the server's clock: a second if it is not called, so that times differ.
func (s *Server) Tick(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick = d
}

// Advance moves the server's clock.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// Left sets how many calls the token has left for this hour.
func (s *Server) Left(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = n
}

// Expires sets when tokens do.
func (s *Server) Expires(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiry = at
}

// BeforePut has f called before the next write, once.
func (s *Server) BeforePut(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put = f
}

// Stale has the next n reads of a single secret show what was there before it was last written.
func (s *Server) Stale(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = n
}

// Put writes a secret as another client would.
func (s *Server) Put(location, name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &entry{value: value}
	if s.locations[location].org {
		e.visibility = "all"
	}
	s.store(s.locations[location], name, e)
}

// Drop deletes a secret as another client would.
func (s *Server) Drop(location, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locations[location].secrets, strings.ToUpper(name))
}

// Get returns the value that a workflow would see.
func (s *Server) Get(location, name string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.locations[location].secrets[strings.ToUpper(name)]
	if !ok {
		return "", false
	}
	return e.value, true
}

// Seen returns which repositories see a secret of an organization.
func (s *Server) Seen(location, name string) (visibility string, selected []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.locations[location].secrets[strings.ToUpper(name)]
	if !ok {
		return "", nil
	}
	return e.visibility, e.selected
}

// store puts an entry in its place and reports whether the name is new. The lock is held.
func (s *Server) store(p *location, name string, e *entry) (created bool) {
	s.now = s.now.Add(s.tick)
	name = strings.ToUpper(name)
	old := p.secrets[name]
	e.created, e.updated = s.now, s.now
	if old != nil {
		e.created = old.created
		e.before = &entry{value: old.value, created: old.created, updated: old.updated, visibility: old.visibility}
	}
	p.secrets[name] = e
	return old == nil
}

func (s *Server) throttled(w http.ResponseWriter, _ *http.Request, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limited(w, s.now.Add(after))
}

func (s *Server) troubled(w http.ResponseWriter, _ *http.Request) {
	desttest.Respond(w, http.StatusServiceUnavailable, message("Service unavailable"))
}

func (s *Server) rejected(w http.ResponseWriter, _ *http.Request) {
	desttest.Respond(w, http.StatusForbidden, message("Resource not accessible by personal access token"))
}
