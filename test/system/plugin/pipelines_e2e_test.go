//go:build e2e

package plugin_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/coffer-project/coffer/test/harness"
)

// audience is the address in docs/ci.md, too.
const audience = "https://coffer.example.com:8200"

// pipelines is a provider of docs/ci.md.
type pipelines struct {
	section, url, mount string
	job                 map[string]any            // claims of a job that may log in, as the provider documents them
	wrong               map[string]map[string]any // what of them is different in jobs that may not
}

var github = pipelines{
	"## GitHub Actions", "https://token.actions.githubusercontent.com", "github",
	map[string]any{
		"aud": audience, "sub": "repo:example@17/app@4711:ref:refs/heads/main", "repository": "example/app", "repository_id": "4711",
		"repository_owner": "example", "repository_owner_id": "17", "repository_visibility": "private", "ref": "refs/heads/main", "ref_type": "branch",
		"ref_protected": "true", "event_name": "push", "head_ref": "", "base_ref": "", "actor": "ann", "actor_id": "12", "workflow": "deploy",
		"job_workflow_ref": "example/app/.github/workflows/deploy.yml@refs/heads/main", "run_id": "30433642", "run_number": "10", "run_attempt": "1",
		"runner_environment": "github-hosted", "sha": "8fe1b322a576d59fe6257052a4107df7dc1b8c78",
	},
	map[string]map[string]any{
		"a pull request":         {"event_name": "pull_request", "ref": "refs/pull/3/merge", "sub": "repo:example@17/app@4711:pull_request"},
		"a pull request, target": {"event_name": "pull_request_target", "sub": "repo:example@17/app@4711:pull_request"},
		"another branch":         {"ref": "refs/heads/try"},
		"a tag":                  {"ref": "refs/tags/main", "ref_type": "tag"},
		"another repository":     {"repository_id": "4712"},
		"another audience":       {"aud": "https://github.com/example"},
	},
}

var gitlab = pipelines{
	"## GitLab", "https://gitlab.com", "gitlab",
	map[string]any{
		"aud": audience, "sub": "project_path:example/app:ref_type:branch:ref:main", "project_id": "42", "project_path": "example/app",
		"namespace_id": "7", "namespace_path": "example", "user_id": "12", "user_login": "ann", "user_email": "ann@example.com", "user_access_level": "owner",
		"pipeline_id": "574", "pipeline_source": "push", "job_id": "302", "ref": "main", "ref_type": "branch", "ref_path": "refs/heads/main",
		"ref_protected": "true", "groups_direct": []string{"example"}, "runner_id": 1, "runner_environment": "self-hosted", "project_visibility": "private",
		"sha": "8fe1b322a576d59fe6257052a4107df7dc1b8c78", "ci_config_ref_uri": "gitlab.com/example/app//.gitlab-ci.yml@refs/heads/main",
	},
	map[string]map[string]any{
		"another branch":              {"ref": "try", "ref_path": "refs/heads/try", "ref_protected": "false"},
		"a branch without protection": {"ref_protected": "false"},
		"a tag of that name":          {"ref_type": "tag", "ref_path": "refs/tags/main"},
		"another project":             {"project_id": "43"},
		"another audience":            {"aud": "https://vault.example.com"},
	},
}

// TestPipelines follows docs/ci.md.
func TestPipelines(t *testing.T) {
	t.Parallel()
	c := newShipped(t, 1)
	n := c.Leader()
	n.MustDo("POST", "/v1/sys/mounts/secret", map[string]any{"type": "kv-v2"})
	documented(t, c, "ci.md", "# CI systems", nil)
	keys := newIssuer(t)
	for _, p := range []pipelines{github, gitlab} {
		documented(t, c, "ci.md", p.section, map[string]string{"ca.pem": authority(keys.Server)},
			"oidc_discovery_url="+p.url, "oidc_discovery_ca_pem=@ca.pem oidc_discovery_url="+keys.URL, "bound_issuer="+p.url, "bound_issuer="+keys.URL)
		for what, claims := range p.wrong {
			if status, _ := p.login(t, n, keys, claims); status != 400 && status != 403 {
				t.Errorf("%s, %s: status %d", p.section, what, status)
			}
		}
	}

	// What the action of the workflow sends. Older repositories have no ids in their subject.
	status, token := github.login(t, n, keys, map[string]any{"sub": "repo:example/app:ref:refs/heads/main"})
	var workflow struct {
		Jobs struct {
			Deploy struct {
				Steps []struct{ With map[string]string }
			}
		}
	}
	decodeYAML(t, blocks(t, "ci.md", github.section, "yaml"), &workflow)
	step := workflow.Jobs.Deploy.Steps[0].With
	if step["path"] != github.mount || step["role"] != "deploy" || step["method"] != "jwt" || step["jwtGithubAudience"] != audience {
		t.Errorf("the action logs in with %v", step)
	}
	words := strings.Fields(step["secrets"])
	a, err := n.Do(t.Context(), "GET", "/v1/"+words[0], token, nil)
	if err != nil || !strings.Contains(string(a.Body), `"`+words[1]+`":"s3cret"`) {
		t.Errorf("after a login with status %d the action reads %d %s, %v", status, a.Status, a.Body, err)
	}

	var file struct {
		Deploy struct{ Script []string }
	}
	decodeYAML(t, blocks(t, "ci.md", gitlab.section, "yaml"), &file)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "deploy"), []byte("#!/bin/sh\necho \"deployed with $DEPLOY_TOKEN\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(strings.Join(file.Deploy.Script, "\n"), audience, n.URL)
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	shell.Dir = dir
	shell.Env = []string{"PATH=" + os.Getenv("PATH"), "CURL_CA_BUNDLE=" + c.CAFile, "COFFER_JWT=" + gitlab.token(t, keys, nil)}
	if out, err := shell.CombinedOutput(); err != nil || string(out) != "deployed with s3cret\n" {
		t.Errorf("the script of GitLab's job: %v: %s", err, out)
	}
}

// token is that of a job with some claims that are different.
func (p pipelines) token(t *testing.T, keys *issuer, different map[string]any) string {
	t.Helper()
	claims := maps.Clone(p.job)
	maps.Copy(claims, different)
	claims["iss"] = keys.URL
	return keys.token(t, claims)
}

func (p pipelines) login(t *testing.T, n *harness.Node, keys *issuer, different map[string]any) (status int, token string) {
	t.Helper()
	body := map[string]any{"role": "deploy", "jwt": p.token(t, keys, different)}
	a, err := n.Do(t.Context(), "POST", "/v1/auth/"+p.mount+"/login", "", body)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	a.Decode(t, &out)
	return a.Status, out.Auth.Token
}

func decodeYAML(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}
