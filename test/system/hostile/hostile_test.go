// Package hostile_test sends every documented endpoint of a real server what nobody should send: malformed
// bodies, wrong types, absent and oversized fields, paths that mean different things to different layers,
// methods that do not exist, wrong tokens, namespaces that are none. It does so in the root namespace and in a
// nested one. Each must be refused with a client error that names the field where it is about one and repeats no
// value, soon, and nothing may have changed.
package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// marker is in every value sent. No error may repeat it.
const marker = "hOsTiLe-VaLuE"

// open are the operations that work without a token. Adding one is a decision to be seen in a review.
var open = []string{
	"GET /sys/activation-flags", "GET /sys/health", "GET /sys/init",
	"GET /sys/internal/ui/default-auth-methods", "GET /sys/internal/ui/feature-flags", "GET /sys/internal/ui/mounts",
	"GET /sys/internal/ui/unauthenticated-messages", "GET /sys/leader", "GET /sys/license/features",
	"GET /sys/replication/dr/status", "GET /sys/replication/performance/status", "GET /sys/replication/status", "GET /sys/seal-status", "GET /sys/wrapping/lookup",
	"GET /identity/oidc/plugins/.well-known/keys", "GET /identity/oidc/plugins/.well-known/openid-configuration",
	"GET /auth/sso/go/{code}", "GET /auth/sso/metadata",
	"LIST /sys/internal/ui/unauthenticated-messages/",
	"POST /auth/certs/login", "POST /auth/machines/login", "POST /auth/people/login/{username}",
	"POST /auth/sso/callback", "POST /auth/sso/go/{code}", "POST /auth/sso/sso_service_url", "POST /auth/sso/token",
	"POST /sys/init", "POST /sys/mfa/validate",
	"POST /sys/storage/raft/bootstrap/answer", "POST /sys/storage/raft/bootstrap/challenge",
	"POST /sys/storage/raft/join", "POST /sys/unseal", "POST /sys/wrapping/lookup",
}

// targets are what path parameters are filled with: existing things, so that there is something to lose. The first
// prefix that fits counts.
var targets = []struct{ prefix, value string }{
	{"/sys/mounts/", "kv2"}, {"/sys/internal/ui/mounts/", "kv2"}, {"/sys/auth/", "people"}, {"/sys/policies/acl/", "mine"},
	{"/sys/policy/", "mine"}, {"/sys/policies/password/", "long"}, {"/auth/token/create/", "role"}, {"/auth/token/roles/", "role"},
	{"/sys/audit/", "trail"}, {"/sys/audit-hash/", "trail"}, {"/sys/audit-search/", "trail"}, {"/sys/config/auditing/request-headers/", "x-kept"},
	{"/sys/config/ui/headers/", "X-Kept"}, {"/sys/loggers/", "cluster"}, {"/sys/pprof/", "heap"}, {"/sys/quotas/rate-limit/", "rate"},
	{"/sys/quotas/lease-count/", "leases"}, {"/sys/namespaces/", "child"}, {"/identity/entity/name/", "somebody"},
	{"/identity/group/name/", "team"}, {"/auth/people/", "bob"}, {"/auth/machines/", "app"}, {"/auth/certs/crls/", "ca"}, {"/auth/certs/certs/", "web"}, {"/auth/sso/", "staff"}, {"/sys/replication/", "eu"}, {"/sys/sync/destinations/", "store"}, {"/sys/sync/", "kv2"},
	{"/kv1/", "a/b"}, {"/kv2/", "a/b"}, {"/cubbyhole/", "a/b"}, {"/", "a"},
}

// nested is the other namespace, besides root, that everything is tried in.
const nested = "outer/inner"

