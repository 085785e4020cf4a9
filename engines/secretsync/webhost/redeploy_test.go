package webhost_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

func hooked(url string) webhost.Config {
	return webhost.Config{AccessToken: webhosttest.Token, ProjectID: "prj_1", Environments: engines.StringList{"production"}, DeployHook: engines.Sensitive(url)}
}

// The hook gets neither the token nor a value, and no error tells its address.
func TestDeployHook(t *testing.T) {
	hook := webhosttest.NewHook(t)
	for status, want := range map[int]struct{ code, text string }{
		201: {}, 200: {}, 404: {destination.BadRequest, "write it to deploy_hook_url"}, 400: {destination.BadRequest, "status 400"},
		429: {destination.Throttled, "no more of these requests"}, 503: {destination.Unavailable, "status 503"},
	} {
		hook.Fail(status)
		c := hooked(hook.URL)
		if p := c.Check(); p != nil {
			t.Fatal(p)
		}
		d, err := webhost.Type.Open(&c, destination.Env{Client: hook.Client})
		if err != nil {
			t.Fatal(err)
		}
		err = d.(destination.Redeployer).Redeploy(t.Context())
		if want.code == "" {
			if n := hook.Calls(); err != nil || n != 1 {
				t.Errorf("%d: %v, %d calls", status, err, n)
			}
			continue
		}
		if e := desttest.Fails(t, err, want.code, "secretpart", webhosttest.Token); !strings.Contains(e.Text, want.text) {
			t.Errorf("%d: %q, want %q in it", status, e.Text, want.text)
		}
	}
	c := hooked("https://127.0.0.1:1/secretpart")
	d, err := webhost.Type.Open(&c, destination.Env{Client: &http.Client{}})
	if err != nil {
		t.Fatal(err)
	}
	desttest.Fails(t, d.(destination.Redeployer).Redeploy(t.Context()), destination.Unreachable, "secretpart")
}

func TestDeployHookAddresses(t *testing.T) {
	for _, url := range []string{"http://api.vercel.com/secretpart", "secretpart", "https://", "https://user:secretpart@x", "@secretpart", destination.Mask, "https://x/" + strings.Repeat("secretpart", 300), "https://x/#secretpart"} {
		c := hooked(url)
		if p := c.Check(); len(p) != 1 || !strings.HasPrefix(p[0], "deploy_hook_url ") || strings.Contains(p[0], "secretpart") {
			t.Errorf("%.40q: %q", url, p)
		}
	}
	c := hooked(" https://api.vercel.com/v1/integrations/deploy/prj_1/secretpart\n")
	if p := c.Check(); p != nil || c.Shown()["deploy_hook_url"] != destination.Mask || c.Redeploys() == "" || strings.Contains(c.Redeploys(), "secretpart") {
		t.Errorf("%q, %v, %q", p, c.Shown(), c.Redeploys())
	}
	if c := hooked(""); c.Redeploys() != "" {
		t.Error("without a hook it is redeployed")
	}
}
