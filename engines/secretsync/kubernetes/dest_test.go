package kubernetes_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes/kubernetestest"
)

const mark = "0123456789abcdef-fedcba"

func config() kubernetes.Config {
	return kubernetes.Config{APIServer: "https://cluster.example.com:6443", Token: kubernetestest.Token, Namespace: "shop"}
}

func openWith(t *testing.T, c kubernetes.Config, env destination.Env) destination.Destination {
	t.Helper()
	return desttest.Open(t, kubernetes.Type, &c, env)
}

func rig(t *testing.T) (*kubernetestest.Server, destination.Destination) {
	t.Helper()
	s := kubernetestest.New(t)
	s.AddNamespace("shop")
	return s, openWith(t, config(), desttest.At(s.URL))
}

func fails(t *testing.T, err error, code string) *destination.Error {
	t.Helper()
	return desttest.Fails(t, err, code, kubernetestest.Token)
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: mark, Token: strings.Repeat("0", 36)}
}

func whole(name, value string) destination.Item {
	it := item(name, value)
	it.Object = true
	return it
}

// fake is a namespace in the suite.
type fake struct{ *kubernetestest.Server }

func (f *fake) Open(t *testing.T) destination.Destination {
	return openWith(t, config(), desttest.At(f.URL))
}
func (f *fake) OpenThrough(t *testing.T, h desttest.Hook) destination.Destination {
	return openWith(t, config(), desttest.Through(h, f.URL))
}

func (f *fake) EndlessLists() map[string]func(*http.Request, int) (http.Header, string) {
	page := func(next func(n int) int) func(*http.Request, int) (http.Header, string) {
		return func(_ *http.Request, n int) (http.Header, string) {
			return nil, fmt.Sprintf(`{"kind":"PartialObjectMetadataList","metadata":{"continue":"%d"},"items":[]}`, next(n))
		}
	}
	return map[string]func(*http.Request, int) (http.Header, string){
		"always another page": page(func(n int) int { return n }), "in a circle": page(func(int) int { return 1 }),
	}
}
func (f *fake) Put(_ *testing.T, name, value string) { f.Server.Put("shop", name, "value", value) }
func (f *fake) Get(t *testing.T, name string) (string, bool) {
	s, ok := f.Server.Get("shop", name)
	if ok && len(s.Data) != 1 {
		t.Errorf("%s has the data keys %v", name, s.Data)
	}
	return string(s.Data["value"]), ok
}
func (f *fake) Fail(fault desttest.Fault) { f.Faults.Set(fault) }
func (f *fake) Secrets() []string         { return []string{kubernetestest.Token} }

func TestDestination(t *testing.T) {
	desttest.Run(t, kubernetes.Type, func(t *testing.T) desttest.Fake {
		s := kubernetestest.New(t)
		s.AddNamespace("shop")
		return &fake{s}
	})
}

// A whole secret has a data key for each of its keys; keys that went are removed, and its value is read back.
func TestKeysBecomeDataKeys(t *testing.T) {
	s, d := rig(t)
	for _, tt := range []struct {
		value string
		data  map[string]string
		known bool
	}{
		{`{"password":"the-value","user":"shop"}`, map[string]string{"password": "the-value", "user": "shop"}, true},
		{`{"password":"the-value-2"}`, map[string]string{"password": "the-value-2"}, true},
		{`{"html":"<a&b>","tls.crt":"line\nline"}`, map[string]string{"html": "<a&b>", "tls.crt": "line\nline"}, true},
		{`{"list":[1,2],"port":5432,"on":true,"none":null}`, map[string]string{"list": "[1,2]", "port": "5432", "on": "true", "none": "null"}, false},
		{`{"value":"{}"}`, map[string]string{"value": "{}"}, true},
	} {
		held := desttest.Write(t, d, whole("app", tt.value))
		got, _ := s.Get("shop", "app")
		if len(got.Data) != len(tt.data) || got.Type != "Opaque" || got.Labels["app.kubernetes.io/managed-by"] != "coffer" {
			t.Errorf("%s is %+v", tt.value, got)
		}
		for key, value := range tt.data {
			if string(got.Data[key]) != value {
				t.Errorf("%s: %s is %q", tt.value, key, got.Data[key])
			}
		}
		f := desttest.Read(t, d, "app")
		if f.Known != tt.known || f.Known && string(f.Value) != tt.value || f.OwnerTag != mark || f.Version != held.Version {
			t.Errorf("%s is read as %s, %+v", tt.value, f.Value, f)
		}
	}
}

