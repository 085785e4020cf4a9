package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// ask runs a request on a router and returns the answer's data.
func ask(t *testing.T, r *engines.Router, op engines.Operation, path, body string) (map[string]any, *engines.Response, error) {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	req := &engines.Request{Op: op, Path: path, Query: values, Header: http.Header{}}
	if body != "" {
		req.Body = json.RawMessage(body)
	}
	resp, err := r.Handle(t.Context(), req)
	if err != nil || resp == nil {
		return nil, nil, err
	}
	raw, err := json.Marshal(resp.Data)
	if err != nil {
		t.Fatal(err)
	}
	var data map[string]any
	if err := json.Unmarshal(raw, &data); err != nil {
		t.Fatal(err)
	}
	return data, resp, nil
}

func must(t *testing.T, r *engines.Router, op engines.Operation, path, body string) map[string]any {
	t.Helper()
	data, _, err := ask(t, r, op, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", op, path, err)
	}
	return data
}

// refused checks that a request fails with this kind.
func refused(t *testing.T, r *engines.Router, kind engines.Kind, op engines.Operation, path, body string) {
	t.Helper()
	_, _, err := ask(t, r, op, path, body)
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("%s %s %s = %v, want an error of kind %d", op, path, body, err, kind)
	}
}

func router(declare ...func(*engines.Router)) *engines.Router {
	r := engines.NewRouter()
	for _, d := range declare {
		d(r)
	}
	return r
}

func TestHostInfo(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/cpuinfo":              "processor\t: 0\nvendor_id\t: Acme\nmodel name\t: Fast One\ncpu MHz\t\t: 2400.5\n\nprocessor\t: 1\nmodel name\t: Fast One\n",
		"proc/stat":                 "cpu  10 0 0 0\ncpu0 200 0 100 4000 0 0 0 0 0 0\nintr 5\n",
		"proc/meminfo":              "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\n",
		"proc/uptime":               "3600.12 1000.0\n",
		"proc/sys/kernel/osrelease": "6.1.0-test\n",
		"etc/os-release":            "ID=debian\nVERSION_ID=\"13\"\n",
		"proc/1/stat":               "",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := must(t, router(Host{DataDir: root, Root: root}.Routes), engines.Read, "host-info", "")
	cpus := data["cpu"].([]any)
	if len(cpus) != 2 || cpus[0].(map[string]any)["modelName"] != "Fast One" || cpus[0].(map[string]any)["mhz"] != 2400.5 {
		t.Errorf("cpu = %v", cpus)
	}
	if times := data["cpu_times"].([]any); len(times) != 1 || times[0].(map[string]any)["idle"] != 40.0 {
		t.Errorf("cpu_times = %v", times)
	}
	memory := data["memory"].(map[string]any)
	if memory["total"] != 1024000.0 || memory["used"] != 768000.0 || memory["usedPercent"] != 75.0 {
		t.Errorf("memory = %v", memory)
	}
	host := data["host"].(map[string]any)
	if host["uptime"] != 3600.0 || host["platform"] != "debian" || host["kernelVersion"] != "6.1.0-test" || host["procs"] != 1.0 || host["hostname"] == "" {
		t.Errorf("host = %v", host)
	}
	disks := data["disk"].([]any)
	if len(disks) != 2 || disks[1].(map[string]any)["path"] != root || disks[1].(map[string]any)["total"].(float64) <= 0 {
		t.Errorf("disk = %v", disks)
	}

	// Without /proc the rest is still told, with a warning.
	_, resp, err := ask(t, router(Host{Root: t.TempDir()}.Routes), engines.Read, "host-info", "")
	if err != nil || len(resp.Warnings) != 3 {
		t.Errorf("without /proc: %v, %v; want three warnings", resp, err)
	}
}