func TestHostile(t *testing.T) {
	c := harness.NewCluster(t, 1, harness.Options{})
	n := c.Nodes[0]
	root, inner := &place{n: n, token: c.RootToken}, &place{n: n, token: c.RootToken, ns: nested}
	n.MustDo("POST", "/v1/sys/namespaces/outer", nil)
	n.MustDo("POST", "/v1/sys/namespaces/outer/inner", nil)
	root.seed(t)
	root.seedRoot(t)
	inner.administer(t)
	inner.seed(t)
	provider := awstest.New(t)
	root.seedCloud(t, "cloud", provider)
	inner.seedCloud(t, "aws", provider)
	awaitRegister(t, n)
	ops := documented(t, n)
	if len(ops) < 200 {
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
		same(t, "without a token one can", got, open)
	})
	nobody := map[*place]string{root: root.nobodysToken(t), inner: inner.nobodysToken(t)}
	role := root.role(t)
	provider.Forget()
	before := map[string]any{"root": root.dump(t), "nested": inner.dump(t)}
	for _, p := range []*place{root, inner} {
		for _, op := range ops {
			if p.ns != "" && !op.inNested() {
				continue // refused as a whole: see TestNamespaces
			}
			t.Run(p.String()+strings.ReplaceAll(op.String(), "/", "."), func(t *testing.T) {
				h := &attack{t: t, n: n, op: op, all: ops, token: p.token, ns: p.ns}
				var waiting *samlLogin
				if strings.HasPrefix(op.template, "/auth/sso/") {
					waiting = p.samlStart(t)
				}
				start := h.index()
				h.paths()
				if p == root || harness.Long || slices.Index(ops, op)%2 == 0 { // the checks of bodies know no namespaces
					h.query()
					h.bodies()
					h.fields()
				}
				h.methods()
				h.tokens(nobody[p])
				h.namespaces()
				if end := h.index(); end != start {
					t.Errorf("the applied index went from %d to %d: something was written", start, end)
				}
				if waiting != nil {
					waiting.pending(t)
				}
				if got := n.Health(); got != 200 {
					t.Fatalf("afterwards sys/health answers %d", got)
				}
			})
		}
	}
	if now := root.role(t); !reflect.DeepEqual(now, role) {
		t.Errorf("the role in replication changed:\n%v\nwas\n%v", now, role)
	}
	for _, action := range provider.Actions() {
		if action != "AssumeRole" { // of which nothing remains: an enormous name of a session is cut
			t.Errorf("the cloud provider was asked for %s", action)
		}
	}
	for where, now := range map[string]map[string]any{"root": root.dump(t), "nested": inner.dump(t)} {
		for what, value := range before[where].(map[string]any) {
			if !reflect.DeepEqual(value, now[what]) {
				t.Errorf("in %s %s changed:\n%v\nwas\n%v", where, what, now[what], value)
			}
		}
	}
}

// same compares two sorted lists, one entry at a time.
func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s %s: if that is meant, add it to the list", what, g)
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s no %s any more: take it from the list", what, w)
		}
	}
}

