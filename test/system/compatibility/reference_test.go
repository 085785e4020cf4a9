package compatibility_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

const referenceHead = `# HTTP API

Every operation of a server with one mount of each built-in type, from the OpenAPI document that it serves at ` + "`sys/internal/specs/openapi`" + `. Paths
are relative to ` + "`/v1/`" + `. The document has more: types, descriptions of fields, examples of bodies and a curl command for each operation. A server
describes the mounts that it has. The page for humans is the API explorer of the web UI. A test writes this page:
` + "`go test ./test/system/compatibility -run Reference -update`" + `.

A JSON response has an envelope: ` + "`request_id`, `lease_id`, `renewable`, `lease_duration`, `data`, `wrap_info`, `warnings` and `auth`" + `. The fields
below are those of ` + "`data`" + `, unless they follow another name. Responses without fields have no body, or an envelope with warnings. An error has
` + "`errors`" + `, a list of texts, and a status of 400 or more.
`

// TestReference holds the server's own document to what it promises, and compares docs/api.md with it: every operation has a description,
// the type of its response, and an example.
func TestReference(t *testing.T) {
	s := newServer(t)
	text := s.do("GET", "sys/internal/specs/openapi", nil).Body
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil { // examples, too
		t.Errorf("the document is not valid: %v", err)
	}
	page := new(strings.Builder)
	page.WriteString(referenceHead)
	paths := doc.Paths.Map()
	top, count := "", 0
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if section := section(path); section != top {
			top = section
			fmt.Fprintf(page, "\n## %s\n", top)
		}
		operations := paths[path].Operations()
		for _, method := range []string{"GET", "POST", "PATCH", "DELETE"} {
			if op := operations[method]; op != nil {
				count++
				complete(t, method+" "+path, op)
				write(page, method, path, op)
			}
		}
	}
	if count < 400 {
		t.Errorf("the document has only %d operations", count)
	}
	untyped(t, paths)
	file := filepath.Join(root, "docs/api.md")
	if *update && !t.Failed() {
		if err := os.WriteFile(file, []byte(page.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if there, err := os.ReadFile(file); err != nil || string(there) != page.String() {
		t.Errorf("docs/api.md is stale (%v): go test ./test/system/compatibility -run Reference -update writes it", err)
	}
}

// section returns the heading that a path belongs under: that of its mount, and for sys/ its first segment.
func section(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	n := 1
	if (parts[0] == "auth" || parts[0] == "sys") && len(parts) > 1 {
		n = 2
	}
	return strings.Join(parts[:n], "/")
}

// complete fails the test for what an operation lacks.
func complete(t *testing.T, name string, op *openapi3.Operation) {
	t.Helper()
	if op.Description == "" || op.Summary == "" {
		t.Errorf("%s has no description", name)
	}
	if op.Extensions["x-codeSamples"] == nil {
		t.Errorf("%s has no example of a request", name)
	}
	if op.RequestBody != nil {
		for kind, media := range op.RequestBody.Value.Content {
			if media.Example == nil || media.Schema == nil {
				t.Errorf("%s: the body %s has no type or no example", name, kind)
			}
		}
	}
	response := op.Responses.Value("200")
	if response == nil || len(response.Value.Content) == 0 {
		t.Errorf("%s has no typed response", name)
		return
	}
	for kind, media := range response.Value.Content {
		if media.Example == nil || media.Schema == nil {
			t.Errorf("%s: the response %s has no type or no example", name, kind)
		}
	}
	for _, p := range op.Parameters {
		if p.Value.Example == nil {
			t.Errorf("%s: the parameter %s has no example", name, p.Value.Name)
		}
	}
}

// untyped fails the test for each place of a response that may hold anything and is not in testdata/untyped.txt, and for each line there that no
// response needs: the list only shrinks.
func untyped(t *testing.T, paths map[string]*openapi3.PathItem) {
	t.Helper()
	listed := map[string]bool{}
	for line := range strings.Lines(read(t, "testdata/untyped.txt")) {
		if place, _, _ := strings.Cut(strings.TrimSpace(line), " : "); place != "" && place[0] != '#' {
			listed[place] = false
		}
	}
	for path, item := range paths {
		for method, op := range item.Operations() {
			for _, media := range op.Responses.Value("200").Value.Content {
				name, own := method+" "+path, media.Schema
				if all := own.Value.AllOf; all != nil {
					own = all[1] // the first is the envelope
				}
				for _, place := range open(own.Value, "") {
					if _, ok := listed[name+place]; !ok {
						t.Errorf("testdata/untyped.txt: the response of %s%s may hold anything: declare its type", name, place)
					}
					listed[name+place] = true
				}
			}
		}
	}
	for place, found := range listed {
		if !found {
			t.Errorf("testdata/untyped.txt: %s has a type: take the line out", place)
		}
	}
}

// open returns the places in a schema that may hold anything: values without a type, and objects with fields of no type.
func open(s *openapi3.Schema, at string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		out = append(out, open(s.Properties[name].Value, at+" "+name)...)
	}
	switch rest := s.AdditionalProperties; {
	case s.OneOf != nil:
	case s.Type == nil, s.Type.Is("object") && rest.Has != nil && *rest.Has && !(at == "" && s.Properties != nil):
		out = append(out, at)
	case s.Items != nil:
		out = append(out, open(s.Items.Value, at+" []")...)
	case rest.Schema != nil:
		out = append(out, open(rest.Schema.Value, at+" *")...)
	}
	return out
}

// write adds an operation to the page.
func write(page *strings.Builder, method, path string, op *openapi3.Operation) {
	if strings.HasSuffix(path, "/") && method == "GET" {
		method = "LIST"
	}
	fmt.Fprintf(page, "\n- `%s %s`: %s\n", method, strings.TrimPrefix(path, "/"), op.Description)
	var in []string
	for _, p := range op.Parameters {
		if p.Value.In == "query" && p.Value.Name != "list" {
			in = append(in, named(p.Value.Name, p.Value.Schema)+mark(p.Value.Required))
		}
	}
	if op.RequestBody != nil {
		for _, media := range op.RequestBody.Value.Content {
			schema := media.Schema.Value
			for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
				in = append(in, named(name, schema.Properties[name])+mark(slices.Contains(schema.Required, name)))
			}
		}
	}
	if in != nil {
		fmt.Fprintf(page, "  Takes %s.\n", strings.Join(in, ", "))
	}
	if out := returned(op); out != "" {
		fmt.Fprintf(page, "  Returns %s.\n", out)
	}
}

