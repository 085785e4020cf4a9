package repohosttest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/nacl/box"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

const (
	documentation = "https://docs.github.com/rest"
	maxValue      = 48 << 10
)

var legalName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func message(text string) map[string]any {
	return map[string]any{"message": text, "documentation_url": documentation}
}

// limited is the response when the hour's calls are used up. The lock is held.
func (s *Server) limited(w http.ResponseWriter, reset time.Time) {
	h := w.Header()
	h.Set("Date", s.now.Format(http.TimeFormat))
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", "0")
	h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	desttest.Respond(w, http.StatusForbidden, message("API rate limit exceeded for user ID 1."))
}

// ServeHTTP implements http.Handler, without the faults and the contract.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), Prefix+"/")
	s.mu.Lock()
	s.Note(r.Method + " /" + path)
	before := s.put
	if r.Method == http.MethodPut {
		s.put = nil
	}
	s.mu.Unlock()
	if r.Method == http.MethodPut && before != nil {
		before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Date", s.now.Format(http.TimeFormat))
	switch token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); {
	case r.Header.Get("User-Agent") == "":
		desttest.Respond(w, http.StatusForbidden, message("Request forbidden by administrative rules. Please make sure your request has a User-Agent header"))
	case r.Method == http.MethodPost && strings.HasPrefix(path, "app/installations/"):
		s.issue(w, path, token)
	case token != Token && token != ReadOnly && token != Blind && !s.tokens[token].After(s.now):
		desttest.Respond(w, http.StatusUnauthorized, message("Bad credentials"))
	case r.Header.Get("Accept") != "application/vnd.github+json" && r.Header.Get("Accept") != "application/vnd.github.v3+json":
		desttest.Respond(w, http.StatusUnsupportedMediaType, message("Unsupported 'Accept' header"))
	case r.Header.Get("X-Github-Api-Version") != "2022-11-28":
		desttest.Respond(w, http.StatusBadRequest, message("This API version is not supported"))
	case s.limit == 0:
		s.limited(w, s.now.Add(20*time.Minute))
	case !ok || token == Blind:
		desttest.Respond(w, http.StatusNotFound, message("Not Found"))
	default:
		s.route(w, r, path, token)
	}
}

// counted puts the headers of the rate limit on a response that counts.
func (s *Server) counted(w http.ResponseWriter, n int) {
	s.limit -= n
	h := w.Header()
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", strconv.Itoa(s.limit))
	h.Set("X-RateLimit-Used", strconv.Itoa(5000-s.limit))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(s.now.Add(time.Hour).Unix(), 10))
	h.Set("X-RateLimit-Resource", "core")
	if !s.expiry.IsZero() {
		h.Set("Github-Authentication-Token-Expiration", s.expiry.UTC().Format("2006-01-02 15:04:05 MST"))
	}
}

func (s *Server) route(w http.ResponseWriter, r *http.Request, path, token string) {
	segments := strings.Split(path, "/")
	for i, seg := range segments {
		var err error
		if segments[i], err = url.PathUnescape(seg); err != nil || segments[i] == "" {
			desttest.Respond(w, http.StatusNotFound, message("Not Found"))
			return
		}
	}
	if len(segments) == 7 && segments[0] == "repos" && segments[4] == "workflows" && segments[6] == "dispatches" && r.Method == http.MethodPost {
		s.counted(w, 1)
		s.dispatch(w, r, path, token)
		return
	}
	p, rest := s.find(w, r, segments)
	if p == nil {
		return
	}
	write := r.Method == http.MethodPut || r.Method == http.MethodDelete
	switch {
	case write && token == ReadOnly:
		s.counted(w, 1)
		desttest.Respond(w, http.StatusForbidden, message("Resource not accessible by personal access token"))
	case len(rest) == 0 && r.Method == http.MethodGet:
		s.list(w, r, p)
	case len(rest) == 1 && rest[0] == "public-key" && r.Method == http.MethodGet:
		s.conditional(w, r, map[string]any{"key_id": p.keyID, "key": base64.StdEncoding.EncodeToString(p.public[:])})
	case len(rest) == 1 && r.Method == http.MethodGet:
		s.get(w, r, p, rest[0])
	case len(rest) == 1 && r.Method == http.MethodPut:
		s.counted(w, 1)
		s.write(w, r, p, rest[0])
	case len(rest) == 1 && r.Method == http.MethodDelete:
		s.counted(w, 1)
		s.remove(w, p, rest[0])
	default:
		desttest.Respond(w, http.StatusNotFound, message("Not Found"))
	}
}

