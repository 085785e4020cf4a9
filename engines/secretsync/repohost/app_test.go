package repohost_test

import (
	"crypto/rand"
	"crypto/rsa"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

const (
	appID        = 4711
	installation = 815
)

var appKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func withApp() repohost.Config {
	return repohost.Config{AppName: "deployer", Installation: installation, RepositoryOwner: "octo", RepisitoryName: "app"}
}

// appRig is a repository with a destination that signs in as an app.
func appRig(t *testing.T) (*repohosttest.Server, destination.Destination) {
	t.Helper()
	s := repohosttest.New(t)
	s.AddRepository("octo", "app")
	s.AddInstallation(appID, &appKey().PublicKey, installation)
	return s, openWith(t, withApp(), appEnvironment(s))
}

func appEnvironment(s *repohosttest.Server) destination.Env {
	env := desttest.At(s.URL)
	env.App = &destination.App{ID: appID, Key: appKey()}
	return env
}

func issued(s *repohosttest.Server) (n int) {
	for _, c := range s.Calls() {
		if strings.HasSuffix(c, "/access_tokens") {
			n++
		}
	}
	return n
}

// A token of the installation serves many calls, and is replaced before it expires and after it was revoked.
func TestAppSignsIn(t *testing.T) {
	s, d := appRig(t)
	write(t, d, "A", "the-value")
	write(t, d, "B", "the-value")
	if got, _ := s.Get(app, "A"); got != "the-value" {
		t.Error("the value has not arrived")
	}
	if n := issued(s); n != 1 {
		t.Errorf("%d tokens were issued, want 1", n)
	}
	s.RevokeTokens()
	write(t, d, "A", "the-value-2")
	if n := issued(s); n != 1 {
		t.Errorf("%d tokens were issued after the first was revoked, want 1", n)
	}
	repohost.TokenAges(d, 54*time.Minute)
	desttest.Read(t, d, "A")
	if n := issued(s); n != 0 {
		t.Errorf("%d tokens were issued six minutes before the end of one, want 0", n)
	}
	repohost.TokenAges(d, 2*time.Minute)
	desttest.Read(t, d, "A")
	if n := issued(s); n != 1 {
		t.Errorf("%d tokens were issued four minutes before the end of one, want 1", n)
	}
}

// A response of 401 to a token that was just issued is an error, and is not asked for again and again.
func TestAppTokenIsRenewedOnce(t *testing.T) {
	s, _ := appRig(t)
	env := appEnvironment(s)
	calls := 0
	env.Client = &http.Client{Transport: desttest.Hook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if calls++; r.Method == http.MethodGet {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer revoked")
		}
		return next.RoundTrip(r)
	})}
	d := openWith(t, withApp(), env)
	for _, want := range []int{2, 5} { // a token, a read; then a read with the same token, another token, a read
		_, err := d.Read(t.Context(), "A")
		if fails(t, err, destination.Denied); calls != want {
			t.Errorf("%d calls, want %d", calls, want)
		}
	}
}

func TestAppRefusals(t *testing.T) {
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*repohosttest.Server, *repohost.Config, *destination.Env)
		want   string
	}{
		"another key":     {func(_ *repohosttest.Server, _ *repohost.Config, e *destination.Env) { e.App.Key = other }, "app_id and private_key do not belong together"},
		"another app":     {func(_ *repohosttest.Server, _ *repohost.Config, e *destination.Env) { e.App.ID = 1 }, "check installation_id, the app_id"},
		"not installed":   {func(_ *repohosttest.Server, c *repohost.Config, _ *destination.Env) { c.Installation = 1 }, "there is no installation 1 of the GitHub App deployer"},
		"a clock behind":  {func(s *repohosttest.Server, _ *repohost.Config, _ *destination.Env) { s.Advance(20 * time.Minute) }, "behind: set it"},
		"a clock ahead":   {func(s *repohosttest.Server, _ *repohost.Config, _ *destination.Env) { s.Advance(-5 * time.Minute) }, "the clocks differ: that of this server is 5m"},
		"a clock near it": {func(s *repohosttest.Server, _ *repohost.Config, _ *destination.Env) { s.Advance(-30 * time.Second) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := appRig(t)
			c, env := withApp(), appEnvironment(s)
			test.change(s, &c, &env)
			_, err := openWith(t, c, env).Read(t.Context(), "A")
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if e := fails(t, err, destination.Denied); e.Class != destination.Client || !strings.Contains(e.Text, test.want) {
				t.Errorf("%q, want %q in it", e.Text, test.want)
			}
		})
	}
}

