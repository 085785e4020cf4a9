package engines_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/getkin/kin-openapi/openapi3"
)

func openAPIMounts() []engines.MountedRouter {
	r := engines.NewRouter()
	engines.On(r, engines.Update, "roles/{name}", "Write a role.", engines.Sudo, nothing[roleIn])
	engines.On(r, engines.Read, "roles/{name}", "Read a role.", 0, nothing[roleIn])
	engines.On(r, engines.Delete, "roles/{path...}", "Delete roles.", 0, nothing[pathIn])
	engines.On(r, engines.Patch, "roles/{name}", "Change a role.", 0, nothing[roleIn])
	engines.On(r, engines.List, "roles", "List roles.", 0, nothing[none])
	engines.On(r, engines.Update, "login", "Log in.", engines.Unauthenticated, nothing[struct {
		User string `json:"user" required:"true"`
	}])
	engines.On(r, engines.Update, "free/{path...}", "Anything.", 0, nothing[struct {
		Path string          `json:"path"`
		Body json.RawMessage `json:"body" body:"true"`
	}])
	engines.On(r, engines.Update, "upload", "A stream.", engines.RawBody, nothing[none])
	return []engines.MountedRouter{{Path: "b/", Router: r}, {Path: "a/", Router: testRouter()}, {Path: "c/b/", Router: r}}
}

func TestOpenAPI(t *testing.T) {
	doc, err := engines.OpenAPI("Coffer", "1.0.0", openAPIMounts())
	if err != nil {
		t.Fatal(err)
	}
	again, err := engines.OpenAPI("Coffer", "1.0.0", openAPIMounts())
	if err != nil || !bytes.Equal(doc, again) {
		t.Errorf("the document is not the same twice (%v)", err)
	}
	parsed, err := openapi3.NewLoader().LoadFromData(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Validate(t.Context()); err != nil {
		t.Fatalf("not valid OpenAPI: %v", err)
	}
	ids := map[string]bool{}
	for path, item := range parsed.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: operation id %q is empty or used twice", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
		}
	}
	role := parsed.Paths.Value("/b/roles/{name}")
	if role == nil || role.Get == nil || role.Post == nil || role.Patch == nil || role.Delete == nil {
		t.Fatalf("/b/roles/{name}: %+v, want four operations", role)
	}
	if role.Post.Extensions["x-vault-sudo"] != true || role.Get.Extensions["x-vault-sudo"] != nil {
		t.Error("x-vault-sudo must be on the write of a role only")
	}
	if login := parsed.Paths.Value("/b/login"); login.Post.Extensions["x-vault-unauthenticated"] != true {
		t.Error("x-vault-unauthenticated is missing")
	}
	if list := parsed.Paths.Value("/b/roles/"); list == nil || list.Get == nil || list.Get.Parameters.GetByInAndName("query", "list") == nil {
		t.Error("the list operation is missing")
	}
	schema := role.Post.RequestBody.Value.Content.Get("application/json").Schema.Value
	if got := schema.Properties["kind"].Value; len(got.Enum) != 2 || got.Default != "small" {
		t.Errorf("kind: %+v", got)
	}
	if got := schema.Properties["secret"].Value.Format; got != "password" {
		t.Errorf("secret has format %q, want password", got)
	}
	if schema.Properties["name"] != nil {
		t.Error("a path parameter is described in the body too")
	}
	if role.Get.Parameters.GetByInAndName("query", "ttl") == nil || role.Get.RequestBody != nil {
		t.Error("a read takes its fields from the query")
	}
	if !strings.Contains(string(doc), `"required": [`) {
		t.Error("required fields are not marked")
	}
}

// A namespace's document has no paths that answer in the root namespace only.
func TestOpenAPIOfNamespace(t *testing.T) {
	r := engines.NewRouter()
	engines.On(r, engines.Read, "audit", "The cluster's.", engines.RootNamespace|engines.Sudo, nothing[none])
	engines.On(r, engines.Read, "mounts", "Everybody's.", 0, nothing[none])
	engines.On(r, engines.Read, "both", "Everybody's.", 0, nothing[none])
	engines.On(r, engines.Delete, "both", "The cluster's.", engines.RootNamespace, nothing[none])
	for id, want := range map[string]bool{"": true, "root": true, "a1b2": false} {
		doc, err := engines.OpenAPI("Coffer", "1.0.0", []engines.MountedRouter{{Path: "sys/", Router: r, NamespaceID: id}})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := openapi3.NewLoader().LoadFromData(doc)
		if err != nil {
			t.Fatal(err)
		}
		both := parsed.Paths.Value("/sys/both")
		if parsed.Paths.Value("/sys/mounts") == nil || both == nil || both.Get == nil {
			t.Errorf("namespace %q: paths of every namespace are missing", id)
		}
		if got := parsed.Paths.Value("/sys/audit") != nil; got != want || (both.Delete != nil) != want {
			t.Errorf("namespace %q: paths of the root namespace are documented: %v, want %v", id, got, want)
		}
	}
}