func TestVersionHistory(t *testing.T) {
	store := &storage.Memory{}
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	record := func(version string) {
		t.Helper()
		now = now.Add(time.Hour)
		if err := (VersionHistory{Store: store, Version: version, Now: func() time.Time { return now }}).Record(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := router(VersionHistory{Store: store}.Routes)
	refused(t, r, engines.KindNotFound, engines.List, "version-history", "")
	for _, v := range []string{"1.9.0", "1.10.0", "1.10.0", "1.9.0", "1.11.0"} {
		record(v)
	}
	data := must(t, r, engines.List, "version-history", "")
	if got := data["keys"].([]any); len(got) != 3 || got[0] != "1.9.0" || got[1] != "1.10.0" || got[2] != "1.11.0" {
		t.Errorf("keys = %v, want them by age", got)
	}
	info := data["key_info"].(map[string]any)
	first, third := info["1.9.0"].(map[string]any), info["1.11.0"].(map[string]any)
	if first["previous_version"] != nil || first["timestamp_installed"] != "2026-11-01T01:00:00Z" || third["previous_version"] != "1.10.0" {
		t.Errorf("key_info = %v", info)
	}
}

func TestInFlight(t *testing.T) {
	f := &InFlight{}
	r := router(f.Routes)
	one := &Flight{ID: "id-1", Op: engines.Read, Path: "secret/data/x", Remote: netip.MustParseAddrPort("10.0.0.1:99")}
	two := &Flight{ID: "id-2", Op: engines.Update, Path: "secret/data/y", Remote: netip.MustParseAddrPort("10.0.0.2:99")}
	f.Begin(one)
	f.Begin(two)
	f.Identify(one, "entity-1")
	data := must(t, r, engines.Read, "in-flight-req", "")
	seen, _ := data["id-1"].(map[string]any)
	if f.Count() != 2 || len(data) != 2 || seen["request_path"] != "secret/data/x" || seen["client_id"] != "entity-1" || seen["client_remote_address"] != "10.0.0.1:99" {
		t.Errorf("in flight: %v", data)
	}
	drained := make(chan error, 1)
	go func() { drained <- f.Drain(t.Context()) }()
	for waiting := 0; waiting == 0; runtime.Gosched() {
		f.mu.Lock()
		waiting = len(f.waiting)
		f.mu.Unlock()
	}
	later := &Flight{ID: "id-3"}
	f.Begin(later) // no caller waits for this one
	f.End(one)
	select {
	case err := <-drained:
		t.Fatalf("Drain did not wait for the second request: %v", err)
	default:
	}
	f.End(two)
	if err := <-drained; err != nil {
		t.Errorf("Drain = %v", err)
	}
	f.End(later)
	if data := must(t, r, engines.Read, "in-flight-req", ""); f.Count() != 0 || len(data) != 0 {
		t.Errorf("after the end: %v", data)
	}
	if err := f.Drain(t.Context()); err != nil {
		t.Errorf("Drain of nothing = %v", err)
	}
}

func TestLoggers(t *testing.T) {
	var out bytes.Buffer
	l := NewLoggers(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: LevelTrace}), slog.LevelInfo)
	raft, api := l.Named("raft").With("node", "n1").WithGroup("g"), l.Named("api")
	r := router(l.Routes)
	logged := func() string {
		out.Reset()
		raft.Debug("deep")
		api.Debug("deep")
		var names []string
		for _, name := range []string{"raft", "api"} {
			if strings.Contains(out.String(), "logger="+name) {
				names = append(names, name)
			}
		}
		return strings.Join(names, " ")
	}
	for _, step := range []struct {
		op         engines.Operation
		path, body string
		want       string
	}{
		{engines.Read, "loggers", "", ""},
		{engines.Update, "loggers/raft", `{"level":"debug"}`, "raft"},
		{engines.Update, "loggers", `{"level":"trace"}`, "raft api"},
		{engines.Delete, "loggers/api", "", "raft"},
		{engines.Delete, "loggers", "", ""},
	} {
		must(t, r, step.op, step.path, step.body)
		if got := logged(); got != step.want {
			t.Errorf("after %s %s %s: debug records of %q, want %q", step.op, step.path, step.body, got, step.want)
		}
	}
	must(t, r, engines.Update, "loggers/api", `{"level":"err"}`)
	data := must(t, r, engines.Read, "loggers", "")
	if data["api"] != "error" || data["raft"] != "info" {
		t.Errorf("levels = %v", data)
	}
	if data := must(t, r, engines.Read, "loggers/api", ""); data["api"] != "error" || len(data) != 1 {
		t.Errorf("one level = %v", data)
	}
	refused(t, r, engines.KindInvalid, engines.Update, "loggers", `{"level":"loud"}`)
	refused(t, r, engines.KindInvalid, engines.Update, "loggers", `{}`)
	refused(t, r, engines.KindNotFound, engines.Update, "loggers/nope", `{"level":"info"}`)
}

