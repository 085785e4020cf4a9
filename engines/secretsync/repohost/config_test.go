package repohost_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

func repo() repohost.Config {
	return repohost.Config{AccessToken: repohosttest.Token, RepositoryOwner: "octo", RepisitoryName: "app"}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		change func(*repohost.Config)
		want   []string // a part of each problem, in order
	}{
		{"as SPEC.md has it", func(*repohost.Config) {}, nil},
		{"nothing at all: the environment may have it", func(c *repohost.Config) { *c = repohost.Config{} }, nil},
		{"a file for the token", func(c *repohost.Config) { c.AccessToken = "@/etc/token" }, []string{"access_token must be the token itself: @file is expanded by the command line only"}},
		{"the mask for the token", func(c *repohost.Config) { c.AccessToken = destination.Mask }, []string{"access_token"}},
		{"a header in the token", func(c *repohost.Config) { c.AccessToken = "a\r\nX-Evil: b" }, []string{"access_token must be printable"}},
		{"a space in the token", func(c *repohost.Config) { c.AccessToken = "a b" }, []string{"access_token must be printable"}},
		{"a very long token", func(c *repohost.Config) { c.AccessToken = engines.Sensitive(strings.Repeat("a", 2000)) }, []string{"longer than 1024"}},
		{"a newline after the token", func(c *repohost.Config) { c.AccessToken = repohosttest.Token + "\n" }, nil},
		{"a path as owner", func(c *repohost.Config) { c.RepositoryOwner = "a/../orgs" }, []string{"repository_owner"}},
		{"an address as owner", func(c *repohost.Config) { c.RepositoryOwner = "https://example.com" }, []string{"repository_owner"}},
		{"a parent as repository", func(c *repohost.Config) { c.RepisitoryName = ".." }, []string{"repisitory_name"}},
		{"owner and name as repository", func(c *repohost.Config) { c.RepisitoryName = "octo/app" }, []string{"repisitory_name"}},
		{"a query as repository", func(c *repohost.Config) { c.RepisitoryName = "app?x=1" }, []string{"repisitory_name"}},
		{"both spellings, different", func(c *repohost.Config) { c.RepositoryName = "other" }, []string{"repisitory_name and repository_name are the same field"}},
		{"both spellings, equal", func(c *repohost.Config) { c.RepositoryName = "APP" }, nil},
		{"an unknown location", func(c *repohost.Config) { c.SecretsLocation = "moon" }, []string{"secrets_location"}},
		{"an environment", func(c *repohost.Config) { c.EnvironmentName = "production/eu west" }, nil},
		{"a parent as environment", func(c *repohost.Config) { c.EnvironmentName = ".." }, []string{"environment_name"}},
		{"a line break in the environment", func(c *repohost.Config) { c.EnvironmentName = "a\nb" }, []string{"environment_name"}},
		{"fields of organizations", func(c *repohost.Config) { c.Visibility = "all" }, []string{"for secrets_location organization only"}},
		{"an organization", func(c *repohost.Config) { c.SecretsLocation, c.Visibility = "Organization", "ALL" }, nil},
		{"an organization without visibility", func(c *repohost.Config) { c.SecretsLocation = "organization" }, []string{"organization_visibility must be given"}},
		{"an organization with an environment", func(c *repohost.Config) {
			c.SecretsLocation, c.Visibility, c.EnvironmentName = "organization", "private", "x"
		}, []string{"environment_name"}},
		{"selected, none", func(c *repohost.Config) { c.SecretsLocation, c.Visibility = "organization", "selected" }, []string{"selected_repository_names"}},
		{"selected, a path", func(c *repohost.Config) {
			c.SecretsLocation, c.Visibility, c.Selected = "organization", "selected", engines.StringList{"octo/app"}
		}, []string{"selected_repository_names"}},
		{"selected, too many", func(c *repohost.Config) {
			c.SecretsLocation, c.Visibility, c.Selected = "organization", "selected", slices.Repeat(engines.StringList{"app"}, 101)
		}, []string{"at most 100"}},
		{"selected, but all", func(c *repohost.Config) {
			c.SecretsLocation, c.Visibility, c.Selected = "organization", "all", engines.StringList{"app"}
		}, []string{"selected_repository_names is for"}},
		{"a path as enterprise_url", func(c *repohost.Config) { c.EnterpriseURL = "https://ghe.corp/x" }, []string{"enterprise_url must be https://HOST"}},
		{"no TLS", func(c *repohost.Config) { c.EnterpriseURL = "http://ghe.corp" }, []string{"enterprise_url must be https://HOST"}},
		{"an app", func(c *repohost.Config) { *c = withApp() }, nil},
		{"an app and a token", func(c *repohost.Config) { c.AppName, c.Installation = "deployer", 1 }, []string{"access_token and app_name are two ways to sign in"}},
		{"an app without its installation", func(c *repohost.Config) { *c = withApp(); c.Installation = 0 }, []string{"installation_id must be given with app_name"}},
		{"an installation without its app", func(c *repohost.Config) { c.Installation = 1 }, []string{"installation_id is for app_name only"}},
		{"a workflow", func(c *repohost.Config) { *c = dispatching(*c) }, nil},
		{"a workflow by its id", func(c *repohost.Config) { c.Workflow, c.Ref = "161335", "v1" }, nil},
		{"a workflow without a branch", func(c *repohost.Config) { c.Workflow = "deploy.yml" }, []string{"dispatch_ref must be given"}},
		{"a branch without a workflow", func(c *repohost.Config) { c.Ref = "main" }, []string{"dispatch_ref is for dispatch_workflow only"}},
		{"a path as workflow", func(c *repohost.Config) { c.Workflow, c.Ref = ".github/workflows/deploy.yml", "main" }, []string{"dispatch_workflow must be"}},
		{"a parent as workflow", func(c *repohost.Config) { c.Workflow, c.Ref = "..", "main" }, []string{"dispatch_workflow must be"}},
		{"a line break in the branch", func(c *repohost.Config) { c.Workflow, c.Ref = "deploy.yml", "a\nb" }, []string{"dispatch_ref must be"}},
		{"a workflow of an organization", func(c *repohost.Config) {
			*c = dispatching(repohost.Config{SecretsLocation: "organization", Organization: "octo", Visibility: "all"})
		}, []string{"repisitory_name must be given"}},
		{"everything at once", func(c *repohost.Config) {
			*c = repohost.Config{AccessToken: "@x", RepositoryOwner: "-", RepisitoryName: "a b", RepositoryName: "c", SecretsLocation: "x"}
		}, []string{"access_token", "are the same field", "repository_owner", "repisitory_name", "secrets_location"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := repo()
			tt.change(&c)
			secret := c.AccessToken.Reveal()
			got := c.Check()
			if len(got) != len(tt.want) {
				t.Fatalf("problems: %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("problem %d: %q, want %q in it", i, got[i], want)
				}
				if len(secret) > 3 && strings.Contains(got[i], secret) {
					t.Errorf("the problem %q tells the token", got[i])
				}
			}
			if len(got) == 0 {
				if again := c.Check(); len(again) > 0 {
					t.Errorf("the usual form is rejected: %q", again)
				}
			}
		})
	}
}

