package plugin_test

import (
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestPluginsOnASecondary uses the mounts of a primary cluster on a secondary of two nodes, of which one is killed then, and mounts a
// plugin there that the primary does not have.
func TestPluginsOnASecondary(t *testing.T) {
	t.Parallel()
	primary := newCluster(t, 1, harness.Options{Prefix: "pri"})
	first := primary.Leader()
	for _, path := range []string{"p", "team/p"} {
		if path == "team/p" {
			first.MustDo("POST", "/v1/sys/namespaces/team", nil)
			first.MustDo("POST", "/v1/team/sys/mounts/p", map[string]any{"type": "thing"})
		} else {
			first.MustDo("POST", "/v1/sys/mounts/p", map[string]any{"type": "thing"})
		}
		first.MustDo("POST", "/v1/"+path+"/data/a", map[string]any{"value": "1"})
	}
	first.MustDo("POST", "/v1/sys/auth/door", map[string]any{"type": "door"})
	first.MustDo("PUT", "/v1/sys/policies/acl/tester", map[string]any{"policy": `path "p/*" { capabilities = ["create", "read", "update"] }`})

	secondary := newCluster(t, 2, harness.Options{Prefix: "sec"})
	harness.Replicate(primary, secondary, "sec")
	// value awaits a value at a path of a node.
	value := func(n *harness.Node, path, token, want string) {
		t.Helper()
		harness.Await(t, path+" on "+n.ID, patience, func() error {
			a, err := n.Do(t.Context(), "GET", "/v1/"+path, token, nil)
			if err == nil && (a.Status != 200 || field(t, a, "value") != want) {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return err
		})
	}
	write := func(n *harness.Node, path, token, text string) {
		t.Helper()
		harness.Await(t, "writing "+path+" on "+n.ID, patience, func() error {
			a, err := n.Do(t.Context(), "POST", "/v1/"+path, token, map[string]any{"value": text})
			if err == nil && a.Status != 200 {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return err
		})
	}
	login := func(n *harness.Node) string {
		t.Helper()
		var out struct {
			Auth struct {
				Token string `json:"client_token"`
			}
		}
		harness.Await(t, "the login on "+n.ID, patience, func() error {
			a, err := n.Do(t.Context(), "POST", "/v1/auth/door/login", "", map[string]any{"user": "ann"})
			if err == nil && a.Status != 200 {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			if err == nil {
				a.Decode(t, &out)
			}
			return err
		})
		return out.Auth.Token
	}
	for _, n := range secondary.Nodes {
		root := secondary.RootToken
		for _, path := range []string{"p", "team/p"} {
			value(n, path+"/cached/a", root, "1")
			write(n, path+"/data/"+n.ID, root, n.ID) // the primary's to write
			value(first, path+"/data/"+n.ID, primary.RootToken, n.ID)
			value(n, path+"/data/"+n.ID, root, n.ID)
		}
		value(n, "p/cached/a", login(n), "1")
	}
	t.Run("caches", func(t *testing.T) {
		first.MustDo("POST", "/v1/p/data/a", map[string]any{"value": "2"})
		for _, n := range secondary.Nodes {
			value(n, "p/cached/a", secondary.RootToken, "2")
		}
		first.MustDo("POST", "/v1/team/p/data/a", map[string]any{"value": "3"})
		value(secondary.Leader(), "team/p/cached/a", secondary.RootToken, "3")
		value(secondary.Leader(), "p/cached/a", secondary.RootToken, "2")
	})
	t.Run("leases", func(t *testing.T) {
		for _, n := range secondary.Nodes {
			a := do(t, n, 200, "GET", "p/creds", secondary.RootToken, nil)
			var out struct {
				LeaseID string `json:"lease_id"`
			}
			a.Decode(t, &out)
			do(t, n, 200, "POST", "sys/leases/renew", secondary.RootToken, map[string]any{"lease_id": out.LeaseID})
			do(t, n, 204, "POST", "sys/leases/revoke", secondary.RootToken, map[string]any{"lease_id": out.LeaseID, "sync": true})
			harness.Await(t, "the end of what the lease stands for", patience, func() error {
				a, err := first.Do(t.Context(), "GET", "/v1/p/data/things/"+field(t, a, "id"), primary.RootToken, nil)
				if err == nil && a.Status != 404 {
					err = fmt.Errorf("status %d: %s", a.Status, a.Body)
				}
				return err
			})
		}
	})
	t.Run("local", func(t *testing.T) {
		n := secondary.Leader()
		n.MustDo("POST", "/v1/sys/mounts/mine", map[string]any{"type": "thing", "local": true})
		for _, n := range secondary.Nodes {
			write(n, "mine/data/a", secondary.RootToken, "of "+n.ID)
			value(n, "mine/data/a", secondary.RootToken, "of "+n.ID)
		}
		if got := field(t, do(t, n, 200, "GET", "mine/system", secondary.RootToken, nil), "local"); got != "true" {
			t.Errorf("the plugin takes its mount for local: %s", got)
		}
		do(t, first, 404, "GET", "mine/data/a", primary.RootToken, nil)
	})
	t.Run("its role", func(t *testing.T) {
		if got := field(t, do(t, first, 200, "GET", "p/system", primary.RootToken, nil), "secondary"); got != "false" {
			t.Errorf("on the primary, the plugin takes it for a secondary: %s", got)
		}
		if got := field(t, do(t, secondary.Leader(), 200, "GET", "p/system", secondary.RootToken, nil), "secondary"); got != "true" {
			t.Errorf("on the secondary, the plugin takes it for a primary: %s", got)
		}
	})
	t.Run("killed", func(t *testing.T) {
		killed := secondary.Leader()
		killed.Kill9()
		killed.Start()
		for _, n := range secondary.Nodes {
			value(n, "p/cached/a", secondary.RootToken, "2")
			write(n, "p/data/after", secondary.RootToken, n.ID)
			write(n, "mine/data/after", secondary.RootToken, n.ID)
			login(n)
		}
	})
	t.Run("promoted", func(t *testing.T) {
		n := secondary.Leader()
		first.MustDo("POST", "/v1/sys/replication/performance/primary/demote", nil)
		harness.Await(t, "the promotion", patience, func() error {
			a, err := n.Do(t.Context(), "POST", "/v1/sys/replication/performance/secondary/promote", secondary.RootToken, map[string]any{})
			if err == nil && a.Status/100 != 2 {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return err
		})
		harness.Await(t, "the plugin's word of it", patience, func() error {
			a, err := n.Do(t.Context(), "GET", "/v1/p/system", secondary.RootToken, nil)
			if err == nil && (a.Status != 200 || field(t, a, "secondary") != "false") {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return err
		})
		write(n, "p/data/promoted", secondary.RootToken, "1")
	})
}
