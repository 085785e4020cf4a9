package engines_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
)

type none struct{}

type nameIn struct {
	Name string `json:"name" help:"A name."`
}

type pathIn struct {
	Path string `json:"path" help:"A path."`
}

func nothing[In any](context.Context, *engines.Request, *In) (*engines.Response, error) {
	return nil, nil
}

func kindOf(err error) engines.Kind {
	var e *engines.Error
	if !errors.As(err, &e) {
		return -1
	}
	return e.Kind
}

func testRouter() *engines.Router {
	r := engines.NewRouter()
	engines.On(r, engines.Read, "config", "h", 0, nothing[none])
	engines.On(r, engines.Update, "config", "h", 0, nothing[none])
	engines.On(r, engines.List, "roles", "h", 0, nothing[none])
	engines.On(r, engines.Read, "roles/{name}", "h", 0, nothing[nameIn])
	engines.On(r, engines.Delete, "roles/{name}", "h", 0, nothing[nameIn])
	engines.On(r, engines.Read, "roles/admin", "h", 0, nothing[none])
	engines.On(r, engines.Read, "roles/{name}/keys", "h", 0, nothing[nameIn])
	engines.On(r, engines.Read, "roles/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Read, "data/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.List, "data/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Update, "data/{path...?}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Update, "mounts/{path...}", "h", 0, nothing[pathIn])
	engines.On(r, engines.Update, "mounts/{path...}/tune", "h", 0, nothing[pathIn])
	engines.On(r, engines.List, "mounts/{path...}/tune", "h", 0, nothing[pathIn])
	return r
}

func TestMatch(t *testing.T) {
	tests := []struct {
		op      engines.Operation
		path    string
		pattern string // "": none
		params  map[string]string
		kind    engines.Kind
	}{
		{engines.Read, "config", "config", nil, 0},
		{engines.Create, "config", "config", nil, 0},
		{engines.Update, "config", "config", nil, 0},
		{engines.Delete, "config", "", nil, engines.KindUnsupported},
		{engines.Read, "config/", "", nil, engines.KindNotFound},
		{engines.Read, "conf", "", nil, engines.KindNotFound},
		{engines.Read, "", "", nil, engines.KindNotFound},
		{engines.List, "roles", "roles", nil, 0},
		{engines.List, "roles/", "roles", nil, 0},
		{engines.Read, "roles/a", "roles/{name}", map[string]string{"name": "a"}, 0},
		{engines.Read, "roles/admin", "roles/admin", nil, 0},
		{engines.Delete, "roles/admin", "roles/{name}", map[string]string{"name": "admin"}, 0},
		{engines.Read, "roles/admin/keys", "roles/{name}/keys", map[string]string{"name": "admin"}, 0},
		{engines.Read, "roles/a/b", "roles/{path...}", map[string]string{"path": "a/b"}, 0},
		{engines.Read, "roles/a/", "roles/{path...}", map[string]string{"path": "a/"}, 0},
		{engines.Read, "roles", "", nil, engines.KindUnsupported},
		{engines.Read, "roles/", "", nil, engines.KindNotFound},
		{engines.Delete, "roles/a/b", "", nil, engines.KindUnsupported},
		{engines.Read, "data/a", "data/{path...}", map[string]string{"path": "a"}, 0},
		{engines.Read, "data/a/b c/ü", "data/{path...}", map[string]string{"path": "a/b c/ü"}, 0},
		{engines.Read, "data/", "", nil, engines.KindUnsupported},
		{engines.Read, "data", "", nil, engines.KindUnsupported},
		{engines.Update, "data/", "data/{path...?}", map[string]string{"path": ""}, 0},
		{engines.Update, "data", "data/{path...?}", map[string]string{"path": ""}, 0},
		{engines.List, "data", "data/{path...}", map[string]string{"path": ""}, 0},
		{engines.List, "data/", "data/{path...}", map[string]string{"path": ""}, 0},
		{engines.List, "data/a/b/", "data/{path...}", map[string]string{"path": "a/b/"}, 0},
		{engines.List, "data/a/b", "data/{path...}", map[string]string{"path": "a/b/"}, 0},
		{engines.Update, "mounts/a/b", "mounts/{path...}", map[string]string{"path": "a/b"}, 0},
		{engines.Update, "mounts/a/b/tune", "mounts/{path...}/tune", map[string]string{"path": "a/b"}, 0},
		{engines.List, "mounts/a/tune", "mounts/{path...}/tune", map[string]string{"path": "a"}, 0},
		{engines.Update, "mounts/tune", "mounts/{path...}", map[string]string{"path": "tune"}, 0},
		{engines.Read, "data/../config", "", nil, engines.KindInvalid},
		{engines.Read, "data/.", "", nil, engines.KindInvalid},
		{engines.Read, "data//a", "", nil, engines.KindInvalid},
		{engines.Read, "/config", "", nil, engines.KindInvalid},
		{engines.Read, "data/a\x00", "", nil, engines.KindInvalid},
		{engines.Read, "data/\xff", "", nil, engines.KindInvalid},
		{engines.Read, "data/" + strings.Repeat("a", engines.MaxPathBytes), "", nil, engines.KindInvalid},
	}
	r := testRouter()
	for _, tt := range tests {
		route, params, err := r.Match(tt.op, tt.path)
		if tt.pattern == "" {
			if err == nil || kindOf(err) != tt.kind {
				t.Errorf("Match(%s, %q) = %v, %v, want an error of kind %v", tt.op, tt.path, route, err, tt.kind)
			}
			continue
		}
		if err != nil {
			t.Errorf("Match(%s, %q): %v, want %q", tt.op, tt.path, err, tt.pattern)
			continue
		}
		if route.Pattern != tt.pattern || !maps.Equal(params, tt.params) {
			t.Errorf("Match(%s, %q) = %q %v, want %q %v", tt.op, tt.path, route.Pattern, params, tt.pattern, tt.params)
		}
	}
}

