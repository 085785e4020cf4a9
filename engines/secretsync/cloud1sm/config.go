package cloud1sm

import (
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	minRecoveryDays     = 7
	maxRecoveryDays     = 30
	defaultRecoveryDays = 30
	maxExternalID       = 1224
)

// Config is one region of one account, and how to get in.
type Config struct {
	AccessKeyID     engines.Sensitive `json:"access_key_id" help:"Access key of a user. Without it, that of the server's environment is used: AWS_ACCESS_KEY_ID, else the provider's default chain."`
	SecretAccessKey engines.Sensitive `json:"secret_access_key" help:"Secret of the access key. Without it, as for access_key_id: AWS_SECRET_ACCESS_KEY."`
	Region          string            `json:"region" help:"Region of the secrets, such as us-east-1. Without it, that of the server's environment: AWS_REGION, else AWS_DEFAULT_REGION, else the shared configuration."`

	IdentityAudience engines.Sensitive `json:"identity_token_audience" help:"Audience of a token of this server, with which role_arn is assumed instead of with a key: as the identity provider in IAM has it. Its subject is plugin-identity:<namespace id>:sync:cloud1-sm/<name>."`
	IdentityTTL      engines.Duration  `json:"identity_token_ttl" help:"Lifetime of that token, an hour without it."`
	IdentityKey      engines.Sensitive `json:"identity_token_key" help:"Key that signs that token: only default."`

	RoleARN    string `json:"role_arn" help:"ARN of a role to assume with these credentials."`
	ExternalID string `json:"external_id" help:"External id that the role asks for."`
	KMSKeyID   string `json:"kms_key_id" help:"Key that secrets are encrypted with: ARN, id or alias/name. Existing secrets are encrypted again with it. Without it, new secrets are encrypted with the account's aws/secretsmanager, and existing ones keep their key."`

	ReplicaRegions engines.StringMap `json:"replica_regions" max:"50" help:"Regions that secrets are replicated to, each with the key there (ARN, id or alias/name), empty for the account's aws/secretsmanager. Existing secrets follow. An empty object removes all replicas; without the field they stay as they are."`

	RecoveryWindowInDays *int `json:"recovery_window_in_days" help:"How long a deleted secret can be recovered: 7 to 30 days, 30 by default; 0 deletes at once and for good."`
}

var (
	keyPattern      = regexp.MustCompile(`^\w{1,128}$`)
	regionPattern   = regexp.MustCompile(`^([a-z]{1,16}-){2,4}[0-9]{1,2}$`)
	rolePattern     = regexp.MustCompile(`^arn:aws[a-z-]{0,20}:iam::([0-9]{12}):role/[\w+=,.@/-]{1,576}$`)
	externalPattern = regexp.MustCompile(`^[\w+=,.@:/-]{2,}$`)
	kmsPattern      = regexp.MustCompile(`^(alias/[\w/-]{1,250}|[A-Za-z0-9-]{1,256}|arn:aws[a-z-]{0,20}:kms:([a-z0-9-]{1,40}):[0-9]{12}:(key/[A-Za-z0-9-]{1,256}|alias/[\w/-]{1,250}))$`)
)

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	for _, text := range []*string{&c.Region, &c.RoleARN, &c.ExternalID, &c.KMSKeyID} {
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
	if c.Region != "" && !regionPattern.MatchString(c.Region) {
		problems = append(problems, "region: must be the code of a region, such as us-east-1")
	}
	if c.RoleARN != "" && !rolePattern.MatchString(c.RoleARN) {
		problems = append(problems, "role_arn: must be the ARN of a role, such as arn:aws:iam::123456789012:role/name")
	}
	switch {
	case c.ExternalID == "":
	case c.RoleARN == "":
		problems = append(problems, "external_id: is for a role: give role_arn, too, or leave it out")
	case !externalPattern.MatchString(c.ExternalID) || len(c.ExternalID) > maxExternalID:
		problems = append(problems, "external_id: must have 2 to 1224 letters, digits and _ + = , . @ : / -")
	}
	if c.KMSKeyID != "" {
		problems = append(problems, checkKMS("kms_key_id", c.KMSKeyID, "region", c.Region)...)
	}
	problems = append(problems, c.checkReplicas()...)
	if days := c.recoveryDays(); days != 0 && (days < minRecoveryDays || days > maxRecoveryDays) {
		problems = append(problems, fmt.Sprintf("recovery_window_in_days: must be 0 or %d to %d", minRecoveryDays, maxRecoveryDays))
	}
	return problems
}