// find returns the destination that a path is about and what follows it, or answers.
func (s *Server) find(w http.ResponseWriter, r *http.Request, seg []string) (*location, []string) {
	key, n := "", 0
	switch {
	case len(seg) == 3 && seg[0] == "repos" && r.Method == http.MethodGet:
		if repo := s.repos[Repository(seg[1], seg[2])]; repo != nil {
			s.conditional(w, r, map[string]any{"id": repo.id, "name": repo.name, "full_name": repo.owner + "/" + repo.name})
			return nil, nil
		}
	case len(seg) >= 5 && seg[0] == "repos" && seg[3] == "actions" && seg[4] == "secrets":
		key, n = Repository(seg[1], seg[2]), 5
	case len(seg) >= 6 && seg[0] == "repos" && seg[3] == "environments" && seg[5] == "secrets":
		key, n = Environment(seg[1], seg[2], seg[4]), 6
	case len(seg) >= 4 && seg[0] == "orgs" && seg[2] == "actions" && seg[3] == "secrets":
		key, n = Organization(seg[1]), 4
	}
	if p := s.locations[key]; p != nil {
		return p, seg[n:]
	}
	if to, ok := s.moved[key]; ok {
		w.Header().Set("Location", s.URL+"/"+to+"/actions/secrets/"+strings.Join(seg[n:], "/"))
		status := http.StatusMovedPermanently
		if r.Method != http.MethodGet {
			status = http.StatusTemporaryRedirect
		}
		desttest.Respond(w, status, message("Moved Permanently"))
		return nil, nil
	}
	s.counted(w, 1)
	desttest.Respond(w, http.StatusNotFound, message("Not Found"))
	return nil, nil
}

// conditional answers 200, or 304 to who has it already, which does not count.
func (s *Server) conditional(w http.ResponseWriter, r *http.Request, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	etag := fmt.Sprintf(`W/"%x"`, sha256.Sum256(append(data, r.URL.RawQuery...)))
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		s.counted(w, 0)
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.counted(w, 1)
	desttest.Respond(w, http.StatusOK, body)
}

func (p *location) show(name string, e *entry) map[string]any {
	out := map[string]any{"name": name, "created_at": e.created.Format(time.RFC3339), "updated_at": e.updated.Format(time.RFC3339)}
	if p.org {
		out["visibility"] = e.visibility
		if e.visibility == "selected" {
			out["selected_repositories_url"] = "https://api.github.com/orgs/" + p.owner + "/actions/secrets/" + name + "/repositories"
		}
	}
	return out
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, p *location, name string) {
	name = strings.ToUpper(name)
	e := p.secrets[name]
	if e != nil && s.stale > 0 {
		s.stale--
		e = e.before
	}
	if e == nil {
		s.counted(w, 1)
		desttest.Respond(w, http.StatusNotFound, message("Not Found"))
		return
	}
	s.conditional(w, r, p.show(name, e))
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, p *location) {
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil && n > 0 {
			return n
		}
		return otherwise
	}
	size, page := min(number("per_page", 30), 100), number("page", 1)
	names := make([]string, 0, len(p.secrets))
	for name := range p.secrets {
		names = append(names, name)
	}
	slices.Sort(names)
	from := min((page-1)*size, len(names))
	to := min(from+size, len(names))
	shown := []any{}
	for _, name := range names[from:to] {
		shown = append(shown, p.show(name, p.secrets[name]))
	}
	if to < len(names) {
		u := s.URL + strings.TrimPrefix(r.URL.EscapedPath(), Prefix)
		last := (len(names) + size - 1) / size
		w.Header().Set("Link", fmt.Sprintf(`<%s?per_page=%d&page=%d>; rel="next", <%s?per_page=%d&page=%d>; rel="last"`, u, size, page+1, u, size, last))
	}
	s.conditional(w, r, map[string]any{"total_count": len(names), "secrets": shown})
}

