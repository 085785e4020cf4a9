package gitlab

import (
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const vendorURL = "https://gitlab.com"

// Config says which variables, and who is let in.
type Config struct {
	AccessToken  engines.Sensitive `json:"access_token" max:"1024" help:"Access token with the scope api that may manage the variables: of the project, of the group, or of a user."`
	ProjectID    string            `json:"project_id" form:"trim" max:"255" help:"Project whose variables are managed: its number, or its path."`
	GroupID      string            `json:"group_id" form:"trim" max:"255" help:"Group whose variables are managed, in place of a project."`
	BaseURL      string            `json:"base_url" form:"trim" max:"500" help:"URL of an instance of one's own, such as https://gitlab.example.com. Without it, GitLab.com."`
	Scope        string            `json:"environment_scope" form:"trim" max:"255" default:"*" help:"Environments that get the variables, such as production or review/*."`
	Protected    bool              `json:"protected" default:"false" help:"Give the variables to pipelines of protected branches and tags only."`
	Masked       bool              `json:"masked" default:"true" help:"Mask the values in the logs of jobs. GitLab masks only values of one line, without blanks, of 8 characters or more."`
	Raw          bool              `json:"raw" default:"true" help:"Do not expand $ in values."`
	VariableType string            `json:"variable_type" enum:"env_var,file" default:"env_var" help:"What jobs get: the value, or the path of a file with it."`
}

var (
	legalID    = engines.Pattern(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)
	legalScope = engines.Pattern(`^[A-Za-z0-9_/${}. *-]{1,255}$`)
)

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	c.AccessToken = engines.Sensitive(strings.TrimSpace(c.AccessToken.Reveal()))
	c.ProjectID, c.GroupID, c.Scope = strings.TrimSpace(c.ProjectID), strings.TrimSpace(c.GroupID), strings.TrimSpace(c.Scope)
	c.BaseURL = strings.TrimRight(strings.TrimSpace(c.BaseURL), "/")
	if c.Scope == "" {
		c.Scope = "*"
	}
	if c.VariableType == "" {
		c.VariableType = "env_var"
	}
	if p := wire.CredentialProblem(c.AccessToken.Reveal()); p != "" {
		problems = append(problems, "access_token "+p)
	}
	switch {
	case (c.ProjectID == "") == (c.GroupID == ""):
		problems = append(problems, "project_id or group_id must be given, and not both")
	case c.ProjectID != "" && !legalID().MatchString(c.ProjectID):
		problems = append(problems, "project_id must be the number or the path of a project, without an address")
	case c.GroupID != "" && !legalID().MatchString(c.GroupID):
		problems = append(problems, "group_id must be the number or the path of a group, without an address")
	}
	if c.BaseURL != "" {
		if p := wire.URLProblem(c.BaseURL); p != "" {
			problems = append(problems, "base_url "+p)
		}
	}
	if !legalScope().MatchString(c.Scope) {
		problems = append(problems, "environment_scope must be letters, digits, blanks and any of -_/${}.*")
	}
	return problems
}

func (c *Config) base() string {
	if c.BaseURL == "" {
		return vendorURL
	}
	return c.BaseURL
}

// of names the project or the group, as paths of the API do.
func (c *Config) of() (kind, id string) {
	if c.GroupID != "" {
		return "groups", c.GroupID
	}
	return "projects", c.ProjectID
}

// Location implements destination.Config. The same name in another scope is another variable.
func (c *Config) Location() string {
	kind, id := c.of()
	return typeName + "/" + wire.Location(c.base()) + "/" + kind + "/" + strings.ToLower(id) + "/" + c.Scope
}

// Owner implements destination.Owned: the instance, which gets the token, and who has the project there.
func (c *Config) Owner() string {
	kind, id := c.of()
	if path := strings.LastIndexByte(id, '/'); path >= 0 {
		id = id[:path]
	}
	return wire.Location(c.base()) + "/" + kind + "/" + strings.ToLower(id)
}

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	out := map[string]any{
		"environment_scope": c.Scope, "protected": c.Protected, "masked": c.Masked, "raw": c.Raw, "variable_type": c.VariableType,
	}
	for name, value := range map[string]string{"project_id": c.ProjectID, "group_id": c.GroupID, "base_url": c.BaseURL} {
		if value != "" {
			out[name] = value
		}
	}
	if c.AccessToken != "" {
		out["access_token"] = destination.Mask
	}
	return out
}
