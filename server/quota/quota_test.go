package quota_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// tree knows the namespaces a/ and a/b/, and in each of them and in root the mounts secret/ and auth/approle/.
type tree struct{ quota.Usage }

func (tree) Split(_ context.Context, path string) (namespace, mount string, err error) {
	for _, ns := range []string{"a/b/", "a/"} {
		if rest, ok := strings.CutPrefix(path, ns); ok {
			namespace, path = ns, rest
			break
		}
	}
	for _, m := range []string{"secret/", "auth/approle/"} {
		if strings.HasPrefix(path, m) {
			return namespace, m, nil
		}
	}
	return namespace, "", nil
}

// rig is the quotas of one node and their paths.
type rig struct {
	*quota.Quotas
	t      testing.TB
	router *engines.Router
}

func node(t testing.TB, store *storage.Memory) *rig {
	t.Helper()
	q := quota.New(quota.Options{Store: store, Usage: tree{}})
	t.Cleanup(store.OnChange(q.Changed))
	r := &rig{Quotas: q, t: t, router: engines.NewRouter()}
	q.Routes(r.router)
	return r
}

func (r *rig) call(op engines.Operation, path, body string) (string, error) {
	resp, err := r.router.Handle(r.t.Context(), &engines.Request{Op: op, Path: "quotas" + path, Body: json.RawMessage(body)})
	if err != nil || resp == nil {
		return "", err
	}
	text, err := json.Marshal(resp.Data)
	return string(text), err
}

func (r *rig) must(op engines.Operation, path, body string) string {
	r.t.Helper()
	got, err := r.call(op, path, body)
	if err != nil {
		r.t.Fatalf("%s %s %s: %v", op, path, body, err)
	}
	return got
}

var client = netip.MustParseAddr("192.0.2.1")

// of describes a request that is known.
func of(r quota.Request) func() quota.Request { return func() quota.Request { return r } }

func (r *rig) rate(q quota.Request) quota.Decision {
	r.t.Helper()
	if !q.ClientIP.IsValid() {
		q.ClientIP = client
	}
	d, err := r.Rate(r.t.Context(), of(q))
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// spend sends requests and returns how many were allowed.
func (r *rig) spend(n int, q quota.Request) int {
	r.t.Helper()
	allowed := 0
	for range n {
		if r.rate(q).Allowed {
			allowed++
		}
	}
	return allowed
}

var app = quota.Request{MountPath: "secret/", Path: "secret/data/app"}

func TestNoQuotas(t *testing.T) {
	q := node(t, &storage.Memory{})
	if d := q.rate(app); !d.Allowed || d.Header() != nil || d.Err("x") != nil {
		t.Errorf("without quotas: %+v", d)
	}
	err := q.Leases(t.Context(), app, func(context.Context, quota.Scope) (int, error) { return 1 << 30, nil })
	if err != nil {
		t.Errorf("Leases without quotas: %v", err)
	}
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := node(t, &storage.Memory{})
		q.must(engines.Update, "/rate-limit/all", `{"rate":3,"interval":"10s"}`)
		for i := range 3 {
			if d := q.rate(app); !d.Allowed || d.Limit != 3 || d.Remaining != 2-i || d.Quota != "all" {
				t.Errorf("request %d: %+v", i, d)
			}
		}
		d := q.rate(app)
		if d.Allowed || d.Remaining != 0 || d.RetryAfter.Round(time.Millisecond) != 3333*time.Millisecond || d.ResetAfter.Round(time.Millisecond) != 10*time.Second {
			t.Errorf("one too many: %+v", d)
		}
		var e *engines.Error
		if err := d.Err(app.Path); !errors.As(err, &e) || e.Kind != engines.KindLimited || e.Detail != `request path "secret/data/app": rate limit quota exceeded` || e.Header.Get("Retry-After") != "4" {
			t.Errorf("Err = %v", err)
		}
		other := app
		other.ClientIP = netip.MustParseAddr("192.0.2.2")
		if !q.rate(other).Allowed {
			t.Error("another client pays for the first one")
		}
		time.Sleep(d.RetryAfter + time.Nanosecond)
		if got := q.spend(5, app); got != 1 {
			t.Errorf("after RetryAfter %d requests are allowed, want 1", got)
		}
		time.Sleep(time.Hour)
		if got := q.spend(5, app); got != 3 {
			t.Errorf("an hour later %d requests are allowed, want 3", got)
		}
		if n := q.Numbers(); n["quota_rate_limit_violations_total"] != 7 || n["quota_rate_limits"] != 1 {
			t.Errorf("numbers: %v", n)
		}
		if v := q.Violations(); !reflect.DeepEqual(v, map[string]uint64{"rate-limit/all": 7}) {
			t.Errorf("violations: %v", v)
		}
	})
}

func TestBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := node(t, &storage.Memory{})
		q.must(engines.Update, "/rate-limit/all", `{"rate":1,"block_interval":60}`)
		if got := q.spend(3, app); got != 1 {
			t.Fatalf("%d allowed, want 1", got)
		}
		time.Sleep(59 * time.Second)
		for i := range 500 { // those who come make room, but not of those who are blocked
			r := app
			r.ClientIP = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			q.spend(1, r)
		}
		if d := q.rate(app); d.Allowed || d.RetryAfter != time.Second {
			t.Errorf("while blocked: %+v", d)
		}
		time.Sleep(time.Second)
		if !q.rate(app).Allowed {
			t.Error("blocked for longer than the interval")
		}
	})
}

func TestHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := node(t, &storage.Memory{})
		q.must(engines.Update, "/rate-limit/all", `{"rate":2,"interval":3}`)
		if h := q.rate(app).Header(); h != nil {
			t.Errorf("header although it is not enabled: %v", h)
		}
		q.spend(1, app)
		if h := q.rate(app).Header(); len(h) != 1 || h.Get("Retry-After") != "2" {
			t.Errorf("header of a refusal: %v, want Retry-After alone", h)
		}
		q.must(engines.Update, "/config", `{"enable_rate_limit_response_headers":true,"enable_rate_limit_audit_logging":true}`)
		d := q.rate(app)
		want := map[string]string{"X-Ratelimit-Limit": "2", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "3", "Retry-After": "2"}
		for name, value := range want {
			if got := d.Header().Get(name); got != value {
				t.Errorf("%s = %q, want %q: a change of the configuration starts no bucket over", name, got, value)
			}
		}
		if !d.Audit {
			t.Error("the refusal is not to be audited although that is enabled")
		}
		time.Sleep(time.Minute)
		if h := q.rate(app).Header(); h.Get("X-Ratelimit-Remaining") != "1" || h.Get("Retry-After") != "" {
			t.Errorf("header of an allowed request: %v", h)
		}
	})
}

func TestMostSpecific(t *testing.T) {
	quotas := map[string]string{
		"everything": `"path":""`, "ns": `"path":"a/","inheritable":true`, "below": `"path":"a/b"`,
		"mount": `"path":"a/secret"`, "glob": `"path":"a/secret/data/*"`, "longer": `"path":"a/secret/data/team/*"`,
		"path": `"path":"a/secret/data/team/app"`, "auth": `"path":"auth/approle/"`, "role": `"path":"auth/approle","role":"ci"`,
		"root": `"path":"secret/"`,
	}
	in := func(ns, mount, rest string) quota.Request {
		return quota.Request{NamespacePath: ns, MountPath: mount, Path: mount + rest}
	}
	login := in("", "auth/approle/", "login")
	login.Role = "ci"
	otherLogin := login
	otherLogin.Role = "cd"
	elsewhere := login
	elsewhere.NamespacePath = "a/"
	tests := []struct {
		name string
		r    quota.Request
		want []string // the most specific first; each is found once those before it are gone
	}{
		{"path", in("a/", "secret/", "data/team/app"), []string{"path", "longer", "glob", "mount", "ns", "everything", ""}},
		{"list of the path", in("a/", "secret/", "data/team/app/"), []string{"path", "longer"}},
		{"longer", in("a/", "secret/", "data/team/other"), []string{"longer", "glob"}},
		{"glob", in("a/", "secret/", "data/x"), []string{"glob", "mount"}},
		{"mount", in("a/", "secret/", "metadata/"), []string{"mount", "ns"}},
		{"mount itself", in("a/", "secret/", ""), []string{"mount", "ns"}},
		{"namespace", in("a/", "sys/", "mounts"), []string{"ns", "everything"}},
		{"no mount", quota.Request{NamespacePath: "a/", Path: "nothing/here"}, []string{"ns", "everything"}},
		{"namespace below", in("a/b/", "secret/", "data/team/app"), []string{"below", "ns", "everything", ""}},
		{"role", login, []string{"role", "auth", "everything"}},
		{"other role", otherLogin, []string{"auth", "everything"}},
		{"role elsewhere", elsewhere, []string{"ns", "everything"}},
		{"root", in("", "secret/", "data/team/app"), []string{"root", "everything"}},
		{"nothing", quota.Request{}, []string{"everything"}},
	}
	for _, kind := range []string{"rate-limit", "lease-count"} {
		for _, tt := range tests {
			q := node(t, &storage.Memory{})
			for name, fields := range quotas {
				q.must(engines.Update, "/"+kind+"/"+name, `{"rate":1e9,"max_leases":1,`+fields+`}`)
			}
			for _, want := range tt.want {
				if got := q.which(kind, tt.r); got != want {
					t.Errorf("%s %s: the quota %q counts, want %q", kind, tt.name, got, want)
				}
				q.must(engines.Delete, "/"+kind+"/"+want+"x", "") // not there: nothing happens
				if want != "" {
					q.must(engines.Delete, "/"+kind+"/"+want, "")
				}
			}
		}
	}
}

