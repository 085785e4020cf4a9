package plugin_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pquerna/otp"
	"github.com/pquerna/otp/totp"

	"github.com/coffer-project/coffer/test/harness"
)

// TestForms posts what browsers post from a provider's page: a form, without a token, from another site. It is taken at the callback of
// OpenID Connect, of plugins of that name, through each node, and nowhere else.
func TestForms(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, harness.Options{Prefix: "form"})
	leader := c.Leader()
	for _, name := range []string{"oidc", "jwt"} {
		register(leader, "auth", name, "auth")
		leader.MustDo("POST", "/v1/sys/auth/"+name, map[string]any{"type": name})
	}
	leader.MustDo("POST", "/v1/sys/auth/door", map[string]any{"type": "door"})
	leader.MustDo("POST", "/v1/sys/mounts/p", map[string]any{"type": "thing"})
	browser := browserOf(t, c)
	// post awaits a status, also while another node becomes the active one.
	post := func(n *harness.Node, want int, path, kind, body string) (header http.Header, text string) {
		t.Helper()
		harness.Await(t, "the response of "+n.ID+" to a form at "+path, patience, func() error {
			var status int
			if status, header, text = postOnce(t, browser, n, path, kind, body); status != want {
				return fmt.Errorf("status %d, want %d: %.200s", status, want, text)
			}
			return nil
		})
		return header, text
	}
	const form = "application/x-www-form-urlencoded"
	for i, n := range c.Nodes {
		for _, mount := range []string{"oidc", "jwt"} {
			user := fmt.Sprintf("ann-%d", i)
			header, _ := post(n, 303, "auth/"+mount+"/oidc/callback", form, url.Values{"state": {"of " + user}, "code": {user}}.Encode())
			if to := header.Get("Location"); to != "/ui/vault/auth/"+mount+"/oidc/callback?state=of+"+user {
				t.Errorf("%s through %s: the browser goes on to %q", mount, n.ID, to)
			}
			var out struct {
				Auth struct{ Metadata map[string]string }
			}
			query := url.Values{"state": {"of " + user}, "code": {"no_code"}}.Encode()
			harness.Await(t, "the login", patience, func() error {
				a, err := n.Do(t.Context(), "GET", "/v1/auth/"+mount+"/oidc/callback?"+query, "", nil)
				if err == nil && a.Status != 200 { // the plugin of another node does not know of the form
					post(n, 303, "auth/"+mount+"/oidc/callback", form, url.Values{"state": {"of " + user}, "code": {user}}.Encode())
					return fmt.Errorf("status %d: %s", a.Status, a.Body)
				}
				if err == nil {
					a.Decode(t, &out)
				}
				return err
			})
			if out.Auth.Metadata["user"] != user {
				t.Errorf("the login is of %v", out.Auth.Metadata)
			}
		}
		for _, at := range map[string]struct {
			status           int
			path, kind, body string
		}{
			"another plugin":   {403, "auth/door/oidc/callback", form, "state=1&code=x"},
			"another path":     {403, "auth/oidc/login", form, "user=ann"},
			"a secrets engine": {403, "p/public/x", form, "a=b"},
			"JSON":             {403, "auth/oidc/oidc/callback", "application/json", `{"state":"1"}`},
			"a field twice":    {400, "auth/oidc/oidc/callback", form, "state=1&state=2"},
			"too many fields":  {400, "auth/oidc/oidc/callback", form, manyFields()},
			"what is no form":  {400, "auth/oidc/oidc/callback", form, "state=%zz"},
			"too large a form": {413, "auth/oidc/oidc/callback", form, "state=" + strings.Repeat("x", 3<<20)},
			"a login":          {403, "auth/jwt/login", form, "role=x&jwt=y"},
		} {
			post(n, at.status, at.path, at.kind, at.body)
		}
	}
}