func (c *Config) checkKeys() (problems []string) {
	for _, field := range []struct {
		name  string
		value *engines.Sensitive
	}{{"access_key_id", &c.AccessKeyID}, {"secret_access_key", &c.SecretAccessKey}} {
		value := strings.TrimSpace(field.value.Reveal())
		*field.value = engines.Sensitive(value)
		switch {
		case strings.HasPrefix(value, "@"):
			problems = append(problems, field.name+": @ and the name of a file is expanded by the command line only: send what is in the file")
		case field.name == "access_key_id" && value != "" && !keyPattern.MatchString(value):
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

// checkKMS checks a key in a region, "" if that is not known yet.
func checkKMS(field, key, regionField, region string) []string {
	m := kmsPattern.FindStringSubmatch(key)
	switch {
	case m == nil:
		return []string{field + ": must be the ARN of a key or of an alias, the id of a key, or alias/name"}
	case m[2] != "" && region != "" && m[2] != region:
		return []string{field + ": is a key in region " + m[2] + ", but " + regionField + " is " + region + ": use a key of the same region"}
	}
	return nil
}

// checkReplicas also puts regions and keys into their usual form.
func (c *Config) checkReplicas() (problems []string) {
	if c.ReplicaRegions == nil {
		return nil
	}
	usual := engines.StringMap{}
	for _, given := range slices.Sorted(maps.Keys(c.ReplicaRegions)) {
		region, key := strings.ToLower(strings.TrimSpace(given)), strings.TrimSpace(c.ReplicaRegions[given])
		_, twice := usual[region]
		switch {
		case !regionPattern.MatchString(region):
			problems = append(problems, fmt.Sprintf("replica_regions: %q is not the code of a region, such as us-east-1", given))
		case twice:
			problems = append(problems, "replica_regions: has "+region+" twice")
		case region == c.Region:
			problems = append(problems, "replica_regions: "+region+" is the region of the secrets themselves: leave it out")
		case key != "":
			problems = append(problems, checkKMS("replica_regions", key, "the replica's region", region)...)
		}
		usual[region] = key
	}
	if problems == nil {
		c.ReplicaRegions = usual
	}
	return problems
}

// Applied implements destination.Applied.
func (c *Config) Applied() string {
	if c.KMSKeyID == "" && c.ReplicaRegions == nil {
		return ""
	}
	text := "key " + c.KMSKeyID
	if c.ReplicaRegions != nil {
		text += " replicas"
	}
	for _, region := range slices.Sorted(maps.Keys(c.ReplicaRegions)) {
		text += " " + region + "=" + c.ReplicaRegions[region]
	}
	return text
}

func (c *Config) recoveryDays() int {
	if c.RecoveryWindowInDays == nil {
		return defaultRecoveryDays
	}
	return *c.RecoveryWindowInDays
}

// Location implements destination.Config. Whose account it is, is in the ARN of a role and in ids of keys. What is left to the
// environment is not known here and counts as a destination of its own.
func (c *Config) Location() string {
	account, region := "", c.Region
	if m := rolePattern.FindStringSubmatch(c.RoleARN); m != nil {
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
	return typeName + "/" + account + "/" + region
}

// Owner implements destination.Owned: a role may be one of any account.
func (c *Config) Owner() string { return c.RoleARN }

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

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	shown := map[string]any{"recovery_window_in_days": c.recoveryDays()}
	for name, value := range map[string]string{
		"region": c.Region, "role_arn": c.RoleARN, "external_id": c.ExternalID, "kms_key_id": c.KMSKeyID,
	} {
		if value != "" {
			shown[name] = value
		}
	}
	if c.IdentityTTL != 0 {
		shown["identity_token_ttl"] = c.IdentityTTL.Seconds()
	}
	if c.ReplicaRegions != nil {
		shown["replica_regions"] = map[string]string(c.ReplicaRegions)
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