// which returns the name of the quota that counts.
func (r *rig) which(kind string, q quota.Request) string {
	r.t.Helper()
	if kind == "rate-limit" {
		return r.rate(q).Quota
	}
	before := r.Violations()
	err := r.Leases(r.t.Context(), q, func(context.Context, quota.Scope) (int, error) { return 1, nil })
	for id, n := range r.Violations() {
		if before[id] != n {
			var e *engines.Error
			if !errors.As(err, &e) || e.Kind != engines.KindLimited || !strings.Contains(e.Detail, "lease count quota exceeded") {
				r.t.Errorf("Leases = %v, want a 429", err)
			}
			return strings.TrimPrefix(id, "lease-count/")
		}
	}
	if err != nil {
		r.t.Errorf("Leases = %v without a violation", err)
	}
	return ""
}

// TestInheritable: all namespaces below share one allowance; without it a quota stays where it is.
func TestInheritable(t *testing.T) {
	q := node(t, &storage.Memory{})
	below := quota.Request{NamespacePath: "a/b/", MountPath: "secret/", Path: "secret/x"}
	above := quota.Request{NamespacePath: "a/", MountPath: "secret/", Path: "secret/x"}
	q.must(engines.Update, "/rate-limit/n", `{"rate":2,"interval":86400,"path":"a"}`)
	if got := q.spend(3, below); got != 3 {
		t.Errorf("a quota that is not inheritable allows %d of 3 below", got)
	}
	q.must(engines.Update, "/rate-limit/n", `{"rate":2,"interval":86400,"path":"a","inheritable":true}`)
	if got := q.spend(1, below) + q.spend(2, above); got != 2 {
		t.Errorf("the namespaces together got %d, want 2", got)
	}
	q.must(engines.Delete, "/rate-limit/n", "")
	q.must(engines.Update, "/rate-limit/all", `{"rate":1,"inheritable":false}`)
	if got := q.spend(3, below); got != 3 {
		t.Errorf("root's own quota allows %d of 3 in another namespace", got)
	}
}

func TestLeases(t *testing.T) {
	q := node(t, &storage.Memory{})
	for name, fields := range map[string]string{
		"everything": `"path":""`, "ns": `"path":"a"`, "mount": `"path":"a/secret"`, "path": `"path":"secret/creds/app"`,
		"glob": `"path":"secret/creds/team-*"`, "role": `"path":"auth/approle","role":"ci"`,
	} {
		q.must(engines.Update, "/lease-count/"+name, `{"max_leases":10,`+fields+`}`)
	}
	tests := []struct {
		r    quota.Request
		want quota.Scope
	}{
		{quota.Request{MountPath: "aws/", Path: "aws/creds/x"}, quota.Scope{Below: true}},
		{quota.Request{NamespacePath: "a/b/", MountPath: "aws/", Path: "aws/creds/x"}, quota.Scope{Below: true}},
		{quota.Request{NamespacePath: "a/", MountPath: "aws/", Path: "aws/creds/x"}, quota.Scope{Namespace: "a/"}},
		{quota.Request{NamespacePath: "a/", MountPath: "secret/", Path: "secret/creds/x"}, quota.Scope{Namespace: "a/", Mount: "secret/"}},
		{quota.Request{MountPath: "secret/", Path: "secret/creds/app"}, quota.Scope{Mount: "secret/", Path: "creds/app"}},
		{quota.Request{MountPath: "secret/", Path: "secret/creds/team-1"}, quota.Scope{Mount: "secret/", Path: "creds/team-*"}},
		{quota.Request{MountPath: "auth/approle/", Path: "auth/approle/login", Role: "ci"}, quota.Scope{Mount: "auth/approle/", Role: "ci"}},
	}
	for _, tt := range tests {
		for _, n := range []int{9, 10, 11} {
			err := q.Leases(t.Context(), tt.r, func(_ context.Context, s quota.Scope) (int, error) {
				if s != tt.want {
					t.Errorf("%s%s counts %+v, want %+v", tt.r.NamespacePath, tt.r.Path, s, tt.want)
				}
				return n, nil
			})
			if (err != nil) != (n >= 10) {
				t.Errorf("%s with %d of 10 leases: %v", tt.r.Path, n, err)
			}
		}
	}
	broken := errors.New("no index")
	err := q.Leases(t.Context(), app, func(context.Context, quota.Scope) (int, error) { return 0, broken })
	if !errors.Is(err, broken) {
		t.Errorf("Leases that cannot be counted = %v", err)
	}
}

