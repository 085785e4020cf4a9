package namespace_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/namespace"
)

// paths is the sys router with the namespace paths only.
type paths struct{ router *engines.Router }

func (p paths) Router() *engines.Router { return p.router }

// client sends requests to the sys paths of a namespace.
func (f *fixture) client(t *testing.T, id string) *enginetest.Mount {
	r := engines.NewRouter()
	f.Routes(r)
	m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) { return paths{r}, nil }, enginetest.Options{Type: "system", Path: "sys/"})
	m.Mount.NamespaceID, m.Mount.Namespace = id, f.Path(id)
	return m
}

// access is what a client may do: anything below some paths.
type access []string

func (a access) AllowedAlways(op engines.Operation, path string) bool { return a.Allowed(op, path) }

func (a access) Allowed(engines.Operation, string) bool { return false }
func (a access) Sudo(string) bool                       { return false }
func (a access) AnyUnder(prefix string) bool {
	for _, p := range a {
		if strings.HasPrefix(p, prefix) {
			return true
		}
	}
	return false
}

func TestRoutes(t *testing.T) {
	f := setup(t, namespace.Options{})
	root := f.client(t, "root")
	a := root.Data(root.Must(engines.Update, "namespaces/a", `{"custom_metadata":{"owner":"x","old":"y"}}`))
	if a["path"] != "a/" || a["id"] == "" || a["uuid"] == "" || a["tainted"] != false || a["locked"] != false || a["custom_metadata"].(map[string]any)["owner"] != "x" {
		t.Errorf("created: %v", a)
	}
	inA := f.client(t, a["id"].(string))
	if b := inA.Data(inA.Must(engines.Update, "namespaces/b", nil)); b["path"] != "a/b/" {
		t.Errorf("created in a: %v", b)
	}
	if b := root.Data(root.Must(engines.Read, "namespaces/a/b", nil)); b["path"] != "a/b/" {
		t.Errorf("read: %v", b)
	}
	if !root.Exists("namespaces/a") || root.Exists("namespaces/b") || !inA.Exists("namespaces/b") {
		t.Error("creating is not told from changing")
	}
	list := root.Data(root.Must(engines.List, "namespaces", nil))
	info := list["key_info"].(map[string]any)["a/"].(map[string]any)
	if keys := list["keys"].([]any); len(keys) != 1 || keys[0] != "a/" || info["id"] != a["id"] || info["path"] != "a/" {
		t.Errorf("list: %v", list)
	}
	if list := root.Data(root.Must(engines.List, "namespaces/a/", nil)); list["keys"].([]any)[0] != "b/" {
		t.Errorf("list below: %v", list)
	}
	a = root.Data(root.Must(engines.Patch, "namespaces/a", `{"custom_metadata":{"old":null,"new":"z"}}`))
	if m := a["custom_metadata"].(map[string]any); len(m) != 2 || m["owner"] != "x" || m["new"] != "z" {
		t.Errorf("patched: %v", m)
	}
	a = root.Data(root.Must(engines.Patch, "namespaces/a", `{"custom_metadata":null}`))
	if m := a["custom_metadata"].(map[string]any); len(m) != 0 {
		t.Errorf("cleared: %v", m)
	}
	root.Fails(engines.KindInvalid, engines.Patch, "namespaces/a", `{"custom_metadata":{"n":5}}`)
	root.Fails(engines.KindInvalid, engines.Update, "namespaces/c", `{"seal":"x"}`)
	root.Fails(engines.KindNotFound, engines.Read, "namespaces/none", nil)
	root.Fails(engines.KindNotFound, engines.Patch, "namespaces/none", `{"custom_metadata":{}}`)
	root.Fails(engines.KindNotFound, engines.List, "namespaces/a/b/", nil)
	root.Fails(engines.KindNotFound, engines.List, "namespaces/none/", nil)

	if r := root.Must(engines.Delete, "namespaces/none", nil); len(r.Warnings) != 1 {
		t.Errorf("deleting nothing: %+v", r)
	}
	root.Fails(engines.KindInvalid, engines.Delete, "namespaces/a", nil)
	for range 2 {
		if d := root.Data(root.Must(engines.Delete, "namespaces/a/b", nil)); d["status"] != "in-progress" {
			t.Errorf("deleted: %v", d)
		}
	}
	if b := root.Data(root.Must(engines.Read, "namespaces/a/b", nil)); b["status"] != "deleting" || b["tainted"] != true {
		t.Errorf("while it is being deleted: %v", b)
	}
	f.must(f.Resume(t.Context()))
	root.Fails(engines.KindNotFound, engines.Read, "namespaces/a/b", nil)
	root.Must(engines.Delete, "namespaces/a", nil)
}

