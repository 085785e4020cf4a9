// Package cloud1 has what the types of destination at AWS share: the account and how to get in, calls that are made once and whose responses
// are bounded, and what errors mean. Start reading at Account and Open.
package cloud1

import (
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	maxExternalID = 1224

	// OwnerTag is the key of the tag that says whose a name is.
	OwnerTag = "coffer:sync"
	// MaxTags is how many tags a resource has at most, of all clients.
	MaxTags     = 50
	maxTagKey   = 128
	maxTagValue = 256
)

// Account is one region of one account, and how to get in. A Config embeds it.
type Account struct {
	AccessKeyID     engines.Sensitive `json:"access_key_id" help:"Access key of a user. Without it, that of the server's environment is used: AWS_ACCESS_KEY_ID, else the provider's default chain."`
	SecretAccessKey engines.Sensitive `json:"secret_access_key" help:"Secret of the access key. Without it, as for access_key_id: AWS_SECRET_ACCESS_KEY."`
	Region          string            `json:"region" help:"Region that is written to, such as us-east-1. Without it, that of the server's environment: AWS_REGION, else AWS_DEFAULT_REGION, else the shared configuration."`

	IdentityAudience engines.Sensitive `json:"identity_token_audience" help:"Audience of a token of this server, with which role_arn is assumed instead of with a key: as the identity provider in IAM has it. Its subject is plugin-identity:<namespace id>:sync:<type>/<name>."`
	IdentityTTL      engines.Duration  `json:"identity_token_ttl" help:"Lifetime of that token, an hour without it."`
	IdentityKey      engines.Sensitive `json:"identity_token_key" help:"Key that signs that token: only default."`

	RoleARN    string `json:"role_arn" help:"ARN of a role to assume with these credentials."`
	ExternalID string `json:"external_id" help:"External id that the role asks for."`
}

var (
	keyPattern      = engines.Pattern(`^\w{1,128}$`)
	RegionPattern   = engines.Pattern(`^([a-z]{1,16}-){2,4}[0-9]{1,2}$`)
	rolePattern     = engines.Pattern(`^arn:aws[a-z-]{0,20}:iam::([0-9]{12}):role/[\w+=,.@/-]{1,576}$`)
	externalPattern = engines.Pattern(`^[\w+=,.@:/-]{2,}$`)
	kmsPattern      = engines.Pattern(`^(alias/[\w/-]{1,250}|[A-Za-z0-9-]{1,256}|arn:aws[a-z-]{0,20}:kms:([a-z0-9-]{1,40}):[0-9]{12}:(key/[A-Za-z0-9-]{1,256}|alias/[\w/-]{1,250}))$`)
)

// Check returns what is wrong with the fields. It also puts them into their usual form.
func (c *Account) Check() (problems []string) {
	for _, text := range []*string{&c.Region, &c.RoleARN, &c.ExternalID} {
		*text = strings.TrimSpace(*text)
	}
	c.Region = strings.ToLower(c.Region)
	problems = append(c.checkKeys(), destination.CheckIdentity(&c.IdentityAudience, &c.IdentityKey, c.IdentityTTL)...)
	if c.IdentityAudience != "" {
		switch {
		case c.AccessKeyID != "":
			problems = append(problems, "identity_token_audience: takes the place of access_key_id: give one or the other")
		case c.RoleARN == "":
			problems = append(problems, "role_arn: is missing: identity_token_audience needs the role that is assumed with the token")
		case c.ExternalID != "":
			problems = append(problems, "external_id: a role that is assumed with an identity token asks for none: leave it out")
		}
	}
	if c.Region != "" && !RegionPattern().MatchString(c.Region) {
		problems = append(problems, "region: must be the code of a region, such as us-east-1")
	}
	if c.RoleARN != "" && !rolePattern().MatchString(c.RoleARN) {
		problems = append(problems, "role_arn: must be the ARN of a role, such as arn:aws:iam::123456789012:role/name")
	}
	switch {
	case c.ExternalID == "":
	case c.RoleARN == "":
		problems = append(problems, "external_id: is for a role: give role_arn, too, or leave it out")
	case !externalPattern().MatchString(c.ExternalID) || len(c.ExternalID) > maxExternalID:
		problems = append(problems, "external_id: must have 2 to 1224 letters, digits and _ + = , . @ : / -")
	}
	return problems
}