// What is stored is measured when a quota seems used up, not at each write, and what does not grow is never asked about.
func TestStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1 << 20
		q := node(t, &storage.Memory{})
		q.must(engines.Update, "/storage/s", fmt.Sprintf(`{"max_bytes":%d,"path":"a"}`, limit))
		stored, measured := int64(limit-600), 0
		write := func(ns string, growth int64) error {
			err := q.Storage(t.Context(), of(quota.Request{NamespacePath: ns, MountPath: "secret/", Path: "secret/"}),
				func(context.Context) (int64, error) { return growth, nil },
				func(_ context.Context, scope quota.Scope) (int64, error) {
					if measured++; scope != (quota.Scope{Namespace: "a/"}) {
						t.Errorf("measuring %+v", scope)
					}
					return stored, nil
				})
			if err == nil && ns == "a/" {
				stored += growth
			}
			return err
		}
		full := func(err error) bool {
			var e *engines.Error
			return errors.As(err, &e) && e.Kind == engines.KindLimited && e.Header.Get("Retry-After") == "1"
		}
		for _, growth := range []int64{200, 400, 0, -100} {
			if err := write("a/", growth); err != nil {
				t.Errorf("growing by %d: %v", growth, err)
			}
		}
		if err := write("b/", limit); err != nil {
			t.Errorf("in another namespace: %v", err)
		}
		if measured != 1 {
			t.Errorf("measured %d times", measured)
		}
		if err := write("a/", 70); !full(err) || measured != 1 {
			t.Errorf("over the limit: %v, measured %d times", err, measured)
		}
		time.Sleep(2 * time.Second) // of the bubble
		if err := write("a/", 100); err != nil || measured != 2 {
			t.Errorf("what was removed is not free: %v, measured %d times", err, measured)
		}
		if err := write("a/", 70); !full(err) {
			t.Errorf("full again: %v", err)
		}
		// Marks that a version is deleted are written nevertheless, but values do not grow without end in small steps.
		marks := 0
		for write("a/", 64) == nil && marks < 2*limit/64 {
			if marks++; marks%100 == 0 {
				time.Sleep(2 * time.Second)
			}
		}
		if want := limit / 16 / 64; marks != want || stored > limit+limit/16 {
			t.Errorf("%d small writes beyond the limit, want %d: %d bytes are stored", marks, want, stored)
		}
		stored -= 1000 + limit/16
		time.Sleep(2 * time.Second)
		if err := write("a/", 1000); err != nil {
			t.Errorf("after a removal: %v", err)
		}
		if err := write("a/", 64); err != nil {
			t.Errorf("a mark in a full namespace: %v", err)
		}
	})
}

func TestExempt(t *testing.T) {
	q := node(t, &storage.Memory{})
	q.must(engines.Update, "/rate-limit/all", `{"rate":1,"interval":86400}`)
	at := func(ns, path string) quota.Request {
		return quota.Request{NamespacePath: ns, MountPath: "sys/", Path: path}
	}
	allowed := func(want bool, requests ...quota.Request) {
		t.Helper()
		q.spend(1, at("", "sys/mounts"))
		for _, r := range requests {
			if got := q.rate(r).Allowed; got != want {
				t.Errorf("%s%s allowed: %v, want %v", r.NamespacePath, r.Path, got, want)
			}
		}
	}
	allowed(true, at("", "sys/health"), at("a/", "sys/seal-status"), at("", "sys/unseal"), at("", "sys/leader"), at("", "sys/generate-root/attempt"))
	allowed(false, at("", "sys/healthy"), at("", "sys/health/x"), at("", "x/sys/health"), at("", ""))
	q.must(engines.Update, "/config", `{"rate_limit_exempt_paths":"sys/mounts,secret/*","absolute_rate_limit_exempt_paths":["a/sys/auth"]}`)
	allowed(true, at("", "sys/mounts"), at("a/", "secret/x"), at("a/", "sys/auth"))
	allowed(false, at("", "sys/health"), at("", "sys/auth"), at("a/b/", "sys/auth"))
	q.must(engines.Update, "/config", `{"rate_limit_exempt_paths":[]}`)
	allowed(false, at("", "sys/mounts"), at("", "secret/x"))
	allowed(true, at("a/", "sys/auth"))
}

