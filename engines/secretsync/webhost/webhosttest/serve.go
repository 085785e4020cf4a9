package webhosttest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

const maxTotal = 64 << 10

var (
	legalKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	reserved = []string{
		"AWS_SECRET_KEY", "AWS_EXECUTION_ENV", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME", "AWS_LAMBDA_FUNCTION_NAME",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_FUNCTION_VERSION", "NOW_REGION", "TZ", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR",
	}
)

// ServeHTTP implements http.Handler, without the faults and the contract.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Receive(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Date", s.now.Format(http.TimeFormat))
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token != Token && token != ReadOnly && token != Narrow {
		fail(w, http.StatusForbidden, "forbidden", "Not authorized", map[string]any{"invalidToken": true})
		return
	}
	segments := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/") // v10 projects <id> env [<id>]
	for i, seg := range segments {
		segments[i], _ = url.PathUnescape(seg)
	}
	if len(segments) < 4 || segments[1] != "projects" || segments[3] != "env" {
		fail(w, http.StatusNotFound, "not_found", "The page could not be found", nil)
		return
	}
	p := s.projects[segments[2]]
	switch {
	case p == nil || p.team != r.URL.Query().Get("teamId"):
		fail(w, http.StatusNotFound, "not_found", "Project not found.", nil)
	case r.Method != http.MethodGet && token == ReadOnly:
		fail(w, http.StatusForbidden, "forbidden", "You don't have permission to manage this resource.", nil)
	case len(segments) == 4 && segments[0] == "v10" && r.Method == http.MethodGet:
		s.list(w, p, token)
	case len(segments) == 4 && segments[0] == "v10" && r.Method == http.MethodPost:
		s.create(w, r, p, token)
	case len(segments) == 5 && segments[0] == "v9" && r.Method == http.MethodPatch:
		s.edit(w, r, p, segments[4])
	case len(segments) == 5 && segments[0] == "v9" && r.Method == http.MethodDelete:
		s.remove(w, p, segments[4])
	default:
		fail(w, http.StatusNotFound, "not_found", "The page could not be found", nil)
	}
}

// show is a record as it is answered: the value of a sensitive one never is.
func (v *Variable) show() map[string]any {
	out := map[string]any{
		"id": v.ID, "key": v.Key, "type": v.Type, "target": v.Target, "createdAt": v.created, "updatedAt": v.updated,
		"createdBy": "user_1", "updatedBy": nil, "value": "", "system": v.Type == "system", "securityIssues": []any{},
	}
	switch v.Type {
	case "plain":
		out["value"] = v.Value
	case "encrypted":
		out["value"] = "eyJ2IjoidjIi" + base64.StdEncoding.EncodeToString([]byte(v.ID))
	}
	if v.Branch != "" {
		out["gitBranch"] = v.Branch
	}
	if v.Custom != nil {
		out["customEnvironmentIds"] = v.Custom
	}
	if v.Comment != "" {
		out["comment"] = v.Comment
	}
	return out
}

func (s *Server) list(w http.ResponseWriter, p *project, token string) {
	envs, hidden := []any{}, 0
	for _, v := range p.vars {
		if token == Narrow && slices.Contains(v.Target, "production") {
			hidden++
			continue
		}
		envs = append(envs, v.show())
	}
	desttest.Respond(w, http.StatusOK, map[string]any{"envs": envs, "hiddenProductionEnvCount": hidden})
}

// input is what a request says of a record.
type input struct {
	Key     *string   `json:"key"`
	Value   *string   `json:"value"`
	Type    *string   `json:"type"`
	Target  *[]string `json:"target"`
	Branch  *string   `json:"gitBranch"`
	Comment *string   `json:"comment"`
	Custom  *[]string `json:"customEnvironmentIds"`
}

// apply returns the record with the input's changes.
func (in *input) apply(v Variable) *Variable {
	set := func(to *string, from *string) {
		if from != nil {
			*to = *from
		}
	}
	set(&v.Key, in.Key)
	set(&v.Value, in.Value)
	set(&v.Type, in.Type)
	set(&v.Branch, in.Branch)
	set(&v.Comment, in.Comment)
	if in.Target != nil {
		v.Target = *in.Target
	}
	if in.Custom != nil {
		v.Custom = *in.Custom
	}
	return &v
}

// problem is why a record is rejected: a status, a code and a text.
type problem struct {
	status int
	code   string
	text   string
}

