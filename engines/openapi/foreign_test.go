package openapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/openapi"
)

// foreignText is a document of an engine that describes itself, with what must not become a part of ours.
const foreignText = `{
"openapi": "3.0.2", "info": {"title": "Mine now"}, "servers": [{"url": "https://evil.example"}],
"paths": {
  "/roles/{name}": {"description": "Roles.", "x-vault-sudo": true,
    "parameters": [{"name": "name", "in": "path", "schema": {"type": "string", "pattern": "(((("}, "description": "Which."}, {"name": "X-Vault-Token", "in": "header"}],
    "get": {"operationId": "b-read-roles-name", "responses": {"nonsense": 5}, "parameters": [{"name": "list", "in": "query"}]},
    "post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Role"}}}}}},
  "/roles/{other}": {"get": {}},
  "/../sys/seal": {"post": {}}, "//sys/seal": {"post": {}}, "/a//b": {"get": {}}, "/a?b": {"get": {}}, "/{": {"get": {}}, "^x/(?P<y>.+)$": {"get": {}},
  "/undeclared/{id}/x.{id}": {"delete": {}},
  "/remote": {"post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "https://evil.example/x"}}}}}},
  "/nothing": {"description": "No operation."},
  "/": {"get": {"summary": "The mount itself."}}
},
"components": {"schemas": {"Role": {"type": "object", "required": ["ttl", "none"], "properties": {
  "ttl": {"type": "integer", "default": 60, "enum": [1, "two", 60]}, "kind": {"type": "string", "default": {"x": 1}}, "bad name": {"type": "string"},
  "list": {"type": "array", "items": {"type": "string"}}, "again": {"$ref": "#/components/schemas/Role"}, "null": null}}}}}`

func TestForeignDocument(t *testing.T) {
	all := append(mounts(), openapi.Mount{Path: "f/", Router: engines.NewRouter(), Foreign: []byte(foreignText)}, openapi.Mount{Path: "down/", Router: engines.NewRouter(), Missing: true})
	doc, err := openapi.Document("Coffer", "1.0.0", all)
	if err != nil {
		t.Fatal(err)
	}
	var whole struct {
		Info       struct{ Title, Description string }
		Servers    []struct{ URL string }
		Components map[string]json.RawMessage
	}
	if err := json.Unmarshal(doc, &whole); err != nil {
		t.Fatal(err)
	}
	if whole.Info.Title != "Coffer" || len(whole.Servers) != 1 || whole.Servers[0].URL != "/v1" || len(whole.Components) != 3 || strings.Contains(string(doc), "evil") {
		t.Errorf("the document is no longer ours: %+v", whole)
	}
	if !strings.HasSuffix(whole.Info.Description, ": down/") {
		t.Errorf("what is missing: %q", whole.Info.Description)
	}
	parsed := parse(t, doc)
	var paths []string
	ids := map[string]bool{}
	for path, item := range parsed.Paths {
		for method, op := range item {
			if ids[op.OperationID] || op.OperationID == "" {
				t.Errorf("%s %s: operation id %q", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			if !strings.HasPrefix(path, "/a/") && !strings.HasPrefix(path, "/b/") && !strings.HasPrefix(path, "/c/") {
				paths = append(paths, method+" "+path)
			}
		}
	}
	slices.Sort(paths)
	if want := []string{"delete /f/undeclared/{id}/x.{id}", "get /f/", "get /f/roles/{name}", "post /f/remote", "post /f/roles/{name}"}; !slices.Equal(paths, want) {
		t.Errorf("paths %q, want %q", paths, want)
	}
	role := parsed.Paths["/f/roles/{name}"]
	if !role["get"].Sudo || len(role["get"].Parameters) != 2 || len(parsed.Paths["/f/undeclared/{id}/x.{id}"]["delete"].Parameters) != 1 {
		t.Errorf("sudo or parameters: %+v", role["get"])
	}
	fields := role["post"].RequestBody.Content["application/json"].Schema.Properties
	if len(fields) != 4 || fields["ttl"].Default != 60.0 || fields["kind"].Default != nil {
		t.Errorf("fields %+v", fields)
	}
}

// A document that cannot be read, or is too large, is missing; one that would become too large is shortened. The others are there.
func TestForeignGarbage(t *testing.T) {
	many := strings.Builder{}
	for i := range 2000 {
		fmt.Fprintf(&many, `"/p%d": {"get": {}},`, i)
	}
	for name, text := range map[string]string{
		"no JSON": "x", "a list": "[]", "other types": `{"paths": {"/a": {"get": 5}}}`, "too many paths": `{"paths": {` + many.String() + `"/x": {}}}`,
		"deep": strings.Repeat(`{"paths":`, 20_000),
	} {
		doc, err := openapi.Document("Coffer", "1.0.0", append(mounts(), openapi.Mount{Path: "f/", Router: engines.NewRouter(), Foreign: []byte(text)}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if parsed := parse(t, doc); parsed.Paths["/b/login"] == nil || !strings.Contains(string(doc), "described them: f/") {
			t.Errorf("%s: ours is not there, or nothing says that its is missing", name)
		}
	}
	bomb := strings.Builder{}
	for i := range 900 {
		fmt.Fprintf(&bomb, `"/p%d": {"post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}}}}}},`, i)
	}
	schema := strings.Builder{}
	for i := range 190 {
		fmt.Fprintf(&schema, `"f%d": {"type": "string", "description": %q},`, i, strings.Repeat("x", 1900))
	}
	doc, err := openapi.Document("Coffer", "1.0.0", []openapi.Mount{{Path: "f/", Router: engines.NewRouter(), Foreign: []byte(
		`{"paths": {` + bomb.String() + `"/x": {}}, "components": {"schemas": {"S": {"type": "object", "properties": {` + schema.String() + `"z": {}}}}}}`)}})
	if err != nil || len(doc) > 32<<20 || len(parse(t, doc).Paths) != 900 {
		t.Errorf("the document has %d bytes: %v", len(doc), err)
	}
}
