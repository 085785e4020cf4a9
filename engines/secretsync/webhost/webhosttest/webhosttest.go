// Package webhosttest is the environment variables of Vercel's projects for tests: an HTTP server on loopback.
//
//	s := webhosttest.New(t)
//	s.AddProject("prj_1", "team_1")
//	// the operator's URL is s.URL, access_token is webhosttest.Token
//
// It rejects what Vercel rejects: a name that is taken in an environment, sensitive variables for development, another type or
// key for what is sensitive, reserved names, values that are too large, projects of another team. A list of new variables may be
// made in part. Requests and answers are held against Vercel's own OpenAPI description, and a difference fails the test.
package webhosttest

import (
	_ "embed"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/openapitest"
)

// Token may do everything; ReadOnly may not write; Narrow may neither see nor write variables of production.
const (
	Token    = "vcp_AAAAAAAAwriteAAAAAAAAwrite"
	ReadOnly = "vcp_AAAAAAAAreadAAAAAAAAAreadA"
	Narrow   = "vcp_AAAAAAAAnarrowAAAAAAnarrow"
)

//go:embed testdata/vercel-env.json
var description []byte

var contract = sync.OnceValue(func() *openapitest.Contract {
	c := openapitest.Load(description).AnyOf()
	c.Unlisted = map[int]bool{400: true, 404: true, 413: true}
	return c
})

// Variable is one record.
type Variable struct {
	ID      string
	Key     string
	Value   string
	Type    string // "encrypted", "sensitive", "plain" or "system"
	Target  []string
	Branch  string
	Custom  []string // environments
	Comment string
	created int64
	updated int64 // milliseconds
}

type project struct {
	team string
	vars []*Variable
}

// Server is Vercel. Safe for concurrent use.
type Server struct {
	desttest.Front // at the URL of the API

	t testing.TB

	mu       sync.Mutex
	now      time.Time
	projects map[string]*project
	ids      int
	taken    struct {
		status int
		code   string
	}
}

// New starts a Server that lives as long as the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, now: time.Now().UTC().Truncate(time.Second), projects: map[string]*project{}}
	s.taken.status, s.taken.code = http.StatusForbidden, "ENV_ALREADY_EXISTS"
	s.Listen(t, &desttest.Faults{Next: contract().Handler(t, "", s), Throttled: s.throttled, Troubled: s.troubled, Rejected: s.rejected})
	return s
}

// AddProject makes a project of a team, "" for that of the token's user.
func (s *Server) AddProject(id, team string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.projects[id] = &project{team: team}
}

// Taken says how a name that is taken is rejected: with 403 and ENV_ALREADY_EXISTS if it is not called.
func (s *Server) Taken(status int, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken.status, s.taken.code = status, code
}

// Add makes a record as another client would, and returns its id.
func (s *Server) Add(projectID string, v Variable) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(s.projects[projectID], &v)
	return v.ID
}

// add stores a new record. The lock is held.
func (s *Server) add(p *project, v *Variable) {
	s.ids++
	s.now = s.now.Add(time.Millisecond)
	v.ID = "env" + strconv.Itoa(1000+s.ids)
	v.created, v.updated = s.now.UnixMilli(), s.now.UnixMilli()
	p.vars = append(p.vars, v)
}

// Change changes a record as another client would.
func (s *Server) Change(projectID, id string, f func(v *Variable)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.projects[projectID].vars {
		if v.ID == id {
			f(v)
			s.touch(v)
		}
	}
}

func (s *Server) touch(v *Variable) {
	s.now = s.now.Add(time.Millisecond)
	v.updated = s.now.UnixMilli()
}

// Drop deletes a record as another client would.
func (s *Server) Drop(projectID, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.projects[projectID]
	p.vars = slices.DeleteFunc(p.vars, func(v *Variable) bool { return v.ID == id })
}

// Put writes a name in some environments as another client would.
func (s *Server) Put(projectID, key, value string, targets ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.projects[projectID]
	for _, v := range p.vars {
		if v.Key == key && v.Branch == "" && intersect(v.Target, targets) {
			v.Value, v.Comment = value, ""
			s.touch(v)
			targets = slices.DeleteFunc(slices.Clone(targets), func(t string) bool { return slices.Contains(v.Target, t) })
		}
	}
	if len(targets) > 0 {
		s.add(p, &Variable{Key: key, Value: value, Type: "encrypted", Target: targets})
	}
}

// Get returns the value that a deployment to an environment would have.
func (s *Server) Get(projectID, key, target string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.projects[projectID].vars {
		if v.Key == key && v.Branch == "" && slices.Contains(v.Target, target) {
			return v.Value, true
		}
	}
	return "", false
}

// Variables returns all records of a name.
func (s *Server) Variables(projectID, key string) []Variable {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Variable
	for _, v := range s.projects[projectID].vars {
		if v.Key == key {
			out = append(out, *v)
		}
	}
	return out
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

func (s *Server) throttled(w http.ResponseWriter, _ *http.Request, after time.Duration) {
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	w.Header().Set("Date", now.Format(http.TimeFormat))
	fail(w, http.StatusTooManyRequests, "too_many_requests", "Rate limited", map[string]any{
		"limit": map[string]any{"remaining": 0, "reset": now.Truncate(time.Second).Add(after).Unix(), "total": 60},
	})
}

func (s *Server) troubled(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusServiceUnavailable, "internal_server_error", "An unexpected error occurred", nil)
}

func (s *Server) rejected(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusForbidden, "forbidden", "Not authorized", map[string]any{"invalidToken": true})
}

func fail(w http.ResponseWriter, status int, code, text string, more map[string]any) {
	e := map[string]any{"code": code, "message": strings.TrimSpace(text)}
	for k, v := range more {
		e[k] = v
	}
	desttest.Respond(w, status, map[string]any{"error": e})
}
