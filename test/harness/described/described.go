// Package described compares the responses of a server with its own OpenAPI document.
package described

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Cluster is what is known of the servers, and what has been compared of them. Safe for concurrent use.
type Cluster struct {
	Token  func() string // a root token; "" if there is none yet
	Errorf func(format string, args ...any)

	mu      sync.Mutex
	read    map[string]*document // by the header that names the namespace
	checked map[string]bool      // operations
}

// Transport returns one that compares each response with the document: a field that the document does not declare for the operation, or one
// of another type, is an error. Operations that it does not have, such as those of plugins, are not compared. The document is read
// again when a response differs, as mounts come and go.
func (c *Cluster) Transport(next http.RoundTripper) http.RoundTripper { return described{next, c} }

// Compared returns how many operations have had a response that is as their description says.
func (c *Cluster) Compared() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.checked)
}

type described struct {
	next http.RoundTripper
	c    *Cluster
}

type document struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]*schema }
}

type operation struct {
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

type schema struct {
	Ref        string `json:"$ref"`
	AllOf      []*schema
	OneOf      []*schema
	Type       string
	Nullable   bool
	Properties map[string]*schema
	Items      *schema
	Additional json.RawMessage `json:"additionalProperties"`
}

// RoundTrip sends the request, and compares what comes back.
func (d described) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := d.next.RoundTrip(req)
	if err != nil || res.StatusCode != http.StatusOK || req.Method == http.MethodHead || req.URL.Query().Has("help") {
		return res, err
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	path, api := strings.CutPrefix(req.URL.Path, "/v1")
	if kind != "application/json" || !api || path == documentPath {
		return res, err
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // it has been read
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	namespace := req.Header.Get("X-Vault-Namespace")
	var problems []string
	for _, again := range []bool{false, true} {
		doc := d.document(req, namespace, again)
		if doc == nil {
			return res, nil
		}
		name, op := doc.find(req, path)
		if op == nil {
			problems = nil
			continue
		}
		if problems = doc.compare(op, body); len(problems) == 0 {
			d.c.record(name)
			return res, nil
		}
	}
	for _, p := range problems {
		d.c.Errorf("%s %s: the response is not as the OpenAPI document has it: %s", req.Method, path, p)
	}
	return res, nil
}

// record notes that a response of an operation was as its description says.
func (c *Cluster) record(operation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checked == nil {
		c.checked = map[string]bool{}
	}
	c.checked[operation] = true
}

const documentPath = "/sys/internal/specs/openapi"

// document returns the document of a namespace, nil if there is none now: the node may be sealed.
func (d described) document(like *http.Request, namespace string, again bool) *document {
	d.c.mu.Lock()
	doc := d.c.read[namespace]
	d.c.mu.Unlock()
	if doc != nil && !again || d.c.Token() == "" {
		return doc
	}
	req, err := http.NewRequestWithContext(like.Context(), http.MethodGet, like.URL.Scheme+"://"+like.URL.Host+"/v1"+documentPath, nil)
	if err != nil {
		return nil
	}
	req.Header.Set("X-Vault-Token", d.c.Token())
	req.Header.Set("X-Vault-Namespace", namespace)
	res, err := d.next.RoundTrip(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	doc = new(document)
	if res.StatusCode != http.StatusOK || json.NewDecoder(res.Body).Decode(doc) != nil {
		return nil
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if d.c.read == nil {
		d.c.read = map[string]*document{}
	}
	d.c.read[namespace] = doc
	return doc
}

// find returns the operation of a request: the one whose path has the most literal segments. A parameter at the end takes what is left.
func (d *document) find(req *http.Request, path string) (string, *operation) {
	method := strings.ToLower(req.Method)
	lists := method == "list" || method == "get" && req.URL.Query().Get("list") == "true"
	switch method {
	case "put":
		method = "post"
	case "list":
		method = "get"
	case "scan":
		return "", nil
	}
	if lists {
		path = strings.TrimSuffix(path, "/") + "/"
	}
	name, best, most := "", (*operation)(nil), -1
	for pattern, operations := range d.Paths {
		op, ok := operations[method]
		if !ok || strings.HasSuffix(pattern, "/") != lists {
			continue
		}
		if n := literals(pattern, path); n > most {
			name, best, most = method+" "+pattern, &op, n
		}
	}
	return name, best
}

// literals returns how many bytes of literal segments a path has in common with a pattern that it fits, -1 if it does not fit.
func literals(pattern, path string) int {
	want, got := strings.Split(strings.Trim(pattern, "/"), "/"), strings.Split(strings.Trim(path, "/"), "/")
	n := 0
	for i, w := range want {
		last := i == len(want)-1
		if more := len(got) - len(want); w == "{path}" && !last && more > 0 {
			got = slices.Delete(got, i, i+more) // the path of a mount has any number of segments
		}
		switch {
		case strings.HasPrefix(w, "{") && last:
			return n // the rest of the path, which a list may leave out
		case i >= len(got), !strings.HasPrefix(w, "{") && w != got[i]:
			return -1
		case !strings.HasPrefix(w, "{"):
			n += len(w)
		}
	}
	if len(want) != len(got) {
		return -1
	}
	return n + 1 // before a pattern that goes on with a parameter
}

// compare returns how a body differs from what the operation declares.
func (d *document) compare(op *operation, body []byte) []string {
	content, ok := op.Responses["200"].Content["application/json"]
	if !ok {
		return []string{"the operation has no such body"}
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return []string{err.Error()}
	}
	var problems []string
	d.check(content.Schema, "", value, &problems)
	return problems
}

// check adds the problems of a value at a place.
func (d *document) check(s *schema, at string, value any, problems *[]string) {
	s = d.whole(s)
	add := func(format string, args ...any) {
		*problems = append(*problems, fmt.Sprintf("%s: %s", at, fmt.Sprintf(format, args...)))
	}
	for _, one := range s.OneOf {
		var wrong []string
		if d.check(one, at, value, &wrong); wrong == nil {
			return
		}
	}
	if s.OneOf != nil {
		add("of none of the declared types")
	}
	if s.Type == "" || value == nil && s.Nullable {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		if s.Type != "object" {
			add("an object, declared is %s", s.Type)
			return
		}
		var rest *schema
		if len(s.Additional) > 0 && s.Additional[0] == '{' {
			rest = new(schema)
			_ = json.Unmarshal(s.Additional, rest) // the server wrote it
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			switch declared := s.Properties[name]; {
			case declared != nil:
				d.check(declared, at+"."+name, value[name], problems)
			case rest != nil:
				d.check(rest, at+".*", value[name], problems)
			case len(s.Additional) == 0, s.Additional[0] == 'f':
				add("field %q is not declared", name)
			}
		}
	case []any:
		if s.Type != "array" {
			add("a list, declared is %s", s.Type)
			return
		}
		for _, v := range value {
			d.check(s.Items, at+"[]", v, problems)
		}
	default:
		is := map[bool]string{true: "boolean"}[value == true || value == false]
		switch v := value.(type) {
		case nil:
			is = "null"
		case string:
			is = "string"
		case float64:
			is = "number"
			if s.Type == "integer" && v == float64(int64(v)) {
				is = "integer"
			}
		}
		if is != s.Type {
			add("%s, declared is %s", is, s.Type)
		}
	}
}

// whole returns a schema without references and parts. Of two properties with one name the later counts.
func (d *document) whole(s *schema) *schema {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		s = d.Components.Schemas[name]
	}
	if s.AllOf == nil {
		return s
	}
	out := &schema{Type: "object", Properties: map[string]*schema{}}
	for _, part := range s.AllOf {
		part = d.whole(part)
		maps.Copy(out.Properties, part.Properties)
		if len(part.Additional) > 0 {
			out.Additional = part.Additional
		}
	}
	return out
}
