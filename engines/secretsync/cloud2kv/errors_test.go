package cloud2kv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// scripted is a vault that answers the requests with a token itself, where answer says so by returning true.
func scripted(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) bool) (*vault, *cloud2kvtest.Vault) {
	t.Helper()
	p := cloud2kvtest.New(t)
	p.Front = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" || !answer(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	}
	return opened(t, config(), destination.Env{Client: p.Client()}), p
}

func TestAnswersOfTheVault(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		header string // Retry-After
		body   string
		class  destination.Class
		code   string
		wait   time.Duration
		maybe  bool   // it may have been done
		text   string // is in the text
	}{
		"a bad parameter":       {400, "", `{"error":{"code":"BadParameter","message":"x"}}`, destination.Client, destination.BadRequest, 0, false, "400 BadParameter"},
		"a token rejected":      {401, "", `{"error":{"code":"Unauthorized","message":"AKV10032: Invalid issuer."}}`, destination.Client, destination.Denied, 0, false, "AKV10032"},
		"by policy":             {403, "", `{"error":{"code":"Forbidden","message":"x","innererror":{"code":"ForbiddenByPolicy"}}}`, destination.Client, destination.Denied, 0, false, "secrets/set"},
		"by role":               {403, "", `{"error":{"code":"Forbidden","innererror":{"code":"ForbiddenByRbac"}}}`, destination.Client, destination.Denied, 0, false, "role"},
		"by firewall":           {403, "", `{"error":{"code":"Forbidden","innererror":{"code":"ForbiddenByFirewall"}}}`, destination.Client, destination.Denied, 0, false, "firewall"},
		"by something in front": {403, "", `<html>no</html>`, destination.Client, destination.Denied, 0, false, "403"},
		"no vault":              {404, "", `{"error":{"code":"VaultNotFound","message":"x"}}`, destination.Client, destination.NoLocation, 0, false, "key_vault_uri"},
		"no timely request":     {408, "", ``, destination.External, destination.Unavailable, 0, true, "408"},
		"being recovered":       {409, "", `{"error":{"code":"Conflict","innererror":{"code":"ObjectIsBeingRecovered"}}}`, destination.External, destination.Recovering, 0, false, "recovered"},
		"too large":             {413, "", ``, destination.Client, destination.TooLarge, 0, false, "413"},
		"throttled":             {429, "12", `{"error":{"code":"Throttled","message":"x"}}`, destination.External, destination.Throttled, 12 * time.Second, false, "too many"},
		"throttled until":       {429, "Sat, 21 Nov 2026 10:00:30 GMT", ``, destination.External, destination.Throttled, 30 * time.Second, false, "too many"},
		"throttled for ages":    {429, "99999999", ``, destination.External, destination.Throttled, destination.MaxRetryAfter, false, "too many"},
		"throttled, oddly":      {429, "-5", ``, destination.External, destination.Throttled, 0, false, "too many"},
		"trouble":               {500, "", `{"error":{"code":"InternalServerError"}}`, destination.External, destination.Unavailable, 0, true, "500"},
		"unavailable":           {503, "7", `{`, destination.External, destination.Unavailable, 7 * time.Second, true, "503"},
		"a redirect":            {307, "", ``, destination.External, destination.Unexpected, 0, true, "307"},
		"no content":            {204, "", ``, destination.External, destination.Unexpected, 0, true, "204"},
		"no JSON":               {200, "", `<html>hello</html>`, destination.External, destination.Unexpected, 0, true, "unexpected response"},
		"another secret":        {200, "", `{"value":"v","id":"https://x/secrets/other/0123"}`, destination.External, destination.Unexpected, 0, true, "another secret"},
		"a path for a name":     {200, "", `{"value":"v","id":"https://x/secrets/..%2f..%2fname/0123"}`, destination.External, destination.Unexpected, 0, true, "unexpected response"},
		"no version":            {200, "", `{"value":"v","id":"https://x/secrets/name"}`, destination.External, destination.Unexpected, 0, true, "another secret"},
		"no ID":                 {200, "", `{"value":"v"}`, destination.External, destination.Unexpected, 0, true, "no ID"},
		"an odd ID":             {200, "", `{"value":"v","id":"::"}`, destination.External, destination.Unexpected, 0, true, "unexpected response"},
		"nothing":               {200, "", `null`, destination.External, destination.Unexpected, 0, true, "no ID"},
		"odd types":             {200, "", `{"value":7,"id":{}}`, destination.External, destination.Unexpected, 0, true, "unexpected response"},
		"an endless answer":     {200, "", `{"value":"` + strings.Repeat("v", maxAnswerBytes) + `"}`, destination.External, destination.Unexpected, 0, true, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut {
					return false
				}
				w.Header().Set("Date", "Sat, 21 Nov 2026 10:00:00 GMT")
				if test.header != "" {
					w.Header().Set("Retry-After", test.header)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
				return true
			})
			_, err := v.Write(t.Context(), item("name", "the-value"), desttest.Read(t, v, "name"))
			e := desttest.Fails(t, err, test.code)
			if e.Class != test.class || e.RetryAfter != test.wait || e.Unknown != test.maybe || !strings.Contains(e.Text, test.text) {
				t.Errorf("%+v", e)
			}
		})
	}
}

