// Package gitlabtest is the CI/CD variables of GitLab for tests: an HTTP server on loopback.
//
//	s := gitlabtest.New(t)
//	s.Add("projects", "acme/web")
//	// base_url or the operator's URL is s.URL, access_token is gitlabtest.Token
//
// It follows the pages "Project-level CI/CD variables API" and "Group-level variables API" of GitLab's documentation, and rejects what
// GitLab rejects: keys, values, scopes and types that are not legal, a key that is taken in its scope, values that cannot be masked, a key
// of several scopes without a filter, tokens without the scope api. A field or a parameter that is not documented fails the test.
package gitlabtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// Token has the scope api, ReadOnly the scope read_api.
const (
	Token    = "glpat-AAAAAAAAAAAAAAAwrite"
	ReadOnly = "glpat-AAAAAAAAAAAAAAAreads"
)

// Variable is a CI/CD variable.
type Variable struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	Type        string  `json:"variable_type"`
	Protected   bool    `json:"protected"`
	Masked      bool    `json:"masked"`
	Hidden      bool    `json:"hidden"`
	Raw         bool    `json:"raw"`
	Scope       string  `json:"environment_scope"`
	Description *string `json:"description"`
}

// Server is GitLab. Safe for concurrent use.
type Server struct {
	desttest.Front

	t testing.TB

	mu      sync.Mutex
	owners  map[string][]Variable // by kind and path
	old     bool                  // before 16.2
	expires string                // of tokens
}

// New starts a Server that lives as long as the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, owners: map[string][]Variable{}}
	s.Listen(t, &desttest.Faults{Next: s})
	return s
}

// Add makes a project or a group: kind is "projects" or "groups".
func (s *Server) Add(kind, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[kind+"/"+path] = []Variable{}
}

// Old has variables without descriptions, as before GitLab 16.2.
func (s *Server) Old() { s.set(func() { s.old = true }) }

// Expires says on which day tokens expire, "" for none.
func (s *Server) Expires(day string) { s.set(func() { s.expires = day }) }

func (s *Server) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// Put writes a variable as another client would: without our description.
func (s *Server) Put(of, key, scope, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := Variable{Key: key, Value: &value, Type: "env_var", Scope: scope}
	if i := s.index(of, key, scope); i >= 0 {
		s.owners[of][i] = v
		return
	}
	s.owners[of] = append(s.owners[of], v)
}

// Change changes a variable as another client would.
func (s *Server) Change(of, key, scope string, f func(*Variable)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.index(of, key, scope); i >= 0 {
		f(&s.owners[of][i])
	}
}

// Get returns a variable.
func (s *Server) Get(of, key, scope string) (Variable, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.index(of, key, scope); i >= 0 {
		return s.owners[of][i], true
	}
	return Variable{}, false
}

// Value returns the value of a variable.
func (s *Server) Value(of, key, scope string) (string, bool) {
	v, ok := s.Get(of, key, scope)
	if v.Value == nil {
		return "", ok
	}
	return *v.Value, ok
}

// index finds a variable. The lock is held.
func (s *Server) index(of, key, scope string) int {
	return slices.IndexFunc(s.owners[of], func(v Variable) bool { return v.Key == key && v.Scope == scope })
}

func fail(w http.ResponseWriter, status int, message any) {
	desttest.Respond(w, status, map[string]any{"message": message})
}

// ServeHTTP implements http.Handler, without the faults.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Receive(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	token := r.Header.Get("Private-Token")
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/v4/")
	segments := strings.Split(path, "/") // projects <id> variables [<key>]
	for i, segment := range segments {
		segments[i], _ = url.PathUnescape(segment)
	}
	switch {
	case token != Token && token != ReadOnly:
		fail(w, http.StatusUnauthorized, "401 Unauthorized")
	case ok && path == "personal_access_tokens/self" && r.Method == http.MethodGet:
		body := map[string]any{"id": 1, "active": true, "revoked": false, "scopes": []string{"api"}, "expires_at": nil}
		if token == ReadOnly {
			body["scopes"] = []string{"read_api"}
		}
		if s.expires != "" {
			body["expires_at"] = s.expires
		}
		desttest.Respond(w, http.StatusOK, body)
	case !ok || len(segments) < 3 || len(segments) > 4 || segments[2] != "variables":
		desttest.Respond(w, http.StatusNotFound, map[string]any{"error": "404 Not Found"})
	case s.owners[segments[0]+"/"+segments[1]] == nil:
		fail(w, http.StatusNotFound, map[string]string{"projects": "404 Project Not Found", "groups": "404 Group Not Found"}[segments[0]])
	case token == ReadOnly && r.Method != http.MethodGet:
		desttest.Respond(w, http.StatusForbidden, map[string]any{"error": "insufficient_scope", "error_description": "The request requires higher privileges than provided by the access token.", "scope": "api"})
	case len(segments) == 3:
		s.all(w, r, segments[0]+"/"+segments[1])
	default:
		s.one(w, r, segments[0]+"/"+segments[1], segments[3])
	}
}

