// Package hostile_test sends every documented endpoint of a real server what nobody should send: malformed
// bodies, wrong types, absent and oversized fields, paths that mean different things to different layers,
// methods that do not exist, wrong tokens. Each must be refused with a client error that names the field where
// it is about one and repeats no value, soon, and nothing may have changed.
package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// marker is in every value sent. No error may repeat it.
const marker = "hOsTiLe-VaLuE"

// open are the operations that work without a token. Adding one is a decision to be seen in a review.
var open = []string{
	"GET /sys/health", "GET /sys/init", "GET /sys/internal/ui/mounts", "GET /sys/leader", "GET /sys/seal-status",
	"POST /sys/init", "POST /sys/storage/raft/bootstrap/answer", "POST /sys/storage/raft/bootstrap/challenge",
	"POST /sys/storage/raft/join", "POST /sys/unseal",
}

// targets are what path parameters are filled with: existing things, so that there is something to lose.
var targets = []struct{ prefix, value string }{
	{"/sys/mounts/", "kv2"}, {"/sys/auth/", "token"}, {"/sys/policies/acl/", "mine"}, {"/sys/policy/", "mine"},
	{"/auth/token/create/", "role"}, {"/sys/audit/", "trail"}, {"/sys/audit-hash/", "trail"}, {"/sys/internal/ui/mounts/", "kv2"}, {"/", "a/b"},
}

