package hostile_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// operation is one documented method of one path.
type operation struct {
	method   string // GET, LIST, POST, PATCH or DELETE
	template string // as in the document, below /v1
	open     bool
	patch    bool
	rawBody  bool
	query    map[string]*field
	fields   map[string]*field // of the body
}

// field is a documented field.
type field struct {
	Type                 string
	Format               string
	Enum                 []any
	MaxLength            int
	AdditionalProperties any
	required             bool
}

func (op *operation) String() string { return op.method + " " + op.template }

// documented reads the OpenAPI document that the server serves.
func documented(t *testing.T, n *harness.Node) []*operation {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			Unauthenticated bool `json:"x-vault-unauthenticated"`
			Parameters      []struct {
				Name, In string
				Schema   field
			}
			RequestBody struct {
				Content map[string]struct {
					Schema struct {
						Properties map[string]*field
						Required   []string
					}
				}
			}
		}
	}
	n.MustDo("GET", "/v1/sys/internal/specs/openapi", nil).Decode(t, &doc)
	var out []*operation
	for path, methods := range doc.Paths {
		for method, d := range methods {
			op := &operation{
				method: strings.ToUpper(method), template: path, open: d.Unauthenticated, patch: method == "patch",
				query: map[string]*field{}, fields: map[string]*field{},
			}
			for _, p := range d.Parameters {
				switch {
				case p.In == "query" && p.Name == "list":
					op.method = "LIST"
				case p.In == "query":
					op.query[p.Name] = &p.Schema
				}
			}
			for kind, content := range d.RequestBody.Content {
				op.rawBody = kind == "application/octet-stream"
				op.fields = content.Schema.Properties
				for name, f := range op.fields {
					f.required = slices.Contains(content.Schema.Required, name)
				}
			}
			out = append(out, op)
		}
	}
	slices.SortFunc(out, func(a, b *operation) int { return strings.Compare(a.template+a.method, b.template+b.method) })
	return out
}

func (op *operation) takesBody() bool { return op.method == "POST" || op.method == "PATCH" }

func (op *operation) hasParameter() bool { return strings.Contains(op.template, "{") }

// path returns the path with every parameter set to value.
func (op *operation) path(value string) string {
	parts := strings.Split(op.template, "/")
	for i, part := range parts {
		switch {
		case part == "{type}" && strings.HasPrefix(op.template, "/sys/sync/destinations/{type}/{"):
			parts[i] = "cloud1-sm"
		case strings.HasPrefix(part, "{"):
			parts[i] = value
		}
	}
	return strings.Join(parts, "/")
}

// target returns the path of something that exists.
func (op *operation) target() string {
	i := slices.IndexFunc(targets, func(t struct{ prefix, value string }) bool { return strings.HasPrefix(op.template, t.prefix) })
	return op.path(targets[i].value)
}

// answers reports whether the operation is what a method and a path lead to.
func (op *operation) answers(method, path string) bool {
	if op.method != method {
		return false
	}
	want, got := strings.Split(strings.Trim(op.template, "/"), "/"), strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range want {
		switch {
		case strings.HasPrefix(part, "{") && i == len(want)-1:
			return true // one segment or the rest: the document does not tell
		case i >= len(got):
			return false
		case strings.HasPrefix(part, "{") && len(want) == len(got): // one segment each
		case strings.HasPrefix(part, "{"):
			// The parameter may stand for several segments: compare what follows it from the end.
			return strings.HasSuffix(strings.Trim(path, "/"), "/"+strings.Join(want[i+1:], "/"))
		case part != got[i]:
			return false
		}
	}
	return len(want) == len(got) || op.method == "LIST" && len(want) >= len(got)
}

// body returns a body with acceptable required fields, and the given ones instead; nil leaves a field out.
func (op *operation) body(fields map[string]any) []byte {
	if !op.takesBody() {
		return nil
	}
	out := map[string]any{}
	for name, f := range op.fields {
		if f.required {
			out[name] = f.acceptable()
		}
	}
	maps.Copy(out, fields)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return encode(out)
}

// forAnyToken are the operations that ask for a token and for no policy. What they answer depends on what the token
// may do, or is nothing to hide from those who may use the server.
var forAnyToken = []string{
	"GET /sys/internal/ui/authenticated-messages", "GET /sys/internal/ui/namespaces", "GET /sys/internal/ui/resultant-acl",
	"GET /sys/internal/ui/version", "LIST /sys/internal/ui/authenticated-messages/",
}

// anyToken reports whether the answer is right for a token that may do nothing.
func (op *operation) anyToken(a harness.Answer) bool {
	return slices.Contains(forAnyToken, op.String()) && a.Status == 200
}

func (f *field) acceptable() any {
	if f.Enum != nil {
		return f.Enum[0]
	}
	switch f.Type {
	case "boolean":
		return true
	case "integer", "number":
		return 1
	case "array":
		return []string{"acceptable"}
	case "object":
		return map[string]string{"a": "acceptable"}
	}
	if f.Format == "duration" {
		return "1h"
	}
	return "acceptable"
}

// mistyped returns values that are not of the field's type.
func (f *field) mistyped() []any {
	list, object := []any{[]string{marker}}, map[string]any{"a": []string{marker}}
	switch {
	case f.Type == "string" && f.Format == "duration":
		return []any{marker, list, object}
	case f.Type == "string":
		return []any{list, object}
	case f.Type == "boolean" || f.Type == "integer" || f.Type == "number":
		return []any{marker, list, object}
	case f.Type == "array":
		return []any{object, []any{list}}
	case f.Type == "object" && f.AdditionalProperties != nil:
		return []any{marker, 7, list, object}
	case f.Type == "object":
		return []any{marker, 7, true, list}
	}
	return nil
}