func (c *Account) checkKeys() (problems []string) {
	for _, field := range []struct {
		name  string
		value *engines.Sensitive
	}{{"access_key_id", &c.AccessKeyID}, {"secret_access_key", &c.SecretAccessKey}} {
		value := strings.TrimSpace(field.value.Reveal())
		*field.value = engines.Sensitive(value)
		switch {
		case strings.HasPrefix(value, "@"):
			problems = append(problems, field.name+": @ and the name of a file is expanded by the command line only: send what is in the file")
		case field.name == "access_key_id" && value != "" && !keyPattern().MatchString(value):
			problems = append(problems, field.name+": must have only letters, digits and _, at most 128")
		case len(value) > 512 || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }):
			problems = append(problems, field.name+": must have only letters, digits and signs, without spaces or line breaks, at most 512")
		}
	}
	switch id := c.AccessKeyID.Reveal(); {
	case id != "" && c.SecretAccessKey == "":
		problems = append(problems, "secret_access_key: is missing: give it with access_key_id, or neither")
	case id == "" && c.SecretAccessKey != "":
		problems = append(problems, "access_key_id: is missing: give it with secret_access_key, or neither")
	case strings.HasPrefix(id, "ASIA"):
		problems = append(problems, "access_key_id: is a temporary one, which soon expires: use that of a user, or role_arn")
	}
	return problems
}

// CheckKMS checks a key in a region, "" if that is not known yet.
func CheckKMS(field, key, regionField, region string) []string {
	m := kmsPattern().FindStringSubmatch(key)
	switch {
	case m == nil:
		return []string{field + ": must be the ARN of a key or of an alias, the id of a key, or alias/name"}
	case m[2] != "" && region != "" && m[2] != region:
		return []string{field + ": is a key in region " + m[2] + ", but " + regionField + " is " + region + ": use a key of the same region"}
	}
	return nil
}

// Location names the account and the region of a type. Whose account it is, is in the ARN of a role and in ids of keys. What is left to the
// environment is not known here and counts as a destination of its own.
func (c *Account) Location(kind string) string {
	account, region := "", c.Region
	if m := rolePattern().FindStringSubmatch(c.RoleARN); m != nil {
		account = m[1]
	} else {
		account = accountOf(c.AccessKeyID.Reveal())
	}
	switch {
	case account != "":
	case c.AccessKeyID != "":
		account = "unknown"
	default:
		account = "environment"
	}
	if region == "" {
		region = "environment"
	}
	return kind + "/" + account + "/" + region
}

// Owner implements destination.Owned: a role may be one of any account.
func (c *Account) Owner() string { return c.RoleARN }

// accountOf returns the account that the id of an access key belongs to, "" if it does not say. After four letters for its
// sort, an id is base32, and has the account in 40 bits from the second bit on.
func accountOf(accessKeyID string) string {
	if len(accessKeyID) != 20 || !strings.HasPrefix(accessKeyID, "AKIA") {
		return ""
	}
	raw, err := base32.StdEncoding.DecodeString(accessKeyID[4:])
	if err != nil {
		return ""
	}
	n := binary.BigEndian.Uint64(append([]byte{0, 0}, raw[:6]...)) & 0x7fffffffff80 >> 7
	if n >= 1e12 {
		return ""
	}
	return fmt.Sprintf("%012d", n)
}

// Shown returns the fields that are set as reads answer them, for destination.Config.Shown.
func (c *Account) Shown() map[string]any {
	shown := map[string]any{}
	for name, value := range map[string]string{"region": c.Region, "role_arn": c.RoleARN, "external_id": c.ExternalID} {
		if value != "" {
			shown[name] = value
		}
	}
	if c.IdentityTTL != 0 {
		shown["identity_token_ttl"] = c.IdentityTTL.Seconds()
	}
	for name, value := range map[string]engines.Sensitive{
		"access_key_id": c.AccessKeyID, "secret_access_key": c.SecretAccessKey, "identity_token_audience": c.IdentityAudience, "identity_token_key": c.IdentityKey,
	} {
		if value != "" {
			shown[name] = destination.Mask
		}
	}
	return shown
}

// legalInTag says what the service takes in keys and values of tags.
func legalInTag(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.In(r, unicode.Zs) || strings.ContainsRune("_.:/=+-@", r)
}

func illegalInTag(text string) bool {
	return !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !legalInTag(r) })
}

// CheckTag implements destination.Rules.CheckTag.
func CheckTag(key, value string) string {
	switch {
	case key == "" || utf8.RuneCountInString(key) > maxTagKey:
		return fmt.Sprintf("the key of a tag has 1 to %d characters", maxTagKey)
	case utf8.RuneCountInString(value) > maxTagValue:
		return fmt.Sprintf("the value of a tag has at most %d characters", maxTagValue)
	case illegalInTag(key) || illegalInTag(value):
		return "tags have only letters, digits, spaces and _ . : / = + - @"
	case len(key) >= 4 && strings.EqualFold(key[:4], "aws:"):
		return "tags whose key begins with aws: are the provider's own"
	case key == OwnerTag:
		return "the tag " + OwnerTag + " says whose a secret is and is set by itself"
	}
	return ""
}
