package cloud3sm

import (
	"cmp"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Config is what a destination of this type is configured with.
type Config struct {
	Credentials engines.Sensitive `json:"credentials" max:"65536" help:"the JSON key of a service account; left out, the server's GOOGLE_APPLICATION_CREDENTIALS names its file"`
	ProjectID   string            `json:"project_id" max:"100" help:"the project whose secrets are written; left out, the one of the credentials"`

	ReplicaRegions engines.StringMap `json:"replica_regions" max:"50" help:"the only locations that secrets are kept in, each with the Cloud KMS key there, empty for the vendor's own; left out, the vendor chooses"`
	KMSKeyID       string            `json:"kms_key_id" max:"1024" help:"Cloud KMS key, of the location global, that secrets are encrypted with if the vendor chooses their locations; left out, the vendor's own"`

	Locations      engines.StringList `json:"replication_locations" max:"50" help:"the locations of replica_regions, as older clients give them"`
	LocationalKeys engines.StringMap  `json:"locational_kms_keys" max:"50" help:"the keys of replica_regions, as older clients give them, by location"`
	GlobalKMSKey   string             `json:"global_kms_key" max:"1024" help:"kms_key_id, as older clients give it"`
}

var (
	// An old project's id may begin with the domain that it belongs to.
	projectID = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]{0,62}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	location  = regexp.MustCompile(`^[a-z][a-z0-9-]{1,62}$`)
	email     = regexp.MustCompile(`^[A-Za-z0-9._%+-]{1,128}@[A-Za-z0-9.-]{1,253}$`)
	keyID     = regexp.MustCompile(`^[A-Za-z0-9_-]{0,128}$`)
)

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

	project := c.ProjectID
	if c.Credentials == "" {
		if project == "" {
			problems = append(problems, `field "credentials": must be the JSON key of a service account (to take the one that the server's GOOGLE_APPLICATION_CREDENTIALS names, leave it out and give project_id)`)
		}
	} else {
		account, wrong := parseAccount(c.Credentials.Reveal())
		for _, problem := range wrong {
			problems = append(problems, `field "credentials": `+problem)
		}
		project = cmp.Or(project, account.project)
		if project == "" && len(wrong) == 0 {
			problems = append(problems, `field "project_id": must be given, the credentials name no project`)
		}
	}
	if problem := checkProject(project); problem != "" && project != "" {
		problems = append(problems, `field "project_id": `+problem)
	}
	return append(problems, c.checkReplication()...)
}

func checkProject(id string) string {
	switch {
	case projectID.MatchString(id):
		return ""
	case id != "" && strings.Trim(id, "0123456789") == "":
		return "must be the project's id and not its number, so that two destinations in one project are known to be so"
	}
	return `must be the id of a project: 6 to 30 lower-case letters, digits and "-", beginning with a letter`
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
	account, _ := parseAccount(c.Credentials.Reveal())
	return account.project
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
	c.showReplication(shown)
	return shown
}

// account is a service account with one of its keys.
type account struct {
	email   string
	project string
	keyID   string
	key     *rsa.PrivateKey
}

// tokenURL is who issues tokens for service accounts. Keys made long ago name one of the other addresses of the same service.
const tokenURL = "https://oauth2.googleapis.com/token" // #nosec G101 -- an address

var tokenURLs = []string{"", tokenURL, "https://accounts.google.com/o/oauth2/token", "https://www.googleapis.com/oauth2/v4/token"}

// otherTypes are the types of credentials that the vendor's own libraries would take, and call addresses that are in them.
var otherTypes = []string{"authorized_user", "external_account", "external_account_authorized_user", "impersonated_service_account", "gdch_service_account"}

// parseAccount reads the JSON key of a service account. It is the only reader of credentials: the vendor's library, which
// would follow what else they say, never sees them. The problems tell nothing of what is in them.
func parseAccount(text string) (a account, problems []string) {
	if strings.HasPrefix(text, "@") {
		return a, []string{"names a file, which the server does not read: give what is in it, as the command-line client does when it expands @file"}
	}
	var in struct {
		Type     string `json:"type"`
		Project  string `json:"project_id"`
		KeyID    string `json:"private_key_id"`
		Key      string `json:"private_key"`
		Email    string `json:"client_email"`
		TokenURI string `json:"token_uri"`
		Universe string `json:"universe_domain"`
	}
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &in) != nil {
		return a, []string{"must be a JSON object with texts, the key of a service account as it was downloaded"}
	}
	if problem := checkType(in.Type); problem != "" {
		return a, []string{problem}
	}
	say := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, problem)
		}
	}
	say(slices.Contains(tokenURLs, in.TokenURI), "token_uri in it must be "+tokenURL)
	say(in.Universe == "" || in.Universe == "googleapis.com", "universe_domain in it must be googleapis.com")
	say(email.MatchString(in.Email), "client_email in it must be the address of the service account")
	say(keyID.MatchString(in.KeyID), "private_key_id in it must be the id of the key")
	say(in.Project == "" || checkProject(in.Project) == "", "project_id in it must be the id of a project")
	key, problem := parseKey(in.Key)
	say(problem == "", problem)
	if len(problems) > 0 {
		return account{}, problems
	}
	return account{email: in.Email, project: in.Project, keyID: in.KeyID, key: key}, nil
}

func checkType(name string) string {
	switch {
	case name == "service_account":
		return ""
	case slices.Contains(otherTypes, name):
		return fmt.Sprintf("are of type %q: only the key of a service account is taken (type service_account)", name)
	}
	return `type in it must be "service_account"`
}

const minKeyBits = 2048

func parseKey(text string) (*rsa.PrivateKey, string) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, "private_key in it must be a PEM block"
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		any, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	}
	key, ok := any.(*rsa.PrivateKey)
	if err != nil || !ok || key.N.BitLen() < minKeyBits {
		return nil, fmt.Sprintf("private_key in it must be an RSA key of %d bits or more", minKeyBits)
	}
	return key, ""
}