type request struct {
	KeyID      string  `json:"key_id"`
	Encrypted  string  `json:"encrypted_value"`
	Visibility string  `json:"visibility"`
	Selected   []int64 `json:"selected_repository_ids"`
}

// problem returns why GitHub would reject a write, "" if it would not.
func (s *Server) problem(p *location, name string, in *request) (value []byte, problem string) {
	sealed, err := base64.StdEncoding.DecodeString(in.Encrypted)
	switch {
	case !legalName.MatchString(name):
		return nil, "Secret names can only contain alphanumeric characters ([a-z], [A-Z], [0-9]) or underscores (_). Spaces are not allowed. Must start with a letter ([a-z], [A-Z]) or underscores (_)."
	case strings.HasPrefix(strings.ToUpper(name), "GITHUB_"):
		return nil, "Secret names must not start with GITHUB_."
	case in.KeyID == "":
		return nil, "Invalid request.\n\n\"key_id\" wasn't supplied."
	case in.Encrypted == "":
		return nil, "Invalid request.\n\n\"encrypted_value\" wasn't supplied."
	case err != nil, in.KeyID != p.keyID:
		return nil, "Bad request - validation failed due to an improperly encrypted secret"
	case p.org && in.Visibility != "all" && in.Visibility != "private" && in.Visibility != "selected":
		return nil, "Invalid request.\n\n\"visibility\" wasn't supplied."
	case in.Visibility != "selected" && in.Selected != nil:
		return nil, "selected_repository_ids can only be provided when visibility is selected"
	case p.secrets[strings.ToUpper(name)] == nil && len(p.secrets) >= p.max:
		return nil, fmt.Sprintf("The maximum number of secrets (%d) has been reached", p.max)
	}
	value, ok := box.OpenAnonymous(nil, sealed, p.public, p.private)
	if !ok {
		return nil, "Bad request - validation failed due to an improperly encrypted secret"
	}
	if len(value) > maxValue {
		return nil, "Value is too large"
	}
	for _, id := range in.Selected {
		if !s.belongs(p.owner, id) {
			return nil, "Invalid repository ID"
		}
	}
	return value, ""
}

func (s *Server) belongs(owner string, id int64) bool {
	for _, repo := range s.repos {
		if repo.id == id && strings.EqualFold(repo.owner, owner) {
			return true
		}
	}
	return false
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, p *location, name string) {
	var in request
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		desttest.Respond(w, http.StatusBadRequest, message("Problems parsing JSON"))
		return
	}
	value, problem := s.problem(p, name, &in)
	if problem != "" {
		desttest.Respond(w, http.StatusUnprocessableEntity, message(problem))
		return
	}
	if s.store(p, name, &entry{value: string(value), visibility: in.Visibility, selected: in.Selected}) {
		w.Header().Set("Date", s.now.Format(http.TimeFormat))
		desttest.Respond(w, http.StatusCreated, map[string]any{})
		return
	}
	w.Header().Set("Date", s.now.Format(http.TimeFormat))
	desttest.Respond(w, http.StatusNoContent, nil)
}

func (s *Server) remove(w http.ResponseWriter, p *location, name string) {
	name = strings.ToUpper(name)
	if p.secrets[name] == nil {
		desttest.Respond(w, http.StatusNotFound, message("Not Found"))
		return
	}
	delete(p.secrets, name)
	s.now = s.now.Add(s.tick)
	desttest.Respond(w, http.StatusNoContent, nil)
}