func TestConfig(t *testing.T) {
	q := node(t, &storage.Memory{})
	rest := `"rate_limit_exempt_paths":["sys/generate-root*","sys/health","sys/leader","sys/seal-status","sys/unseal"]}`
	if got, want := q.must(engines.Read, "/config", ""), `{"absolute_rate_limit_exempt_paths":[],"enable_rate_limit_audit_logging":false,"enable_rate_limit_response_headers":false,`+rest; got != want {
		t.Errorf("defaults are %s, want %s", got, want)
	}
	q.must(engines.Update, "/config", `{"enable_rate_limit_response_headers":"true"}`)
	if got, want := q.must(engines.Read, "/config", ""), `{"absolute_rate_limit_exempt_paths":[],"enable_rate_limit_audit_logging":false,"enable_rate_limit_response_headers":true,`+rest; got != want {
		t.Errorf("after a change of one field: %s, want %s", got, want)
	}
	for _, body := range []string{`{"rate_limit_exempt_paths":["a*b"]}`, `{"absolute_rate_limit_exempt_paths":"` + strings.Repeat("x,", 300) + `"}`, `{"rate_limit_exempt_paths":["` + strings.Repeat("x", 2000) + `"]}`} {
		var e *engines.Error
		if _, err := q.call(engines.Update, "/config", body); !errors.As(err, &e) || e.Kind != engines.KindInvalid {
			t.Errorf("%.60s: %v, want a 400", body, err)
		}
	}
}

