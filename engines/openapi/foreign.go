package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// Limits of what a foreign document adds to ours.
const (
	maxForeignPaths  = 1000 // of a mount
	maxForeignFields = 200  // of a body, and parameters of a path
	maxForeignText   = 2000 // bytes of a description
	maxForeignDepth  = 4    // of schemas in schemas
	maxForeignBytes  = 2 << 20
	maxEnumBytes     = 100 // of a value
	schemaBytes      = 100 // that a schema counts for besides its text
)

// foreign is what is read of a document that others have written. What goes into ours is made from it, and never copied.
type foreign struct {
	Paths      map[string]foreignPath
	Components struct{ Schemas map[string]*foreignSchema }

	left int // bytes that it may still add to ours, which may have a schema in many places
}

// spend reports whether some more bytes may be added.
func (f *foreign) spend(bytes int) bool {
	f.left -= bytes
	return f.left >= 0
}

type foreignPath struct {
	Description     string
	Parameters      []foreignParameter
	Sudo            bool `json:"x-vault-sudo"`
	Unauthenticated bool `json:"x-vault-unauthenticated"`

	Get, Post, Patch, Delete *foreignOperation
}

type foreignOperation struct {
	Summary, Description string
	Deprecated           bool
	Parameters           []foreignParameter
	RequestBody          struct {
		Content map[string]struct{ Schema *foreignSchema }
	}
}

type foreignParameter struct {
	Name, In, Description string
	Required              bool
	Schema                *foreignSchema
}

type foreignSchema struct {
	Ref                       string `json:"$ref"`
	Type, Format, Description string
	Properties                map[string]*foreignSchema
	Required                  []string
	Items                     *foreignSchema
	Enum                      []any
	Default                   any
}

var (
	foreignSegments = regexp.MustCompile(`^([\w.~@:+-]|\{\w+\})+(/([\w.~@:+-]|\{\w+\})+)*$`)
	foreignNames    = regexp.MustCompile(`^[\w.-]+$`)
	placeholder     = regexp.MustCompile(`\{(\w+)\}`)
)

func foreignName(name string) bool { return len(name) <= 100 && foreignNames.MatchString(name) }

// addForeign adds the paths of a foreign document below a mount, as far as they are paths, and no others are there already. The
// error says that the document cannot be read; nothing is added then.
func (d *document) addForeign(mount string, text []byte) error {
	doc := foreign{left: maxForeignBytes}
	if err := json.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("the OpenAPI document of %s: %w", mount, err)
	}
	if len(doc.Paths) > maxForeignPaths {
		return fmt.Errorf("the OpenAPI document of %s has %d paths, the limit is %d", mount, len(doc.Paths), maxForeignPaths)
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		d.addForeignPath(&doc, mount, path)
	}
	return nil
}

func (d *document) addForeignPath(doc *foreign, mount, at string) {
	rest := strings.TrimSuffix(strings.TrimPrefix(at, "/"), "/")
	if rest != "" && !foreignSegments.MatchString(rest) || engines.CheckPath(rest) != nil {
		return
	}
	path, shape := "/"+mount+rest, "/"+mount+placeholder.ReplaceAllString(rest, "{}")
	if _, taken := d.shapes[shape]; taken {
		return
	}
	about, item := doc.Paths[at], object{}
	for _, m := range []struct {
		method string
		op     *foreignOperation
	}{{"get", about.Get}, {"post", about.Post}, {"patch", about.Patch}, {"delete", about.Delete}} {
		if m.op != nil {
			item[m.method] = d.foreignOperation(doc, mount, rest, m.method, &about, m.op)
		}
	}
	if len(item) > 0 {
		d.shapes[shape], d.paths[path] = path, item
	}
}

