package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/httpapi"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/storage"
)

// backend records what reaches it and answers as told.
type backend struct {
	active    bool
	elected   bool // it becomes active while the request is under way
	place     pipeline.Place
	got       *pipeline.Request
	answer    *pipeline.Reply
	err       error
	behind    bool          // the state a client asks for has not arrived
	age       time.Duration // of the state
	awaited   int           // how often its state was waited for
	sealed    bool
	hangs     bool // the active node never answers
	form      bool // the route takes forms
	most      int64
	forwarded []string
}

func (b *backend) Place(context.Context, *pipeline.Request) (pipeline.Place, error) {
	return b.place, nil
}
func (b *backend) Handle(_ context.Context, r *pipeline.Request) (*pipeline.Reply, error) {
	if r.ReadBody != nil {
		var err error
		if r.Body, err = r.ReadBody(pipeline.BodyRule{Form: b.form, MaxBytes: b.most}); err != nil {
			return nil, err
		}
	}
	b.got = r
	return b.answer, b.err
}
func (b *backend) WantsRawBody(context.Context, *pipeline.Request) bool { return false }
func (b *backend) BodyRule(context.Context, *pipeline.Request) pipeline.BodyRule {
	return pipeline.BodyRule{Form: b.form, MaxBytes: b.most}
}
func (b *backend) WantsForeignForm(_ context.Context, r *pipeline.Request) bool {
	return b.form && strings.HasSuffix(r.Path, "/callback")
}
func (b *backend) Active() bool                     { return b.active }
func (b *backend) AwaitActive(context.Context) bool { b.active = b.elected; return b.elected }
func (b *backend) ActiveAddr() string               { return "https://active.example:8200" }
func (b *backend) State() []string                  { return []string{"state"} }
func (b *backend) Linearize(context.Context) error  { return nil }
func (b *backend) NodeID() string                   { return "n1" }
func (b *backend) Sealed() bool                     { return b.sealed }
func (b *backend) Behind() time.Duration            { return b.age }
func (b *backend) AwaitState(ctx context.Context, _ string) error {
	if b.awaited++; !b.behind {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (b *backend) Forward(w http.ResponseWriter, r *http.Request) error {
	if b.elected {
		return storage.ErrUnavailable
	}
	if b.hangs {
		<-r.Context().Done()
		return storage.ErrOutcomeUnknown
	}
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Vault-Index", "state")
	b.forwarded = append(b.forwarded, r.Method+" "+r.URL.Path+" "+string(body))
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func call(t *testing.T, b *backend, o httpapi.Options, method, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	o.Requests, o.Backend = b, b
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	httpapi.New(o).ServeHTTP(w, r)
	return w
}

func TestOperations(t *testing.T) {
	tests := []struct {
		method, target string
		op             engines.Operation
		path           string
	}{
		{"GET", "/v1/secret/a", engines.Read, "secret/a"},
		{"GET", "/secret/a", engines.Read, "secret/a"},
		{"GET", "/v1/secret/a?list=true", engines.List, "secret/a/"},
		{"GET", "/v1/secret/a?list=True", engines.List, "secret/a/"},
		{"GET", "/v1/secret/a?list=0", engines.Read, "secret/a"},
		{"LIST", "/v1/secret/a/", engines.List, "secret/a/"},
		{"LIST", "/v1/secret/a", engines.List, "secret/a/"},
		{"POST", "/v1/secret/a", engines.Update, "secret/a"},
		{"PUT", "/v1/secret/a", engines.Update, "secret/a"},
		{"PATCH", "/v1/secret/a", engines.Patch, "secret/a"},
		{"DELETE", "/v1/secret/a", engines.Delete, "secret/a"},
		{"GET", "/v1/secret/a%20b", engines.Read, "secret/a b"},
	}
	for _, tt := range tests {
		b := &backend{active: true}
		w := call(t, b, httpapi.Options{}, tt.method, tt.target, "")
		if b.got == nil || b.got.Op != tt.op || b.got.Path != tt.path {
			t.Errorf("%s %s reached the backend as %+v, want %s %s (status %d)", tt.method, tt.target, b.got, tt.op, tt.path, w.Code)
		}
	}
}

func TestHostilePaths(t *testing.T) {
	for _, target := range []string{
		"/v1/secret/../sys/raw", "/v1/secret/%2e%2e/x", "/v1/secret/./x", "/v1/secret/%2e/x", "/v1/secret//x",
		"/v1/secret/%2f%2fx", "/v1/secret/a%00b", "/v1/secret/a%0ab", "/v1/secret/%ff", "/v1/secret/a%7f",
		"/v1/" + strings.Repeat("a", 3000), "/v1/secret/..%2fx", "/v1/secret/x/..",
	} {
		b := &backend{active: true}
		w := call(t, b, httpapi.Options{}, "POST", target, "{}")
		if w.Code != http.StatusBadRequest || b.got != nil {
			t.Errorf("POST %.40q = %d, reached the backend: %v; want 400 and not", target, w.Code, b.got != nil)
		}
		var body struct{ Errors []string }
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || len(body.Errors) != 1 || !strings.Contains(body.Errors[0], "path") {
			t.Errorf("POST %.40q says %q, want one error about the path", target, w.Body)
		}
	}
}

func TestTokenAndNamespace(t *testing.T) {
	for _, header := range [][]string{
		{"X-Vault-Token", "t"}, {"Authorization", "Bearer t"}, {"Authorization", "bearer t"},
	} {
		b := &backend{active: true}
		call(t, b, httpapi.Options{}, "GET", "/v1/x/y", "", append(header, "X-Vault-Namespace", "a/b/")...)
		if b.got.Token.Reveal() != "t" || b.got.Namespace != "a/b" {
			t.Errorf("%v: token found %v, namespace %q", header, b.got.Token != "", b.got.Namespace)
		}
	}
}

func TestBodies(t *testing.T) {
	for body, want := range map[string]string{"": "", "null": "", "  \n": "", `{"a":1}`: `{"a":1}`} {
		b := &backend{active: true}
		call(t, b, httpapi.Options{}, "POST", "/v1/x/y", body)
		if string(b.got.Body) != want {
			t.Errorf("body %q arrives as %q, want %q", body, b.got.Body, want)
		}
	}
	b := &backend{active: true}
	if w := call(t, b, httpapi.Options{MaxBodyBytes: 10}, "POST", "/v1/x/y", `{"a":"0123456789"}`); w.Code != http.StatusRequestEntityTooLarge || b.got != nil {
		t.Errorf("a body over the limit = %d, want 413 before the backend", w.Code)
	}
}

func TestEnvelope(t *testing.T) {
	b := &backend{active: true, answer: &pipeline.Reply{
		Response: &engines.Response{
			Data: json.RawMessage(`{"k":"<&>"}`), Warnings: []string{"careful"},
			Top:  map[string]any{"keys": []string{"a"}, "data": "never twice"},
			Held: &engines.HeldLease{Seconds: 60},
		},
		MountType: "kv",
	}}
	w := call(t, b, httpapi.Options{}, "GET", "/v1/x/y", "")
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	for _, key := range []string{"request_id", "lease_id", "renewable", "lease_duration", "data", "wrap_info", "warnings", "auth", "mount_type", "keys"} {
		if _, ok := got[key]; !ok {
			t.Errorf("the envelope lacks %q: %s", key, w.Body)
		}
	}
	if !strings.Contains(w.Body.String(), `"data":{"k":"<&>"}`) || got["lease_duration"] != 60.0 {
		t.Errorf("data or lease changed on the way: %s", w.Body)
	}
	if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Vault-Index") != "state" {
		t.Errorf("header = %v", w.Header())
	}
}

func TestNothingToSay(t *testing.T) {
	w := call(t, &backend{active: true}, httpapi.Options{}, "POST", "/v1/x/y", "{}")
	if w.Code != http.StatusNoContent || w.Body.Len() != 0 {
		t.Errorf("= %d %q, want 204 and no body", w.Code, w.Body)
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		err    error
		status int
		text   string // "": an empty list
	}{
		{engines.Invalid("field %q is missing", "a"), 400, `field "a" is missing`},
		{engines.Denied(errors.New("inner reason")), 403, "permission denied"},
		{engines.NotFound(""), 404, ""},
		{&engines.Error{Kind: engines.KindUnsupported, Detail: "no"}, 405, "no"},
		{&engines.Error{Kind: engines.KindUpstream, Detail: "no"}, 502, "no"},
		{storage.ErrSealed, 503, "Vault is sealed"},
		{storage.ErrUnavailable, 503, "try again"},
		{storage.ErrOutcomeUnknown, 503, "outcome unknown"},
		{storage.ErrTooLarge, 413, "1 MiB"},
		{context.DeadlineExceeded, 503, "too long"},
		{errors.New("disk on fire in /var"), 500, "internal error"},
		{&engines.Error{Kind: engines.KindInternal, Detail: "inside"}, 500, "internal error"},
	}
	for _, tt := range tests {
		w := call(t, &backend{active: true, err: tt.err}, httpapi.Options{}, "GET", "/v1/x/y", "")
		var body struct{ Errors []string }
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Errors == nil {
			t.Errorf("%v: body %q", tt.err, w.Body)
			continue
		}
		text := strings.Join(body.Errors, "")
		if w.Code != tt.status || !strings.Contains(text, tt.text) || tt.text == "" && text != "" {
			t.Errorf("%v = %d %q, want %d %q", tt.err, w.Code, text, tt.status, tt.text)
		}
		if strings.Contains(text, "fire") || strings.Contains(text, "inner") || strings.Contains(text, "inside") {
			t.Errorf("%v: the cause reached the client: %q", tt.err, text)
		}
	}
}

func TestStandby(t *testing.T) {
	t.Run("writes go to the active node", func(t *testing.T) {
		b := &backend{place: pipeline.Active}
		w := call(t, b, httpapi.Options{}, "POST", "/v1/x/y", `{"a":1}`)
		if w.Code != http.StatusAccepted || len(b.forwarded) != 1 || b.forwarded[0] != `POST /v1/x/y {"a":1}` || b.got != nil {
			t.Errorf("= %d, forwarded %q", w.Code, b.forwarded)
		}
	})
	t.Run("a read that writes runs again there", func(t *testing.T) {
		b := &backend{place: pipeline.Here, err: storage.ErrReadOnly}
		if w := call(t, b, httpapi.Options{}, "GET", "/v1/x/y", ""); w.Code != http.StatusAccepted || len(b.forwarded) != 1 {
			t.Errorf("= %d, forwarded %q", w.Code, b.forwarded)
		}
	})
	t.Run("a forwarded request never travels on", func(t *testing.T) {
		b := &backend{place: pipeline.Active, err: storage.ErrReadOnly}
		r := httptest.NewRequest("POST", "/v1/x/y", strings.NewReader("{}"))
		w := httptest.NewRecorder()
		httpapi.New(httpapi.Options{Requests: b, Backend: b}).Forwarded().ServeHTTP(w, r)
		if w.Code != http.StatusServiceUnavailable || len(b.forwarded) != 0 {
			t.Errorf("= %d, forwarded %q", w.Code, b.forwarded)
		}
	})
	t.Run("a standby that becomes active serves what it wanted to forward", func(t *testing.T) {
		b := &backend{place: pipeline.Active, elected: true}
		if w := call(t, b, httpapi.Options{}, "POST", "/v1/x/y", `{"a":1}`); w.Code != http.StatusNoContent || string(b.got.Body) != `{"a":1}` {
			t.Errorf("= %d %+v", w.Code, b.got)
		}
	})
	t.Run("a client may ask for a redirect", func(t *testing.T) {
		w := call(t, &backend{place: pipeline.Active}, httpapi.Options{}, "POST", "/v1/x/y?z=1", "{}", "X-Vault-No-Request-Forwarding", "true")
		if w.Code != http.StatusTemporaryRedirect || w.Header().Get("Location") != "https://active.example:8200/v1/x/y?z=1" {
			t.Errorf("= %d %q", w.Code, w.Header().Get("Location"))
		}
	})
	t.Run("a read waits for the state the client has seen", func(t *testing.T) {
		b := &backend{place: pipeline.Here, behind: true}
		w := call(t, b, httpapi.Options{}, "GET", "/v1/x/y", "", "X-Vault-Index", "i", "X-Vault-Inconsistent", "fail")
		if w.Code != http.StatusPreconditionFailed || b.got != nil {
			t.Errorf("fail: = %d", w.Code)
		}
		w = call(t, b, httpapi.Options{}, "GET", "/v1/x/y", "", "X-Vault-Index", "i", "X-Vault-Inconsistent", "forward-active-node")
		if w.Code != http.StatusAccepted {
			t.Errorf("forward-active-node: = %d", w.Code)
		}
	})
}

// Only LIST paths end in a slash: for everything else two spellings would be one object under two policies.
func TestLastSlash(t *testing.T) {
	for _, tt := range []struct {
		method, target, path string // "": refused
	}{
		{"GET", "/v1/sys/mounts/a/", "sys/mounts/a"}, {"DELETE", "/v1/sys/mounts/a/", "sys/mounts/a"},
		{"POST", "/v1/sys/mounts/a/", ""}, {"PUT", "/v1/sys/mounts/a%2f", ""}, {"PATCH", "/v1/x/", ""},
		{"LIST", "/v1/x", "x/"}, {"GET", "/v1/x/?list=true", "x/"},
	} {
		b := &backend{active: true}
		w := call(t, b, httpapi.Options{}, tt.method, tt.target, "")
		if tt.path == "" {
			if b.got != nil || w.Code != http.StatusBadRequest {
				t.Errorf("%s %s = %d, want 400 before the backend", tt.method, tt.target, w.Code)
			}
		} else if b.got == nil || b.got.Path != tt.path {
			t.Errorf("%s %s reached the backend as %+v, want %q", tt.method, tt.target, b.got, tt.path)
		}
	}
}

// Memory is given for what has come, not for what is announced.
func TestAnnouncedBody(t *testing.T) {
	r := httptest.NewRequest("POST", "/v1/x/y", strings.NewReader("{"))
	r.ContentLength = 32 << 20
	b := &backend{active: true}
	api := httpapi.New(httpapi.Options{Requests: b, Backend: b})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	api.ServeHTTP(httptest.NewRecorder(), r)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("a body of one byte that claims 32 MiB takes %d bytes of memory", got)
	}
}

// A client that never sends the rest of its body, and an active node that never answers, do not hold a
// request for ever.
func TestStalledRequests(t *testing.T) {
	for name, b := range map[string]*backend{
		"body": {active: true}, "body of a forwarded request": {place: pipeline.Active}, "active node": {place: pipeline.Active, hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(httpapi.New(httpapi.Options{Requests: b, Backend: b, Timeout: 20 * time.Millisecond}))
			defer s.Close()
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			length := "9"
			if b.hangs {
				length = "1"
			}
			if _, err := io.WriteString(conn, "POST /v1/x/y HTTP/1.1\r\nHost: h\r\nContent-Length: "+length+"\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
				t.Errorf("no answer: %v", err)
			}
		})
	}
}

