package cloud3sm

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"

	"github.com/coffer-project/coffer/engines"
)

// replication is where a secret is kept, and which keys encrypt it. It is fixed when the secret is created.
type replication struct {
	regions map[string]string // keys by location, "" for the vendor's own; none: the vendor chooses
	key     string            // if the vendor chooses; "" for the vendor's own
}

var kmsKey = engines.Pattern(`^projects/[a-z0-9.:-]{6,63}/locations/([a-z0-9-]{1,63})/keyRings/[A-Za-z0-9_-]{1,63}/cryptoKeys/[A-Za-z0-9_-]{1,63}$`)

// usual puts locations and keys into their usual form.
func usual(keys engines.StringMap) engines.StringMap {
	if len(keys) == 0 {
		return nil
	}
	out := engines.StringMap{}
	for where, key := range keys {
		out[strings.ToLower(strings.TrimSpace(where))] = strings.TrimSpace(key)
	}
	return out
}

// replication returns what a checked configuration says, in whichever fields.
func (c *Config) replication() replication {
	r := replication{regions: c.ReplicaRegions, key: c.KMSKeyID}
	if r.key == "" {
		r.key = c.GlobalKMSKey
	}
	if r.regions == nil && len(c.Locations) > 0 {
		r.regions = engines.StringMap{}
		for _, where := range c.Locations {
			r.regions[where] = c.LocationalKeys[where]
		}
	}
	return r
}

func (c *Config) checkReplication() (problems []string) {
	add := func(field, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("field %q: ", field)+fmt.Sprintf(format, args...))
	}
	for _, where := range c.Locations {
		if !location().MatchString(where) {
			add("replication_locations", "%q is not a location, as \"europe-west1\" is one", where)
		}
	}
	keys := func(field string, all engines.StringMap) {
		for _, where := range slices.Sorted(maps.Keys(all)) {
			if !location().MatchString(where) {
				add(field, "%q is not a location, as \"europe-west1\" is one", where)
			} else if all[where] != "" {
				problems = append(problems, checkKey(field, all[where], where)...)
			}
		}
	}
	keys("replica_regions", c.ReplicaRegions)
	keys("locational_kms_keys", c.LocationalKeys)
	for _, where := range slices.Sorted(maps.Keys(c.LocationalKeys)) {
		if !slices.Contains(c.Locations, where) {
			add("locational_kms_keys", "has a key in %s, which is not one of replication_locations: name it there", where)
		}
	}
	older := (&Config{Locations: c.Locations, LocationalKeys: c.LocationalKeys}).replication()
	if c.ReplicaRegions != nil && len(c.Locations) > 0 && !maps.Equal(c.ReplicaRegions, older.regions) {
		add("replica_regions", "says something else than replication_locations and locational_kms_keys: give one or the other")
	}
	if c.KMSKeyID != "" && c.GlobalKMSKey != "" && c.KMSKeyID != c.GlobalKMSKey {
		add("kms_key_id", "says something else than global_kms_key: give one or the other")
	}
	field := "kms_key_id"
	if c.KMSKeyID == "" {
		field = "global_kms_key"
	}
	switch r := c.replication(); {
	case r.key == "":
	case len(r.regions) > 0:
		add(field, "is for secrets whose locations the vendor chooses: give each location its key in replica_regions")
	default:
		problems = append(problems, checkKey(field, r.key, "global")...)
	}
	return problems
}

// checkKey checks a key: the vendor wants it where it is used.
func checkKey(field, key, where string) []string {
	switch m := kmsKey().FindStringSubmatch(key); {
	case m == nil:
		return []string{fmt.Sprintf("field %q: must be a key of Cloud KMS: projects/PROJECT/locations/%s/keyRings/RING/cryptoKeys/KEY", field, where)}
	case m[1] != where:
		return []string{fmt.Sprintf("field %q: is a key of the location %s: use one of %s", field, m[1], where)}
	}
	return nil
}

func (c *Config) showReplication(shown map[string]any) {
	for field, value := range map[string]string{"kms_key_id": c.KMSKeyID, "global_kms_key": c.GlobalKMSKey} {
		if value != "" {
			shown[field] = value
		}
	}
	for field, value := range map[string]engines.StringMap{"replica_regions": c.ReplicaRegions, "locational_kms_keys": c.LocationalKeys} {
		if len(value) > 0 {
			shown[field] = map[string]string(value)
		}
	}
	if len(c.Locations) > 0 {
		shown["replication_locations"] = []string(c.Locations)
	}
}

// Fixed implements destination.Fixed.
func (c *Config) Fixed() (text, why string) {
	r := c.replication()
	text = r.key
	for _, where := range slices.Sorted(maps.Keys(r.regions)) {
		text += " " + where + "=" + r.regions[where]
	}
	return text, "GCP does not change the replication and the keys of a secret after its creation"
}

// message returns what a new secret is created with.
func (r replication) message() *secretmanagerpb.Replication {
	encryption := func(key string) *secretmanagerpb.CustomerManagedEncryption {
		if key == "" {
			return nil
		}
		return &secretmanagerpb.CustomerManagedEncryption{KmsKeyName: key}
	}
	if len(r.regions) == 0 {
		return &secretmanagerpb.Replication{Replication: &secretmanagerpb.Replication_Automatic_{
			Automatic: &secretmanagerpb.Replication_Automatic{CustomerManagedEncryption: encryption(r.key)},
		}}
	}
	var replicas []*secretmanagerpb.Replication_UserManaged_Replica
	for _, where := range slices.Sorted(maps.Keys(r.regions)) {
		replicas = append(replicas, &secretmanagerpb.Replication_UserManaged_Replica{Location: where, CustomerManagedEncryption: encryption(r.regions[where])})
	}
	return &secretmanagerpb.Replication{Replication: &secretmanagerpb.Replication_UserManaged_{
		UserManaged: &secretmanagerpb.Replication_UserManaged{Replicas: replicas},
	}}
}

// check returns an error if a secret is kept elsewhere, or encrypted in another way, than is configured. Without a configuration any
// way is right.
func (r replication) check(s *secretmanagerpb.Secret) error {
	if len(r.regions) == 0 && r.key == "" {
		return nil
	}
	is := replication{key: s.GetReplication().GetAutomatic().GetCustomerManagedEncryption().GetKmsKeyName(), regions: map[string]string{}}
	for _, replica := range s.GetReplication().GetUserManaged().GetReplicas() {
		is.regions[replica.GetLocation()] = replica.GetCustomerManagedEncryption().GetKmsKeyName()
	}
	if is.key == r.key && maps.Equal(is.regions, r.regions) {
		return nil
	}
	return misconfigured("the secret is not replicated and encrypted as replica_regions and kms_key_id say, and GCP does not change that after its creation: delete it there, or use another name or destination")
}
