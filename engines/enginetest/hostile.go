package enginetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/engines/input/jsontext"
	"github.com/coffer-project/coffer/storage"
)

// marker is in every value that Hostile sends. No error may repeat it.
const marker = "hOsTiLe-VaLuE"

// Hostile sends every route of the engine missing, mistyped and oversized fields, bodies that are not JSON or
// not bearable, and paths that must not pass. It checks that each is refused with an error of the right kind
// which names the field and repeats no value, that nothing panics, and that nothing is stored. m should hold
// enough state for its routes to have something to lose.
func Hostile(t *testing.T, m *Mount) {
	large := true
	for _, route := range m.Engine.Router().Routes() {
		t.Run(string(route.Op)+" "+strings.ReplaceAll(route.Pattern, "/", "."), func(t *testing.T) {
			h := &hostile{t: t, m: m, route: route}
			h.paths()
			if route.Flags.Has(engines.RawBody) {
				return
			}
			h.bodies(hostileBodies)
			if large { // they are rejected before the route is known, so one route of an engine is enough
				h.bodies(largeBodies())
				large = false
			}
			for _, f := range route.Fields {
				if f.In != "path" && !f.Whole {
					h.field(f)
				}
			}
		})
	}
}

type hostile struct {
	t     *testing.T
	m     *Mount
	route *engines.Route
}

// send serves one request and checks what holds for every answer to such a request.
func (h *hostile) send(name, path string, body any) (err error) {
	h.t.Helper()
	before := h.m.Snapshot()
	defer func() {
		h.t.Helper()
		if p := recover(); p != nil {
			h.t.Errorf("%s: panic: %v", name, p)
		}
		if err != nil && !maps.Equal(before, h.m.Snapshot()) {
			h.t.Errorf("%s: refused (%v), yet something was stored", name, err)
		}
	}()
	req := h.m.Request(h.route.Op, "", body)
	req.Path = path
	_, err = h.m.Handle(h.t.Context(), req)
	if err == nil {
		return nil
	}
	var e *engines.Error
	switch {
	case !errors.As(err, &e):
		if !errors.Is(err, storage.ErrTooLarge) {
			h.t.Errorf("%s: %v is not an engines.Error: the client would see an internal error", name, err)
		}
	case e.Kind == engines.KindInternal:
		h.t.Errorf("%s: %v is an internal error", name, err)
	case strings.Contains(e.Detail, marker):
		h.t.Errorf("%s: %q repeats a value", name, e.Detail)
	}
	return err
}

// refused sends and wants one of the kinds, and all texts in the error.
func (h *hostile) refused(name, path string, body any, kinds []engines.Kind, texts ...string) {
	h.t.Helper()
	err := h.send(name, path, body)
	if err == nil {
		h.t.Errorf("%s: accepted", name)
		return
	}
	var e *engines.Error
	if errors.As(err, &e) && !slices.Contains(kinds, e.Kind) {
		h.t.Errorf("%s: %v has kind %v, want one of %v", name, err, e.Kind, kinds)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			h.t.Errorf("%s: %q does not say %q", name, err, text)
		}
	}
}

var (
	invalid    = []engines.Kind{engines.KindInvalid}
	noSuchPath = []engines.Kind{engines.KindInvalid, engines.KindNotFound, engines.KindUnsupported}
)

// path returns a path for the route with every parameter set to value.
func (h *hostile) path(value string) string {
	parts := strings.Split(h.route.Pattern, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, "{") {
			parts[i] = value
		}
	}
	return strings.Join(parts, "/")
}

func (h *hostile) paths() {
	if !strings.Contains(h.route.Pattern, "{") {
		return
	}
	// Each part that a parameter could smuggle in, alone and inside.
	for _, bad := range []string{"\x00", "..", ".", "\xff\xfe", strings.Repeat("a", engines.MaxPathBytes+1), "a//b", "a/\x00/b", "a/../b", "/a", "../../x"} {
		h.refused(fmt.Sprintf("path %.20q", bad), h.path(bad), h.body(nil), noSuchPath)
	}
	// Odd names are names: refused or not, without harm.
	for _, odd := range []string{"%2e%2e", "%00", "a b", "ä", "*", "+", "{a}", "$(x)", "'\"`", "\u202e", "\x7f", "a%2fb", "-", "_", strings.Repeat("a", 1000)} {
		if h.route.Op == engines.Read || h.route.Op == engines.List {
			_ = h.send(fmt.Sprintf("odd path %.20q", odd), h.path(odd), nil)
		}
	}
}

