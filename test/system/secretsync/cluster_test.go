package secretsync_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestReplicated: of two clusters, the primary syncs, wherever secrets are written and sync is asked for.
func TestReplicated(t *testing.T) {
	t.Parallel()
	p := newPlaces(t)
	stanza := p.stanza(t, true)
	primary := harness.NewCluster(t, 1, harness.Options{Prefix: "us", Config: stanza})
	secondary := harness.NewCluster(t, 1, harness.Options{Prefix: "eu", Config: stanza})
	us := &site{places: p, t: t, c: primary, n: primary.Nodes[0], token: primary.RootToken}
	us.mount("kv")
	us.secret("kv", "a", "k", "v")
	us.must("POST", "sys/mounts/own", object{"type": "kv", "local": true, "options": object{"version": "2"}})
	us.secret("own", "here", "k", "local")
	harness.Replicate(primary, secondary, "eu")
	eu := &site{places: p, t: t, c: secondary, n: secondary.Leader(), token: secondary.RootToken}
	writes := func() (n int) {
		for _, call := range p.repo.Calls() {
			if strings.HasPrefix(call, "PUT ") {
				n++
			}
		}
		return n
	}
	d := destinations + "repohost/store"
	t.Run("a secondary has destinations and associations made by the primary", func(t *testing.T) {
		eu := eu.in(t)
		d := eu.dest("repohost", "store", object{"granularity": "secret-path", "secret_name_template": "{{ .MountBaseName }}_{{ .SecretPath }}"})
		if e := only(t, eu.associate(d, "kv", "a")); e.Status != "SYNCED" || e.Name != "KV_A" {
			t.Errorf("%+v", e)
		}
		equal(t, "the same on both", eu.entries(d), us.in(t).entries(d))
		eu.has("repohost", "KV_A", `{"k":"v"}`)
		if n := writes(); n != 1 {
			t.Errorf("it was written %d times", n)
		}
	})
	t.Run("a secret written on a secondary is synced once", func(t *testing.T) {
		eu := eu.in(t)
		eu.secret("kv", "a", "k", "from afar")
		eu.has("repohost", "KV_A", `{"k":"from afar"}`)
		eu.await(d, "SYNCED")
		if n := writes(); n != 1 {
			t.Errorf("it was written %d times", n)
		}
	})
	t.Run("a local mount of a secondary is rejected", func(t *testing.T) {
		eu := eu.in(t)
		eu.must("POST", "sys/mounts/nearby", object{"type": "kv", "local": true, "options": object{"version": "2"}})
		eu.secret("nearby", "b", "k", "v")
		eu.rejected(400, "POST", d+"/associations/set", object{"mount": "nearby", "secret_name": "b"}, "mount", "primary cluster")
	})
	t.Run("a local mount of the primary is synced", func(t *testing.T) {
		us := us.in(t)
		if e := us.associate(d, "own", "here")[us.accessor("own")+"/here"]; e.Status != "SYNCED" {
			t.Errorf("%+v", e)
		}
		us.secret("own", "here", "k", "again")
		us.has("repohost", "OWN_HERE", `{"k":"again"}`)
		us.must("POST", d+"/associations/remove", object{"mount": "own", "name": "here"})
	})
	t.Run("read access is that of who asks on the secondary", func(t *testing.T) {
		eu := eu.in(t)
		us.in(t).policy("afar", "sys/sync/*", everyCapability, "kv/data/mine/*", `"read"`)
		us.in(t).secret("kv", "mine/c", "k", "v")
		secondary.AwaitHead(primary)
		var out struct {
			Auth struct {
				Token string `json:"client_token"`
			}
		}
		eu.do("POST", "auth/token/create", object{"policies": "afar"}).Decode(t, &out)
		afar := eu.as(out.Auth.Token)
		afar.rejected(403, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "a"}, "kv/")
		if e := afar.associate(d, "kv", "mine/c")[us.in(t).accessor("kv")+"/mine/c"]; e.Status != "SYNCED" {
			t.Errorf("%+v", e)
		}
	})
	t.Run("what a secondary does not have it cannot have synced", func(t *testing.T) {
		us, eu := us.in(t), eu.in(t)
		us.mount("hidden")
		us.secret("hidden", "x", "k", "hidden from it")
		us.must("POST", "sys/replication/performance/primary/paths-filter/eu", object{"mode": "deny", "paths": []string{"hidden/"}})
		for _, body := range []object{{"mount": "hidden", "secret_name": "x"}, {"mount": "hidden", "secret_prefix": "*"}, {"mount": us.accessor("hidden"), "secret_name": "x"}} {
			eu.rejected(400, "POST", d+"/associations/set", body, "no such mount")
			eu.rejected(400, "POST", d+"/plan", body, "no such mount")
		}
		us.associate(d, "hidden", "x")
		equal(t, "what it sees", len(eu.entries(d)), len(us.entries(d))-1)
		eu.must("POST", d+"/associations/remove", object{"mount": "hidden", "name": "x"})
		eu.rejected(403, "DELETE", d+"?purge=true", nil, "permission denied")
		us.must("POST", d+"/associations/remove", object{"mount": "hidden", "name": "x"})
		us.must("DELETE", "sys/replication/performance/primary/paths-filter/eu", nil)
		secondary.AwaitStreaming()
	})
	t.Run("promoted it goes on", func(t *testing.T) {
		eu := eu.in(t)
		secondary.AwaitHead(primary)
		us.in(t).must("POST", "sys/replication/performance/primary/demote", nil)
		secondary.AwaitReplication("to have the primary's final word", func(r harness.Replication) bool { return r.Final })
		eu.must("POST", "sys/replication/performance/secondary/promote", nil)
		secondary.AwaitReplication("to be a primary", func(r harness.Replication) bool { return r.Mode == "primary" && r.State == "running" })
		eu.secret("kv", "a", "k", "after")
		eu.has("repohost", "KV_A", `{"k":"after"}`)
		names := keysOf(eu.await(d, "SYNCED"))
		if len(names) != 2 {
			t.Errorf("the secrets are %q", names)
		}
		eu.must("DELETE", d+"?purge=true", nil)
		eu.vanishes(d)
		if _, ok := p.repo.Get(repohosttest.Repository("acme", "web"), "KV_A"); ok {
			t.Error("it is still there")
		}
	})
}
