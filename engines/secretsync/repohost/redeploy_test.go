package repohost_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

func dispatching(c repohost.Config) repohost.Config {
	c.Workflow, c.Ref = "deploy.yml", "main"
	return c
}

func redeploy(t *testing.T, d destination.Destination) error {
	t.Helper()
	return d.(destination.Redeployer).Redeploy(t.Context())
}

func TestWorkflowDispatch(t *testing.T) {
	s := repohosttest.New(t)
	s.AddRepository("octo", "app")
	s.AddOrganization("octo")
	s.AddWorkflow("octo", "app", "deploy.yml")
	org := repohost.Config{AccessToken: repohosttest.Token, SecretsLocation: "organization", Organization: "octo", RepositoryName: "app", Visibility: "all"}
	for name, c := range map[string]repohost.Config{"repository": dispatching(repo()), "organization": dispatching(org)} {
		if err := redeploy(t, openWith(t, c, desttest.At(s.URL))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := s.Runs(), []string{"repos/octo/app/actions/workflows/deploy.yml@main"}; !slices.Equal(got, want) {
			t.Errorf("%s: started %q, want %q", name, got, want)
		}
	}
	if err := redeploy(t, openWith(t, repo(), desttest.At(s.URL))); err != nil || len(s.Runs()) > 0 {
		t.Errorf("without a workflow: %v", err)
	}
	for name, test := range map[string]struct {
		change func(*repohost.Config)
		code   string
		want   string
	}{
		"no such workflow": {func(c *repohost.Config) { c.Workflow = "other.yml" }, destination.NoLocation, "check dispatch_workflow"},
		"no such branch":   {func(c *repohost.Config) { c.Ref = "other" }, destination.BadRequest, "the trigger workflow_dispatch"},
		"no permission":    {func(c *repohost.Config) { c.AccessToken = repohosttest.ReadOnly }, destination.Denied, "the permission Actions"},
		"no token":         {func(c *repohost.Config) { c.AccessToken = "wrong" }, destination.Denied, "GitHub does not accept access_token"},
	} {
		c := dispatching(repo())
		test.change(&c)
		if e := fails(t, redeploy(t, openWith(t, c, desttest.At(s.URL))), test.code); !strings.Contains(e.Text, test.want) {
			t.Errorf("%s: %q, want %q in it", name, e.Text, test.want)
		}
	}
}
