package cloud1ssm

import (
	"cmp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
)

// Config is one region of one account, and how to get in.
type Config struct {
	cloud1.Account

	KMSKeyID string `json:"kms_key_id" help:"Key that parameters are encrypted with: ARN, id or alias/name. Existing parameters are encrypted again with it. Without it, new parameters are encrypted with the account's aws/ssm, and existing ones keep their key."`

	Tier          string `json:"tier" help:"Standard, for values of up to 4096 bytes; Advanced, for up to 8192, at a price; Intelligent-Tiering, which is Advanced only for what needs it. Without it, new parameters are Standard, and existing ones keep their tier. AWS turns no Advanced parameter into a Standard one."`
	ParameterType string `json:"parameter_type" help:"SecureString, which AWS encrypts; or String, which it does not, for what is no secret. Without it SecureString."`
}

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	for _, text := range []*string{&c.KMSKeyID, &c.Tier, &c.ParameterType} {
		*text = strings.TrimSpace(*text)
	}
	problems = c.Account.Check()
	if c.KMSKeyID != "" {
		problems = append(problems, cloud1.CheckKMS("kms_key_id", c.KMSKeyID, "region", c.Region)...)
	}
	if c.Tier != "" && !slices.Contains([]string{standard, advanced, intelligent}, c.Tier) {
		problems = append(problems, "tier: must be Standard, Advanced or Intelligent-Tiering")
	}
	switch c.kind() {
	case secureString:
	case plainString:
		if c.KMSKeyID != "" {
			problems = append(problems, "kms_key_id: is for the parameter_type SecureString: AWS does not encrypt a String")
		}
	default:
		problems = append(problems, "parameter_type: must be SecureString or String")
	}
	return problems
}

// kind is the type of the parameters.
func (c *Config) kind() string { return cmp.Or(c.ParameterType, secureString) }

// Applied implements destination.Applied.
func (c *Config) Applied() string {
	if c.KMSKeyID == "" && c.Tier == "" {
		return ""
	}
	return "key " + c.KMSKeyID + " tier " + c.Tier
}

// Fixed implements destination.Fixed.
func (c *Config) Fixed() (text, why string) {
	return "type " + c.kind(), "AWS does not change the type of a parameter"
}

// Location implements destination.Config.
func (c *Config) Location() string { return c.Account.Location(typeName) }

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	shown := c.Account.Shown()
	shown["parameter_type"] = c.kind()
	for name, value := range map[string]string{"kms_key_id": c.KMSKeyID, "tier": c.Tier} {
		if value != "" {
			shown[name] = value
		}
	}
	return shown
}
