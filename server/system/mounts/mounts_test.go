package mounts

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/storage"
)

// nothing is an engine with one path.
type nothing struct{ router *engines.Router }

func (n nothing) Router() *engines.Router { return n.router }

// rig has the paths of a table with the root namespace and "ns1/", whose id is "n1".
type rig struct {
	t      *testing.T
	router *engines.Router
	table  *mount.Table
}

// spaces are the root and n1.
type spaces struct{}

func (spaces) Path(id string) string                             { return map[string]string{"n1": "ns1/"}[id] }
func (spaces) At(context.Context, string, string) (bool, error)  { return false, nil }
func (spaces) Guard(context.Context, *storage.Txn, string) error { return nil }

func (spaces) Below(_ context.Context, ancestor, id string) bool { return ancestor == id }

func (spaces) ResolveFrom(_ context.Context, base, path string) (id, rest string, err error) {
	if inner, ok := strings.CutPrefix(path, "ns1/"); ok && base == "root" {
		return "n1", inner, nil
	}
	return base, path, nil
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := engines.NewRouter()
	engines.On(r, engines.Read, "thing", "Read it.", 0, func(context.Context, *engines.Request, *none) (*engines.Response, error) { return nil, nil })
	factory := func(engines.Mount) (engines.Engine, error) { return nothing{r}, nil }
	memory := &storage.Memory{}
	table := mount.NewTable(mount.Options{
		Store:      memory,
		Factories:  map[string]engines.Factory{"system": factory, "token": factory, "cubbyhole": factory, "kv": factory, "userpass": factory},
		Namespaces: spaces{},
	})
	memory.OnChange(table.Changed)
	for _, ns := range []string{"root", "n1"} {
		if _, err := memory.Commit(t.Context(), storage.Batch{Puts: mount.Defaults(ns)}); err != nil {
			t.Fatal(err)
		}
	}
	router := system.New(system.Options{Mounts: table, Version: system.Version{API: "1.2.3", Product: "4.5.6"}}).Router()
	Paths{Table: table, Namespaces: spaces{}, Members: agreed{}}.Routes(router)
	return &rig{t, router, table}
}

// allow is what a client may do: anything below some paths.
type allow []string

func (a allow) AllowedAlways(op engines.Operation, path string) bool { return a.Allowed(op, path) }

func (a allow) Allowed(engines.Operation, string) bool { return false }
func (a allow) Sudo(string) bool                       { return false }
func (a allow) AnyUnder(prefix string) bool {
	for _, p := range a {
		if strings.HasPrefix(p, prefix) {
			return true
		}
	}
	return false
}

// in sends a request to sys in a namespace.
func (m *rig) in(ns string, who engines.Access, op engines.Operation, path, body string) (map[string]any, error) {
	m.t.Helper()
	req := &engines.Request{Op: op, Path: path, Query: url.Values{}, Header: http.Header{}, Caller: engines.Caller{Access: who}}
	req.Mount.NamespaceID, req.Mount.Namespace = ns, map[string]string{"n1": "ns1/"}[ns]
	if body != "" {
		req.Body = json.RawMessage(body)
	}
	resp, err := m.router.Handle(m.t.Context(), req)
	if err != nil || resp == nil {
		return nil, err
	}
	raw, err := json.Marshal(resp.Data)
	if resp.Raw != nil {
		raw = resp.Raw.Body
	}
	if err != nil {
		m.t.Fatal(err)
	}
	var data map[string]any
	if err := json.Unmarshal(raw, &data); err != nil {
		m.t.Fatal(err)
	}
	return data, nil
}

func (m *rig) must(ns string, who engines.Access, op engines.Operation, path, body string) map[string]any {
	m.t.Helper()
	data, err := m.in(ns, who, op, path, body)
	if err != nil {
		m.t.Fatalf("%s %s in %s: %v", op, path, ns, err)
	}
	return data
}