func TestStreams(t *testing.T) {
	streamed := false
	stream := func(ctx context.Context, w interface{ Write([]byte) (int, error) }) error {
		streamed = true
		if _, limited := ctx.Deadline(); limited {
			t.Error("a stream has a time limit")
		}
		_, err := w.Write([]byte("all of it"))
		return err
	}
	b := &backend{active: true, answer: &pipeline.Reply{Response: &engines.Response{Raw: &engines.Raw{Stream: stream}}}}
	if w := call(t, b, httpapi.Options{}, "HEAD", "/v1/x/y", ""); streamed || w.Code != http.StatusOK {
		t.Errorf("HEAD = %d, streamed: %v", w.Code, streamed)
	}
	if w := call(t, b, httpapi.Options{}, "GET", "/v1/x/y", ""); w.Body.String() != "all of it" {
		t.Errorf("GET = %q", w.Body)
	}
}

func TestForwardedReadsAreCurrent(t *testing.T) {
	b := &backend{place: pipeline.Here}
	api := httpapi.New(httpapi.Options{Requests: b, Backend: b})
	for forwarded, handler := range map[bool]http.Handler{false: api, true: api.Forwarded()} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/x/y", nil))
		if b.got.Current != forwarded {
			t.Errorf("forwarded: %v, current: %v", forwarded, b.got.Current)
		}
	}
	call(t, b, httpapi.Options{}, "GET", "/v1/x/y", "", "X-Vault-Consistency", "linearizable")
	if !b.got.Current {
		t.Error("a linearizable read need not be current")
	}
	// The node may be unsealed before the request runs, and does not have what it missed then.
	b.sealed, b.got = true, nil
	call(t, b, httpapi.Options{}, "GET", "/v1/x/y", "", "X-Vault-Consistency", "linearizable")
	if !b.got.Current {
		t.Error("a linearizable read that came while the node was sealed need not be current")
	}
}