func TestMatchTexts(t *testing.T) {
	r := testRouter()
	if _, _, err := r.Match(engines.Read, "nope"); err.Error() != "unsupported path" {
		t.Errorf("unknown path: %q", err)
	}
	if _, _, err := r.Match(engines.Patch, "config"); err.Error() != "unsupported operation" {
		t.Errorf("unknown operation: %q", err)
	}
}

func TestOnPanics(t *testing.T) {
	on := func(pattern string) { engines.On(engines.NewRouter(), engines.Read, pattern, "", 0, nothing[none]) }
	tests := []struct {
		name    string
		declare func()
	}{
		{"empty segment", func() { on("a//b") }},
		{"slash at the end", func() { on("a/") }},
		{"no name", func() { on("a/{}") }},
		{"unclosed", func() { on("a/{b") }},
		{"brace inside", func() { on("a/b{c}") }},
		{"optional parameter", func() {
			engines.On(engines.NewRouter(), engines.Read, "a/{name?}", "", 0, nothing[nameIn])
		}},
		{"parameter after a rest", func() {
			engines.On(engines.NewRouter(), engines.Read, "{path...}/{name}", "", 0, nothing[struct {
				nameIn
				pathIn
			}])
		}},
		{"optional rest with a suffix", func() {
			engines.On(engines.NewRouter(), engines.Read, "{path...?}/a", "", 0, nothing[pathIn])
		}},
		{"parameter twice", func() {
			engines.On(engines.NewRouter(), engines.Read, "{name}/{name}", "", 0, nothing[nameIn])
		}},
		{"parameter without field", func() { on("{name}") }},
		{"declared twice", func() {
			r := engines.NewRouter()
			engines.On(r, engines.Create, "a/{name}", "", 0, nothing[nameIn])
			engines.On(r, engines.Update, "a/{path}", "", 0, nothing[pathIn])
		}},
		{"rest declared twice", func() {
			r := engines.NewRouter()
			engines.On(r, engines.Read, "{path...}", "", 0, nothing[pathIn])
			engines.On(r, engines.Read, "{path...?}", "", 0, nothing[pathIn])
		}},
		{"unknown tag", func() {
			declare[struct {
				A string `json:"a" requried:"true"`
			}]()
		}},
		{"no name in json", func() { declare[struct{ A string }]() }},
		{"options in json", func() {
			declare[struct {
				A string `json:"a,omitempty"`
			}]()
		}},
		{"field twice", func() {
			declare[struct {
				nameIn
				Other string `json:"name"`
			}]()
		}},
		{"plain time.Duration", func() {
			declare[struct {
				A time.Duration `json:"a"`
			}]()
		}},
		{"bad default", func() {
			declare[struct {
				A int `json:"a" default:"x"`
			}]()
		}},
		{"default outside enum", func() {
			declare[struct {
				A string `json:"a" default:"x" enum:"a,b"`
			}]()
		}},
		{"default and required", func() {
			declare[struct {
				A string `json:"a" default:"x" required:"true"`
			}]()
		}},
		{"bad max", func() {
			declare[struct {
				A string `json:"a" max:"0"`
			}]()
		}},
		{"max of a number", func() {
			declare[struct {
				A int `json:"a" max:"3"`
			}]()
		}},
		{"required false", func() {
			declare[struct {
				A int `json:"a" required:"false"`
			}]()
		}},
		{"entire body beside a body field", func() {
			declare[struct {
				A engines.Object `json:"a" body:"true"`
				B string         `json:"b"`
			}]()
		}},
		{"not a struct", func() { declare[string]() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("the declaration was accepted")
				}
			}()
			tt.declare()
		})
	}
}