// query fails the test for a parameter that is not one of these.
func (s *Server) query(r *http.Request, known ...string) {
	for name := range r.URL.Query() {
		if !slices.Contains(known, name) {
			s.t.Errorf("%s %s: there is no parameter %q", r.Method, r.URL.Path, name)
		}
	}
}

func (s *Server) all(w http.ResponseWriter, r *http.Request, of string) {
	switch r.Method {
	case http.MethodGet:
		s.query(r, "page", "per_page")
		page, _ := strconv.Atoi(r.URL.Query().Get("page"))
		size, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
		page, size = max(page, 1), min(max(size, 1), 100)
		from := min((page-1)*size, len(s.owners[of]))
		to := min(from+size, len(s.owners[of]))
		next := ""
		if to < len(s.owners[of]) {
			next = strconv.Itoa(page + 1)
		}
		w.Header().Set("X-Next-Page", next)
		desttest.Respond(w, http.StatusOK, s.owners[of][from:to])
	case http.MethodPost:
		s.query(r)
		v := Variable{Type: "env_var", Scope: "*"}
		if !s.decode(w, r, &v) {
			return
		}
		if s.index(of, v.Key, v.Scope) >= 0 {
			fail(w, http.StatusBadRequest, map[string]any{"key": []string{"(" + v.Key + ") has already been taken"}})
			return
		}
		s.owners[of] = append(s.owners[of], v)
		desttest.Respond(w, http.StatusCreated, v)
	default:
		desttest.Respond(w, http.StatusMethodNotAllowed, map[string]any{"error": "405 Not Allowed"})
	}
}

func (s *Server) one(w http.ResponseWriter, r *http.Request, of, key string) {
	s.query(r, "filter[environment_scope]")
	scope := r.URL.Query().Get("filter[environment_scope]")
	var at []int
	for i, v := range s.owners[of] {
		if v.Key == key && (scope == "" || v.Scope == scope) {
			at = append(at, i)
		}
	}
	switch {
	case len(at) == 0:
		fail(w, http.StatusNotFound, "404 Variable Not Found")
	case len(at) > 1:
		fail(w, http.StatusConflict, "There are multiple variables with provided parameters. Please use 'filter[environment_scope]'")
	case r.Method == http.MethodGet:
		desttest.Respond(w, http.StatusOK, s.owners[of][at[0]])
	case r.Method == http.MethodPut:
		v := s.owners[of][at[0]]
		if v.Value != nil { // decode writes through pointers, and Get has given this one away
			v.Value = new(*v.Value)
		}
		if s.decode(w, r, &v) {
			s.owners[of][at[0]] = v
			desttest.Respond(w, http.StatusOK, v)
		}
	case r.Method == http.MethodDelete:
		s.owners[of] = slices.Delete(s.owners[of], at[0], at[0]+1)
		w.WriteHeader(http.StatusNoContent)
	default:
		desttest.Respond(w, http.StatusMethodNotAllowed, map[string]any{"error": "405 Not Allowed"})
	}
}

var (
	legalKey = regexp.MustCompile(`^[A-Za-z0-9_]{1,255}$`)
	rawMask  = regexp.MustCompile(`^\S{8,}$`)
	mask     = regexp.MustCompile(`^[a-zA-Z0-9_+=/@:.~-]{8,}$`)
)

// decode reads what a request says of a variable, and answers what is wrong with it.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, v *Variable) bool {
	key := v.Key
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil || r.Header.Get("Content-Type") != "application/json" {
		s.t.Errorf("%s: the body is not as documented", r.Method)
		fail(w, http.StatusBadRequest, "400 Bad request")
		return false
	}
	if s.old {
		v.Description = nil
	}
	if key != "" {
		v.Key = key
	}
	problem := func(field, text string) bool {
		fail(w, http.StatusBadRequest, map[string]any{field: []string{text}})
		return false
	}
	switch {
	case v.Value == nil || v.Key == "":
		desttest.Respond(w, http.StatusBadRequest, map[string]any{"error": "value is missing"})
		return false
	case v.Type != "env_var" && v.Type != "file":
		desttest.Respond(w, http.StatusBadRequest, map[string]any{"error": "variable_type does not have a valid value"})
		return false
	case !legalKey.MatchString(v.Key):
		return problem("key", "can contain only letters, digits and '_'.")
	case utf8.RuneCountInString(*v.Value) > 10000:
		return problem("value", "is too long (maximum is 10000 characters)")
	case v.Masked && v.Raw && !rawMask.MatchString(*v.Value), v.Masked && !v.Raw && !mask.MatchString(*v.Value):
		return problem("value", "is invalid: it cannot be masked")
	case v.Description != nil && len(*v.Description) > 255:
		return problem("description", "is too long (maximum is 255 characters)")
	}
	return true
}

// Day is a day from now, as tokens have it.
func Day(from time.Duration) string { return time.Now().Add(from).UTC().Format(time.DateOnly) }