// A response of the active node waits for its effects here, but not on a node that is known to lag.
func TestForwardedWriteWaitsForItsEffects(t *testing.T) {
	for age, want := range map[time.Duration]int{0: 1, time.Second: 1, 3 * time.Second: 0, -1: 0} {
		b := &backend{place: pipeline.Active, age: age}
		call(t, b, httpapi.Options{}, "POST", "/v1/x/y", "{}")
		if b.awaited != want || len(b.forwarded) != 1 {
			t.Errorf("%v behind: waited %d times, want %d; forwarded %d times", age, b.awaited, want, len(b.forwarded))
		}
	}
}

// A node that forwards and the one that answers read the same path.
func TestForwardedPath(t *testing.T) {
	b := &backend{active: true}
	api := httpapi.New(httpapi.Options{Requests: b, Backend: b})
	for _, target := range []string{"/v1/x/y", "/x/y", "/v1%2fx/y", "/v1/v1/x"} {
		var paths []string
		for _, handler := range []http.Handler{api, api.Forwarded()} {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", target, nil))
			paths = append(paths, b.got.Path)
		}
		if paths[0] != paths[1] {
			t.Errorf("%s is %q here and %q when forwarded", target, paths[0], paths[1])
		}
	}
}

// What is asked of this node is not answered by another one.
func TestOnlyHere(t *testing.T) {
	b := &backend{place: pipeline.Only, err: storage.ErrReadOnly}
	call(t, b, httpapi.Options{}, "POST", "/v1/sys/seal", "", "X-Vault-Forward", "active-node")
	if len(b.forwarded) != 0 {
		t.Errorf("forwarded %q", b.forwarded)
	}
}