func TestHostile(t *testing.T) {
	c := harness.NewCluster(t, 1, harness.Options{})
	n := c.Nodes[0]
	seed(t, n)
	ops := documented(t, n)
	if len(ops) < 60 {
		t.Fatalf("only %d operations are documented", len(ops))
	}
	t.Run("open endpoints", func(t *testing.T) {
		var got []string
		for _, op := range ops {
			if op.open {
				got = append(got, op.String())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, open) {
			t.Errorf("without a token one can\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(open, "\n"))
		}
	})
	nobody := nobodysToken(t, n)
	before := dump(t, n)
	for _, op := range ops {
		t.Run(strings.ReplaceAll(op.String(), "/", "."), func(t *testing.T) {
			h := &attack{t: t, n: n, op: op, all: ops, token: c.RootToken}
			start := h.index()
			h.paths()
			h.query()
			h.bodies()
			h.fields()
			h.methods()
			h.tokens(nobody)
			if end := h.index(); end != start {
				t.Errorf("the applied index went from %d to %d: something was written", start, end)
			}
			if got := n.Health(); got != 200 {
				t.Fatalf("afterwards sys/health answers %d", got)
			}
		})
	}
	after := dump(t, n)
	for what, value := range before {
		if !reflect.DeepEqual(value, after[what]) {
			t.Errorf("%s changed:\n%v\nwas\n%v", what, after[what], value)
		}
	}
}

// seed makes things that could be lost.
func seed(t *testing.T, n *harness.Node) {
	t.Helper()
	n.MustDo("POST", "/v1/sys/mounts/kv2", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	n.MustDo("POST", "/v1/sys/mounts/kv1", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/sys/policies/acl/mine", map[string]any{"policy": `path "kv2/*" { capabilities = ["read"] }`})
	n.MustDo("POST", "/v1/sys/audit/trail", map[string]any{"type": "file", "options": map[string]string{"file_path": filepath.Join(t.TempDir(), "audit.log")}})
	n.MustDo("POST", "/v1/kv2/data/a/b", map[string]any{"data": map[string]any{"x": "y"}})
	n.MustDo("POST", "/v1/kv2/data/a/b", map[string]any{"data": map[string]any{"x": "z"}})
	n.MustDo("POST", "/v1/kv1/a/b", map[string]any{"x": "y"})
	n.MustDo("POST", "/v1/cubbyhole/a/b", map[string]any{"x": "y"})
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"mine"}})
}

// nobodysToken returns a valid token that may do nothing.
func nobodysToken(t *testing.T, n *harness.Node) string {
	t.Helper()
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"none"}, "no_default_policy": true}).Decode(t, &out)
	return out.Auth.Token
}

// dump reads everything that clients can see.
func dump(t *testing.T, n *harness.Node) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, path := range []string{
		"sys/mounts", "sys/auth", "sys/policies/acl/mine", "sys/policies/acl/default", "sys/audit", "sys/key-status",
		"sys/storage/raft/autopilot/configuration", "sys/mounts/kv2/tune", "sys/auth/token/tune",
		"kv2/config", "kv2/data/a/b", "kv2/metadata/a/b", "kv1/a/b", "cubbyhole/a/b", "sys/seal-status",
	} {
		out[path] = data(t, n.MustDo("GET", "/v1/"+path, nil))
	}
	for _, path := range []string{"sys/policies/acl", "kv2/metadata", "kv1", "cubbyhole", "auth/token/accessors"} {
		out[path+"/"] = data(t, n.MustDo("LIST", "/v1/"+path, nil))
	}
	delete(out["sys/key-status"].(map[string]any), "encryptions") // it counts, also what leaves no trace
	return out
}

func data(t *testing.T, a harness.Answer) any {
	t.Helper()
	var out map[string]any
	a.Decode(t, &out)
	if inner, ok := out["data"]; ok {
		return inner
	}
	return out
}

// attack is the attack on one operation.
type attack struct {
	t     *testing.T
	n     *harness.Node
	op    *operation
	all   []*operation
	token string
}

func (h *attack) index() uint64 {
	h.t.Helper()
	i, err := h.n.AppliedIndex()
	if err != nil {
		h.t.Fatal(err)
	}
	return i
}

// send sends one request and checks what holds for every answer.
func (h *attack) send(what, method, path, token string, body io.Reader, length int64) (harness.Answer, bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, h.n.URL+"/v1"+path, body)
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
	if length >= 0 {
		req.ContentLength = length
	}
	if h.op.patch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	a, err := h.n.Send(req)
	if err != nil {
		h.t.Errorf("%s: no answer: %v", what, err)
		return a, false
	}
	if a.Status >= 500 {
		h.t.Errorf("%s: status %d: %.300s", what, a.Status, a.Body)
	}
	if a.Status >= 400 {
		if a.Errors() == nil {
			h.t.Errorf("%s: status %d and a body that is not an error: %.300s", what, a.Status, a.Body)
		}
		if bytes.Contains(a.Body, []byte(marker)) {
			h.t.Errorf("%s: the error repeats a value: %.300s", what, a.Body)
		}
	}
	return a, true
}

// sendAny sends the operation with an acceptable body and leaves the judgement to the caller.
func (h *attack) sendAny(op *operation) (harness.Answer, bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	a, err := h.n.Do(ctx, op.method, "/v1"+op.target(), h.token, op.body(nil))
	if err != nil {
		h.t.Errorf("%v: no answer: %v", op, err)
	}
	return a, err == nil
}

// refused sends and wants a client error that has all the words.
func (h *attack) refused(what, method, path, token string, body []byte, words ...string) {
	h.t.Helper()
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	a, ok := h.send(what, method, path, token, in, -1)
	if !ok {
		return
	}
	if a.Status < 400 {
		h.t.Errorf("%s: status %d, want a refusal: %.300s", what, a.Status, a.Body)
		return
	}
	text := strings.Join(a.Errors(), "\n")
	for _, w := range words {
		if !strings.Contains(text, w) {
			h.t.Errorf("%s: status %d, %q does not say %q", what, a.Status, text, w)
		}
	}
}

func (h *attack) paths() {
	attacks := []string{"..", "%2e%2e", "%2E.", ".", "%00", "a%00b", "a//b", "a/../b", "%2e%2e/%2e%2e/sys", "%ff%fe", "a%0ab", "%7f", strings.Repeat("a", 5000), strings.Repeat("a/", 2500) + "a"}
	for _, bad := range attacks {
		path := h.op.path(bad)
		if !h.op.hasParameter() {
			path = strings.TrimSuffix(path, "/") + "/" + bad
		}
		h.refused(fmt.Sprintf("path %.20q", bad), h.op.method, path, h.token, h.op.body(nil))
	}
}

func (h *attack) query() {
	for name, field := range h.op.query {
		switch field.Type {
		case "boolean", "integer", "number":
		default:
			if field.Format != "duration" {
				continue
			}
		}
		h.refused("query "+name, h.op.method, h.op.target()+"?"+name+"="+marker, h.token, h.op.body(nil), `"`+name+`"`)
	}
	bad := []string{"?help=" + marker, "?a=%zz"}
	if h.op.method == "GET" {
		bad = append(bad, "?list="+marker)
	}
	for _, bad := range bad {
		h.refused("query "+bad, h.op.method, h.op.target()+bad, h.token, h.op.body(nil))
	}
}

// deep is JSON that is nested far too deeply.
var deep = []byte(strings.Repeat(`{"a":`, 50_000) + "1" + strings.Repeat("}", 50_000))

func (h *attack) bodies() {
	if !h.op.takesBody() {
		return
	}
	for what, body := range map[string]string{
		"a list":          `["` + marker + `"]`,
		"a text":          `"` + marker + `"`,
		"a number":        `12345678901234567890`,
		"cut off":         `{"a":"` + marker,
		"trailing data":   `{"a":"` + marker + `"} {}`,
		"not JSON":        marker,
		"invalid UTF-8":   "{\"a\":\"" + marker + "\xff\"}",
		"a bare NUL":      "{\"a\":\"" + marker + "\x00\"}",
		"a name twice":    `{"a":"` + marker + `","a":"` + marker + `"}`,
		"only brackets":   `{"a":` + strings.Repeat("[", 200_000),
		"very many names": manyNames(20_000),
	} {
		h.refused("a body that is "+what, h.op.method, h.op.target(), h.token, []byte(body))
	}
	h.refused("a body that is nested deeply", h.op.method, h.op.target(), h.token, deep)
	if h.op.rawBody {
		return
	}
	// It must be refused by its announced length: that much is never sent.
	const size = 33 << 20
	if a, ok := h.send("a body beyond the limit", h.op.method, h.op.target(), h.token, &endless{size}, size); ok && a.Status != 413 {
		h.t.Errorf("a body beyond the limit: status %d, want 413", a.Status)
	}
}

// endless reads as n bytes of JSON text.
type endless struct{ n int64 }

func (e *endless) Read(b []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	k := min(int64(len(b)), e.n)
	for i := range b[:k] {
		b[i] = ' '
	}
	e.n -= k
	return int(k), nil
}

func manyNames(n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"x%d":1`, i)
	}
	return b.String() + "}"
}

func (h *attack) fields() {
	if !h.op.takesBody() || h.op.rawBody {
		return
	}
	send := func(what string, fields map[string]any, words ...string) {
		h.t.Helper()
		h.refused(what, h.op.method, h.op.target(), h.token, h.op.body(fields), words...)
	}
	for name, f := range h.op.fields {
		quoted := `"` + name + `"`
		if f.required {
			send("without "+name, map[string]any{name: nil}, quoted)
		}
		for _, wrong := range f.mistyped() {
			send(fmt.Sprintf("%s as %T", name, wrong), map[string]any{name: wrong}, quoted)
		}
		if f.Enum != nil {
			send(name+" outside its values", map[string]any{name: marker}, quoted)
		}
		switch {
		case f.Type == "string" && f.MaxLength > 0:
			send(name+" too long", map[string]any{name: marker + strings.Repeat("x", f.MaxLength)}, quoted)
		case f.Type == "string" && f.Format != "duration" && f.Enum == nil:
			// Without a limit of its own it may be ignored, but nothing as large as this can be stored.
			body := h.op.body(map[string]any{name: marker + strings.Repeat("x", 1<<20)})
			h.send(name+" enormous", h.op.method, h.op.target(), h.token, bytes.NewReader(body), -1)
		}
	}
}

func (h *attack) methods() {
	target := h.op.target()
	for _, method := range []string{"GET", "LIST", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
		if slices.ContainsFunc(h.all, func(op *operation) bool { return op.answers(method, target) }) {
			continue
		}
		var body []byte
		if method == "POST" || method == "PATCH" {
			body = []byte(`{"a":"` + marker + `"}`)
		}
		h.refused("method "+method, method, target, h.token, body)
	}
}

func (h *attack) tokens(nobody string) {
	if h.op.open {
		return
	}
	for what, token := range map[string]string{"no token": "", "a wrong token": "hvs." + marker, "a token that may do nothing": nobody} {
		a, ok := h.send(what, h.op.method, h.op.target(), token, bytes.NewReader(h.op.body(nil)), -1)
		if ok && a.Status != 403 && !(what == "a token that may do nothing" && h.op.anyToken(a)) {
			h.t.Errorf("%s: status %d, want 403: %.200s", what, a.Status, a.Body)
		}
	}
	long := strings.Repeat("x", 40<<10)
	if a, ok := h.send("a long token", h.op.method, h.op.target(), long, bytes.NewReader(h.op.body(nil)), -1); ok && a.Status != 403 && a.Status != 400 && a.Status != 431 {
		h.t.Errorf("a long token: status %d", a.Status)
	}
}

// encode is json.Marshal for what cannot fail.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