// TestFormWithoutUI has the plugin answer the browser where there is no UI to go on to.
func TestFormWithoutUI(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, harness.Options{Prefix: "noui", Config: "ui = false"})
	n := c.Leader()
	register(n, "auth", "oidc", "auth")
	n.MustDo("POST", "/v1/sys/auth/oidc", map[string]any{"type": "oidc"})
	body := url.Values{"state": {"of ann"}, "code": {"ann"}}.Encode()
	status, header, text := postOnce(t, browserOf(t, c), n, "auth/oidc/oidc/callback", "application/x-www-form-urlencoded", body)
	if status >= 300 || header.Get("Location") != "" {
		t.Errorf("the browser got status %d, and goes on to %q: %s", status, header.Get("Location"), text)
	}
}

// postOnce sends what a page of another site has a browser send.
func postOnce(t *testing.T, browser *http.Client, n *harness.Node, path, kind, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", n.URL+"/v1/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {kind}, "Origin": {"https://login.example.com"}, "Sec-Fetch-Site": {"cross-site"}}
	resp, err := browser.Do(req)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return resp.StatusCode, resp.Header, string(text)
}

func manyFields() string {
	fields := url.Values{}
	for i := range 40 {
		fields.Set(fmt.Sprintf("f%d", i), "x")
	}
	return fields.Encode()
}

func browserOf(t *testing.T, c *harness.Cluster) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Timeout: patience, CheckRedirect: stay, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
}

// TestLoginWithForm logs in with the command line, to whose callback the provider has the browser post a form, where a second factor is
// needed.
func TestLoginWithForm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, harness.Options{Prefix: "code"})
	n := c.Leader()
	register(n, "auth", "oidc", "auth")
	n.MustDo("POST", "/v1/sys/auth/oidc", map[string]any{"type": "oidc"})
	port := fmt.Sprint(harness.FreePort(t))
	login := func(args ...string) (token, said string, err error) {
		t.Helper()
		cmd := client(t, c, n, append(append([]string{"login", "-method=oidc", "-token-only"}, args...), "port="+port, "skip_browser=true")...)
		var out bytes.Buffer
		cmd.Stdout = &out
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&text, lines.Text())
			if page, err := url.Parse(lines.Text()); err == nil && page.Scheme == "http" {
				resp, err := http.PostForm(page.Query().Get("redirect_uri"), url.Values{"state": {"s"}, "code": {"ann"}, "id_token": {"t"}})
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		}
		err = cmd.Wait()
		return strings.TrimSpace(out.String()), text.String(), err
	}
	token, said, err := login()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	entity := field(t, do(t, n, 200, "GET", "auth/token/lookup-self", token, nil), "entity_id")
	method := field(t, n.MustDo("POST", "/v1/identity/mfa/method/totp", map[string]any{"issuer": "coffer", "method_name": "phone", "period": 300}), "method_id")
	link := field(t, n.MustDo("POST", "/v1/identity/mfa/method/totp/admin-generate", map[string]any{"method_id": method, "entity_id": entity}), "url")
	accessor := field(t, n.MustDo("GET", "/v1/sys/auth/oidc", nil), "accessor")
	n.MustDo("POST", "/v1/identity/mfa/login-enforcement/all", map[string]any{"mfa_method_ids": method, "auth_method_accessors": accessor})
	if token, said, err := login(); err == nil || token != "" || !strings.Contains(said, "give it with -mfa=phone:CODE") {
		t.Errorf("without a code: %v, a token of %d characters: %s", err, len(token), said)
	}
	key, err := otp.NewKeyFromURL(link)
	if err != nil {
		t.Fatal(err)
	}
	code, err := totp.GenerateCodeCustom(key.Secret(), time.Now(), totp.ValidateOpts{Period: 300, Digits: otp.DigitsSix, Algorithm: otp.AlgorithmSHA1})
	if err != nil {
		t.Fatal(err)
	}
	if token, said, err = login("-mfa=phone:" + code); err != nil {
		t.Fatalf("with a code: %v: %s", err, said)
	}
	do(t, n, 200, "GET", "auth/token/lookup-self", token, nil)
}