func TestObserve(t *testing.T) {
	var status int
	o := httpapi.Options{Observe: func(_, _ string, s int, _ time.Duration) { status = s }}
	call(t, &backend{active: true, err: engines.Denied(nil)}, o, "GET", "/v1/x/y", "")
	if status != http.StatusForbidden {
		t.Errorf("observed status %d, want 403", status)
	}
}

// FuzzPath: whatever the target, the backend only ever sees a path without tricks in it.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"secret/a", "secret/../sys", "%2e%2e/x", "a//b", "a%2fb", "a%00", "\xff", "a/./b", "ui/", ""} {
		f.Add(seed, "GET")
		f.Add(seed, "LIST")
	}
	b := &backend{active: true}
	api := httpapi.New(httpapi.Options{Requests: b, Backend: b})
	f.Fuzz(func(t *testing.T, target, method string) {
		r := &http.Request{Method: method, URL: &url.URL{Path: "/v1/" + target}, Header: http.Header{}, RemoteAddr: "127.0.0.1:1"}
		b.got = nil
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if b.got == nil {
			if w.Code < 400 || w.Code >= 500 {
				t.Fatalf("%q was answered %d without the backend", target, w.Code)
			}
			return
		}
		for i, seg := range strings.Split(strings.TrimSuffix(b.got.Path, "/"), "/") {
			if seg == "." || seg == ".." || seg == "" && (i > 0 || b.got.Path != "" && b.got.Path != "/") {
				t.Fatalf("%q reached the backend as %q", target, b.got.Path)
			}
		}
		if strings.ContainsAny(b.got.Path, "\x00\n\r\x7f") || !utf8.ValidString(b.got.Path) {
			t.Fatalf("%q reached the backend as %q", target, b.got.Path)
		}
	})
}

