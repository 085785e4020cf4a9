// Package openapi writes the OpenAPI document of mounted routers from what their routes declare.
package openapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
)

// Mount is a router, the path it answers below, such as "secret/", and the id of the namespace that it does so
// in, "" or "root" for the root.
type Mount struct {
	Path        string
	Router      *engines.Router
	NamespaceID string
	// Foreign is the document of an engine that describes its paths itself, relative to the mount. It is not trusted: see foreign.go.
	Foreign []byte
	// Missing says that there is no Foreign although there should be.
	Missing bool
}

// Document returns the OpenAPI 3.0 document of the given mounts as JSON, the same bytes for the same input. A
// List is documented as GET with list=true on its path with a trailing slash. Where two patterns differ only
// in what OpenAPI cannot tell apart (one segment or the rest), the first in the order of Router.Routes is documented. Routes of
// the root namespace only are left out elsewhere.
func Document(title, version string, mounts []Mount) ([]byte, error) {
	doc := document{paths: map[string]object{}, ids: map[string]bool{}, shapes: map[string]string{}}
	mounts = slices.Clone(mounts)
	slices.SortFunc(mounts, func(a, b Mount) int { return strings.Compare(a.Path, b.Path) })
	info := object{"title": title, "version": version}
	var missing []string
	for _, m := range mounts {
		if m.Missing || m.Foreign != nil && doc.addForeign(m.Path, m.Foreign) != nil {
			missing = append(missing, m.Path)
		}
		root := m.NamespaceID == "" || m.NamespaceID == "root"
		routes := m.Router.Routes()
		help := fieldHelp(routes)
		for _, route := range routes {
			if !root && route.Flags.Has(engines.RootNamespace) {
				continue
			}
			returned, err := parseShape(route, help)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.Path, err)
			}
			doc.add(m.Path, route, returned)
		}
	}
	if missing != nil {
		info["description"] = "Missing are the paths of mounts whose plugins have not described them: " + strings.Join(missing, ", ")
	}
	return json.Marshal(object{
		"openapi":    "3.0.3",
		"info":       info,
		"servers":    []object{{"url": "/v1"}},
		"paths":      doc.paths,
		"components": components(),
		"security":   []object{{"token": []string{}}},
	})
}

type object = map[string]any

// document collects paths.
type document struct {
	paths  map[string]object
	ids    map[string]bool   // operation ids in use
	shapes map[string]string // path with parameter names left out -> path as first seen
}

// methods are the HTTP methods that operations are documented with.
var methods = map[engines.Operation]string{
	engines.Read: "get", engines.List: "get", engines.Update: "post", engines.Patch: "patch", engines.Delete: "delete",
}

func (d *document) add(mount string, r *engines.Route, returned *response) {
	if r.Op == engines.Scan {
		return // OpenAPI has no such method, and GET there is the list
	}
	path, shape := "/"+mount, "/"+mount
	var names []string
	for i, segment := range segments(r) {
		if i > 0 {
			path, shape = path+"/", shape+"/"
		}
		name, ok := parameter(segment)
		if !ok {
			path, shape = path+segment, shape+segment
			continue
		}
		names = append(names, name)
		path, shape = path+"{"+name+"}", shape+"{}"
	}
	if r.Op == engines.List && !strings.HasSuffix(path, "/") {
		path, shape = path+"/", shape+"/"
	}
	if first, ok := d.shapes[shape]; ok {
		names, path = parameterNames(first), first
	}
	d.shapes[shape] = path
	item := d.paths[path]
	if item == nil {
		item = object{}
		d.paths[path] = item
	}
	if _, taken := item[methods[r.Op]]; !taken {
		item[methods[r.Op]] = d.operation(mount, path, r, names, returned)
	}
}

// segments returns the parts of a route's pattern.
func segments(r *engines.Route) []string {
	if r.Pattern == "" {
		return nil
	}
	return strings.Split(r.Pattern, "/")
}

// parameter returns the name of the parameter that a segment of a pattern is. A literal segment is its own name.
func parameter(segment string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(segment, "{"); ok {
		name = strings.TrimRight(name, "}?.")
	}
	return name, ok
}

// parameterNames returns the names between braces, in order.
func parameterNames(path string) []string {
	var names []string
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := parameter(part); ok {
			names = append(names, name)
		}
	}
	return names
}

