package openapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/openapi"
)

// document is what these tests read of a document. That one is valid OpenAPI is tested with a server's own, in test/system/conformance.
type document struct {
	Paths map[string]map[string]*struct {
		OperationID     string
		Sudo            bool `json:"x-vault-sudo"`
		Unauthenticated bool `json:"x-vault-unauthenticated"`
		Parameters      []struct{ Name, In string }
		RequestBody     *struct {
			Content map[string]struct {
				Schema struct {
					Properties map[string]struct {
						Enum    []any
						Default any
						Format  string
					}
				}
			}
		}
	}
}

type none struct{}

type nameIn struct {
	Name string `json:"name" help:"A name."`
}

type pathIn struct {
	Path string `json:"path" help:"A path."`
}

type roleIn struct {
	Name   string             `json:"name" help:"Which role."`
	Kind   string             `json:"kind" enum:"small,large" default:"small"`
	On     bool               `json:"on" default:"true"`
	TTL    engines.Duration   `json:"ttl" default:"1h"`
	List   engines.StringList `json:"list" max:"3" default:"a,b"`
	Map    engines.StringMap  `json:"map" max:"2"`
	Object engines.Object     `json:"object"`
	Secret engines.Sensitive  `json:"secret"`
}

func nothing[In any](context.Context, *engines.Request, *In) (*engines.Response, error) {
	return nil, nil
}

func parse(t *testing.T, doc []byte) document {
	t.Helper()
	var parsed document
	if err := json.Unmarshal(doc, &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func mounts() []openapi.Mount {
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
	return []openapi.Mount{{Path: "b/", Router: r}, {Path: "a/", Router: alike()}, {Path: "c/b/", Router: r}}
}

// alike returns routes whose patterns OpenAPI cannot tell apart.
func alike() *engines.Router {
	r := engines.NewRouter()
	engines.On(r, engines.List, "roles", "h", 0, nothing[none])
	engines.On(r, engines.Read, "roles/{name}", "h", 0, nothing[nameIn])
	engines.On(r, engines.Read, "roles/admin", "h", 0, nothing[none])
	engines.On(r, engines.Read, "roles/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.List, "data/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Update, "data/{path...?}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Update, "mounts/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Update, "mounts/{path...}/tune", "h", 0, nothing[pathIn])
	return r
}

func TestDocument(t *testing.T) {
	doc, err := openapi.Document("Coffer", "1.0.0", mounts())
	if err != nil {
		t.Fatal(err)
	}
	again, err := openapi.Document("Coffer", "1.0.0", mounts())
	if err != nil || !bytes.Equal(doc, again) {
		t.Errorf("the document is not the same twice (%v)", err)
	}
	parsed := parse(t, doc)
	ids := map[string]bool{}
	for path, operations := range parsed.Paths {
		for method, op := range operations {
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: operation id %q is empty or used twice", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
		}
	}
	role := parsed.Paths["/b/roles/{name}"]
	if role["get"] == nil || role["post"] == nil || role["patch"] == nil || role["delete"] == nil {
		t.Fatalf("/b/roles/{name}: %+v, want four operations", role)
	}
	if !role["post"].Sudo || role["get"].Sudo {
		t.Error("x-vault-sudo must be on the write of a role only")
	}
	if login := parsed.Paths["/b/login"]["post"]; !login.Unauthenticated {
		t.Error("x-vault-unauthenticated is missing")
	}
	if list := parsed.Paths["/b/roles/"]["get"]; list == nil || !slices.Contains(list.Parameters, struct{ Name, In string }{"list", "query"}) {
		t.Error("the list operation is missing")
	}
	schema := role["post"].RequestBody.Content["application/json"].Schema
	if got := schema.Properties["kind"]; len(got.Enum) != 2 || got.Default != "small" {
		t.Errorf("kind: %+v", got)
	}
	if got := schema.Properties["secret"].Format; got != "password" {
		t.Errorf("secret has format %q, want password", got)
	}
	if _, ok := schema.Properties["name"]; ok {
		t.Error("a path parameter is described in the body too")
	}
	if !slices.Contains(role["get"].Parameters, struct{ Name, In string }{"ttl", "query"}) || role["get"].RequestBody != nil {
		t.Error("a read takes its fields from the query")
	}
	if !strings.Contains(string(doc), `"required":[`) {
		t.Error("required fields are not marked")
	}
}

// A namespace's document has no paths that answer in the root namespace only.
func TestDocumentOfNamespace(t *testing.T) {
	r := engines.NewRouter()
	engines.On(r, engines.Read, "audit", "The cluster's.", engines.RootNamespace|engines.Sudo, nothing[none])
	engines.On(r, engines.Read, "mounts", "Everybody's.", 0, nothing[none])
	engines.On(r, engines.Read, "both", "Everybody's.", 0, nothing[none])
	engines.On(r, engines.Delete, "both", "The cluster's.", engines.RootNamespace, nothing[none])
	for id, want := range map[string]bool{"": true, "root": true, "a1b2": false} {
		doc, err := openapi.Document("Coffer", "1.0.0", []openapi.Mount{{Path: "sys/", Router: r, NamespaceID: id}})
		if err != nil {
			t.Fatal(err)
		}
		parsed := parse(t, doc)
		both := parsed.Paths["/sys/both"]
		if parsed.Paths["/sys/mounts"] == nil || both["get"] == nil {
			t.Errorf("namespace %q: paths of every namespace are missing", id)
		}
		if got := parsed.Paths["/sys/audit"] != nil; got != want || (both["delete"] != nil) != want {
			t.Errorf("namespace %q: paths of the root namespace are documented: %v, want %v", id, got, want)
		}
	}
}