func TestForms(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	post := func(b *backend, contentType, body string) (*backend, *httptest.ResponseRecorder) {
		b.active = true
		return b, call(t, b, httpapi.Options{}, "POST", "/v1/auth/x/callback", body, "Content-Type", contentType)
	}
	b, w := post(&backend{form: true}, form+"; charset=utf-8", "RelayState=a%2Bb&SAMLResponse=PD94+bWw%3D")
	if w.Code != 204 || string(b.got.Body) != `{"RelayState":"a+b","SAMLResponse":"PD94 bWw="}` {
		t.Errorf("a form reached the engine as %s (status %d)", b.got.Body, w.Code)
	}
	if b, _ = post(&backend{form: true}, form, `{"RelayState":"a"}`); string(b.got.Body) != `{"RelayState":"a"}` {
		t.Errorf("JSON that is called a form reached the engine as %s", b.got.Body)
	}
	if b, _ = post(&backend{}, form, "a=b"); string(b.got.Body) != "a=b" {
		t.Errorf("a route that takes no forms got %s", b.got.Body)
	}
	for body, status := range map[string]int{
		"a=1&a=2": 400, "a=%zz": 400, strings.Repeat("x=1&", 17): 400, "a=" + strings.Repeat("x", 2<<20): 413,
		"a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&j=1&k=2&l=3&m=4&n=5&o=6&p=7&q=8": 400,
	} {
		if b, w := post(&backend{form: true}, form, body); w.Code != status || b.got != nil {
			t.Errorf("the form %.20q answers %d, want %d", body, w.Code, status)
		}
	}
}

func TestErrorPage(t *testing.T) {
	page := &engines.Raw{ContentType: "text/html; charset=utf-8", Header: http.Header{"X-Frame-Options": {"DENY"}}, Body: []byte("<p>no")}
	b := &backend{active: true, err: &engines.Error{Kind: engines.KindDenied, Detail: "refused", Reason: "why", Page: page}}
	w := call(t, b, httpapi.Options{}, "POST", "/v1/auth/x/callback", "")
	if w.Code != 403 || w.Body.String() != "<p>no" || w.Header().Get("Content-Type") != page.ContentType || w.Header().Get("X-Frame-Options") != "DENY" {
		t.Errorf("an error with a page answers %d %q %v", w.Code, w.Body, w.Header())
	}
	b.err = &engines.Error{Kind: engines.KindUnauthorized, Detail: "not yet"}
	if w := call(t, b, httpapi.Options{}, "POST", "/v1/auth/x/token", ""); w.Code != 401 || !strings.Contains(w.Body.String(), `{"errors":["not yet"]}`) {
		t.Errorf("a login that is not finished answers %d %s", w.Code, w.Body)
	}
}