// A data key that another client has added shows in the value, and goes with the next write.
func TestForeignDataKey(t *testing.T) {
	s, d := rig(t)
	for name, it := range map[string]destination.Item{"whole": whole("whole", `{"a":"the-value"}`), "raw": item("raw", "the-value")} {
		desttest.Write(t, d, it)
		now, _ := s.Get("shop", name)
		now.Data["theirs"] = []byte("x")
		s.Apply("shop", now)
		f := desttest.Read(t, d, name)
		if !f.Known || string(f.Value) == string(it.Value) || f.OwnerTag != mark {
			t.Errorf("read as %s, %+v", f.Value, f)
		}
		if _, err := d.Write(t.Context(), it, f); err != nil {
			t.Fatal(err)
		}
		if now, _ := s.Get("shop", name); len(now.Data) != 1 {
			t.Errorf("left %v", now.Data)
		}
	}
}

// What is adopted keeps labels and annotations of other clients, and its type.
func TestAdopt(t *testing.T) {
	s, d := rig(t)
	s.Apply("shop", kubernetestest.Secret{
		Name: "app", Type: "kubernetes.io/basic-auth", Labels: map[string]string{"team": "a", "old": "x"}, Annotations: map[string]string{"note": "n"},
		Data: map[string][]byte{"username": []byte("u"), "password": []byte("p")},
	})
	f := desttest.Read(t, d, "app")
	if !f.Known || string(f.Value) != `{"password":"p","username":"u"}` {
		t.Errorf("read as %s", f.Value)
	}
	it := whole("app", `{"username":"v"}`)
	it.Tags, it.OldTags = map[string]string{"stage": "test"}, []string{"old"}
	if _, err := d.Write(t.Context(), it, f); err != nil {
		t.Fatal(err)
	}
	now, _ := s.Get("shop", "app")
	if now.Type != "kubernetes.io/basic-auth" || now.Labels["team"] != "a" || now.Labels["stage"] != "test" || now.Labels["old"] != "" || now.Annotations["note"] != "n" || len(now.Data) != 1 {
		t.Errorf("it is %+v", now)
	}
}

func TestTypes(t *testing.T) {
	s := kubernetestest.New(t)
	s.AddNamespace("shop")
	c := config()
	c.SecretType = "kubernetes.io/tls"
	d := openWith(t, c, desttest.At(s.URL))
	if checks := d.Verify(t.Context()); failing(checks) != "" {
		t.Errorf("%+v", checks)
	}
	_, err := d.Write(t.Context(), whole("cert", `{"a":"the-value"}`), destination.Found{Name: "cert"})
	if e := fails(t, err, destination.BadRequest); !strings.Contains(e.Text, "type") {
		t.Errorf("%+v", e)
	}
	desttest.Write(t, d, whole("cert", `{"tls.crt":"c","tls.key":"k"}`))
	if now, _ := s.Get("shop", "cert"); now.Type != "kubernetes.io/tls" {
		t.Errorf("it is %+v", now)
	}
	s.Put("shop", "theirs", "a", "b")
	_, err = d.Write(t.Context(), whole("theirs", `{"tls.crt":"c","tls.key":"k"}`), desttest.Read(t, d, "theirs"))
	if e := fails(t, err, destination.BadRequest); !strings.Contains(e.Text, "Opaque") {
		t.Errorf("%+v", e)
	}
}