// The same paths in two namespaces are two mounts.
func TestMountPathsInNamespaces(t *testing.T) {
	m := newRig(t)
	for _, ns := range []string{"root", "n1", ""} {
		m.must(ns, nil, engines.Update, "mounts/a"+ns, `{"type":"kv-v2","description":"in `+ns+`"}`)
		m.must(ns, nil, engines.Update, "auth/u"+ns, `{"type":"userpass"}`)
	}
	if list := m.must("n1", nil, engines.Read, "mounts", ""); len(list) != 4 || list["an1/"] == nil || list["identity/"] == nil {
		t.Errorf("mounts in n1: %v", list)
	}
	if list := m.must("root", nil, engines.Read, "mounts", ""); list["aroot/"] == nil || list["a/"] == nil || list["an1/"] != nil {
		t.Errorf("mounts in the root: %v", list)
	}
	if list := m.must("n1", nil, engines.Read, "auth", ""); len(list) != 2 || list["un1/"] == nil {
		t.Errorf("auth methods in n1: %v", list)
	}
	if got := m.must("n1", nil, engines.Read, "mounts/an1", ""); got["description"] != "in n1" {
		t.Errorf("one mount: %v", got)
	}
	m.must("n1", nil, engines.Update, "mounts/an1/tune", `{"description":"tuned"}`)
	if got := m.must("n1", nil, engines.Read, "mounts/an1/tune", ""); got["description"] != "tuned" {
		t.Errorf("tuned: %v", got)
	}
	for _, path := range []string{"mounts/aroot", "mounts/aroot/tune", "auth/uroot/tune"} {
		if _, err := m.in("n1", nil, engines.Read, path, ""); err == nil || !strings.HasPrefix(err.Error(), "No ") {
			t.Errorf("%s in n1 = %v", path, err)
		}
	}
	m.must("n1", nil, engines.Delete, "mounts/aroot", "")
	m.must("n1", nil, engines.Delete, "mounts/an1", "")
	if list := m.must("n1", nil, engines.Read, "mounts", ""); len(list) != 3 {
		t.Errorf("mounts in n1 after disabling: %v", list)
	}
	if list := m.must("root", nil, engines.Read, "mounts", ""); list["aroot/"] == nil {
		t.Error("disabling in n1 disabled in the root")
	}
	m.must("n1", nil, engines.Update, "mounts/secret", `{"type":"kv"}`)
	for ns, want := range map[string]bool{"n1": true, "root": false} {
		paths := m.must(ns, nil, engines.Read, "internal/specs/openapi", "")["paths"].(map[string]any)
		if _, ok := paths["/secret/thing"]; ok != want {
			t.Errorf("the document of %s has /secret/thing: %v", ns, ok)
		}
	}
}

type agreed struct{}

func (agreed) FormatsAgreed() bool { return true }

// A kv mount of version 1 becomes one of version 2, also where no version was given, and keeps its secrets. It does not go back.
func TestVersionOfKV(t *testing.T) {
	m := newRig(t)
	for path, options := range map[string]string{"none": "null", "one": `{"version":"1"}`, "two": `{"version":"2"}`} {
		m.must("root", nil, engines.Update, "mounts/"+path, `{"type":"kv","options":`+options+`}`)
		tune := func(version, fails string) {
			t.Helper()
			_, err := m.in("root", nil, engines.Update, "mounts/"+path+"/tune", `{"options":{"version":"`+version+`"}}`)
			if (fails == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), fails) {
				t.Errorf("version %s of %s: %v, want %q", version, path, err, fails)
			}
		}
		if path != "two" {
			tune("1", "")
		}
		tune("2", "")
		tune("1", "cannot go back")
		tune("2", "")
	}
}

// Clients read and tune auth methods by both paths.
func TestAuthBelowMounts(t *testing.T) {
	m := newRig(t)
	m.must("n1", nil, engines.Update, "auth/u", `{"type":"userpass"}`)
	m.must("n1", nil, engines.Update, "mounts/auth/u/tune", `{"description":"tuned","token_type":"batch"}`)
	for _, path := range []string{"mounts/auth/u/tune", "auth/u/tune"} {
		if got := m.must("n1", nil, engines.Read, path, ""); got["description"] != "tuned" || got["token_type"] != "batch" {
			t.Errorf("%s = %v", path, got)
		}
	}
	if got := m.must("n1", nil, engines.Read, "mounts/auth/u", ""); got["type"] != "userpass" {
		t.Errorf("mounts/auth/u = %v", got)
	}
	for _, path := range []string{"mounts/auth/other/tune", "mounts/auth/other", "mounts/u/tune", "mounts/u", "auth/auth/u"} {
		if _, err := m.in("n1", nil, engines.Read, path, ""); err == nil {
			t.Errorf("%s can be read", path)
		}
	}
}

