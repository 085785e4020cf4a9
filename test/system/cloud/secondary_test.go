package cloud_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestCloudSecondary: one mount, of which each cluster makes its own users and leases, and the primary all that is shared.
func TestCloudSecondary(t *testing.T) {
	t.Parallel()
	primary, secondary := alone(t, "p"), alone(t, "s")
	here := ready(t, primary, "cloud")
	here.users("dev", nil)
	here.aws.AddUser("svc")
	harness.Replicate(primary, secondary, "eu")
	there := *here
	there.c, there.node = secondary, secondary.Leader()
	counted := func(m *mount, action string) (n int) {
		for _, a := range m.aws.Actions() {
			if a == action {
				n++
			}
		}
		return n
	}
	t.Run("credentials are its own", func(t *testing.T) {
		here, there := here.in(t), there.in(t)
		wantData(t, there.read("roles/dev"), object{"credential_type": "iam_user"})
		c := there.creds("dev")
		if there.owner(c) == "" || c.Lease == "" {
			t.Fatal("the credentials do not work")
		}
		lookup := object{"lease_id": c.Lease}
		wantStatus(t, "its lease at the primary", here.sys("POST", "leases/lookup", lookup), 400)
		wantStatus(t, "its lease", there.sys("POST", "leases/lookup", lookup), 200)
		wantStatus(t, "renew", there.sys("POST", "leases/renew", lookup), 200)
		wantStatus(t, "revoke", there.sys("POST", "leases/revoke", object{"lease_id": c.Lease, "sync": true}), 204)
		if there.owner(c) != "" {
			t.Error("the user is still there")
		}
	})
	t.Run("rotations go to the primary", func(t *testing.T) {
		here, there := here.in(t), there.in(t)
		key := dataOf(t, there.admin("POST", "config/rotate-root", nil))["access_key"]
		if n := counted(there, "CreateAccessKey"); n != 1 {
			t.Errorf("%d keys were made", n)
		}
		for _, m := range []*mount{here, there} {
			wantData(t, m.read("config/root"), object{"access_key": key})
			m.creds("dev")
		}
		there.aws.Forget()
		dataOf(t, there.admin("POST", "static-roles/app", object{"username": "svc", "rotation_period": "24h"}))
		dataOf(t, there.admin("POST", "static-roles/app/rotate", nil))
		if n := counted(there, "CreateAccessKey"); n != 2 {
			t.Errorf("%d keys were made", n)
		}
		if a, b := here.current("app", "svc"), there.current("app", "svc"); a.ID != b.ID {
			t.Errorf("the clusters answer %s and %s", a.ID, b.ID)
		}
		wantStatus(t, "delete", there.admin("DELETE", "static-roles/app", nil), 200)
		wantStatus(t, "read", here.admin("GET", "static-roles/app", nil), 404)
	})
	t.Run("without its primary", func(t *testing.T) {
		m := there
		m.t = t
		primary.Nodes[0].Kill9()
		m.aws.Forget()
		var asked sync.WaitGroup
		for path, in := range map[string]object{"config/rotate-root": nil, "static-roles/app": {"username": "svc", "rotation_period": "24h"}} {
			asked.Go(func() {
				if a := m.do(m.node, "POST", m.name+"/"+path, in); a.Status < 500 {
					t.Errorf("%s: status %d: %.300s", path, a.Status, a.Body)
				}
			})
		}
		asked.Wait()
		if called := m.aws.Actions(); slices.Contains(called, "CreateAccessKey") || slices.Contains(called, "DeleteAccessKey") {
			t.Errorf("the provider was asked: %q", called)
		}
		c := m.creds("dev")
		wantStatus(t, "revoke", m.sys("POST", "leases/revoke", object{"lease_id": c.Lease, "sync": true}), 204)
		if m.owner(c) != "" {
			t.Error("the user is still there")
		}
	})
}
