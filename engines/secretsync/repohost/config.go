package repohost

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
)

// The destinations that secrets_location can name.
const (
	inRepository   = "repository"
	inOrganization = "organization"
)

const (
	maxToken    = 1024
	maxSelected = 100 // each costs a call
)

// Config says which secrets, and how to sign in. Without access_token and app_name, the token is GITHUB_ACCESS_TOKEN of the server's
// environment when the destination is opened, but only at github.com; the owner and the name of the repository are taken from
// GITHUB_REPOSITORY_OWNER and GITHUB_REPOSITORY_NAME likewise.
type Config struct {
	AccessToken     engines.Sensitive  `json:"access_token" max:"1024" help:"Fine-grained token with read and write access to secrets, or personal access token with the scope repo (admin:org for an organization)."`
	AppName         string             `json:"app_name" form:"trim" max:"128" help:"GitHub App to sign in as, instead of access_token: the name that it has in sys/sync/github-apps."`
	Installation    int64              `json:"installation_id" help:"Installation of the app, with app_name: the number in the address of the installation's settings."`
	EnterpriseURL   string             `json:"enterprise_url" form:"name" max:"255" help:"GitHub Enterprise Server (https://HOST), or GitHub with data residency (https://SUBDOMAIN.ghe.com). Without it, it is github.com."`
	RepositoryOwner string             `json:"repository_owner" form:"name" max:"100" help:"Organization or user that owns the repository."`
	RepisitoryName  string             `json:"repisitory_name" form:"name" max:"100" help:"Name of the repository, without its owner."`
	RepositoryName  string             `json:"repository_name" alias:"repisitory_name" form:"name" max:"100" help:"The same as repisitory_name."`
	SecretsLocation string             `json:"secrets_location" form:"name" max:"32" help:"repository, the default, or organization."`
	EnvironmentName string             `json:"environment_name" form:"name" max:"255" help:"Environment of the repository that gets the secrets, instead of the repository as a whole."`
	Organization    string             `json:"organization_name" form:"name" max:"100" help:"Organization that gets the secrets, with secrets_location organization. Without it, it is repository_owner."`
	Visibility      string             `json:"organization_visibility" form:"name" max:"16" help:"Which repositories see the secrets of an organization: all, private, or selected."`
	Workflow        string             `json:"dispatch_workflow" form:"trim" max:"255" help:"Workflow to start after secrets were changed: the name of its file, or its id. It needs the trigger workflow_dispatch."`
	Ref             string             `json:"dispatch_ref" form:"trim" max:"255" help:"Branch or tag that dispatch_workflow runs on."`
	Selected        engines.StringList `json:"selected_repository_names" form:"name" max:"100" help:"Repositories of the organization that see the secrets, with organization_visibility selected."`
}