// The field is spelled as SPEC.md spells it, the other spelling is accepted, and reads return both.
func TestRepositoryNameSynonym(t *testing.T) {
	c := repohost.Config{AccessToken: repohosttest.Token, RepositoryOwner: "octo", RepositoryName: "app"}
	if p := c.Check(); p != nil {
		t.Fatal(p)
	}
	if c.RepisitoryName != "app" || c.RepositoryName != "" {
		t.Errorf("stored as %q and %q, want the name in the field of SPEC.md alone", c.RepisitoryName, c.RepositoryName)
	}
	want := map[string]any{
		"access_token": destination.Mask, "repository_owner": "octo", "repisitory_name": "app", "repository_name": "app",
	}
	if got := c.Shown(); !maps.Equal(got, want) {
		t.Errorf("Shown() = %v, want %v", got, want)
	}
	if got := (&repohost.Config{}).Shown(); len(got) > 0 {
		t.Errorf("Shown() of nothing = %v", got)
	}
	fields := map[string]bool{}
	for f := range reflect.TypeFor[repohost.Config]().Fields() {
		fields[f.Tag.Get("json")] = true
	}
	for a, b := range c.Synonyms() {
		if !fields[a] || !fields[b] {
			t.Errorf("no fields %q and %q", a, b)
		}
	}
}

func TestPlace(t *testing.T) {
	org := func(name, owner string) repohost.Config {
		return repohost.Config{SecretsLocation: "organization", Organization: name, RepositoryOwner: owner, Visibility: "all"}
	}
	env := repo()
	env.EnvironmentName = "Prod/EU"
	tests := []struct {
		c    repohost.Config
		want string
	}{
		{repo(), "repohost/repositories/octo/app"},
		{repohost.Config{RepositoryOwner: "OCTO", RepositoryName: "App"}, "repohost/repositories/octo/app"},
		{env, "repohost/repositories/octo/app/environments/prod%2feu"},
		{org("Octo", ""), "repohost/organizations/octo"},
		{org("", "octo"), "repohost/organizations/octo"},
		{repohost.Config{RepositoryName: "app"}, "repohost/repositories/$github_repository_owner/app"},
	}
	for _, tt := range tests {
		if p := tt.c.Check(); p != nil {
			t.Fatal(p)
		}
		if got := tt.c.Location(); got != tt.want {
			t.Errorf("Location() = %q, want %q", got, tt.want)
		}
	}
}

func TestEnvironmentFallbacks(t *testing.T) {
	vars := map[string]string{"GITHUB_ACCESS_TOKEN": repohosttest.Token, "GITHUB_REPOSITORY_OWNER": "octo", "GITHUB_REPOSITORY_NAME": "app"}
	s := repohosttest.New(t)
	s.AddRepository("octo", "app")
	env := desttest.At(s.URL)
	env.Getenv = func(name string) string { return vars[name] }
	c := &repohost.Config{}
	if p := c.Check(); p != nil {
		t.Fatal(p)
	}
	d, err := repohost.Type.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := d.Read(t.Context(), "A"); err != nil || f.State != destination.Absent {
		t.Errorf("Read: %+v, %v", f, err)
	}
	if c.AccessToken != "" || c.RepositoryOwner != "" || c.RepisitoryName != "" {
		t.Error("what the environment has is stored")
	}
	vars = map[string]string{"GITHUB_ACCESS_TOKEN": "a\nb"}
	_, err = repohost.Type.Open(c, env)
	e := fails(t, err, destination.BadRequest)
	for _, want := range []string{"GITHUB_ACCESS_TOKEN", "repository_owner must be given", "repisitory_name must be given"} {
		if !strings.Contains(e.Text, want) {
			t.Errorf("the error %q does not have %q", e.Text, want)
		}
	}
}