// attack is the attack on one operation.
type attack struct {
	t     *testing.T
	n     *harness.Node
	op    *operation
	all   []*operation
	token string
	ns    string
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
	if h.ns != "" {
		req.Header.Set("X-Vault-Namespace", h.ns)
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
		if a.Errors() == nil && !h.op.refusesByPage(a) {
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
	a, err := h.n.Do(ctx, op.method, "/v1"+op.target(), h.token, op.body(nil), "X-Vault-Namespace", h.ns)
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

// inTurn returns every nth of the attacks that are the same for all operations, as what rejects them is: the next operation gets
// others of them.
func (h *attack) inTurn(attacks []string, n int) []string {
	if harness.Long || n == 0 {
		return attacks
	}
	turn := slices.Index(h.all, h.op) + len(h.ns) // not the same of an operation in both namespaces
	return slices.Collect(func(yield func(string) bool) {
		for i := turn % n; i < len(attacks); i += n {
			if !yield(attacks[i]) {
				return
			}
		}
	})
}

func (h *attack) paths() {
	attacks := []string{"..", "%2e%2e", "%2E.", ".", "%00", "a%00b", "a//b", "a/../b", "%2e%2e/%2e%2e/sys", "%ff%fe", "a%0ab", "%7f", strings.Repeat("a", 5000), strings.Repeat("a/", 2500) + "a"}
	for _, bad := range h.inTurn(attacks, 3) {
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

// bodies are bad ones.
var bodies = map[string][]byte{
	"a list":             []byte(`["` + marker + `"]`),
	"a text":             []byte(`"` + marker + `"`),
	"a number":           []byte(`12345678901234567890`),
	"cut off":            []byte(`{"a":"` + marker),
	"trailing data":      []byte(`{"a":"` + marker + `"} {}`),
	"not JSON":           []byte(marker),
	"invalid UTF-8":      []byte("{\"a\":\"" + marker + "\xff\"}"),
	"a bare NUL":         []byte("{\"a\":\"" + marker + "\x00\"}"),
	"a name twice":       []byte(`{"a":"` + marker + `","a":"` + marker + `"}`),
	"nested":             deep(200),
	"half of what opens": []byte(`{"a":` + strings.Repeat("[", 200)),
}

// largeBodies are refused by the limits of what reads them, which is the same for all: each operation gets one of them in
// turn, and in one namespace.
var largeBodies = []struct {
	what string
	body []byte
}{
	{"nested deeply", deep(50_000)},
	{"only brackets", []byte(`{"a":` + strings.Repeat("[", 200_000))},
	{"very many names", manyNames(10_001)},
}

func (h *attack) bodies() {
	if !h.op.takesBody() {
		return
	}
	for _, what := range h.inTurn(slices.Sorted(maps.Keys(bodies)), 3) {
		h.refused("a body that is "+what, h.op.method, h.op.target(), h.token, bodies[what])
	}
	if h.ns != "" {
		return
	}
	large := largeBodies[slices.Index(h.all, h.op)%len(largeBodies)]
	h.refused("a body that is "+large.what, h.op.method, h.op.target(), h.token, large.body)
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

// deep is JSON that is nested so deeply.
func deep(levels int) []byte {
	return []byte(strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels))
}

// manyNames is an object with n members.
func manyNames(n int) []byte {
	b := []byte(`{"x":1`)
	for i := range n - 1 {
		b = strconv.AppendInt(append(b, `,"x`...), int64(i), 10)
		b = append(b, `":1`...)
	}
	return append(b, '}')
}

// enormous is more than a value may have in storage.
var enormous = []byte(marker + strings.Repeat("x", 1<<20))

func (h *attack) fields() {
	if !h.op.takesBody() || h.op.rawBody {
		return
	}
	send := func(what string, fields map[string]any, words ...string) {
		h.t.Helper()
		h.refused(what, h.op.method, h.op.target(), h.token, h.op.body(fields), words...)
	}
	enormousOne := h.inTurn(slices.Sorted(maps.Keys(h.op.fields)), len(h.op.fields))
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
		case f.Type == "string" && f.Format != "duration" && f.Enum == nil && h.ns == "" && slices.Contains(enormousOne, name): // storage knows no namespaces
			// Without a limit of its own it may be ignored, but nothing as large as this can be stored.
			before, after, _ := bytes.Cut(h.op.body(map[string]any{name: marker}), []byte(marker))
			body := slices.Concat(before, enormous, after)
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
		switch {
		case !ok || a.Status == 403, what == "a token that may do nothing" && h.op.anyToken(a):
		case what == "a wrong token" && strings.HasPrefix(h.op.template, "/sys/wrapping/") && a.Status == 400: // it is taken for a wrapping token
		default:
			h.t.Errorf("%s: status %d, want 403: %.200s", what, a.Status, a.Body)
		}
	}
	long := strings.Repeat("x", 40<<10)
	if a, ok := h.send("a long token", h.op.method, h.op.target(), long, bytes.NewReader(h.op.body(nil)), -1); ok && a.Status != 403 && a.Status != 400 && a.Status != 431 {
		h.t.Errorf("a long token: status %d", a.Status)
	}
}

// namespaces names namespaces that are none: they must not lead anywhere.
func (h *attack) namespaces() {
	real := h.ns
	defer func() { h.ns = real }()
	for _, bad := range h.inTurn([]string{"..", real + "/..", "outer/../" + real, "outer//inner", "OUTER", "outer%2finner", "outer/inner/..;/", "*", "+", "outer/*", "outer/none", "sys", strings.Repeat("a/", 3000)}, 3) {
		h.ns = bad
		a, ok := h.send(fmt.Sprintf("namespace %.20q", bad), h.op.method, h.op.target(), h.token, bytes.NewReader(h.op.body(nil)), -1)
		if ok && a.Status < 400 && !slices.Contains(anywhere, h.op.String()) && !slices.Contains(whatever, h.op.String()) {
			h.t.Errorf("namespace %.20q: status %d, want a refusal: %.200s", bad, a.Status, a.Body)
		}
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

// awaitRegister waits for what the cluster writes by itself, once, soon after it is initialized: the node's certificate.
func awaitRegister(t *testing.T, n *harness.Node) {
	t.Helper()
	harness.Await(t, "the node's certificate to be registered", 30*time.Second, func() error {
		if a := n.MustDo("GET", "/v1/sys/storage/raft/certificates", nil); !strings.Contains(string(a.Body), `"current_ca":true`) {
			return fmt.Errorf("%s", a.Body)
		}
		return nil
	})
}