var (
	legalOwner = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	legalRepo  = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// Check implements destination.Config. The two spellings of the repository's name end up in RepisitoryName alone.
func (c *Config) Check() (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	c.AccessToken = engines.Sensitive(strings.TrimSpace(c.AccessToken.Reveal()))
	if p := tokenProblem(c.AccessToken.Reveal()); p != "" {
		add("access_token %s", p)
	}
	c.EnterpriseURL, c.AppName = c.normalURL(add), strings.TrimSpace(c.AppName)
	c.checkCredentials(add)
	for _, s := range []*string{&c.RepositoryOwner, &c.RepisitoryName, &c.RepositoryName, &c.EnvironmentName, &c.Organization, &c.SecretsLocation, &c.Visibility, &c.Workflow, &c.Ref} {
		*s = strings.TrimSpace(*s)
	}
	if c.RepisitoryName != "" && c.RepositoryName != "" && !strings.EqualFold(c.RepisitoryName, c.RepositoryName) {
		add("repisitory_name and repository_name are the same field: give one of them")
	} else if c.RepisitoryName == "" {
		c.RepisitoryName = c.RepositoryName
	}
	c.RepositoryName = ""
	if p := ownerProblem(c.RepositoryOwner); p != "" {
		add("repository_owner %s", p)
	}
	if p := repoProblem(c.RepisitoryName); p != "" {
		add("repisitory_name %s", p)
	}
	c.SecretsLocation = strings.ToLower(c.SecretsLocation)
	c.checkDispatch(add)
	c.Visibility = strings.ToLower(c.Visibility)
	for i, name := range c.Selected {
		c.Selected[i] = strings.TrimSpace(name)
	}
	switch c.SecretsLocation {
	case "", inRepository:
		problems = append(problems, c.checkRepository()...)
	case inOrganization:
		problems = append(problems, c.checkOrganization()...)
	default:
		add("secrets_location must be repository or organization")
	}
	return problems
}

// normalURL returns enterprise_url in its usual form, or as it is if it has none.
func (c *Config) normalURL(add func(string, ...any)) string {
	normal, problem := githubapp.NormalizeURL(c.EnterpriseURL)
	if problem != "" {
		add("enterprise_url %s", problem)
		return c.EnterpriseURL
	}
	return normal
}

// checkCredentials looks for contradictions between the two ways to sign in.
func (c *Config) checkCredentials(add func(string, ...any)) {
	switch {
	case c.AppName != "" && c.AccessToken != "":
		add(`access_token and app_name are two ways to sign in: give one of them, and clear the other with ""`)
	case c.AppName != "" && c.Installation < 1:
		add("installation_id must be given with app_name: the number of the app's installation, which is in the address of its settings")
	case c.AppName == "" && c.Installation != 0:
		add("installation_id is for app_name only: give both, or neither")
	case c.AppName == "" && c.AccessToken == "" && c.EnterpriseURL != "":
		add("access_token or app_name must be given with enterprise_url: the token of the server's environment is for github.com only")
	}
}

// checkDispatch looks at what names a workflow.
func (c *Config) checkDispatch(add func(string, ...any)) {
	switch w := c.Workflow; {
	case w == "" && c.Ref != "":
		add("dispatch_ref is for dispatch_workflow only: give both, or neither")
	case w == "":
	case !legalRepo.MatchString(w) || w == "." || w == "..":
		add("dispatch_workflow must be the name of a workflow's file without its path, such as deploy.yml, or the id of a workflow")
	case c.Ref == "":
		add("dispatch_ref must be given with dispatch_workflow: the branch or tag that the workflow runs on")
	case c.SecretsLocation == inOrganization && c.RepisitoryName == "":
		add("repisitory_name must be given with dispatch_workflow and secrets_location organization: the repository that has the workflow")
	}
	if strings.ContainsFunc(c.Ref, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' }) {
		add("dispatch_ref must be a branch or tag, without spaces and control characters")
	}
}

func (c *Config) checkRepository() (problems []string) {
	if c.Organization != "" || c.Visibility != "" || len(c.Selected) > 0 {
		problems = append(problems, "organization_name, organization_visibility and selected_repository_names are for secrets_location organization only")
	}
	e := c.EnvironmentName
	if len(e) > 255 || e == "." || e == ".." || strings.ContainsFunc(e, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		problems = append(problems, "environment_name must have at most 255 characters, none of them a control character")
	}
	return problems
}

func (c *Config) checkOrganization() (problems []string) {
	add := func(text string) { problems = append(problems, text) }
	if c.EnvironmentName != "" {
		add("environment_name is for secrets_location repository only: environments belong to a repository")
	}
	if p := ownerProblem(c.Organization); p != "" {
		add("organization_name " + p)
	}
	switch c.Visibility {
	case "":
		add("organization_visibility must be given with secrets_location organization: all, private or selected")
	case "all", "private":
		if len(c.Selected) > 0 {
			add("selected_repository_names is for organization_visibility selected only")
		}
	case "selected":
		if len(c.Selected) == 0 {
			add("selected_repository_names must name at least one repository with organization_visibility selected")
		}
	default:
		add("organization_visibility must be all, private or selected")
	}
	if len(c.Selected) > maxSelected {
		add(fmt.Sprintf("selected_repository_names has %d names, at most %d are allowed", len(c.Selected), maxSelected))
	}
	for _, name := range c.Selected {
		if p := repoProblem(name); p != "" || name == "" {
			add("selected_repository_names must be names of repositories, without the organization: letters, digits, \".\", \"_\" and \"-\"")
			break
		}
	}
	return problems
}

// tokenProblem returns what is wrong with a token, never a part of it. One that is left out is fine here.
func tokenProblem(token string) string {
	switch {
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

func ownerProblem(owner string) string {
	if owner != "" && (len(owner) > 100 || !legalOwner.MatchString(owner)) {
		return "must be letters, digits, \"-\" and \"_\", at most 100, without a path or an address"
	}
	return ""
}

func repoProblem(repo string) string {
	if repo != "" && (len(repo) > 100 || !legalRepo.MatchString(repo) || repo == "." || repo == "..") {
		return "must be the name of a repository without its owner: letters, digits, \".\", \"_\" and \"-\", at most 100"
	}
	return ""
}

// App implements destination.AppUser.
func (c *Config) App() string { return c.AppName }

// Redeploys implements destination.Redeployable.
func (c *Config) Redeploys() string {
	if c.Workflow == "" {
		return ""
	}
	return "workflow " + c.Workflow + " on " + c.Ref
}

// Location implements destination.Config. GitHub folds the names of all that it is made of. What the environment of the server
// decides is named by the variable.
func (c *Config) Location() string {
	owner, repo := cmp.Or(c.RepositoryOwner, "$GITHUB_REPOSITORY_OWNER"), cmp.Or(c.RepisitoryName, "$GITHUB_REPOSITORY_NAME")
	root := typeName + "/"
	if c.EnterpriseURL != "" {
		root += c.EnterpriseURL + "/"
	}
	switch {
	case c.SecretsLocation == inOrganization:
		return root + "organizations/" + strings.ToLower(cmp.Or(c.Organization, owner))
	case c.EnvironmentName != "":
		return root + "repositories/" + strings.ToLower(owner+"/"+repo+"/environments/"+url.PathEscape(strings.ToLower(c.EnvironmentName)))
	}
	return root + "repositories/" + strings.ToLower(owner+"/"+repo)
}

// Owner implements destination.Owned. The installation is a part of it: stored tokens are not sent to another one.
func (c *Config) Owner() string {
	owner := c.RepositoryOwner
	if c.SecretsLocation == inOrganization {
		owner = cmp.Or(c.Organization, owner)
	}
	return strings.TrimPrefix(c.EnterpriseURL+"/"+strings.ToLower(owner), "/")
}

// Synonyms returns the fields that are another spelling of a field, by their name. What comes in under it replaces what is
// stored under the other: for Check the two look like a contradiction.
func (*Config) Synonyms() map[string]string {
	return map[string]string{"repository_name": "repisitory_name"}
}

// Shown implements destination.Config. The repository's name is there in both spellings.
func (c *Config) Shown() map[string]any {
	out := map[string]any{}
	for name, value := range map[string]string{
		"repository_owner": c.RepositoryOwner, "repisitory_name": c.RepisitoryName, "repository_name": c.RepisitoryName,
		"secrets_location": c.SecretsLocation, "environment_name": c.EnvironmentName,
		"organization_name": c.Organization, "organization_visibility": c.Visibility,
		"enterprise_url": c.EnterpriseURL, "app_name": c.AppName,
		"dispatch_workflow": c.Workflow, "dispatch_ref": c.Ref,
	} {
		if value != "" {
			out[name] = value
		}
	}
	if c.AccessToken != "" {
		out["access_token"] = destination.Mask
	}
	if c.Installation != 0 {
		out["installation_id"] = c.Installation
	}
	if len(c.Selected) > 0 {
		out["selected_repository_names"] = slices.Clone([]string(c.Selected))
	}
	return out
}

// MaxNames is how many names the destination has room for.
func (c *Config) MaxNames() int {
	if c.SecretsLocation == inOrganization {
		return 1000
	}
	return maxNames
}

// resolved returns the configuration with what the environment of the server adds, or what is missing or wrong in it.
func (c *Config) resolved(getenv func(string) string) (Config, []string) {
	out := *c
	out.Selected = slices.Clone(c.Selected)
	var problems []string
	fill := func(field *string, name, variable string, problem func(string) string) {
		if *field == "" {
			*field = strings.TrimSpace(getenv(variable))
			if p := problem(*field); p != "" {
				problems = append(problems, fmt.Sprintf("%s of the server's environment, in place of %s, %s", variable, name, p))
				return
			}
		}
		if *field == "" {
			problems = append(problems, fmt.Sprintf("%s must be given: it is not in the server's environment (%s) either", name, variable))
		}
	}
	if out.AppName == "" {
		token := out.AccessToken.Reveal()
		fill(&token, "access_token", "GITHUB_ACCESS_TOKEN", tokenProblem)
		out.AccessToken = engines.Sensitive(token)
	}
	if out.SecretsLocation == inOrganization {
		out.Organization = cmp.Or(out.Organization, out.RepositoryOwner)
		fill(&out.Organization, "organization_name", "GITHUB_REPOSITORY_OWNER", ownerProblem)
		return out, problems
	}
	fill(&out.RepositoryOwner, "repository_owner", "GITHUB_REPOSITORY_OWNER", ownerProblem)
	fill(&out.RepisitoryName, "repisitory_name", "GITHUB_REPOSITORY_NAME", repoProblem)
	return out, problems
}