// What cannot be changed says what to do.
func TestUnchangeable(t *testing.T) {
	s, d := rig(t)
	s.Apply("shop", kubernetestest.Secret{Name: "fixed", Type: "Opaque", Immutable: true, Data: map[string][]byte{"a": nil}})
	_, err := d.Write(t.Context(), item("fixed", "the-value"), desttest.Read(t, d, "fixed"))
	if e := fails(t, err, destination.BadRequest); !strings.Contains(e.Text, "immutable") {
		t.Errorf("%+v", e)
	}
	desttest.Write(t, d, item("held", "the-value"))
	now, _ := s.Get("shop", "held")
	now.Finalizers = true
	s.Apply("shop", now)
	if err := d.Delete(t.Context(), desttest.Read(t, d, "held")); err != nil {
		t.Fatal(err)
	}
	_, err = d.Write(t.Context(), item("held", "the-value"), desttest.Read(t, d, "held"))
	fails(t, err, destination.Recovering)
}

func TestLimits(t *testing.T) {
	s, d := rig(t)
	s.Calls()
	large := fmt.Sprintf(`{"a":%q,"b":"b"}`, strings.Repeat("v", 1<<20))
	for _, tt := range []struct {
		it         destination.Item
		code, text string
	}{
		{whole("a", `{"not legal":"the-value"}`), destination.BadRequest, "not legal"},
		{whole("a", `{"..":"the-value"}`), destination.BadRequest, ".."},
		{whole("a", large), destination.TooLarge, "1048576"},
		{item("A", "the-value"), destination.BadRequest, "lower-case"},
		{item("a/../b", "the-value"), destination.BadRequest, "lower-case"},
	} {
		_, err := d.Write(t.Context(), tt.it, destination.Found{Name: tt.it.Name})
		if e := fails(t, err, tt.code); e.Class != destination.Client || !strings.Contains(e.Text, tt.text) {
			t.Errorf("%+v", e)
		}
	}
	_, err := d.Read(t.Context(), "a/../b")
	fails(t, err, destination.BadRequest)
	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
	s.Full(true)
	_, err = d.Write(t.Context(), item("a", "the-value"), destination.Found{Name: "a"})
	fails(t, err, destination.Quota)
}

func failing(checks []destination.Check) string {
	for _, c := range checks {
		if !c.OK && !c.Unknown {
			return c.Name
		}
	}
	return ""
}

func TestVerify(t *testing.T) {
	s := kubernetestest.New(t)
	s.AddNamespace("shop")
	token := func(expires time.Duration) engines.Sensitive {
		claims := fmt.Sprintf(`{"exp":%d}`, time.Now().Add(expires).Unix())
		return engines.Sensitive("eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".x")
	}
	for name, tt := range map[string]struct {
		change func(*kubernetes.Config)
		want   string
	}{
		"fine":             {func(*kubernetes.Config) {}, ""},
		"read only":        {func(c *kubernetes.Config) { c.Token = kubernetestest.ReadOnly }, "create"},
		"no namespace":     {func(c *kubernetes.Config) { c.Namespace = "none" }, "create"},
		"wrong":            {func(c *kubernetes.Config) { c.Token = "wrong" }, "credentials"},
		"expired":          {func(c *kubernetes.Config) { c.Token = token(-time.Hour) }, "credentials"},
		"no API server":    {func(c *kubernetes.Config) { c.Namespace = "none" }, "create"},
		"not of a cluster": {func(c *kubernetes.Config) { c.Token = token(time.Hour) }, "credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tt.change(&c)
			if checks := openWith(t, c, desttest.At(s.URL)).Verify(t.Context()); failing(checks) != tt.want {
				t.Errorf("%+v", checks)
			}
		})
	}
	if _, err := openWith(t, func() kubernetes.Config { c := config(); c.Namespace = "none"; return c }(), desttest.At(s.URL)).
		Write(t.Context(), item("a", "the-value"), destination.Found{Name: "a"}); err == nil {
		t.Error("written without a namespace")
	} else {
		fails(t, err, destination.NoLocation)
	}
}