func TestRoutes(t *testing.T) {
	q := node(t, &storage.Memory{})
	for _, path := range []string{"/rate-limit/", "/lease-count/"} {
		var e *engines.Error
		if _, err := q.call(engines.List, path, ""); !errors.As(err, &e) || e.Kind != engines.KindNotFound {
			t.Errorf("LIST %s of nothing: %v, want 404", path, err)
		}
		if _, err := q.call(engines.Read, path+"none", ""); !errors.As(err, &e) || e.Kind != engines.KindNotFound {
			t.Errorf("GET %snone: %v, want 404", path, err)
		}
	}
	q.must(engines.Update, "/rate-limit/b", `{"rate":"12.5","interval":"1m","block_interval":30,"path":"/a/secret","type":"rate-limit"}`)
	q.must(engines.Update, "/rate-limit/a", `{"rate":1}`)
	q.must(engines.Update, "/lease-count/l", `{"max_leases":5,"path":"auth/approle","role":"ci"}`)
	q.must(engines.Update, "/storage/s", `{"max_bytes":"1000","path":"a","inheritable":true}`)
	for path, want := range map[string]string{
		"/storage/s":     `{"inheritable":true,"max_bytes":1000,"name":"s","path":"a/","type":"storage"}`,
		"/rate-limit/b":  `{"block_interval":30,"group_by":"ip","inheritable":false,"interval":60,"name":"b","path":"a/secret/","rate":12.5,"role":"","type":"rate-limit"}`,
		"/rate-limit/a":  `{"block_interval":0,"group_by":"ip","inheritable":true,"interval":1,"name":"a","path":"","rate":1,"role":"","type":"rate-limit"}`,
		"/lease-count/l": `{"inheritable":false,"max_leases":5,"name":"l","path":"auth/approle/","role":"ci","type":"lease-count"}`,
	} {
		if got := q.must(engines.Read, path, ""); got != want {
			t.Errorf("GET %s = %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{"/rate-limit/": `{"keys":["a","b"]}`, "/lease-count/": `{"keys":["l"]}`, "": `{"keys":["config","lease-count/","rate-limit/","storage/"]}`, "/storage/": `{"keys":["s"]}`} {
		if got := q.must(engines.List, path, ""); got != want {
			t.Errorf("LIST %s = %s, want %s", path, got, want)
		}
	}
	for _, route := range q.router.Routes() {
		if !route.Flags.Has(engines.RootNamespace) {
			t.Errorf("%s %s answers in every namespace", route.Op, route.Pattern)
		}
	}
}

func TestRefuses(t *testing.T) {
	tests := []struct{ name, path, body, want string }{
		{"no rate", "/rate-limit/x", `{}`, `"rate"`},
		{"rate 0", "/rate-limit/x", `{"rate":0}`, `"rate"`},
		{"negative rate", "/rate-limit/x", `{"rate":-1}`, `"rate"`},
		{"huge rate", "/rate-limit/x", `{"rate":1e300}`, `"rate"`},
		{"interval 0", "/rate-limit/x", `{"rate":1,"interval":0}`, `"interval"`},
		{"fraction", "/rate-limit/x", `{"rate":1,"interval":"1500ms"}`, `whole seconds`},
		{"for ever", "/rate-limit/x", `{"rate":1,"block_interval":"9000d"}`, `"block_interval"`},
		{"wrong type", "/rate-limit/x", `{"rate":1,"type":"lease-count"}`, `"type"`},
		{"no leases", "/lease-count/x", `{"max_leases":0}`, `"max_leases"`},
		{"missing leases", "/lease-count/x", `{}`, `"max_leases"`},
		{"no such mount", "/rate-limit/x", `{"rate":1,"path":"nothing/"}`, "neither a namespace nor a mount"},
		{"star inside", "/rate-limit/x", `{"rate":1,"path":"secret/*/x"}`, `"*"`},
		{"star alone", "/rate-limit/x", `{"rate":1,"path":"*"}`, `empty`},
		{"empty segment", "/rate-limit/x", `{"rate":1,"path":"secret//x"}`, `empty segment`},
		{"control character", "/rate-limit/x", `{"rate":1,"path":"secret/\u0000"}`, `control`},
		{"long path", "/rate-limit/x", `{"rate":1,"path":"secret/` + strings.Repeat("x", 1024) + `"}`, `longer`},
		{"inherited mount", "/rate-limit/x", `{"rate":1,"path":"secret/","inheritable":true}`, `"inheritable"`},
		{"role of a secrets engine", "/rate-limit/x", `{"rate":1,"path":"secret/","role":"r"}`, `"role"`},
		{"role of everything", "/rate-limit/x", `{"rate":1,"role":"r"}`, `"role"`},
		{"role of a path", "/rate-limit/x", `{"rate":1,"path":"auth/approle/login","role":"r"}`, `"role"`},
		{"role with a NUL", "/rate-limit/x", `{"rate":1,"path":"auth/approle","role":"a\u0000b"}`, `"role"`},
		{"name", "/rate-limit/a%20b", `{"rate":1}`, `"name"`},
		{"long name", "/rate-limit/" + strings.Repeat("x", 129), `{"rate":1}`, `"name"`},
		{"taken", "/rate-limit/x", `{"rate":1,"path":"a/secret/"}`, `similar properties exists under the name "taken"`},
	}
	q := node(t, &storage.Memory{})
	q.must(engines.Update, "/rate-limit/taken", `{"rate":1,"path":"a/secret"}`)
	q.must(engines.Update, "/lease-count/taken", `{"max_leases":1,"path":"a/secret"}`) // another type is another matter
	for _, tt := range tests {
		var e *engines.Error
		if _, err := q.call(engines.Update, tt.path, tt.body); !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if got := q.must(engines.List, "/rate-limit/", ""); got != `{"keys":["taken"]}` {
		t.Errorf("stored after refusals: %s", got)
	}
	// What a quota no longer concerns is free for another.
	q.must(engines.Update, "/rate-limit/taken", `{"rate":1,"path":"a"}`)
	q.must(engines.Update, "/rate-limit/x", `{"rate":1,"path":"a/secret"}`)
	q.must(engines.Delete, "/rate-limit/taken", "")
	q.must(engines.Update, "/rate-limit/y", `{"rate":1,"path":"a"}`)
}

// Of many that want the same path at once, one gets it.
func TestOneQuotaEach(t *testing.T) {
	q := node(t, &storage.Memory{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []string
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprintf("q%d", i)
			if _, err := q.call(engines.Update, "/rate-limit/"+name, `{"rate":1,"path":"secret"}`); err == nil {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, name)
			}
		})
	}
	wg.Wait()
	if got := q.must(engines.List, "/rate-limit/", ""); len(won) != 1 || got != `{"keys":["`+won[0]+`"]}` {
		t.Errorf("%q succeeded, %s are stored", won, got)
	}
}

func TestFollowsStorage(t *testing.T) {
	var store storage.Memory
	active, standby := node(t, &store), node(t, &store)
	for range 2 {
		standby.spend(1, app)
		active.must(engines.Update, "/rate-limit/all", `{"rate":2,"interval":86400}`)
		if got := standby.spend(5, app); got != 2 {
			t.Errorf("the other node allows %d, want 2", got)
		}
		active.must(engines.Update, "/rate-limit/other", `{"rate":2,"path":"a"}`)
		if got := standby.spend(5, app); got != 0 {
			t.Error("a change of another quota starts the buckets over")
		}
		active.must(engines.Update, "/rate-limit/all", `{"rate":3,"interval":86400}`)
		if got := standby.spend(5, app); got != 3 {
			t.Errorf("after a change %d are allowed, want 3", got)
		}
		if n := standby.Violations()["rate-limit/all"]; n != 3+5+2 {
			t.Errorf("%d violations, want 10: they are counted on when quotas change", n)
		}
		active.must(engines.Delete, "/rate-limit/all", "")
		if got := standby.spend(5, app); got != 5 {
			t.Errorf("after the end of the quota %d are allowed, want 5", got)
		}
		active.Clear()
		standby.Clear()
	}
	if n := standby.Numbers()["quota_rate_limit_violations_total"]; n != 2*(3+5+2) {
		t.Errorf("%v violations, want 20", n)
	}
}

func TestDrop(t *testing.T) {
	q := node(t, &storage.Memory{})
	for name, path := range map[string]string{"all": "", "a": "a/", "ab": "a/b/", "am": "a/secret", "ap": "a/secret/x*", "m": "secret"} {
		q.must(engines.Update, "/rate-limit/"+name, `{"rate":1,"path":"`+path+`"}`)
		q.must(engines.Update, "/lease-count/"+name, `{"max_leases":1,"path":"`+path+`"}`)
	}
	if err := q.Drop(t.Context(), "a/secret/"); err != nil {
		t.Fatal(err)
	}
	if got, want := q.must(engines.List, "/rate-limit/", ""), `{"keys":["a","ab","all","m"]}`; got != want {
		t.Errorf("after a mount is gone: %s, want %s", got, want)
	}
	if err := q.Drop(t.Context(), "a/"); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"/rate-limit/", "/lease-count/"} {
		if got, want := q.must(engines.List, kind, ""), `{"keys":["all","m"]}`; got != want {
			t.Errorf("after a namespace is gone: %s, want %s", got, want)
		}
	}
	for _, path := range []string{"", "a"} {
		if q.Drop(t.Context(), path) == nil {
			t.Errorf("Drop(%q) is accepted", path)
		}
	}
}

