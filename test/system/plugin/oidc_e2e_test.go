//go:build e2e

package plugin_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

const clientSecret = "a-secret-of-the-client-that-is-long-enough"

// people is an OpenID provider with the users of test/e2e/oidc/provider.js.
type people struct {
	c        *harness.Cluster
	e2e      string // directory
	port     string // of the command line's callback
	issuer   string
	password map[string]string
	// meanwhile is called when the command line waits for the browser.
	meanwhile func()
}

// oidcLogin enables oidc as docs/oidc.md says, and in a namespace, with a provider that others wrote.
func oidcLogin(t *testing.T, c *harness.Cluster) counterpart {
	p := &people{c: c, port: fmt.Sprint(harness.FreePort(t)), password: map[string]string{"ada": "correct horse", "eve": "battery staple"}}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	p.e2e = filepath.Join(root, "test", "e2e")
	redirects := []string{"http://localhost:" + p.port + "/oidc/callback"}
	for _, n := range c.Nodes {
		redirects = append(redirects, n.URL+"/ui/vault/auth/oidc/oidc/callback", n.URL+"/ui/vault/auth/sso/people/oidc/callback")
	}
	registered, err := json.Marshal(map[string]any{"id": "coffer", "secret": clientSecret, "redirects": redirects})
	if err != nil {
		t.Fatal(err)
	}
	p.start(t, string(registered))

	n := c.Leader()
	documented(t, c, "oidc.md", "## Sign people in with OpenID Connect", map[string]string{"client-secret": clientSecret},
		"https://login.example.com", p.issuer, "https://coffer.example.com:8200", n.URL)
	n.MustDo("POST", "/v1/auth/oidc/role/staff", map[string]any{
		"role_type": "oidc", "user_claim": "sub", "bound_claims": map[string]any{"groups": "staff"}, "oidc_scopes": []string{"profile"},
		"allowed_redirect_uris": redirects[:1], "token_policies": "app",
	})
	n.MustDo("POST", "/v1/sys/namespaces/team", nil)
	n.MustDo("POST", "/v1/team/sys/auth/sso/people", map[string]any{"type": "oidc", "config": map[string]any{"listing_visibility": "unauth"}})
	n.MustDo("POST", "/v1/team/auth/sso/people/config", map[string]any{"oidc_discovery_url": p.issuer, "oidc_client_id": "coffer", "oidc_client_secret": clientSecret})
	n.MustDo("POST", "/v1/team/auth/sso/people/role/dev", map[string]any{"role_type": "oidc", "user_claim": "sub", "allowed_redirect_uris": redirects})

	for what, login := range map[string]func() (string, error){
		"a wrong password":                   func() (string, error) { return p.login(t, n, "dev", "ada", "wrong") },
		"a user without the groups":          func() (string, error) { return p.login(t, n, "staff", "eve", "") },
		"a role that is not there":           func() (string, error) { return p.login(t, n, "other", "ada", "") },
		"a state that the server never made": func() (string, error) { return p.forged(t, n) },
	} {
		if token, err := login(); err == nil {
			t.Errorf("%s: a token of %d characters", what, len(token))
		} else if regexp.MustCompile(`[?&]code=`).MatchString(err.Error()) {
			t.Errorf("%s: the error shows the provider's code: %v", what, err)
		}
	}
	p.meanwhile = func() { // the plugin ends, and what it remembers of the login with it
		kill(t, n)
		harness.Await(t, "another process of the plugin", patience, func() error {
			a, err := n.DoAsRoot("GET", "/v1/auth/oidc/config", nil)
			if err == nil && a.Status != 200 {
				err = fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return err
		})
	}
	if _, err := p.login(t, n, "dev", "ada", ""); err == nil || !strings.Contains(err.Error(), "Expired or missing OAuth state") {
		t.Errorf("a login that the plugin does not know any more: %v", err)
	}
	p.meanwhile = nil
	if token, err := p.login(t, n, "dev", "eve", ""); err != nil {
		t.Errorf("a visitor: %v", err)
	} else if readsApp(t, n, token) == nil {
		t.Error("a visitor reads what engineers may")
	}
	var held string
	return counterpart{
		name: "oidc",
		use: func(n *harness.Node) error {
			token, err := p.login(t, n, "", "ada", "")
			if err != nil {
				return err
			}
			return readsApp(t, n, token)
		},
		before: func(n *harness.Node) (err error) {
			if err := p.browse(t, n); err != nil {
				return err
			}
			held, err = p.login(t, n, "staff", "ada", "")
			return err
		},
		after: func(n *harness.Node) error {
			if a, err := n.Do(t.Context(), "POST", "/v1/auth/token/renew-self", held, nil); err != nil || a.Status != 200 {
				return fmt.Errorf("renewing: %d %s, %v", a.Status, a.Body, err)
			}
			if err := readsApp(t, n, held); err != nil {
				return err
			}
			return p.browse(t, n)
		},
	}
}

// start starts the provider, until the test ends.
func (p *people) start(t *testing.T, client string) {
	provider := exec.Command("node", "oidc/provider.js")
	provider.Dir, provider.Stderr = p.e2e, os.Stderr
	provider.Env = append(os.Environ(), "COFFER_CLIENT="+client, "NODE_NO_WARNINGS=1")
	provider.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
	out, err := provider.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := provider.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := provider.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = provider.Process.Kill()
		_ = provider.Wait()
	})
	for lines := bufio.NewScanner(out); p.issuer == ""; {
		if !lines.Scan() {
			t.Fatalf("the provider ended: run test/e2e/run, which installs it")
		}
		if strings.HasPrefix(lines.Text(), "http://") {
			p.issuer = lines.Text()
		}
	}
}

