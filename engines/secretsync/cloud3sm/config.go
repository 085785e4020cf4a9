package cloud3sm

import (
	"cmp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/access"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Config is what a destination of this type is configured with.
type Config struct {
	Credentials engines.Sensitive `json:"credentials" max:"65536" help:"the JSON key of a service account; left out, the server's GOOGLE_APPLICATION_CREDENTIALS names its file"`
	ProjectID   string            `json:"project_id" max:"100" help:"the project whose secrets are written; left out, the one of the credentials"`

	IdentityAudience engines.Sensitive `json:"identity_token_audience" help:"Instead of credentials: the workload identity provider that takes a token of this server, //iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER. Its subject is plugin-identity:<namespace id>:sync:cloud3-sm/<name>."`
	IdentityTTL      engines.Duration  `json:"identity_token_ttl" help:"Lifetime of that token, an hour without it."`
	IdentityKey      engines.Sensitive `json:"identity_token_key" help:"Key that signs that token: only default."`
	ServiceAccount   string            `json:"service_account_email" max:"384" help:"Service account that is impersonated with identity_token_audience; left out, the federated identity itself needs the permissions."`

	ReplicaRegions engines.StringMap `json:"replica_regions" max:"50" help:"the only locations that secrets are kept in, each with the Cloud KMS key there, empty for the vendor's own; left out, the vendor chooses"`
	KMSKeyID       string            `json:"kms_key_id" max:"1024" help:"Cloud KMS key, of the location global, that secrets are encrypted with if the vendor chooses their locations; left out, the vendor's own"`

	Locations      engines.StringList `json:"replication_locations" max:"50" help:"the locations of replica_regions, as older clients give them"`
	LocationalKeys engines.StringMap  `json:"locational_kms_keys" max:"50" help:"the keys of replica_regions, as older clients give them, by location"`
	GlobalKMSKey   string             `json:"global_kms_key" max:"1024" help:"kms_key_id, as older clients give it"`
}

var location = engines.Pattern(`^[a-z][a-z0-9-]{1,62}$`)

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	c.Credentials = engines.Sensitive(strings.TrimSpace(c.Credentials.Reveal()))
	c.ProjectID = strings.TrimSpace(c.ProjectID)
	for i, l := range c.Locations {
		c.Locations[i] = strings.ToLower(strings.TrimSpace(l))
	}
	slices.Sort(c.Locations)
	c.Locations = slices.Compact(c.Locations)
	c.KMSKeyID, c.GlobalKMSKey = strings.TrimSpace(c.KMSKeyID), strings.TrimSpace(c.GlobalKMSKey)
	c.ReplicaRegions, c.LocationalKeys = usual(c.ReplicaRegions), usual(c.LocationalKeys)

	problems = append(destination.CheckIdentity(&c.IdentityAudience, &c.IdentityKey, c.IdentityTTL), c.checkFederation()...)
	project := c.ProjectID
	if c.IdentityAudience != "" {
		if project == "" {
			problems = append(problems, `field "project_id": must be given with identity_token_audience`)
		}
	} else if c.Credentials == "" {
		if project == "" {
			problems = append(problems, `field "credentials": must be the JSON key of a service account (to take the one that the server's GOOGLE_APPLICATION_CREDENTIALS names, leave it out and give project_id)`)
		}
	} else {
		account, wrong := access.Parse(c.Credentials.Reveal())
		for _, problem := range wrong {
			problems = append(problems, `field "credentials": `+problem)
		}
		project = cmp.Or(project, account.Project)
		if project == "" && len(wrong) == 0 {
			problems = append(problems, `field "project_id": must be given, the credentials name no project`)
		}
	}
	if problem := access.CheckProject(project); problem != "" && project != "" {
		problems = append(problems, `field "project_id": `+problem)
	}
	return append(problems, c.checkReplication()...)
}

// checkFederation checks what is given instead of credentials.
func (c *Config) checkFederation() (problems []string) {
	c.ServiceAccount = strings.TrimSpace(c.ServiceAccount)
	switch {
	case c.IdentityAudience == "" && c.ServiceAccount != "":
		problems = append(problems, `field "service_account_email": is impersonated with identity_token_audience: give that, too; the key of a service account names its own`)
	case c.IdentityAudience == "":
	case c.Credentials != "":
		problems = append(problems, `field "identity_token_audience": takes the place of credentials: give one or the other`)
	case !access.IsProvider(c.IdentityAudience.Reveal()):
		problems = append(problems, `field "identity_token_audience": must be //iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER`)
	}
	if c.ServiceAccount != "" && !access.IsEmail(c.ServiceAccount) {
		problems = append(problems, `field "service_account_email": must be the address of a service account`)
	}
	return problems
}

// Location implements destination.Config.
func (c *Config) Location() string { return "cloud3-sm/projects/" + c.project() }

// Owner implements destination.Owned.
func (c *Config) Owner() string { return c.project() }

// project returns the project that a checked configuration names.
func (c *Config) project() string {
	if c.ProjectID != "" {
		return c.ProjectID
	}
	account, _ := access.Parse(c.Credentials.Reveal())
	return account.Project
}

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	shown := map[string]any{}
	if c.Credentials != "" {
		shown["credentials"] = destination.Mask
	}
	if c.ProjectID != "" {
		shown["project_id"] = c.ProjectID
	}
	for field, value := range map[string]engines.Sensitive{"identity_token_audience": c.IdentityAudience, "identity_token_key": c.IdentityKey} {
		if value != "" {
			shown[field] = destination.Mask
		}
	}
	if c.IdentityTTL != 0 {
		shown["identity_token_ttl"] = c.IdentityTTL.Seconds()
	}
	if c.ServiceAccount != "" {
		shown["service_account_email"] = c.ServiceAccount
	}
	c.showReplication(shown)
	return shown
}