func TestMove(t *testing.T) {
	q := node(t, &storage.Memory{})
	for name, path := range map[string]string{"n": "a", "m": "a/secret", "p": "a/secret/x*", "other": "secret", "role": "a/auth/approle"} {
		role := ""
		if name == "role" {
			role = "ci"
		}
		q.must(engines.Update, "/rate-limit/"+name, `{"rate":1,"interval":86400,"path":"`+path+`","role":"`+role+`"}`)
	}
	for range 2 {
		if err := q.Move(t.Context(), "a/secret/", "a/b/secret/"); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"n": "a/", "m": "a/b/secret/", "p": "a/b/secret/x*", "other": "secret/", "role": "a/auth/approle/"} {
		if got := q.must(engines.Read, "/rate-limit/"+name, ""); !strings.Contains(got, `"path":"`+want+`"`) {
			t.Errorf("%s is now %s, want path %s", name, got, want)
		}
	}
	if got := q.rate(quota.Request{NamespacePath: "a/b/", MountPath: "secret/", Path: "secret/y"}).Quota; got != "m" {
		t.Errorf("at the new place the quota %q counts, want m", got)
	}
	q.must(engines.Update, "/rate-limit/new", `{"rate":1,"path":"a/secret"}`) // the old place is free
	for _, paths := range [][2]string{{"", "a/"}, {"a/", ""}, {"a", "b/"}} {
		if q.Move(t.Context(), paths[0], paths[1]) == nil {
			t.Errorf("Move(%q) is accepted", paths)
		}
	}
}

// unreadable is a store that fails while err is set.
type unreadable struct {
	storage.Memory
	err error
}

func (u *unreadable) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	if u.err != nil {
		return nil, u.err
	}
	return u.Memory.Scan(ctx, prefix, after, limit)
}

func TestUnreadable(t *testing.T) {
	store := &unreadable{err: storage.ErrUnavailable}
	q := quota.New(quota.Options{Store: store})
	if _, err := q.Rate(t.Context(), of(app)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Rate = %v, want ErrUnavailable", err)
	}
	if err := q.Leases(t.Context(), app, nil); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Leases = %v, want ErrUnavailable", err)
	}
	store.err = nil
	if _, err := q.Rate(t.Context(), of(app)); err != nil {
		t.Errorf("readable again: %v", err)
	}
}