func (d *document) foreignOperation(doc *foreign, mount, path, method string, about *foreignPath, op *foreignOperation) object {
	words := append([]string{strings.Trim(mount, "/"), method}, strings.FieldsFunc(path, func(c rune) bool { return strings.ContainsRune("/{}", c) })...)
	out := object{
		"operationId": d.unique(words),
		"tags":        []string{strings.TrimSuffix(mount, "/")},
		"responses":   responses(&response{empty: true}),
	}
	doc.text(out, "summary", cmp.Or(op.Summary, about.Description))
	doc.text(out, "description", cmp.Or(op.Description, op.Summary, about.Description))
	if op.Deprecated {
		out["deprecated"] = true
	}
	if about.Sudo {
		out["x-vault-sudo"] = true
	}
	if about.Unauthenticated {
		out["x-vault-unauthenticated"], out["security"] = true, []object{}
	}
	if parameters := doc.parameters(path, slices.Concat(op.Parameters, about.Parameters)); len(parameters) > 0 {
		out["parameters"] = parameters
	}
	if kind := map[string]string{"post": "application/json", "patch": "application/merge-patch+json"}[method]; kind != "" {
		for _, name := range []string{"application/json", kind} {
			if schema := op.RequestBody.Content[name].Schema; schema != nil {
				out["requestBody"] = object{"content": object{kind: object{"schema": doc.schema(schema, 0)}}}
			}
		}
	}
	return out
}

// parameters returns those of the path, whether they are declared or not, and the declared ones of the query.
func (f *foreign) parameters(path string, declared []foreignParameter) []object {
	var out []object
	described := func(p foreignParameter, in string) object {
		o := object{"name": p.Name, "in": in, "schema": object{"type": "string"}}
		if p.Schema != nil {
			o["schema"] = f.schema(p.Schema, 0)
		}
		f.text(o, "description", p.Description)
		if p.Required || in == "path" {
			o["required"] = true
		}
		return o
	}
	seen := map[string]bool{}
	for _, match := range placeholder.FindAllStringSubmatch(path, -1) {
		name := match[1]
		if seen[name] {
			continue
		}
		seen[name] = true
		p := foreignParameter{Name: name}
		if i := slices.IndexFunc(declared, func(p foreignParameter) bool { return p.In == "path" && p.Name == name }); i >= 0 {
			p = declared[i]
		}
		out = append(out, described(p, "path"))
	}
	for _, p := range declared {
		if p.In == "query" && foreignName(p.Name) && !seen[p.Name] && len(out) < maxForeignFields {
			seen[p.Name] = true
			out = append(out, described(p, "query"))
		}
	}
	return out
}

// schema returns a schema without references. What it names that is not there, or lies too deep, may be anything.
func (f *foreign) schema(s *foreignSchema, depth int) object {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok && depth == 0 {
		s = f.Components.Schemas[name]
	}
	if s == nil || s.Ref != "" || depth > maxForeignDepth || !f.spend(schemaBytes) {
		return object{}
	}
	out := object{}
	f.text(out, "description", s.Description)
	if foreignName(s.Format) {
		out["format"] = s.Format
	}
	switch s.Type {
	case "string", "boolean", "integer", "number":
		out["type"] = s.Type
		var enum []any
		for _, v := range s.Enum {
			if fitsType(s.Type, v) && f.spend(maxEnumBytes) {
				enum = append(enum, v)
			}
		}
		if enum != nil {
			out["enum"] = enum
		}
		if fitsType(s.Type, s.Default) {
			out["default"] = s.Default
		}
	case "array":
		out["type"], out["items"] = s.Type, object{}
		if s.Items != nil {
			out["items"] = f.schema(s.Items, depth+1)
		}
	case "object":
		out["type"] = s.Type
		properties := object{}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if p := s.Properties[name]; p != nil && foreignName(name) && len(properties) < maxForeignFields {
				properties[name] = f.schema(p, depth+1)
			}
		}
		if len(properties) == 0 {
			out["additionalProperties"] = true
			break
		}
		out["properties"] = properties
		required := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(s.Required))), func(name string) bool { return properties[name] == nil })
		if len(required) > 0 {
			out["required"] = required
		}
	}
	return out
}

// fitsType reports whether a value is of a type, and short enough to be shown.
func fitsType(kind string, v any) bool {
	switch v := v.(type) {
	case string:
		return kind == "string" && len(v) <= maxEnumBytes
	case bool:
		return kind == "boolean"
	case float64:
		return kind == "number" || kind == "integer" && v == math.Trunc(v)
	}
	return false
}

// text adds what is shown of a text, if there is anything.
func (f *foreign) text(to object, name, text string) {
	text = strings.TrimSpace(text)
	if len(text) > maxForeignText {
		text = strings.ToValidUTF8(text[:maxForeignText], "") + "…"
	}
	if text != "" && f.spend(len(text)) {
		to[name] = text
	}
}