func TestProfiles(t *testing.T) {
	p := &Profiles{}
	r := router(p.Routes)
	body := func(path string) string {
		t.Helper()
		_, resp, err := ask(t, r, engines.Read, path, "")
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if resp.Raw.Stream == nil {
			return string(resp.Raw.Body)
		}
		var b bytes.Buffer
		if err := resp.Raw.Stream(t.Context(), &b); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return b.String()
	}
	if got := body("pprof"); !strings.Contains(got, "goroutine") || !strings.Contains(got, "heap") {
		t.Errorf("index = %q", got)
	}
	if got := body("pprof/goroutine?debug=1"); !strings.Contains(got, "goroutine profile:") {
		t.Errorf("goroutine = %.60q", got)
	}
	if got := body("pprof/heap?gc=true"); len(got) < 2 || got[:2] != "\x1f\x8b" {
		t.Errorf("heap is not a gzipped profile: %.10q", got)
	}
	if got := body("pprof/cmdline"); got != os.Args[0] {
		t.Errorf("cmdline = %q, want the program alone", got)
	}
	if got := body("pprof/symbol?0x0"); !strings.HasPrefix(got, "num_symbols: 1") {
		t.Errorf("symbol = %q", got)
	}
	refused(t, r, engines.KindNotFound, engines.Read, "pprof/nope", "")
	refused(t, r, engines.KindInvalid, engines.Read, "pprof/profile?seconds=0", "")
	refused(t, r, engines.KindInvalid, engines.Read, "pprof/trace?seconds=301", "")

	// A profile ends with its client.
	_, resp, err := ask(t, r, engines.Read, "pprof/profile?seconds=300", "")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := resp.Raw.Stream(gone, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a profile whose client is gone = %v", err)
	}
	for _, route := range r.Routes() {
		if !route.Flags.Has(engines.Sudo | engines.RootNamespace) {
			t.Errorf("%s does not need sudo in the root namespace", route.Pattern)
		}
	}
}

func TestCORS(t *testing.T) {
	store := &storage.Memory{}
	c := NewCORS(store)
	store.OnChange(c.Changed)
	r := router(c.Routes)
	send := func(method, origin string, header ...string) (answered bool, w *httptest.ResponseRecorder) {
		req := httptest.NewRequest(method, "http://coffer.example:8200/v1/sys/health", nil)
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		for _, h := range header {
			req.Header.Set(h, "POST")
		}
		w = httptest.NewRecorder()
		return c.Apply(w, req), w
	}
	if data := must(t, r, engines.Read, "config/cors", ""); data["enabled"] != false {
		t.Errorf("a new server: %v", data)
	}
	if answered, w := send("GET", "https://app.example"); answered || len(w.Header()) != 0 {
		t.Errorf("disabled: answered %v with %v", answered, w.Header())
	}
	for _, bad := range []string{
		`{}`, `{"allowed_origins":"*,https://a.example"}`, `{"allowed_origins":"app.example"}`, `{"allowed_origins":"https://a.example/path"}`,
		`{"allowed_origins":"*","allow_credentials":true}`, `{"allowed_origins":"https://a.example","allowed_headers":["a b"]}`,
	} {
		refused(t, r, engines.KindInvalid, engines.Update, "config/cors", bad)
	}
	must(t, r, engines.Update, "config/cors", `{"allowed_origins":["https://app.example"],"allowed_headers":["X-Mine","content-type"],"enabled":true}`)
	data := must(t, r, engines.Read, "config/cors", "")
	if data["enabled"] != true || len(data["allowed_headers"].([]any)) != len(corsHeaders)+1 {
		t.Errorf("read = %v", data)
	}
	if answered, w := send("GET", "https://app.example"); answered || w.Header().Get("Access-Control-Allow-Origin") != "https://app.example" || w.Header().Get("Vary") != "Origin" {
		t.Errorf("allowed: answered %v with %v", answered, w.Header())
	}
	answered, w := send("OPTIONS", "https://app.example", "Access-Control-Request-Method")
	if !answered || w.Code != 204 || !strings.Contains(w.Header().Get("Access-Control-Allow-Headers"), "X-Mine") || !strings.Contains(w.Header().Get("Access-Control-Allow-Methods"), "LIST") {
		t.Errorf("preflight: answered %v, %d, %v", answered, w.Code, w.Header())
	}
	if answered, w := send("POST", "https://evil.example"); !answered || w.Code != 403 || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a stranger: answered %v, %d, %v", answered, w.Code, w.Header())
	}
	for _, origin := range []string{"", "http://coffer.example:8200"} {
		if answered, w := send("POST", origin); answered || len(w.Header()) != 0 {
			t.Errorf("origin %q: answered %v with %v", origin, answered, w.Header())
		}
	}
	must(t, r, engines.Update, "config/cors", `{"allowed_origins":"*"}`)
	if answered, w := send("GET", "https://evil.example"); answered || w.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("everybody: answered %v with %v", answered, w.Header())
	}
	must(t, r, engines.Delete, "config/cors", "")
	if answered, w := send("GET", "https://app.example"); answered || len(w.Header()) != 0 {
		t.Errorf("after delete: answered %v with %v", answered, w.Header())
	}
}

