package webhost

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	maxToken = 1024
	maxHook  = 2048
)

// The environments, in the order of variables at the project.
const (
	production  = "production"
	preview     = "preview"
	development = "development"
)

var environments = []string{production, preview, development}

// Config says which variables, and who is let in.
type Config struct {
	AccessToken  engines.Sensitive  `json:"access_token" max:"1024" help:"API token that may manage the environment variables of the project."`
	ProjectID    string             `json:"project_id" form:"trim" max:"100" help:"Project whose environment variables are managed."`
	TeamID       string             `json:"team_id" form:"trim" max:"100" help:"Team that the project belongs to. Without it, it is a project of the token's user."`
	DeployHook   engines.Sensitive  `json:"deploy_hook_url" max:"2048" help:"Deploy hook of the project, which is called after variables were changed: only new deployments see them."`
	Environments engines.StringList `json:"deployment_environments" form:"name" max:"16" help:"Environments that get the variables: development, preview, production."`
}

var legalID = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	c.AccessToken = engines.Sensitive(strings.TrimSpace(c.AccessToken.Reveal()))
	c.ProjectID, c.TeamID = strings.TrimSpace(c.ProjectID), strings.TrimSpace(c.TeamID)
	if p := tokenProblem(c.AccessToken.Reveal()); p != "" {
		problems = append(problems, "access_token "+p)
	}
	if c.ProjectID == "" {
		problems = append(problems, "project_id must be given")
	} else if p := idProblem(c.ProjectID); p != "" {
		problems = append(problems, "project_id "+p)
	}
	if p := c.checkHook(); p != "" {
		problems = append(problems, "deploy_hook_url "+p)
	}
	if c.TeamID != "" {
		if p := idProblem(c.TeamID); p != "" {
			problems = append(problems, "team_id "+p)
		}
	}
	var given []string
	for _, e := range c.Environments {
		if e = strings.ToLower(strings.TrimSpace(e)); !slices.Contains(given, e) {
			given = append(given, e)
		}
	}
	switch {
	case len(given) == 0:
		return append(problems, "deployment_environments must be given: one or more of development, preview, production")
	case slices.ContainsFunc(given, func(e string) bool { return !slices.Contains(environments, e) }):
		return append(problems, "deployment_environments may only have development, preview and production in it")
	}
	c.Environments = given
	return problems
}

// tokenProblem returns what is wrong with a token, never a part of it.
func tokenProblem(token string) string {
	switch {
	case token == "":
		return "must be given"
	case strings.HasPrefix(token, "@"):
		return "must be the token itself: @file is expanded by the command line only, the server reads no files that callers name"
	case token == destination.Mask:
		return "must be the token itself: what reads answer in its place is kept only where a token is stored already"
	case len(token) > maxToken:
		return fmt.Sprintf("is longer than %d bytes", maxToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "must be printable ASCII without spaces and line breaks"
	}
	return ""
}

// checkHook puts the address of the hook into its usual form, and returns what is wrong with it, never a part of it: who knows it can
// start deployments.
func (c *Config) checkHook() string {
	text := strings.TrimSpace(c.DeployHook.Reveal())
	c.DeployHook = engines.Sensitive(text)
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	switch {
	case strings.HasPrefix(text, "@"), text == destination.Mask:
		return tokenProblem(text)
	case len(text) > maxHook:
		return fmt.Sprintf("is longer than %d bytes", maxHook)
	case err != nil || u.Scheme != "https" || u.Host == "" || u.Opaque != "" || u.User != nil || u.Fragment != "":
		return "must be an address that begins with https://, as the project's settings show it"
	}
	return ""
}

// Redeploys implements destination.Redeployable.
func (c *Config) Redeploys() string {
	if c.DeployHook == "" {
		return ""
	}
	return "deploy hook"
}

func idProblem(id string) string {
	if len(id) > 100 || !legalID.MatchString(id) || strings.Contains(id, "..") {
		return "must be letters, digits, \".\", \"_\" and \"-\", at most 100, without a path or an address"
	}
	return ""
}

// Location implements destination.Config. The same name in other environments is another name, so these are a part of it: two
// destinations that share only some of their environments are told apart by the ownership tags.
func (c *Config) Location() string {
	project := c.ProjectID
	if !strings.HasPrefix(project, "prj_") { // a name, which is one within its team
		project = c.TeamID + "/" + project
	}
	return typeName + "/" + project + "/" + strings.Join(both(environments, c.Environments), "+")
}

// Owner implements destination.Owned: of projects by their name, the team's.
func (c *Config) Owner() string {
	if c.TeamID == "" {
		return c.ProjectID
	}
	return c.TeamID
}

// Ambiguous implements destination.Ambiguous.
func (c *Config) Ambiguous() string {
	if c.TeamID == "" && !strings.HasPrefix(c.ProjectID, "prj_") {
		return "project_id is a name, and others have projects of that name: use the id of the project (prj_…), or team_id"
	}
	return ""
}

// Hooks returns the sensitive fields that give no access to the project.
func (*Config) Hooks() []string { return []string{"deploy_hook_url"} }

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	out := map[string]any{"project_id": c.ProjectID, "deployment_environments": slices.Clone([]string(c.Environments))}
	if c.TeamID != "" {
		out["team_id"] = c.TeamID
	}
	for name, value := range map[string]engines.Sensitive{"access_token": c.AccessToken, "deploy_hook_url": c.DeployHook} {
		if value != "" {
			out[name] = destination.Mask
		}
	}
	return out
}

// both returns what is in a and in b, in the order of a; without what is in a and not in b.
func both(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