// login logs a user in with coffer login -method=oidc, and returns the token. Without a password it is the user's own.
func (p *people) login(t *testing.T, n *harness.Node, role, user, password string) (string, error) {
	t.Helper()
	if password == "" {
		password = p.password[user]
	}
	args := []string{"login", "-method=oidc", "-token-only", "port=" + p.port, "skip_browser=true"}
	if role != "" {
		args = append(args, "role="+role)
	}
	cmd := client(t, p.c, n, args...)
	var token bytes.Buffer
	cmd.Stdout = &token
	said, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var text strings.Builder
	var signed error
	for lines := bufio.NewScanner(said); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if strings.HasPrefix(lines.Text(), "http") {
			if p.meanwhile != nil {
				p.meanwhile()
			}
			if signed = p.signIn(lines.Text(), user, password); signed != nil {
				_ = cmd.Process.Kill()
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("coffer login: %w: %s, %v", err, text.String(), signed)
	}
	return strings.TrimSpace(token.String()), nil
}

// signIn does at the provider what a user does in a browser, up to the callback.
func (p *people) signIn(page, user, password string) error {
	if !strings.HasPrefix(page, p.issuer+"/auth?") || !strings.Contains(page, "code_challenge_method=S256") {
		return fmt.Errorf("the page is %s", page)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	client := &http.Client{Jar: jar, Timeout: 30 * time.Second}
	resp, err := client.Get(page)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	resp, err = client.PostForm(resp.Request.URL.String(), url.Values{"username": {user}, "password": {password}, "action": {"login"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.Request.URL.Port() != p.port || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d: %s, %v", resp.Request.URL.Path, resp.StatusCode, body, err)
	}
	return nil
}

// forged sends a callback that no login has begun.
func (p *people) forged(t *testing.T, n *harness.Node) (string, error) {
	a, err := n.Do(t.Context(), "GET", "/v1/auth/oidc/oidc/callback?state=st_forged&code=forged", "", nil)
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("status %d", a.Status)
	}
	return "", err
}

// browse signs in to a node's web UI in Chromium.
func (p *people) browse(t *testing.T, n *harness.Node) error {
	t.Helper()
	ctx := t.Context()
	play := exec.CommandContext(ctx, "node", "--test-reporter=spec", "oidc/oidc.test.js")
	play.Dir = p.e2e
	play.Env = append(os.Environ(), "COFFER_UI="+n.URL, "COFFER_ISSUER="+p.issuer)
	play.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // no orphan when the test is killed
	out, err := play.CombinedOutput()
	if err != nil {
		return fmt.Errorf("test/e2e/oidc: %w: %s", err, out)
	}
	return nil
}