// What a newer build stored does not keep this one from answering.
func TestOtherFormats(t *testing.T) {
	var store storage.Memory
	q := node(t, &store)
	q.must(engines.Update, "/rate-limit/good", `{"rate":1,"interval":86400}`)
	_, err := store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{
		{Key: "s/sys/root/quotas/rate-limit/newer", Value: []byte(`{"format":2,"name":"newer","rate":1}`)},
		{Key: "s/sys/root/quotas/rate-limit/broken", Value: []byte(`{`)},
		{Key: "s/sys/root/quotas/rate-limit/zero", Value: []byte(`{"format":1,"name":"zero","type":"rate-limit","path":"secret/"}`)},
		{Key: "s/sys/root/quotas/config", Value: []byte(`{"format":2}`)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.spend(3, app); got != 1 {
		t.Errorf("%d allowed, want 1", got)
	}
	if !q.rate(quota.Request{Path: "sys/health"}).Allowed {
		t.Error("the default exemptions do not hold")
	}
}

func BenchmarkRate(b *testing.B) {
	for _, quotas := range []int{0, 1, 1000} {
		b.Run(fmt.Sprint(quotas), func(b *testing.B) {
			q := node(b, &storage.Memory{})
			for i := range quotas {
				q.must(engines.Update, fmt.Sprintf("/rate-limit/q%d", i), fmt.Sprintf(`{"rate":1e9,"path":"secret/data/q%d"}`, i))
			}
			if quotas > 0 {
				q.must(engines.Update, "/rate-limit/all", `{"rate":1e9}`)
			}
			r := app
			r.ClientIP = client
			b.ReportAllocs()
			for b.Loop() {
				if d, err := q.Rate(b.Context(), of(r)); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
		})
	}
}

// Addresses without end cost bounded memory, and do not buy more than one client's share for each shard.
func TestManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := node(t, &storage.Memory{})
		q.must(engines.Update, "/rate-limit/all", `{"rate":2,"interval":60}`)
		rng := rand.New(rand.NewPCG(1, 2))
		allowed := 0
		const clients = 100_000
		for range clients {
			r := app
			r.ClientIP = netip.AddrFrom4([4]byte{10, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())})
			allowed += q.spend(1, r)
		}
		kept := q.Numbers()["quota_rate_limit_clients"]
		if kept > quota.MaxClients || kept < quota.MaxClients*9/10 {
			t.Errorf("%v clients are kept, want at most %d", kept, quota.MaxClients)
		}
		if allowed > quota.MaxClients+1000 {
			t.Errorf("%d requests of %d clients were allowed", allowed, clients)
		}
		time.Sleep(time.Hour)
		for i := range 1000 {
			r := app
			r.ClientIP = netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
			if got := q.spend(3, r); got != 2 {
				t.Fatalf("an hour later a new client gets %d requests, want 2", got)
			}
		}
		if kept := q.Numbers()["quota_rate_limit_clients"]; kept != 1000 {
			t.Errorf("an hour later %v clients are kept, want the 1000 that came since", kept)
		}
	})
}

func TestClients(t *testing.T) {
	tests := []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::1%eth1", true},
	}
	for _, tt := range tests {
		q := node(t, &storage.Memory{})
		q.must(engines.Update, "/rate-limit/all", `{"rate":1,"interval":86400}`)
		a, b := app, app
		a.ClientIP, b.ClientIP = netip.MustParseAddr(tt.a), netip.MustParseAddr(tt.b)
		if first, second := q.rate(a).Allowed, q.rate(b).Allowed; !first || second == tt.same {
			t.Errorf("%s and %s: allowed %v and %v, want one client: %v", tt.a, tt.b, first, second, tt.same)
		}
	}
	q := node(t, &storage.Memory{})
	q.must(engines.Update, "/rate-limit/all", `{"rate":1e-300,"interval":31000000}`)
	for i, want := range []bool{true, false} { // without an address, as from a socket of the machine
		d, err := q.Rate(t.Context(), of(app))
		if err != nil || d.Allowed != want || d.RetryAfter < 0 || d.ResetAfter < 0 {
			t.Errorf("request %d at a rate of almost nothing: %+v, %v", i, d, err)
		}
	}
}

func TestConcurrent(t *testing.T) {
	q := node(t, &storage.Memory{})
	q.must(engines.Update, "/rate-limit/all", `{"rate":100,"interval":86400}`)
	var wg sync.WaitGroup
	var mu sync.Mutex
	allowed := 0
	for i := range 4 {
		wg.Go(func() {
			n := 0
			for range 100 {
				if d, err := q.Rate(t.Context(), of(quota.Request{Path: "secret/x", ClientIP: client})); err != nil {
					t.Error(err)
				} else if d.Allowed {
					n++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			allowed += n
		})
		q.must(engines.Update, fmt.Sprintf("/rate-limit/q%d", i), fmt.Sprintf(`{"rate":1,"path":"secret/q%d"}`, i))
	}
	wg.Wait()
	if allowed != 100 {
		t.Errorf("%d of 400 allowed, want 100", allowed)
	}
}
