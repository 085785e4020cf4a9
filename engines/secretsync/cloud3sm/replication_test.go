package cloud3sm_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

const (
	globalKey = "projects/key-project/locations/global/keyRings/ring/cryptoKeys/key"
	westKey   = "projects/key-project/locations/europe-west1/keyRings/ring/cryptoKeys/key"
)

func TestKeysAndRegions(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*cloud3sm.Config)
		key    string
		places map[string]string
	}{
		{"a key", func(c *cloud3sm.Config) { c.KMSKeyID = globalKey }, globalKey, nil},
		{"a key of an older client", func(c *cloud3sm.Config) { c.GlobalKMSKey = globalKey }, globalKey, nil},
		{"regions", func(c *cloud3sm.Config) {
			c.ReplicaRegions = engines.StringMap{"Europe-West1": westKey, "us-east1": ""}
		}, "", map[string]string{"europe-west1": westKey, "us-east1": ""}},
		{"regions of an older client", func(c *cloud3sm.Config) {
			c.Locations, c.LocationalKeys = engines.StringList{"us-east1", "europe-west1"}, engines.StringMap{"europe-west1": westKey}
		}, "", map[string]string{"europe-west1": westKey, "us-east1": ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			d := open(t, s, configured(test.change))
			desttest.Write(t, d, item("one", "v"))
			desttest.Write(t, d, item("one", "w")) // what is as it should be is written again
			r := s.Replication("one")
			if got := r.GetAutomatic().GetCustomerManagedEncryption().GetKmsKeyName(); got != test.key {
				t.Errorf("key %q, want %q", got, test.key)
			}
			var places map[string]string
			for _, replica := range r.GetUserManaged().GetReplicas() {
				if places == nil {
					places = map[string]string{}
				}
				places[replica.GetLocation()] = replica.GetCustomerManagedEncryption().GetKmsKeyName()
			}
			if !reflect.DeepEqual(places, test.places) {
				t.Errorf("replicas %v, want %v", places, test.places)
			}
			// A secret that is kept in another way cannot be changed, and gets no value.
			other := open(t, s, configured(func(c *cloud3sm.Config) { c.ReplicaRegions = engines.StringMap{"us-west1": ""} }))
			_, err := other.Write(t.Context(), item("one", "x"), desttest.Read(t, other, "one"))
			var e *destination.Error
			if !errors.As(err, &e) || e.Class != destination.Client || e.Unknown || !strings.Contains(e.Text, "does not change") {
				t.Errorf("a write over it: %v", err)
			}
			if got, _ := s.Get("one"); string(got) != "w" {
				t.Errorf("the value is %q", got)
			}
		})
	}
}

func TestKeysAndRegionsAreChecked(t *testing.T) {
	for _, test := range []struct {
		change func(*cloud3sm.Config)
		want   string
	}{
		{func(c *cloud3sm.Config) { c.KMSKeyID = westKey }, `"kms_key_id": is a key of the location europe-west1: use one of global`},
		{func(c *cloud3sm.Config) { c.GlobalKMSKey = "key" }, `"global_kms_key": must be a key of Cloud KMS`},
		{func(c *cloud3sm.Config) { c.KMSKeyID, c.ReplicaRegions = globalKey, engines.StringMap{"us-east1": ""} }, `give each location its key in replica_regions`},
		{func(c *cloud3sm.Config) { c.KMSKeyID, c.GlobalKMSKey = globalKey, globalKey+"2" }, `"kms_key_id": says something else than global_kms_key`},
		{func(c *cloud3sm.Config) { c.ReplicaRegions = engines.StringMap{"us-east1": westKey} }, `"replica_regions": is a key of the location europe-west1`},
		{func(c *cloud3sm.Config) { c.ReplicaRegions = engines.StringMap{"x/y": ""} }, `"replica_regions": "x/y" is not a location`},
		{func(c *cloud3sm.Config) {
			c.ReplicaRegions, c.Locations = engines.StringMap{"us-east1": ""}, engines.StringList{"us-west1"}
		}, `"replica_regions": says something else`},
		{func(c *cloud3sm.Config) { c.LocationalKeys = engines.StringMap{"europe-west1": westKey} }, `"locational_kms_keys": has a key in europe-west1, which is not one of replication_locations`},
	} {
		c := configured(test.change)
		if problems := strings.Join(c.Check(), "; "); !strings.Contains(problems, test.want) {
			t.Errorf("%+v: %q, want %q", c.Shown(), problems, test.want)
		}
	}
}

// TestReplicationIsFixed: the same in other fields is no change, and the reason of a refusal is named.
func TestReplicationIsFixed(t *testing.T) {
	older := configured(func(c *cloud3sm.Config) {
		c.Locations, c.LocationalKeys = engines.StringList{"us-east1", "europe-west1"}, engines.StringMap{"europe-west1": westKey}
	})
	newer := configured(func(c *cloud3sm.Config) {
		c.ReplicaRegions = engines.StringMap{"us-east1": "", "europe-west1": westKey}
	})
	one, _ := older.Fixed()
	two, why := newer.Fixed()
	none, _ := configured(nil).Fixed()
	if one != two || one == none || !strings.Contains(why, "GCP does not change") {
		t.Errorf("fixed are %q, %q, %q, because %q", one, two, none, why)
	}
}
