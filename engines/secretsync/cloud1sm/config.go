package cloud1sm

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
)

const (
	minRecoveryDays     = 7
	maxRecoveryDays     = 30
	defaultRecoveryDays = 30
)

// Config is one region of one account, and how to get in.
type Config struct {
	cloud1.Account

	KMSKeyID string `json:"kms_key_id" help:"Key that secrets are encrypted with: ARN, id or alias/name. Existing secrets are encrypted again with it. Without it, new secrets are encrypted with the account's aws/secretsmanager, and existing ones keep their key."`

	ReplicaRegions engines.StringMap `json:"replica_regions" max:"50" help:"Regions that secrets are replicated to, each with the key there (ARN, id or alias/name), empty for the account's aws/secretsmanager. Existing secrets follow. An empty object removes all replicas; without the field they stay as they are."`

	RecoveryWindowInDays *int `json:"recovery_window_in_days" help:"How long a deleted secret can be recovered: 7 to 30 days, 30 by default; 0 deletes at once and for good."`
}

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	c.KMSKeyID = strings.TrimSpace(c.KMSKeyID)
	problems = c.Account.Check()
	if c.KMSKeyID != "" {
		problems = append(problems, cloud1.CheckKMS("kms_key_id", c.KMSKeyID, "region", c.Region)...)
	}
	problems = append(problems, c.checkReplicas()...)
	if days := c.recoveryDays(); days != 0 && (days < minRecoveryDays || days > maxRecoveryDays) {
		problems = append(problems, fmt.Sprintf("recovery_window_in_days: must be 0 or %d to %d", minRecoveryDays, maxRecoveryDays))
	}
	return problems
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
		case !cloud1.RegionPattern().MatchString(region):
			problems = append(problems, fmt.Sprintf("replica_regions: %q is not the code of a region, such as us-east-1", given))
		case twice:
			problems = append(problems, "replica_regions: has "+region+" twice")
		case region == c.Region:
			problems = append(problems, "replica_regions: "+region+" is the region of the secrets themselves: leave it out")
		case key != "":
			problems = append(problems, cloud1.CheckKMS("replica_regions", key, "the replica's region", region)...)
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

// Location implements destination.Config.
func (c *Config) Location() string { return c.Account.Location(typeName) }

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	shown := c.Account.Shown()
	shown["recovery_window_in_days"] = c.recoveryDays()
	if c.KMSKeyID != "" {
		shown["kms_key_id"] = c.KMSKeyID
	}
	if c.ReplicaRegions != nil {
		shown["replica_regions"] = map[string]string(c.ReplicaRegions)
	}
	return shown
}