func TestUIHeaders(t *testing.T) {
	store := &storage.Memory{}
	u := NewUIHeaders(store)
	store.OnChange(u.Changed)
	r := router(u.Routes)
	page := u.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Write([]byte("page"))
	}))
	get := func() http.Header {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest("GET", "/ui/", nil))
		if w.Body.String() != "page" {
			t.Errorf("the page is %q", w.Body)
		}
		return w.Header()
	}
	refused(t, r, engines.KindNotFound, engines.List, "config/ui/headers", "")
	refused(t, r, engines.KindNotFound, engines.Read, "config/ui/headers/X-Custom", "")
	for _, name := range []string{"X-Vault-Token", "x-vault-anything", "Content-Type", "set-cookie", "Access-Control-Allow-Origin", "a b"} {
		refused(t, r, engines.KindInvalid, engines.Update, "config/ui/headers/"+name, `{"values":"v"}`)
	}
	for _, body := range []string{`{}`, `{"values":[]}`, `{"values":"a\r\nSet-Cookie: x"}`, `{"values":{"a":1}}`, `{"values":[""]}`} {
		refused(t, r, engines.KindInvalid, engines.Update, "config/ui/headers/X-Custom", body)
	}
	must(t, r, engines.Update, "config/ui/headers/x-custom", `{"values":["one, and a comma","two"]}`)
	_, resp, err := ask(t, r, engines.Update, "config/ui/headers/Content-Security-Policy", `{"values":"default-src 'self'"}`)
	if err != nil || resp == nil || len(resp.Warnings) != 1 {
		t.Errorf("replacing the policy = %v, %v, want a warning", resp, err)
	}
	if h := get(); len(h["X-Custom"]) != 2 || h.Get("Content-Security-Policy") != "default-src 'self'" || h.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("the page's headers are %v", h)
	}
	if data := must(t, r, engines.List, "config/ui/headers", ""); len(data["keys"].([]any)) != 2 {
		t.Errorf("list = %v", data)
	}
	if data := must(t, r, engines.Read, "config/ui/headers/X-CUSTOM", ""); data["value"] != "one, and a comma" {
		t.Errorf("read = %v", data)
	}
	if data := must(t, r, engines.Read, "config/ui/headers/x-custom?multivalue=true", ""); len(data["values"].([]any)) != 2 {
		t.Errorf("read all = %v", data)
	}
	must(t, r, engines.Delete, "config/ui/headers/Content-Security-Policy", "")
	if h := get(); h.Get("Content-Security-Policy") != "default-src 'none'" {
		t.Errorf("after delete the policy is %q", h.Get("Content-Security-Policy"))
	}
}

func TestConfigState(t *testing.T) {
	data := must(t, router(ConfigState{Sanitized: map[string]any{"log_level": "info"}}.Routes), engines.Read, "config/state/sanitized", "")
	if data["log_level"] != "info" {
		t.Errorf("state = %v", data)
	}
}
