// Package access gets access tokens for calls of GCP: with the key of a service account, or with a token of another issuer by workload identity
// federation. Nothing that comes in credentials decides which address is called. Start reading at Tokens.
package access

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

var (
	// An old project's id may begin with the domain that it belongs to.
	projectID = engines.Pattern(`^([a-z0-9][a-z0-9.-]{0,62}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	email     = engines.Pattern(`^[A-Za-z0-9._%+-]{1,128}@[A-Za-z0-9.-]{1,253}$`)
	keyID     = engines.Pattern(`^[A-Za-z0-9_-]{0,128}$`)
)

// IsEmail reports whether a text can be the address of a service account.
func IsEmail(text string) bool { return email().MatchString(text) }

// CheckProject returns why a text is not the id of a project, "" if it is.
func CheckProject(id string) string {
	switch {
	case projectID().MatchString(id):
		return ""
	case id != "" && strings.Trim(id, "0123456789") == "":
		return "must be the project's id and not its number, so that two destinations in one project are known to be so"
	}
	return `must be the id of a project: 6 to 30 lower-case letters, digits and "-", beginning with a letter`
}

// Account is a service account with one of its keys.
type Account struct {
	Email   string
	Project string // "": its credentials name none
	KeyID   string
	Key     *rsa.PrivateKey
}

// tokenURL is who issues tokens for service accounts. Keys made long ago name one of the other addresses of the same service.
const tokenURL = "https://oauth2.googleapis.com/token" // #nosec G101 -- an address

var tokenURLs = []string{"", tokenURL, "https://accounts.google.com/o/oauth2/token", "https://www.googleapis.com/oauth2/v4/token"}

// otherTypes are the types of credentials that the vendor's own libraries would take, and call addresses that are in them.
var otherTypes = []string{"authorized_user", "external_account", "external_account_authorized_user", "impersonated_service_account", "gdch_service_account"}

// Parse reads the JSON key of a service account. It is the only reader of credentials: the vendor's library, which
// would follow what else they say, never sees them. The problems tell nothing of what is in them.
func Parse(text string) (a Account, problems []string) {
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
	say(email().MatchString(in.Email), "client_email in it must be the address of the service account")
	say(keyID().MatchString(in.KeyID), "private_key_id in it must be the id of the key")
	say(in.Project == "" || CheckProject(in.Project) == "", "project_id in it must be the id of a project")
	key, problem := parseKey(in.Key)
	say(problem == "", problem)
	if len(problems) > 0 {
		return Account{}, problems
	}
	return Account{in.Email, in.Project, in.KeyID, key}, nil
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