// Nothing of a response's text gets into an error, whatever the vault echoes.
func TestErrorsTellNoSecret(t *testing.T) {
	secrets := []string{cloud2kvtest.ClientSecret, "hunter2", "Bearer", "token."}
	status := 0
	v, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		echo := fmt.Sprintf("%q", string(body)+r.Header.Get("Authorization")+cloud2kvtest.ClientSecret)
		w.Header().Set("Location", "https://hunter2.example/?"+cloud2kvtest.ClientSecret)
		w.Header().Set("X-Ms-Error-Code", "hunter2")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"code":"hunter2","message":`+echo+`,"innererror":{"code":"hunter2"}}}`)
		return true
	})
	was := desttest.Read(t, v, "name")
	for status = 300; status < 600; status++ {
		if status%100 > 30 {
			continue
		}
		_, err := v.Write(t.Context(), item("name", "hunter2"), was)
		e, ok := errors.AsType[*destination.Error](err)
		if !ok {
			t.Fatalf("status %d: %v", status, err)
		}
		for _, secret := range secrets {
			if text := fmt.Sprintf("%v %+v %v", e, e.Text, e.Err); strings.Contains(text, secret) {
				t.Errorf("status %d: the error tells a secret: %s", status, strings.ReplaceAll(text, secret, "…"))
			}
		}
	}
}

func TestRefusedCredentials(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		text   string
	}{
		"a wrong secret":     {func(c *Config) { c.ClientSecret = "hunter2-and-more" }, "AADSTS7000215"},
		"an unknown client":  {func(c *Config) { c.ClientID = "00000000-0000-4000-8000-000000000000" }, "client_id"},
		"an unknown tenant":  {func(c *Config) { c.TenantID = "unknown.onmicrosoft.com" }, "AADSTS90002"},
		"the wrong tenant":   {func(c *Config) { c.TenantID = "00000000-0000-4000-8000-000000000000" }, "belongs to the tenant " + cloud2kvtest.TenantID},
		"a wrong secret too": {func(c *Config) { c.ClientSecret = "x"; c.TenantID = "example.onmicrosoft.com" }, "client_secret is wrong"},
	} {
		p := cloud2kvtest.New(t)
		c := config()
		test.change(c)
		v := opened(t, c, destination.Env{Client: p.Client()})
		_, err := v.Read(t.Context(), "name")
		e := desttest.Fails(t, err, destination.Denied)
		if e.Class != destination.Client || !strings.Contains(e.Text, test.text) || strings.Contains(fmt.Sprintf("%v %v", e, e.Err), "hunter2") {
			t.Errorf("%s: %+v", name, e)
		}
		_, err = v.Write(t.Context(), item("name", "v"), destination.Found{})
		if e := desttest.Fails(t, err, destination.Denied); e.Unknown {
			t.Errorf("%s: the write was certainly not done", name)
		}
	}
}

// replies is a transport that answers for some hosts itself.
type replies struct {
	next  http.RoundTripper
	reply func(r *http.Request) (*http.Response, error) // nil, nil: ask next
	seen  func(r *http.Request)
}

func (p replies) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.seen != nil {
		p.seen(r)
	}
	if p.reply != nil {
		if resp, err := p.reply(r); resp != nil || err != nil {
			return resp, err
		}
	}
	return p.next.RoundTrip(r)
}

// through opens a vault whose requests go through replies.
func through(t *testing.T, p *cloud2kvtest.Vault, by replies) *vault {
	client := p.Client()
	by.next = client.Transport
	client.Transport = by
	return opened(t, config(), destination.Env{Client: client})
}

func reply(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
}

func TestTroubleWithTokens(t *testing.T) {
	for name, test := range map[string]struct {
		reply func(r *http.Request) (*http.Response, error)
		code  string
		class destination.Class
	}{
		"throttled":         {func(*http.Request) (*http.Response, error) { return reply(429, "{}"), nil }, destination.Throttled, destination.External},
		"trouble":           {func(*http.Request) (*http.Response, error) { return reply(503, "hello"), nil }, destination.Unavailable, destination.External},
		"no sense":          {func(*http.Request) (*http.Response, error) { return reply(200, "hello"), nil }, destination.Unexpected, destination.External},
		"an empty answer":   {func(*http.Request) (*http.Response, error) { return reply(200, "{}"), nil }, destination.Unexpected, destination.External},
		"rejected, oddly":   {func(*http.Request) (*http.Response, error) { return reply(400, "{}"), nil }, destination.Denied, destination.Client},
		"a broken answer":   {func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, destination.Unreachable, destination.External},
		"no name":           {func(*http.Request) (*http.Response, error) { return nil, &net.DNSError{IsNotFound: true} }, destination.Unreachable, destination.External},
		"a blocked address": {func(*http.Request) (*http.Response, error) { return nil, blocked }, destination.Blocked, destination.Client},
		"tokens elsewhere": {func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "openid-configuration") {
				return nil, nil
			}
			elsewhere := "https://evil.example/" + cloud2kvtest.TenantID
			return reply(200, fmt.Sprintf(`{"token_endpoint":"%[1]s/token","authorization_endpoint":"%[1]s/a","issuer":"https://login.microsoftonline.com/%[2]s/v2.0"}`, elsewhere, cloud2kvtest.TenantID)), nil
		}, destination.Blocked, destination.Client},
	} {
		t.Run(name, func(t *testing.T) {
			p := cloud2kvtest.New(t)
			v := through(t, p, replies{
				reply: func(r *http.Request) (*http.Response, error) {
					if r.URL.Host != "login.microsoftonline.com" {
						return nil, nil
					}
					resp, err := test.reply(r)
					if resp != nil {
						resp.Request = r
					}
					return resp, err
				},
				seen: func(r *http.Request) {
					if r.URL.Host == "evil.example" {
						t.Error("the credentials go to another host")
					}
				},
			})
			_, err := v.Write(t.Context(), item("name", "v"), destination.Found{})
			if e := desttest.Fails(t, err, test.code); e.Class != test.class || e.Unknown && e.Code != destination.Unavailable {
				t.Errorf("%+v", e)
			}
		})
	}
}

var blocked = &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "the address is private"}

func TestVaultsThatCannotBeReached(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for name, test := range map[string]struct {
		err   error
		code  string
		class destination.Class
		sent  bool
		text  string
	}{
		"no such vault":       {dial(&net.DNSError{Err: "no such host", IsNotFound: true}), destination.NoLocation, destination.Client, false, "no such vault"},
		"no resolver":         {dial(&net.DNSError{Err: "timeout", IsTimeout: true}), destination.Unreachable, destination.External, false, "looked up"},
		"no route":            {dial(errors.New("no route to host")), destination.Unreachable, destination.External, false, "connected"},
		"a blocked address":   {dial(blocked), destination.Blocked, destination.Client, false, "private"},
		"a foreign signature": {&tls.CertificateVerificationError{Err: errors.New("x")}, destination.Unreachable, destination.External, true, "certificate"},
		"a broken connection": {io.ErrUnexpectedEOF, destination.Unreachable, destination.External, true, "broke"},
		"no time":             {context.DeadlineExceeded, destination.Unreachable, destination.External, true, "in time"},
		"given up":            {context.Canceled, destination.Unreachable, destination.External, true, "given up"},
	} {
		t.Run(name, func(t *testing.T) {
			p := cloud2kvtest.New(t)
			v := through(t, p, replies{reply: func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPut {
					return nil, test.err
				}
				return nil, nil
			}})
			_, err := v.Write(t.Context(), item("name", "v"), desttest.Read(t, v, "name"))
			if e := desttest.Fails(t, err, test.code); e.Class != test.class || e.Unknown != test.sent || !strings.Contains(e.Text, test.text) {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A vault must not be able to have tokens sent elsewhere, or tokens for something else made.
func TestTheVaultCannotSendUsElsewhere(t *testing.T) {
	elsewhere := func(r *http.Request) {
		if r.URL.Host != cloud2kvtest.Host && r.URL.Host != cloud2kvtest.Host+":443" && r.URL.Host != "login.microsoftonline.com" {
			t.Errorf("called %s", r.URL.Host)
		}
	}
	for _, link := range []string{"https://evil.example/secrets?page=2", "http://" + cloud2kvtest.Host + "/secrets?page=2", "https://" + cloud2kvtest.Host + ".evil.example/", "https://" + cloud2kvtest.Host + ":8443/secrets"} {
		p := cloud2kvtest.New(t)
		p.Front = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/secrets" && r.Header.Get("Authorization") != "" {
					fmt.Fprintf(w, `{"value":[],"nextLink":%q}`, link)
					return
				}
				next.ServeHTTP(w, r)
			})
		}
		v := through(t, p, replies{seen: elsewhere})
		for _, err := range v.List(t.Context()) {
			if e, ok := errors.AsType[*destination.Error](err); !ok || e.Code != destination.Blocked && e.Code != destination.Unexpected {
				t.Errorf("%s: %v", link, err)
			}
		}
	}
	for _, resource := range []string{"https://management.azure.com", "https://vault.azure.cn", "https://graph.microsoft.com/", "https://example", ""} {
		p := cloud2kvtest.New(t)
		p.Challenge(cloud2kvtest.TenantID, resource)
		v := through(t, p, replies{seen: elsewhere})
		_, err := v.Read(t.Context(), "name")
		desttest.Fails(t, err, destination.Unexpected)
		if n := p.Issued(); n != 0 {
			t.Errorf("a token was issued for the resource %q", resource)
		}
	}
}

// Lists that never end are given up, those of versions, too.
func TestListThatGoesInCircles(t *testing.T) {
	for _, circle := range []int{1, 2, 3} {
		pages := 0
		v, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/secrets/name/" || r.URL.Path == "/secrets/name" {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, `{"error":{"code":"Forbidden","innererror":{"code":"SecretDisabled"}}}`)
				return true
			}
			if pages++; pages > 20 {
				w.WriteHeader(http.StatusInternalServerError)
				return true
			}
			fmt.Fprintf(w, `{"value":[],"nextLink":"https://%s%s?api-version=1&$skiptoken=%d"}`, r.Host, r.URL.Path, pages%circle)
			return true
		})
		for _, err := range v.List(t.Context()) {
			desttest.Fails(t, err, destination.Unexpected)
		}
		pages = 0
		_, err := v.Read(t.Context(), "name")
		desttest.Fails(t, err, destination.Unexpected)
	}
}

// A broken challenge must not bring the server down.
func TestBrokenChallenges(t *testing.T) {
	for _, challenge := range []string{
		"", "Bearer", "Basic realm=x", `Bearer authorization="x", resource="https://vault.azure.net"`, `Bearer authorization=, resource="https://vault.azure.net"`,
		`Bearer authorization="https://login.windows.net", resource="https://vault.azure.net"`, `Bearer authorization="https://login.windows.net/` + cloud2kvtest.TenantID + `", resource=":"`,
		`Bearer error="insufficient_claims", claims="%%"`, `Bearer authorization="////", resource="https://vault.azure.net"`,
		"Bearer x,authorization=\"https:\"\tresource=\"https://vault.azure.net\"",
	} {
		p := cloud2kvtest.New(t)
		p.Front = func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
			})
		}
		v := opened(t, config(), destination.Env{Client: p.Client()})
		_, err := v.Write(t.Context(), item("name", "v"), destination.Found{})
		if e, ok := errors.AsType[*destination.Error](err); !ok || e.Code != destination.Unexpected && e.Code != destination.Denied || e.Unknown {
			t.Errorf("%q: %v", challenge, err)
		}
	}
}

// A 404 of something in front of the vault does not mean that a name is free.
func TestNotFoundByOthersIsNotAbsent(t *testing.T) {
	for _, body := range []string{"<html>404</html>", "", `{"error":{"code":"NotFound","message":"SecretNotFound"}}`} {
		v, _ := scripted(t, func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, body)
			return true
		})
		_, err := v.Read(t.Context(), "name")
		desttest.Fails(t, err, destination.NoLocation)
		desttest.Fails(t, v.Delete(t.Context(), destination.Found{Name: "name", State: destination.Present}), destination.NoLocation)
	}
}

// Nothing is repeated: the one above counts the calls.
func TestNothingIsRepeated(t *testing.T) {
	n := 0
	v, _ := scripted(t, func(w http.ResponseWriter, _ *http.Request) bool {
		n++
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	_, err := v.Read(t.Context(), "name")
	desttest.Fails(t, err, destination.Unavailable)
	if n != 1 {
		t.Errorf("%d requests", n)
	}
}

// Values and credentials are in no URL.
func TestURLsTellNoSecret(t *testing.T) {
	p := cloud2kvtest.New(t)
	v := through(t, p, replies{seen: func(r *http.Request) {
		for _, secret := range []string{cloud2kvtest.ClientSecret, "hunter2", mark} {
			if strings.Contains(r.URL.String(), secret) || strings.Contains(r.UserAgent(), secret) {
				t.Errorf("%s %s tells a secret", r.Method, r.URL.Path)
			}
		}
	}})
	write(t, v, item("name", "hunter2"), desttest.Read(t, v, "name"))
	for key, value := range p.Tags("name") {
		if strings.Contains(key+value, "hunter2") {
			t.Error("a tag tells the value")
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"https://x.vault.azure.net/secrets/name/0123456789abcdef", "https://x/secrets/name", "https://x/secrets/a%2fb/c", "https://x/keys/a", "::", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		name, version, ok := parseID(id)
		if !ok {
			if name != "" || version != "" {
				t.Fatalf("%q: %q %q", id, name, version)
			}
			return
		}
		if problem := checkName(name); problem != "" || strings.ContainsFunc(version, func(r rune) bool { return !legal(r) }) {
			t.Fatalf("%q: name %q, version %q", id, name, version)
		}
	})
}

func FuzzChallenge(f *testing.F) {
	for _, seed := range []string{`Bearer authorization="https://login.windows.net/x", resource="https://vault.azure.net"`, `Bearer authorization="x"`, "Bearer a=b authorization=c=d", "authorization==/ authorization=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if !soundChallenge(header) {
			return
		}
		// Only what can be given to the SDK is sound: it takes the fourth part of the authority.
		for _, part := range strings.Split(strings.ReplaceAll(header, "Bearer ", ""), " ") {
			words := strings.Split(part, "=")
			if len(words) == 2 && words[0] == "authorization" {
				if authority := strings.TrimSuffix(strings.ReplaceAll(words[1], `"`, ""), ","); authority != "" && len(strings.Split(authority, "/")) < 4 {
					t.Fatalf("%q would be taken apart out of bounds", header)
				}
			}
		}
	})
}
