package cloud1sm_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const otherKey = "arn:aws:kms:us-west-2:123456789012:key/1234abcd"

// placed opens a destination with a key and replicas.
func placed(t *testing.T, s *cloud1smtest.Server, key string, replicas engines.StringMap) destination.Destination {
	return open(t, s, destination.Env{}, func(c *cloud1sm.Config) { c.KMSKeyID, c.ReplicaRegions = key, replicas })
}

func isPlaced(t *testing.T, s *cloud1smtest.Server, key string, replicas map[string]string) {
	t.Helper()
	if is, _ := s.Secret(name); is.KMSKeyID != key || !maps.Equal(is.Replicas, replicas) {
		t.Errorf("key %q, replicas %v, want %q, %v", is.KMSKeyID, is.Replicas, key, replicas)
	}
}

func TestNewSecretHasReplicas(t *testing.T) {
	s := cloud1smtest.New(t)
	write(t, placed(t, s, "", engines.StringMap{"us-west-2": otherKey, "us-east-1": ""}), item("value"))
	did(t, s, "DescribeSecret", "CreateSecret")
	isPlaced(t, s, "", map[string]string{"us-west-2": otherKey, "us-east-1": ""})
}

// TestExistingSecretFollows: a new key and other replicas count for what is there, without a new version of the value.
func TestExistingSecretFollows(t *testing.T) {
	s := cloud1smtest.New(t)
	first := write(t, placed(t, s, "", engines.StringMap{"us-east-1": "", "us-west-2": ""}), item("value"))
	s.Actions()
	held := write(t, placed(t, s, "alias/secrets", engines.StringMap{"us-west-2": otherKey, "eu-west-1": ""}), item("value"))
	did(t, s, "DescribeSecret", "GetSecretValue", "UpdateSecret", "RemoveRegionsFromReplication", "ReplicateSecretToRegions")
	isPlaced(t, s, "alias/secrets", map[string]string{"us-west-2": otherKey, "eu-west-1": ""})
	if held != first {
		t.Errorf("held %+v, want %+v: the value is the same", held, first)
	}
	// Once more changes nothing, in whatever form the key is named.
	write(t, placed(t, s, "arn:aws:kms:eu-central-1:123456789012:alias/secrets", engines.StringMap{"us-west-2": "1234abcd", "eu-west-1": "alias/aws/secretsmanager"}), item("value"))
	did(t, s, "DescribeSecret", "GetSecretValue")
	// A destination that gives neither leaves them.
	write(t, open(t, s, destination.Env{}, nil), item("other"))
	isPlaced(t, s, "alias/secrets", map[string]string{"us-west-2": otherKey, "eu-west-1": ""})
	write(t, placed(t, s, "", engines.StringMap{}), item("other"))
	isPlaced(t, s, "alias/secrets", map[string]string{})
}

// TestReplicaFails: the secret of another client in the other region is not overwritten, and the reason is shown.
func TestReplicaFails(t *testing.T) {
	s := cloud1smtest.New(t)
	write(t, open(t, s, destination.Env{}, nil), item("value"))
	d := placed(t, s, "", engines.StringMap{"us-gov-west-1": ""})
	_, err := d.Write(t.Context(), item("value"), read(t, d))
	if e := failed(t, err, destination.Client, destination.BadRequest, true); !strings.Contains(e.Text, "us-gov-west-1") || !strings.Contains(e.Text, "already exists") {
		t.Errorf("the error is %q", e.Text)
	}
}

func TestDeleteWithReplicas(t *testing.T) {
	for _, days := range []int{0, 7} {
		s := cloud1smtest.New(t)
		d := open(t, s, destination.Env{}, func(c *cloud1sm.Config) {
			c.RecoveryWindowInDays, c.ReplicaRegions = &days, engines.StringMap{"us-west-2": ""}
		})
		write(t, d, item("value"))
		if err := d.Delete(t.Context(), read(t, d)); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Get(name); ok {
			t.Error("the secret is still there")
		}
	}
}

func TestReplicaRegionsAreChecked(t *testing.T) {
	for _, test := range []struct {
		regions engines.StringMap
		want    string
	}{
		{engines.StringMap{"nowhere": ""}, `"nowhere" is not the code of a region`},
		{engines.StringMap{"eu-central-1": ""}, "is the region of the secrets themselves"},
		{engines.StringMap{"us-east-1": "", " US-EAST-1 ": ""}, "twice"},
		{engines.StringMap{"us-east-1": "!"}, "must be the ARN of a key"},
		{engines.StringMap{"us-east-1": otherKey}, "is a key in region us-west-2, but the replica's region is us-east-1"},
		{engines.StringMap{" US-West-2 ": otherKey}, ""},
	} {
		c := &cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1"}, ReplicaRegions: test.regions}
		problems := strings.Join(c.Check(), "; ")
		if test.want == "" && problems != "" || !strings.Contains(problems, test.want) {
			t.Errorf("%v: %q, want %q", test.regions, problems, test.want)
		}
	}
}