// operation describes a route. names are the parameter names used in the document's path, in order.
func (d *document) operation(mount, path string, r *engines.Route, names []string, returned *response) object {
	op := object{
		"operationId": d.id(mount, r),
		"summary":     r.Help,
		"description": description(r),
		"tags":        []string{strings.TrimSuffix(mount, "/")},
		"responses":   responses(returned),
	}
	if r.Flags.Has(engines.Sudo) {
		op["x-vault-sudo"] = true
	}
	if r.Flags.Has(engines.Unauthenticated) {
		op["x-vault-unauthenticated"] = true
		op["security"] = []object{}
	}
	parameters := parameters(r, names)
	if len(parameters) > 0 {
		op["parameters"] = parameters
	}
	kind := map[engines.Operation]string{engines.Update: "application/json", engines.Patch: "application/merge-patch+json"}[r.Op]
	if kind != "" && r.Flags.Has(engines.RawBody) {
		kind = "application/octet-stream"
	}
	var example any
	if schema := bodySchema(r); kind != "" && schema != nil {
		example = bodyExample(schema)
		op["requestBody"] = object{"content": object{kind: object{"schema": schema, "example": example}}}
	} else {
		kind = ""
	}
	op["x-codeSamples"] = []object{{"lang": "sh", "label": "curl", "source": command(methods[r.Op], path, parameters, kind, example)}}
	return op
}

func parameters(r *engines.Route, names []string) []object {
	var out []object
	i := 0
	for _, segment := range segments(r) {
		name, ok := parameter(segment)
		if !ok {
			continue
		}
		f := &r.Fields[slices.IndexFunc(r.Fields, func(f input.Field) bool { return f.Name == name })]
		schema := fieldSchema(f)
		out = append(out, object{
			"name": names[i], "in": "path", "required": true, "description": f.Help, "schema": schema, "example": exampleOf(f.Name, schema),
		})
		i++
	}
	for _, f := range r.Fields {
		if f.In != "query" || f.Name == "list" {
			continue
		}
		schema := fieldSchema(&f)
		p := object{"name": f.Name, "in": "query", "description": f.Help, "schema": schema, "example": exampleOf(f.Name, schema)}
		if f.Required {
			p["required"] = true
		}
		out = append(out, p)
	}
	if r.Op == engines.List {
		out = append(out, object{"name": "list", "in": "query", "required": true, "description": "Must be true.",
			"example": "true", "schema": object{"type": "string", "enum": []string{"true"}}})
	}
	return out
}

// bodySchema describes the body, nil when the route takes none.
func bodySchema(r *engines.Route) object {
	if r.Flags.Has(engines.RawBody) {
		return object{"type": "string", "format": "binary"}
	}
	properties := object{}
	var required []string
	for _, f := range r.Fields {
		switch {
		case f.Whole:
			return object{"type": "object", "additionalProperties": true, "description": f.Help}
		case f.In != "body":
			continue
		}
		schema := fieldSchema(&f)
		schema["description"] = f.Help
		properties[f.Name] = schema
		if f.Required {
			required = append(required, f.Name)
		}
	}
	if len(properties) == 0 {
		return nil
	}
	schema := object{"type": "object", "properties": properties}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

// schema describes the field's type.
func fieldSchema(f *input.Field) object {
	s := object{}
	switch f.Type {
	case "string", "boolean", "integer", "number", "object":
		s["type"] = f.Type
	case "duration":
		s["type"], s["format"] = "string", "duration"
	case "list":
		s["type"], s["items"] = "array", object{"type": "string"}
	case "map":
		s["type"], s["additionalProperties"] = "object", object{"type": "string"}
	}
	if f.Sensitive {
		s["format"] = "password"
	}
	if f.Enum != nil && f.Type == "string" {
		s["enum"] = f.Enum
	}
	if f.Max > 0 && f.Type == "string" {
		s["maxLength"] = f.Max
	}
	if f.Max > 0 && f.Type == "list" {
		s["maxItems"] = f.Max
	}
	if f.Default != "" {
		s["default"] = defaultValue(f)
	}
	return s
}

// defaultValue returns the default in its JSON type. engines.On has already parsed it once.
func defaultValue(f *input.Field) any {
	switch f.Type {
	case "boolean":
		b, _ := strconv.ParseBool(f.Default)
		return b
	case "integer", "number":
		return json.Number(f.Default)
	case "list":
		return strings.Split(f.Default, ",")
	}
	return f.Default
}

// id returns a unique operation id such as "secret-read-data-path".
func (d *document) id(mount string, r *engines.Route) string {
	words := []string{strings.Trim(mount, "/"), string(r.Op)}
	for _, segment := range segments(r) {
		name, _ := parameter(segment)
		words = append(words, name)
	}
	return d.unique(words)
}

// unique returns an operation id of words that no operation has yet.
func (d *document) unique(words []string) string {
	id := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c == '_':
			return c
		}
		return '-'
	}, strings.Join(words, "-"))
	unique := id
	for n := 2; d.ids[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", id, n)
	}
	d.ids[unique] = true
	return unique
}