// The key of an app is used at its own installation of GitHub only, and one that is not stored is an error.
func TestAppIsOfOneInstallation(t *testing.T) {
	s, _ := appRig(t)
	for name, test := range map[string]struct {
		url  string
		app  *destination.App
		want string
	}{
		"not stored":         {"", nil, `there is no GitHub App "deployer" in this namespace`},
		"of github.com":      {"https://evil.example", &destination.App{ID: appID, Key: appKey()}, "is one of github.com"},
		"of another company": {"", &destination.App{ID: appID, Key: appKey(), URL: "https://ghe.corp"}, "is one of https://ghe.corp"},
	} {
		c, env := withApp(), desttest.At(s.URL)
		c.EnterpriseURL, env.App = test.url, test.app
		_, err := repohost.Type.Open(&c, env)
		if e := fails(t, err, destination.Denied); !strings.Contains(e.Text, test.want) {
			t.Errorf("%s: %q, want %q in it", name, e.Text, test.want)
		}
	}
}

func TestAppVerifies(t *testing.T) {
	s, d := appRig(t)
	for _, c := range d.Verify(t.Context()) {
		if !c.OK {
			t.Errorf("%+v", c)
		}
		if c.Name == "credentials" && !strings.Contains(c.Text, "the GitHub App deployer is accepted") {
			t.Errorf("%+v", c)
		}
	}
	s.AddInstallation(appID, &rsa.PublicKey{N: appKey().N, E: 3}, 1) // another key
	s.RevokeTokens()
	checks := d.Verify(t.Context())
	if i := slices.IndexFunc(checks, func(c destination.Check) bool { return c.Name == "credentials" }); i < 0 || checks[i].OK {
		t.Errorf("%+v", checks)
	}
}

// github.com and a GitHub Enterprise Server are served side by side, and each gets its own token only.
func TestEnterpriseURL(t *testing.T) {
	for url, want := range map[string]string{
		"":                            "https://api.github.com/repos/octo/app/",
		"https://GitHub.corp.example": "https://github.corp.example/api/v3/repos/octo/app/",
		"https://octo.ghe.com":        "https://api.octo.ghe.com/repos/octo/app/",
	} {
		var got []string
		c := repo()
		c.EnterpriseURL = url
		d := openWith(t, c, destination.Env{Getenv: func(string) string { return "" }, Client: &http.Client{Transport: desttest.Hook(
			func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
				got = append(got, r.URL.String())
				return nil, &destination.Error{Class: destination.Client, Code: destination.Blocked, Text: "not this one"}
			})}})
		_, err := d.Read(t.Context(), "A")
		fails(t, err, destination.Blocked)
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q: called %q, want %q", url, got, want)
		}
	}
	// It wins over the address of the operator, which is for destinations that name none.
	s, url, _ := repohosttest.NewTLS(t)
	s.AddRepository("octo", "app")
	c := repo()
	c.EnterpriseURL = url
	env := desttest.At(repohosttest.New(t).URL)
	env.Client = s.Client()
	write(t, openWith(t, c, env), "A", "the-value")
	if got, _ := s.Get(app, "A"); got != "the-value" {
		t.Error("the value has not arrived")
	}
}

// A caller cannot have the tokens of the server's environment, or stored ones, sent to an address of their choice.
func TestEnterpriseURLAndCredentials(t *testing.T) {
	c := repohost.Config{EnterpriseURL: "https://evil.example", RepositoryOwner: "octo", RepisitoryName: "app"}
	if got := c.Check(); len(got) != 1 || !strings.Contains(got[0], "the token of the server's environment is for github.com only") {
		t.Errorf("problems: %q", got)
	}
	c.AccessToken = repohosttest.Token
	before := repo()
	if got := c.Check(); got != nil || c.Owner() == before.Owner() || c.Location() == before.Location() {
		t.Errorf("problems %q; owner %q, location %q, those of github.com are %q, %q", got, c.Owner(), c.Location(), before.Owner(), before.Location())
	}
	same := repo()
	same.EnterpriseURL = "https://api.github.com/"
	if got := same.Check(); got != nil || same.Location() != before.Location() || same.Owner() != before.Owner() {
		t.Errorf("problems %q; github.com by its address is %q of %q", got, same.Location(), same.Owner())
	}
}
