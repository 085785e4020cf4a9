package webhost_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

func project(environments ...string) webhost.Config {
	return webhost.Config{AccessToken: webhosttest.Token, ProjectID: "prj_1", TeamID: "team_1", Environments: environments}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		change func(*webhost.Config)
		want   []string // a part of each problem, in order
	}{
		{"as SPEC.md has it", func(*webhost.Config) {}, nil},
		{"without a team", func(c *webhost.Config) { c.TeamID = "" }, nil},
		{"a name for the project", func(c *webhost.Config) { c.ProjectID = "my-app.v2" }, nil},
		{"a newline after the token", func(c *webhost.Config) { c.AccessToken += "\n" }, nil},
		{"nothing at all", func(c *webhost.Config) { *c = webhost.Config{} }, []string{"access_token must be given", "project_id must be given", "deployment_environments must be given"}},
		{"an unknown environment", func(c *webhost.Config) { c.Environments = engines.StringList{"production", "staging"} }, []string{"deployment_environments may only have development, preview and production"}},
		{"an empty environment", func(c *webhost.Config) { c.Environments = engines.StringList{""} }, []string{"deployment_environments"}},
		{"a file for the token", func(c *webhost.Config) { c.AccessToken = "@token" }, []string{"@file is expanded by the command line only"}},
		{"the mask for the token", func(c *webhost.Config) { c.AccessToken = destination.Mask }, []string{"access_token"}},
		{"a header in the token", func(c *webhost.Config) { c.AccessToken = "a\r\nX-Evil: b" }, []string{"access_token must be printable"}},
		{"a very long token", func(c *webhost.Config) { c.AccessToken = engines.Sensitive(strings.Repeat("a", 2000)) }, []string{"longer than 1024"}},
		{"a path for the project", func(c *webhost.Config) { c.ProjectID = "../../v1/user" }, []string{"project_id"}},
		{"an address for the project", func(c *webhost.Config) { c.ProjectID = "https://evil.example" }, []string{"project_id"}},
		{"a parent for the project", func(c *webhost.Config) { c.ProjectID = "a..b" }, []string{"project_id"}},
		{"a query for the team", func(c *webhost.Config) { c.TeamID = "team_1&upsert=true" }, []string{"team_id"}},
		{"everything at once", func(c *webhost.Config) {
			*c = webhost.Config{AccessToken: "@x", ProjectID: "/", TeamID: "/", Environments: engines.StringList{"x"}}
		}, []string{"access_token", "project_id", "team_id", "deployment_environments"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := project("production")
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
				if len(secret) > 6 && strings.Contains(got[i], secret) {
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

func TestUsualForm(t *testing.T) {
	c := project(" Development", "production", "development")
	if p := c.Check(); p != nil {
		t.Fatal(p)
	}
	want := map[string]any{
		"access_token": destination.Mask, "project_id": "prj_1", "team_id": "team_1", "deployment_environments": []string{"development", "production"},
	}
	if got := c.Shown(); !reflect.DeepEqual(got, want) {
		t.Errorf("Shown() = %v, want %v", got, want)
	}
	if got, want := c.Location(), "webhost-project/prj_1/production+development"; got != want {
		t.Errorf("Location() = %q, want %q", got, want)
	}
	c.ProjectID = "app"
	if got, want := c.Location(), "webhost-project/team_1/app/production+development"; got != want {
		t.Errorf("Location() = %q, want %q", got, want)
	}
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"coffer/kv_1234/my-secret/Key": "coffer_kv_1234_my_secret_Key", "1a": "x1a", "_a": "x_a", "ünï": "x_n_", "": "", "TZ": "TZ",
	} {
		if got := webhost.Type.Rules.Normalise(in); got != want {
			t.Errorf("Normalise(%q) = %q, want %q", in, got, want)
		}
	}
	for name, want := range map[string]string{
		"A": "", "a_1": "", "AWS_REGION": "", "AWS_ACCESS_KEY_ID": "", "tz": "", strings.Repeat("A", 255): "",
		"": "empty", "1A": "begin with a letter", "_A": "begin with a letter", "A-B": "letters", "A\n": "letters",
		"TZ": "reserved", "AWS_LAMBDA_FUNCTION_NAME": "reserved", "NOW_REGION": "reserved", strings.Repeat("A", 256): "at most 255",
	} {
		got := webhost.Type.Rules.CheckName(name)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("CheckName(%q) = %q, want %q in it", name, got, want)
		}
	}
}

func TestMarks(t *testing.T) {
	m := strings.Repeat("a", 40) + "-" + strings.Repeat("9", 39)
	c := webhost.CommentOf(m)
	if webhost.MarkOf(c) != m || len(c) > 500 {
		t.Errorf("the mark of %q is %q", c, webhost.MarkOf(c))
	}
	for _, comment := range []string{"", "coffer", "[coffer:]", "[coffer:a b]", c + " and more", "[coffer:" + strings.Repeat("a", 81) + "]"} {
		if got := webhost.MarkOf(comment); got != "" {
			t.Errorf("the mark of %q is %q", comment, got)
		}
	}
}
