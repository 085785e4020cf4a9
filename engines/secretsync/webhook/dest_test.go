package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhook"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/webhooktest"
)

func config() webhook.Config {
	return webhook.Config{URL: "https://hooks.example.com/coffer", SigningKey: webhooktest.Key, Headers: `{"authorization": "` + webhooktest.Secret + `"}`}
}

func openWith(t *testing.T, c webhook.Config, env destination.Env) destination.Destination {
	t.Helper()
	return desttest.Open(t, webhook.Type, &c, env)
}

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: "0123-4567", Token: strings.Repeat("0", 36)}
}

type fake struct{ *webhooktest.Server }

func (f *fake) Open(t *testing.T) destination.Destination {
	return openWith(t, config(), desttest.At(f.URL))
}
func (f *fake) OpenThrough(t *testing.T, h desttest.Hook) destination.Destination {
	return openWith(t, config(), desttest.Through(h, f.URL))
}
func (f *fake) Put(_ *testing.T, name, value string)         { f.Server.Put(name, value) }
func (f *fake) Get(_ *testing.T, name string) (string, bool) { return f.Server.Get(name) }
func (f *fake) Fail(fault desttest.Fault)                    { f.Faults.Set(fault) }
func (f *fake) Secrets() []string                            { return []string{webhooktest.Key, webhooktest.Secret} }

func TestDestination(t *testing.T) {
	desttest.Run(t, webhook.Type, func(t *testing.T) desttest.Fake { return &fake{webhooktest.New(t)} })
}

// A create whose response was lost is ours when it is tried again, also with another value; the receiver knows by the owner.
func TestLostCreate(t *testing.T) {
	s := webhooktest.New(t)
	d := openWith(t, config(), desttest.At(s.URL))
	s.Faults.Set(desttest.Fault{Kind: desttest.DropAfter, Times: 1})
	_, err := d.Write(t.Context(), item("a", "the-value"), destination.Found{Name: "a"})
	if e := desttest.Fails(t, err, destination.Unreachable, webhooktest.Key); !e.Unknown {
		t.Errorf("%+v", e)
	}
	next := item("a", "the-value-2")
	next.Token = strings.Repeat("1", 36)
	if _, err := d.Write(t.Context(), next, destination.Found{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Get("a"); got != "the-value-2" {
		t.Errorf("got %q", got)
	}
	if got := s.Calls(); !reflect.DeepEqual(got, []string{"create a", "create a"}) {
		t.Errorf("calls %q", got)
	}
}

func TestVerify(t *testing.T) {
	s := webhooktest.New(t)
	for name, tt := range map[string]struct {
		change func(*webhook.Config)
		want   string
	}{
		"fine":        {func(*webhook.Config) {}, ""},
		"another key": {func(c *webhook.Config) { c.SigningKey = "another-key-of-the-hook" }, "credentials"},
		"no header":   {func(c *webhook.Config) { c.Headers = "" }, "credentials"},
	} {
		c := config()
		tt.change(&c)
		failing := ""
		for _, check := range openWith(t, c, desttest.At(s.URL)).Verify(t.Context()) {
			if !check.OK && !check.Unknown {
				failing = check.Name
			}
		}
		if failing != tt.want {
			t.Errorf("%s: %q fails", name, failing)
		}
	}
}

func TestMethodAndRedirects(t *testing.T) {
	var methods []string
	l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method)
		http.Redirect(w, r, "http://evil.example/", http.StatusTemporaryRedirect)
	}))
	defer l.Close()
	c := config()
	c.Method = http.MethodPut
	_, err := openWith(t, c, desttest.At(l.URL)).Write(t.Context(), item("a", "the-value"), destination.Found{Name: "a"})
	if e := desttest.Fails(t, err, destination.Unexpected, webhooktest.Key); !e.Unknown || !reflect.DeepEqual(methods, []string{"PUT"}) {
		t.Errorf("%+v, %q", e, methods)
	}
}

func TestRejectedBeforeTheCall(t *testing.T) {
	s := webhooktest.New(t)
	d := openWith(t, config(), desttest.At(s.URL))
	for _, it := range []destination.Item{item("a", "\xff"), item("a\n", "the-value"), item("", "the-value")} {
		_, err := d.Write(t.Context(), it, destination.Found{Name: it.Name})
		desttest.Fails(t, err, destination.BadRequest)
	}
	_, err := d.Read(t.Context(), "a")
	desttest.Fails(t, err, destination.Unexpected)
	if calls := s.Calls(); len(calls) > 0 {
		t.Errorf("there were calls: %q", calls)
	}
	c := config()
	desttest.Closes(t, webhook.Type, &c, destination.Env{})
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*webhook.Config)
		want   string // a part of the only problem
	}{
		"as it is":          {func(*webhook.Config) {}, ""},
		"no URL":            {func(c *webhook.Config) { c.URL = "" }, "url must be given"},
		"without TLS":       {func(c *webhook.Config) { c.URL = "http://hooks.example.com" }, "https://"},
		"a query":           {func(c *webhook.Config) { c.URL += "?token=x" }, "headers"},
		"no key":            {func(c *webhook.Config) { c.SigningKey = "" }, "signing_key must be given"},
		"a short key":       {func(c *webhook.Config) { c.SigningKey = "short" }, "signing_key must have at least 16 bytes"},
		"a file":            {func(c *webhook.Config) { c.SigningKey = "@/etc/passwd/and/more" }, "command line"},
		"a file of headers": {func(c *webhook.Config) { c.Headers = "@h" }, "command line"},
		"no object":         {func(c *webhook.Config) { c.Headers = "[]" }, "JSON object"},
		"our header":        {func(c *webhook.Config) { c.Headers = `{"coffer-signature":"t=1"}` }, "Coffer-Signature"},
		"the host":          {func(c *webhook.Config) { c.Headers = `{"HOST":"x"}` }, "Host"},
		"a line break":      {func(c *webhook.Config) { c.Headers = `{"A":"b\r\nC: d"}` }, "printable"},
		"a name":            {func(c *webhook.Config) { c.Headers = `{"A:":"b"}` }, "names of headers"},
	} {
		c := config()
		tt.change(&c)
		got := strings.Join(c.Check(), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	c := config()
	c.Check()
	if got := c.Shown(); !reflect.DeepEqual(got, map[string]any{"url": c.URL, "method": "POST", "signing_key": destination.Mask, "headers": destination.Mask}) {
		t.Errorf("shown as %v", got)
	}
	other := config()
	other.URL = "https://evil.example.com/coffer"
	if other.Owner() == c.Owner() || other.Location() == c.Location() {
		t.Error("another receiver is the same")
	}
}