func mark(required bool) string {
	if required {
		return " (required)"
	}
	return ""
}

// returned names the fields of a response.
func returned(op *openapi3.Operation) string {
	for kind, media := range op.Responses.Value("200").Value.Content {
		schema := media.Schema.Value
		if kind != "application/json" {
			return "a body of the type `" + kind + "`"
		}
		if schema.AllOf == nil {
			return "without an envelope: " + fields(schema)
		}
		own, out := schema.AllOf[1].Value, []string{}
		if own.Properties["auth"] != nil {
			out = append(out, "`auth` with a token")
		}
		if data := own.Properties["data"]; data != nil {
			out = append(out, fields(data.Value))
		}
		return strings.Join(out, "; ")
	}
	return ""
}

func fields(s *openapi3.Schema) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		out = append(out, named(name, s.Properties[name]))
	}
	if s.AdditionalProperties.Schema != nil || len(out) == 0 {
		out = append(out, "fields of any name")
	}
	return strings.Join(out, ", ")
}

// named returns the name of a field, and its type if that is no text.
func named(name string, s *openapi3.SchemaRef) string {
	kind := "any"
	if types := s.Value.Type.Slice(); len(types) > 0 {
		kind = types[0]
	}
	for i, one := range s.Value.OneOf {
		kind = strings.TrimPrefix(kind, "any")
		if i > 0 {
			kind += " or "
		}
		kind += one.Value.Type.Slice()[0]
	}
	switch kind = cmp.Or(map[string]string{"array": "list"}[kind], kind); kind {
	case "string":
		return "`" + name + "`"
	default:
		return "`" + name + "` (" + kind + ")"
	}
}