func TestUIMounts(t *testing.T) {
	m := newRig(t)
	m.must("root", nil, engines.Update, "mounts/secret", `{"type":"kv","options":{"version":"2"}}`)
	m.must("root", nil, engines.Update, "auth/open", `{"type":"userpass","config":{"listing_visibility":"unauth"}}`)
	m.must("n1", nil, engines.Update, "mounts/inner", `{"type":"kv"}`)
	list := m.must("root", nil, engines.Read, "internal/ui/mounts", "")
	if secret, auth := list["secret"].(map[string]any), list["auth"].(map[string]any); len(secret) != 0 || len(auth) != 1 || auth["open/"].(map[string]any)["uuid"] != nil {
		t.Errorf("a client without a token sees %v", list)
	}
	list = m.must("root", allow{"secret/data/x"}, engines.Read, "internal/ui/mounts", "")
	if secret := list["secret"].(map[string]any); len(secret) != 1 || secret["secret/"] == nil {
		t.Errorf("the client sees %v", list)
	}
	for _, tt := range []struct{ ns, path, may, want string }{
		{"root", "secret/data/x", "secret/data/x", "secret/"},
		{"root", "ns1/inner/x", "ns1/inner/y", "ns1/inner/"},
		{"n1", "inner/x", "inner/y", "inner/"},
		{"root", "secret/x", "other/", ""},
		{"root", "none/x", "none/x", ""},
		{"root", "inner/x", "inner/x", ""},
		{"n1", "secret/x", "secret/x", ""},
	} {
		got, err := m.in(tt.ns, allow{tt.may}, engines.Read, "internal/ui/mounts/"+tt.path, "")
		if tt.want == "" {
			refusedAs(t, err, engines.KindDenied)
			continue
		}
		if err != nil || got["path"] != tt.want {
			t.Errorf("%s in %s: path %v, %v, want %s", tt.path, tt.ns, got["path"], err, tt.want)
		}
	}
}

func refusedAs(t *testing.T, err error, kind engines.Kind) {
	t.Helper()
	e, ok := err.(*engines.Error)
	if !ok || e.Kind != kind {
		t.Errorf("got %v, want an error of kind %d", err, kind)
	}
}

func TestRemount(t *testing.T) { synctest.Test(t, remounts) }

func remounts(t *testing.T) {
	m := newRig(t)
	m.must("root", nil, engines.Update, "mounts/a", `{"type":"kv"}`)
	m.must("n1", nil, engines.Update, "auth/u", `{"type":"userpass"}`)
	for _, tt := range []struct{ ns, from, to, source, target string }{
		{"root", "a", "b/", "a/", "b/"},
		{"root", "/b/", "ns1/c", "b/", "ns1/c/"},
		{"n1", "c", "d", "ns1/c/", "ns1/d/"},
		{"root", "ns1/auth/u", "auth/v", "ns1/auth/u/", "auth/v/"},
	} {
		id, _ := m.must(tt.ns, nil, engines.Update, "remount", `{"from":"`+tt.from+`","to":"`+tt.to+`"}`)["migration_id"].(string)
		for _, want := range []string{mount.InProgress, mount.Success} {
			got := m.must(tt.ns, nil, engines.Read, "remount/status/"+id, "")
			info := got["migration_info"].(map[string]any)
			if got["migration_id"] != id || info["source_mount"] != tt.source || info["target_mount"] != tt.target || info["status"] != want {
				t.Errorf("%s to %s: %v, want %s", tt.from, tt.to, got, want)
			}
			if err := m.table.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		_, err := m.in("other", nil, engines.Read, "remount/status/"+id, "")
		refusedAs(t, err, engines.KindNotFound)
	}
	for name, body := range map[string]string{
		"nothing there": `{"from":"a","to":"x"}`, "no from": `{"to":"x"}`, "no to": `{"from":"ns1/d"}`, "the server's": `{"from":"sys","to":"x"}`,
		"a namespace": `{"from":"ns1/","to":"x"}`, "odd path": `{"from":"ns1/d","to":"a/../b"}`, "another kind": `{"from":"ns1/d","to":"auth/d"}`,
	} {
		_, err := m.in("root", nil, engines.Update, "remount", body)
		if err == nil {
			t.Errorf("%s was accepted", name)
			continue
		}
		refusedAs(t, err, engines.KindInvalid)
	}
	_, err := m.in("root", nil, engines.Read, "remount/status/none", "")
	refusedAs(t, err, engines.KindNotFound)

	// An active node carries moves out; then the response comes after the end.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go m.table.Run(ctx)
	id := m.must("root", nil, engines.Update, "remount", `{"from":"ns1/d","to":"e"}`)["migration_id"].(string)
	info := m.must("root", nil, engines.Read, "remount/status/"+id, "")["migration_info"].(map[string]any)
	if info["status"] != mount.Success {
		t.Errorf("after the response the move is %s", info["status"])
	}
}