// body returns an acceptable body with the given fields set instead; a nil value leaves the field out.
func (h *hostile) body(fields map[string]any) map[string]any {
	body := map[string]any{}
	for _, f := range h.route.Fields {
		if f.In != "path" && f.Required {
			body[f.Name] = acceptable(f)
		}
	}
	for name, value := range fields {
		if body[name] = value; value == nil {
			delete(body, name)
		}
	}
	return body
}

// acceptable returns a value of the field's type.
func acceptable(f input.Field) any {
	switch f.Type {
	case "boolean":
		return true
	case "integer", "number", "duration":
		return 1
	case "list":
		if f.Enum != nil {
			return f.Enum[:1]
		}
		return []string{marker}
	case "map":
		return map[string]string{"a": marker}
	case "object":
		return map[string]any{"a": marker}
	}
	if f.Enum != nil {
		return f.Enum[0]
	}
	return marker
}

var hostileBodies = map[string]string{
	"a list":        `["` + marker + `"]`,
	"a text":        `"` + marker + `"`,
	"cut off":       `{"a":"` + marker,
	"trailing data": `{"a":"` + marker + `"} {}`,
	"invalid UTF-8": "{\"a\":\"" + marker + "\xff\"}",
	"a bare NUL":    "{\"a\":\"" + marker + "\x00\"}",
	"a name twice":  `{"a":"` + marker + `","a":"` + marker + `"}`,
}

// largeBodies are made once: some are megabytes.
var largeBodies = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"deep nesting":    strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
		"only brackets":   `{"a":` + strings.Repeat("[", 1_000_000),
		"very many names": manyNames(jsontext.MaxMembers + 1),
		"a long list":     `{"a":[` + strings.TrimSuffix(strings.Repeat("1,", jsontext.MaxElements+1), ",") + `]}`,
	}
})

func (h *hostile) bodies(bodies map[string]string) {
	for name, body := range bodies {
		h.refused("a body that is "+name, h.path("x"), body, invalid)
	}
}

func manyNames(n int) string {
	fields := make(map[string]int, n)
	for i := range n {
		fields[fmt.Sprintf("%s%d", marker, i)] = i
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // a map of integers
	}
	return string(text)
}

func (h *hostile) field(f input.Field) {
	quoted := `"` + f.Name + `"`
	if f.Required {
		h.refused("without "+f.Name, h.path("x"), h.body(map[string]any{f.Name: nil}), invalid, quoted)
	}
	for _, wrong := range mistyped(f) {
		h.refused(fmt.Sprintf("%s as %T", f.Name, wrong), h.path("x"), h.body(map[string]any{f.Name: wrong}), invalid, quoted)
	}
	if f.Enum != nil {
		h.refused(f.Name+" outside its enum", h.path("x"), h.body(map[string]any{f.Name: marker}), invalid, quoted)
	}
	if f.Max > 0 {
		h.refused(f.Name+" beyond its limit", h.path("x"), h.body(map[string]any{f.Name: oversized(f, f.Max+1)}), invalid, quoted)
		return
	}
	// Without a limit of its own a field may be ignored or refused, but no store takes it whole.
	if f.Type == "string" || f.Type == "object" || f.Type == "any" {
		_ = h.send(f.Name+" beyond any limit", h.path("x"), h.body(map[string]any{f.Name: oversized(f, storage.MaxValueBytes+1)}))
	}
}

// mistyped returns values that are not of the field's type.
func mistyped(f input.Field) []any {
	list, object := []any{[]string{marker}}, map[string]any{"a": []string{marker}}
	switch f.Type {
	case "string":
		return []any{list, object}
	case "boolean", "integer", "number", "duration":
		return []any{marker, list, object}
	case "list":
		return []any{object, []any{list}}
	case "map":
		return []any{marker, 7, list, object}
	case "object":
		return []any{marker, 7, true, list}
	}
	return nil
}

// oversized returns a value of the field's type with n bytes or elements.
func oversized(f input.Field, n int) any {
	switch f.Type {
	case "list":
		return slices.Repeat([]string{marker}, n)
	case "map":
		m := make(map[string]string, n)
		for i := range n {
			m[fmt.Sprint(i)] = marker
		}
		return m
	case "object":
		return map[string]string{"a": marker + strings.Repeat("x", n)}
	}
	return marker + strings.Repeat("x", n)
}