func TestLockRoutes(t *testing.T) {
	f := setup(t, namespace.Options{})
	a := f.create("root", "a")
	b := f.create(a.ID, "b")
	root, inA := f.client(t, "root"), f.client(t, a.ID)
	keyA := inA.Data(inA.Must(engines.Update, "namespaces/api-lock/lock", nil))["unlock_key"].(string)
	keyB := inA.Data(inA.Must(engines.Update, "namespaces/api-lock/lock/b", nil))["unlock_key"].(string)
	if keyA == "" || keyA == keyB {
		t.Error("the unlock keys are not random")
	}
	root.Fails(engines.KindInvalid, engines.Update, "namespaces/api-lock/lock", nil)
	root.Fails(engines.KindNotFound, engines.Update, "namespaces/api-lock/lock/none", nil)
	inA.Fails(engines.KindInvalid, engines.Update, "namespaces/api-lock/unlock", nil)
	inA.Fails(engines.KindInvalid, engines.Update, "namespaces/api-lock/unlock", map[string]string{"unlock_key": keyB})
	inA.Must(engines.Update, "namespaces/api-lock/unlock", map[string]string{"unlock_key": keyA})
	root.Caller = engines.Caller{Root: true, NamespaceID: a.ID}
	root.Fails(engines.KindInvalid, engines.Update, "namespaces/api-lock/unlock/a/b", nil)
	root.Caller = engines.Caller{Root: true, NamespaceID: "root"}
	root.Must(engines.Update, "namespaces/api-lock/unlock/a/b", nil)
	if n, err := f.ByID(t.Context(), b.ID); err != nil || n.Locked() {
		t.Errorf("not unlocked by a root token: %v", err)
	}
}

func TestVisible(t *testing.T) {
	f := setup(t, namespace.Options{})
	a := f.create("root", "a")
	for _, path := range []string{"a/b", "a/c", "d", "e"} {
		f.create("root", path)
	}
	e, err := f.ByID(t.Context(), "root")
	f.must(err)
	children, err := f.Children(t.Context(), e.ID)
	f.must(err)
	f.must(f.Delete(t.Context(), children[len(children)-1].ID))
	for _, tt := range []struct {
		in     string
		access engines.Access
		want   string
	}{
		{"root", access{"a/c/secret/x", "d/", "e/"}, "a/,a/c/,d/"},
		{a.ID, access{"c/secret/x"}, "c/"},
		{"root", access{}, ""},
		{"root", nil, ""},
	} {
		client := f.client(t, tt.in)
		client.Caller.Access = tt.access
		var got []string
		for _, k := range client.Data(client.Must(engines.Read, "internal/ui/namespaces", nil))["keys"].([]any) {
			got = append(got, k.(string))
		}
		if strings.Join(got, ",") != tt.want {
			t.Errorf("%v sees %q in %s, want %q", tt.access, got, f.Path(tt.in), tt.want)
		}
	}
}

func TestHostile(t *testing.T) {
	f := setup(t, namespace.Options{})
	client := f.client(t, "root")
	enginetest.Documented(t, client)
	enginetest.Hostile(t, client)
}