// Without an operator's URL, the API server's certificate is that of ca_cert, and only that.
func TestCACert(t *testing.T) {
	s := kubernetestest.New(t)
	s.AddNamespace("shop")
	env := destination.Env{Client: &http.Client{Transport: &http.Transport{}}, Dial: new(net.Dialer).DialContext, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	c := config()
	c.APIServer, c.CACert = s.TLS+"/", s.CA
	d := openWith(t, c, env)
	desttest.Write(t, d, item("a", "the-value"))
	c.CACert = ""
	_, err := openWith(t, c, env).Read(t.Context(), "a")
	if e := fails(t, err, destination.Unreachable); !strings.Contains(e.Text, "certificate") {
		t.Errorf("%+v", e)
	}
	blocked := env
	blocked.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "not this one"}
	}
	c.CACert = s.CA
	_, err = openWith(t, c, blocked).Read(t.Context(), "a")
	fails(t, err, destination.Blocked)
}

// What is not an API server is not taken for one.
func TestOtherServers(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   string
		code   string
	}{
		"a page":           {200, "<html>", destination.Unexpected},
		"an empty object":  {200, "{}", destination.Unexpected},
		"another Secret":   {200, `{"kind":"Secret","metadata":{"name":"b","uid":"u","resourceVersion":"1"}}`, destination.Unexpected},
		"a page not found": {404, "<html>", destination.NoLocation},
		"another Status":   {404, `{"kind":"Status","reason":"NotFound","details":{"kind":"namespaces"}}`, destination.NoLocation},
		"a redirect":       {307, "", destination.Unexpected},
	} {
		t.Run(name, func(t *testing.T) {
			l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "http://evil.example/")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer l.Close()
			d := openWith(t, config(), desttest.At(l.URL))
			_, err := d.Read(t.Context(), "a")
			fails(t, err, tt.code)
			_, err = d.Write(t.Context(), item("a", "the-value"), destination.Found{Name: "a"})
			if e := fails(t, err, tt.code); e.Unknown != (tt.status < 400) {
				t.Errorf("%+v", e)
			}
		})
	}
}

// What changes between the read and the write is found by the API server.
func TestChangeInBetween(t *testing.T) {
	s, d := rig(t)
	desttest.Write(t, d, item("a", "the-value"))
	was := desttest.Read(t, d, "a")
	s.Drop("shop", "a")
	_, err := d.Write(t.Context(), item("a", "the-value-2"), was)
	fails(t, err, destination.Changed)
	s.Put("shop", "a", "value", "theirs")
	_, err = d.Write(t.Context(), item("a", "the-value-2"), was)
	fails(t, err, destination.Changed)
	fails(t, d.Delete(t.Context(), was), destination.Changed)
	was.Handle = nil
	_, err = d.Write(t.Context(), item("a", "the-value-2"), was)
	fails(t, err, destination.Unexpected)
}

// lower reads names in lower case, which the helpers of the suite do not know as the only one.
type lower struct{ destination.Destination }

func (l lower) Read(ctx context.Context, name string) (destination.Found, error) {
	return l.Destination.Read(ctx, strings.ToLower(name))
}

func TestWire(t *testing.T) {
	open := func(env destination.Env) destination.Destination { return lower{openWith(t, config(), env)} }
	desttest.Unreachable(t, open, kubernetestest.Token)
	desttest.Blocked(t, open, func(r *http.Request) bool {
		return r.URL.String() == "https://cluster.example.com:6443/api/v1/namespaces/shop/secrets/a"
	}, kubernetestest.Token)
	c := config()
	desttest.Closes(t, kubernetes.Type, &c, destination.Env{})
	_, err := kubernetes.Type.Open(&c, destination.Env{})
	fails(t, err, destination.Unexpected)
}

// TestNonsense: a response that is no list is not one without names, as all of which would then have drifted.
func TestNonsense(t *testing.T) {
	for _, body := range []string{"null", "{}", `{"items":null}`, `{"kind":"Status","items":[]}`, "[]"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		t.Cleanup(server.Close)
		d := openWith(t, config(), destination.Env{Client: &http.Client{Transport: &http.Transport{}}, URL: server.URL})
		failed := false
		for f, err := range d.List(t.Context()) {
			failed = err != nil
			if err == nil {
				t.Errorf("%s has the name %q", body, f.Name)
			}
		}
		if !failed {
			t.Errorf("%s is taken for a list", body)
		}
		if f, err := d.Read(t.Context(), "name"); err == nil {
			t.Errorf("%s is taken for %+v", body, f)
		}
	}
}