func declare[In any]() *engines.Route {
	return engines.On(engines.NewRouter(), engines.Update, "a", "", 0, nothing[In])
}

func TestRoutesSorted(t *testing.T) {
	r := testRouter()
	var got []string
	for _, route := range r.Routes() {
		got = append(got, route.Pattern+" "+string(route.Op))
	}
	if len(got) != 14 || !slices.IsSorted(got) {
		t.Errorf("Routes() = %q, want 14 in order", got)
	}
}

func TestCheckExists(t *testing.T) {
	r := engines.NewRouter()
	plain := engines.On(r, engines.Update, "plain", "", 0, nothing[none])
	route := engines.On(r, engines.Update, "roles/{name}", "", 0, nothing[nameIn])
	route.Exists = func(_ context.Context, req *engines.Request) (bool, error) {
		return req.Param("name") == "old", nil
	}
	if ok, err := plain.CheckExists(t.Context(), &engines.Request{}, nil); !ok || err != nil {
		t.Errorf("without Exists: %v, %v, want true", ok, err)
	}
	for name, want := range map[string]bool{"old": true, "new": false} {
		found, params, err := r.Match(engines.Create, "roles/"+name)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := found.CheckExists(t.Context(), &engines.Request{}, params); ok != want || err != nil {
			t.Errorf("CheckExists(%q) = %v, %v, want %v", name, ok, err, want)
		}
	}
}

func TestHelp(t *testing.T) {
	r := engines.NewRouter()
	engines.On(r, engines.Update, "roles/{name}", "Write a role.", engines.Sudo, nothing[struct {
		Name string `json:"name" help:"Which role."`
		Kind string `json:"kind" help:"What kind." enum:"a,b" default:"a"`
	}])
	engines.On(r, engines.Read, "roles/{name}", "Read a role.", 0, nothing[nameIn])
	text, ok := r.Help("roles/x")
	for _, want := range []string{"Write a role.", "Read a role.", "sudo", "Which role.", `one of "a", "b"`, "default a"} {
		if !ok || !strings.Contains(text, want) {
			t.Errorf("Help lacks %q:\n%s", want, text)
		}
	}
	if text, ok := r.Help(""); !ok || !strings.Contains(text, "roles/{name}") {
		t.Errorf("overview: %q", text)
	}
	if _, ok := r.Help("nope"); ok {
		t.Error("help for an unknown path")
	}
}

func FuzzMatch(f *testing.F) {
	for _, path := range []string{"", "roles/a/keys", "data/a/b/", "mounts/x/tune", "a/../b", "\x00"} {
		f.Add(path)
	}
	r := testRouter()
	f.Fuzz(func(t *testing.T, path string) {
		for _, op := range []engines.Operation{engines.Read, engines.Update, engines.List, engines.Delete} {
			route, params, err := r.Match(op, path)
			if err != nil {
				continue
			}
			// Putting the parameters back into the pattern gives the path again.
			back := strings.TrimSuffix(route.Pattern, "/")
			for name, value := range params {
				for _, form := range []string{"{" + name + "}", "{" + name + "...}", "{" + name + "...?}"} {
					back = strings.Replace(back, form, value, 1)
				}
			}
			if strings.TrimSuffix(back, "/") != strings.TrimSuffix(path, "/") {
				t.Errorf("Match(%s, %q) = %q with %q, which is %q", op, path, route.Pattern, params, back)
			}
		}
	})
}

func BenchmarkHandleRead(b *testing.B) {
	type in struct {
		Path    string `json:"path"`
		Version int    `json:"version"`
	}
	r := testRouter()
	engines.On(r, engines.Read, "kv/{path...}", "", 0, nothing[in])
	b.ReportAllocs()
	for b.Loop() {
		req := engines.Request{Op: engines.Read, Path: "kv/team/app/database"}
		if _, err := r.Handle(b.Context(), &req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHandleWrite(b *testing.B) {
	type in struct {
		Path    string                     `json:"path"`
		Options map[string]json.RawMessage `json:"options"`
		Data    engines.Object             `json:"data"`
	}
	r := testRouter()
	engines.On(r, engines.Update, "kv/{path...}", "", 0, nothing[in])
	body := json.RawMessage(`{"data":{"user":"` + strings.Repeat("u", 300) + `","password":"` + strings.Repeat("p", 700) + `"}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		req := engines.Request{Op: engines.Update, Path: "kv/team/app/database", Body: body}
		if _, err := r.Handle(b.Context(), &req); err != nil {
			b.Fatal(err)
		}
	}
}