// check returns why Vercel would reject a record, nil if it would not.
func (s *Server) check(p *project, v *Variable) *problem {
	bad := func(code, text string) *problem { return &problem{http.StatusBadRequest, code, text} }
	total := 0
	for _, other := range p.vars {
		if other.ID == v.ID {
			continue
		}
		if other.Key == v.Key && other.Branch == v.Branch && intersect(other.Target, v.Target) {
			return &problem{s.taken.status, s.taken.code, fmt.Sprintf("A variable with the name `%s` already exists for the target", v.Key)}
		}
		if intersect(other.Target, v.Target) {
			total += len(other.Value)
		}
	}
	switch {
	case !legalKey.MatchString(v.Key):
		return bad("env_key_invalid_characters", "The name contains invalid characters. Only letters, digits, and underscores are allowed.")
	case slices.Contains(reserved, v.Key):
		return bad("reserved_env_variable", "The name is reserved")
	case !slices.Contains([]string{"encrypted", "sensitive", "plain"}, v.Type):
		return bad("bad_request", "Invalid request: `type` should be one of encrypted, sensitive, plain")
	case len(v.Target) == 0 && len(v.Custom) == 0:
		return bad("env_missing_target", "Missing target")
	case v.Type == "sensitive" && slices.Contains(v.Target, "development"):
		return bad("bad_request", "You cannot set a Sensitive Environment Variable's target to development.")
	case len(v.Comment) > 500:
		return bad("bad_request", "Invalid request: `comment` should NOT be longer than 500 characters")
	case !utf8.ValidString(v.Value) || strings.Contains(v.Value, "\uFFFD"):
		return bad("bad_request", "Invalid request")
	case total+len(v.Value) > maxTotal:
		return bad("max_size_exceeded", "The total size of the environment variables exceeds 64KB")
	case v.Branch == "" && s.count(p, v) > 1000:
		return bad("too_many_envs", "The limit of 1000 variables is reached")
	}
	return nil
}

func (s *Server) count(p *project, v *Variable) int {
	n := 1
	for _, other := range p.vars {
		if other.ID != v.ID && intersect(other.Target, v.Target) {
			n++
		}
	}
	return n
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, p *project, token string) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	many := bytes.HasPrefix(bytes.TrimSpace(data), []byte("["))
	if !many {
		data = slices.Concat([]byte("["), data, []byte("]"))
	}
	var ins []input
	if json.Unmarshal(data, &ins) != nil || len(ins) == 0 {
		fail(w, http.StatusBadRequest, "bad_request", "Invalid JSON", nil)
		return
	}
	created, failed := []any{}, []any{}
	for _, in := range ins {
		v := in.apply(Variable{})
		bad := s.check(p, v)
		if token == Narrow && slices.Contains(v.Target, "production") {
			bad = &problem{http.StatusForbidden, "forbidden", "You don't have permission to create production environment variables."}
		}
		switch {
		case bad == nil:
			s.add(p, v)
			created = append(created, v.show())
		case !many:
			fail(w, bad.status, bad.code, bad.text, nil)
			return
		default:
			failed = append(failed, map[string]any{"error": map[string]any{"code": bad.code, "message": bad.text, "key": v.Key}})
		}
	}
	out := map[string]any{"created": created, "failed": failed}
	if !many {
		out["created"] = created[0]
	}
	desttest.Respond(w, http.StatusCreated, out)
}

func (s *Server) edit(w http.ResponseWriter, r *http.Request, p *project, id string) {
	i := slices.IndexFunc(p.vars, func(v *Variable) bool { return v.ID == id })
	if i < 0 {
		fail(w, http.StatusNotFound, "not_found", "Environment variable not found", nil)
		return
	}
	var in input
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		fail(w, http.StatusBadRequest, "bad_request", "Invalid JSON", nil)
		return
	}
	old, v := p.vars[i], in.apply(*p.vars[i])
	switch {
	case old.Type == "sensitive" && in.Key != nil:
		fail(w, http.StatusBadRequest, "bad_request", "You cannot change the key of a Sensitive Environment Variable.", nil)
		return
	case old.Type != v.Type && (old.Type == "sensitive" || v.Type == "sensitive"):
		fail(w, http.StatusBadRequest, "bad_request", "You cannot change the type of a Sensitive Environment Variable.", nil)
		return
	}
	if bad := s.check(p, v); bad != nil {
		fail(w, bad.status, bad.code, bad.text, nil)
		return
	}
	s.touch(v)
	p.vars[i] = v
	desttest.Respond(w, http.StatusOK, v.show())
}

func (s *Server) remove(w http.ResponseWriter, p *project, id string) {
	i := slices.IndexFunc(p.vars, func(v *Variable) bool { return v.ID == id })
	if i < 0 {
		fail(w, http.StatusNotFound, "not_found", "Environment variable not found", nil)
		return
	}
	v := p.vars[i]
	p.vars = slices.Delete(p.vars, i, i+1)
	desttest.Respond(w, http.StatusOK, v.show())
}
