package cloud_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestFrozenLeaderRevokesNothing freezes the leader while leases fall due that its successor renews. When it goes on it finds
// them expired in its own state. It must not revoke them at the provider: only a committed mark allows that.
func TestFrozenLeaderRevokesNothing(t *testing.T) {
	t.Parallel()
	harness.LongOnly(t)
	c := harness.NewCluster(t, 3, harness.Options{Prefix: "frozen"})
	m := &mount{t: t, c: c, name: "cloud", aws: awstest.New(t)}
	m.put("sys/mounts/cloud", object{"type": "cloud"})
	m.put("cloud/config/root", m.settings(nil))
	m.later()
	m.put("cloud/config/lease", object{"lease": "30s", "lease_max": "1h"})
	m.hasUsers()
	old := c.Leader()
	var all []issued
	for range 8 {
		all = append(all, issuedOf(t, m.answered("GET", "cloud/creds/full", nil)))
	}
	due := time.After(30 * time.Second)
	old.Pause()
	defer old.Resume()
	next := c.Leader()
	for _, is := range all {
		harness.Await(t, "a renewal", patience, func() error {
			a := m.do(next, "POST", "sys/leases/renew", object{"lease_id": is.Lease, "increment": 3000})
			if a.Status != 200 {
				return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
			}
			return nil
		})
	}
	<-due
	old.Resume()
	old.WaitHealth(429)
	for _, is := range all {
		if _, there := m.aws.User(m.user(is.Data.AccessKey).Name); !there {
			t.Errorf("the user of the lease %s is gone", is.Lease)
		}
		if a := m.do(old, "POST", "sys/leases/lookup", object{"lease_id": is.Lease}); a.Status != 200 {
			t.Errorf("the lease %s is gone: status %d: %.300s", is.Lease, a.Status, a.Body)
		}
	}
	for _, action := range m.aws.Actions() {
		if action == "DeleteUser" || action == "DeleteAccessKey" {
			t.Errorf("the provider was asked for %s", action)
		}
	}
}
