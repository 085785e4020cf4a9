package replication

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// The rules of RULES.md that need whole servers, one test each. Those that TestReplication follows through the life of a
// pair of clusters are not repeated here.

// alone returns a cluster of one node.
func alone(t *testing.T, prefix string) *harness.Cluster {
	t.Helper()
	return harness.NewCluster(t, 1, harness.Options{Prefix: prefix})
}

// two returns a primary with a secret and its secondary, which is called "eu" and has a local secret.
func two(t *testing.T) (primary, secondary *harness.Cluster) {
	t.Helper()
	primary, secondary = alone(t, "p"), alone(t, "s")
	fill(t, primary, "shared", false)
	harness.Replicate(primary, secondary, "eu")
	fill(t, secondary, "own", true)
	return primary, secondary
}

// fill makes a mount with a secret that says where it is.
func fill(t *testing.T, c *harness.Cluster, mount string, local bool) {
	t.Helper()
	must(t, c, c.Leader(), "POST", "sys/mounts/"+mount, object{"type": "kv", "local": local})
	must(t, c, c.Leader(), "POST", mount+"/x", object{"value": mount})
}

// do sends a request to the active node, for a path below performance.
func do(t *testing.T, c *harness.Cluster, path string, body object) harness.Answer {
	t.Helper()
	_, _, a := request(t, c, c.Leader(), "POST", "sys/replication/performance/"+path, body)
	return a
}

// worked wants an answer with warnings, which is what every change of role gives.
func worked(t *testing.T, what string, a harness.Answer) {
	t.Helper()
	var out struct{ Warnings []string }
	if a.Status == 200 {
		a.Decode(t, &out)
	}
	if len(out.Warnings) == 0 {
		t.Fatalf("%s: status %d: %.400s, want 200 and a warning", what, a.Status, a.Body)
	}
}

// refused wants an error with all the words.
func refused(t *testing.T, what string, a harness.Answer, status int, words ...string) {
	t.Helper()
	text := strings.Join(a.Errors(), "\n")
	if a.Status != status || text == "" {
		t.Fatalf("%s: status %d: %.400s, want %d", what, a.Status, a.Body, status)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q does not say %q", what, text, w)
		}
	}
}

// reads wants a secret to be there now.
func reads(t *testing.T, c *harness.Cluster, path, value string) {
	t.Helper()
	for _, n := range c.Nodes {
		if status, data, a := request(t, c, n, "GET", path, nil); !holds(value)(status, data) {
			t.Errorf("%s on %s: status %d: %.300s, want %q", path, n.ID, status, a.Body, value)
		}
	}
}

// isGone wants a secret not to be there now.
func isGone(t *testing.T, c *harness.Cluster, path string) {
	t.Helper()
	for _, n := range c.Nodes {
		if status, _, a := request(t, c, n, "GET", path, nil); !gone(status, nil) {
			t.Errorf("%s on %s: status %d: %.300s, want nothing", path, n.ID, status, a.Body)
		}
	}
}

func disconnected(r harness.Replication) bool { return r.Connection != "ready" }

// TestReplicationPrimaryDisable: its secondaries can no longer connect, not even when it is enabled again with another
// cluster id; they need a storage wipe to come back.
func TestReplicationPrimaryDisable(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	before := primary.Replication()
	worked(t, "disable", do(t, primary, "primary/disable", nil))
	secondary.AwaitReplication("to be shut out", disconnected)
	if got := primary.Replication(); got.Mode != "disabled" || got.ClusterID != "" {
		t.Errorf("a disabled cluster says %+v", got)
	}
	must(t, primary, primary.Leader(), "POST", "shared/x", object{"value": "on its own"})
	reads(t, secondary, "shared/x", "shared")

	primary.EnablePrimary()
	after := primary.Replication()
	if after.ClusterID == before.ClusterID || after.SetID == before.SetID || len(after.KnownSecondaries) != 0 {
		t.Errorf("enabled again: %+v, before: %+v", after, before)
	}
	refused(t, "its address", do(t, secondary, "secondary/update-primary", object{"update_primary_addrs": primary.Leader().ClusterAddr()}), 400)
	token := primary.SecondaryToken("eu")
	refused(t, "its token", do(t, secondary, "secondary/update-primary", object{"token": token, "ca_file": primary.CAFile}), 400, "another replication set")
	if r := secondary.Replication(); r.Connection == "ready" || r.Mode != "secondary" {
		t.Errorf("the secondary of the set before: %+v", r)
	}
	reads(t, secondary, "own/x", "own")

	worked(t, "disable the secondary", do(t, secondary, "secondary/disable", nil))
	reads(t, secondary, "own/x", "own")
	secondary.EnableSecondary(primary, token) // the refusal has not used it up
	secondary.AwaitStreaming()
	secondary.LogIn()
	isGone(t, secondary, "own/x")
	reads(t, secondary, "shared/x", "on its own")
}

// TestReplicationPrimaryDemote: the cluster id stays, nobody is connected to, and the cluster rejoins its set, under the
// promoted secondary, with everything it holds.
func TestReplicationPrimaryDemote(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	fill(t, primary, "kept", true)
	id := primary.Replication().ClusterID
	worked(t, "demote", do(t, primary, "primary/demote", nil))
	r := primary.Replication()
	if r.Mode != "secondary" || r.ClusterID != id || r.Connection == "ready" || r.Phase != "demoted" {
		t.Errorf("demoted: %+v", r)
	}
	refused(t, "demote again", do(t, primary, "primary/demote", nil), 400)
	promote(t, secondary)
	if got := secondary.Replication(); got.Mode != "primary" || got.SetID != r.SetID || got.ClusterID == id {
		t.Errorf("promoted: %+v", got)
	}
	worked(t, "rejoin", do(t, primary, "secondary/update-primary", object{"token": secondary.SecondaryToken("former"), "ca_file": secondary.CAFile}))
	primary.AwaitStreaming()
	primary.AwaitHead(secondary)
	reads(t, primary, "kept/x", "kept") // with the token of before
	if got := primary.Replication(); got.ClusterID != id || got.Repair != nil && got.Repair.Keys > 0 {
		t.Errorf("rejoined: %+v", got)
	}
}

// promote promotes as an operator does who waits until it is safe.
func promote(t *testing.T, c *harness.Cluster) {
	t.Helper()
	harness.Await(t, "the promotion", time.Minute, func() error {
		if a := do(t, c, "secondary/promote", nil); a.Status != 200 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
}

// TestReplicationDemoteInARepair: what the secondary is fetching or comparing when the primary is demoted gets finished.
func TestReplicationDemoteInARepair(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	must(t, secondary, secondary.Leader(), "POST", "sys/replication/recover", nil)
	worked(t, "demote", do(t, primary, "primary/demote", nil))
	promote(t, secondary)
	reads(t, secondary, "shared/x", "shared")
}

// TestReplicationSecondaryEnable: everything in the cluster is cleared at once, on every node of it, tokens and local
// mounts too; what makes it a cluster stays.
func TestReplicationSecondaryEnable(t *testing.T) {
	t.Parallel()
	primary := alone(t, "p")
	secondary := harness.NewCluster(t, 2, harness.Options{Prefix: "s"})
	fill(t, primary, "shared", false)
	fill(t, secondary, "lost", false)
	fill(t, secondary, "own", true)
	n := secondary.Leader()
	must(t, secondary, n, "POST", "sys/policies/acl/lost", object{"policy": `path "lost/*" { capabilities = ["read"] }`})
	must(t, secondary, n, "POST", "sys/auth/people", object{"type": "userpass"})
	must(t, secondary, n, "POST", "auth/people/users/bob", object{"password": "of bob", "token_policies": "lost"})
	must(t, secondary, n, "POST", "auth/people/login/bob", object{"password": "of bob"})
	must(t, secondary, n, "POST", "sys/namespaces/team", object{})
	must(t, secondary, n, "POST", "sys/mounts/kv", object{"type": "kv"}, "X-Vault-Namespace", "team")
	must(t, secondary, n, "POST", "sys/quotas/rate-limit/lost", object{"rate": 1000})
	_, _, a := request(t, secondary, n, "POST", "auth/token/create", object{"policies": "lost"})
	var created struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	a.Decode(t, &created)
	tokens := []string{secondary.RootToken, created.Auth.Token}

	primary.EnablePrimary()
	primary.AddOperator()
	token := primary.SecondaryToken("eu")
	worked(t, "enable", do(t, secondary, "secondary/enable", object{"token": token, "ca_file": primary.CAFile}))
	secondary.AwaitStreaming()
	for _, n := range secondary.Nodes {
		for _, token := range tokens {
			secondary.RootToken = token
			harness.Await(t, "the end of a token on "+n.ID, time.Minute, func() error {
				if status, _, a := request(t, secondary, n, "GET", "auth/token/lookup-self", nil); status != 403 {
					return fmt.Errorf("status %d: %.200s", status, a.Body)
				}
				return nil
			})
		}
	}
	secondary.Adopt(primary)
	secondary.LogIn()
	for _, n := range secondary.Nodes {
		eventually(t, secondary, n, "shared/x", holds("shared"))
		for _, path := range []string{"lost/x", "own/x", "team/kv/x", "sys/policies/acl/lost", "auth/people/users/bob", "sys/namespaces/team", "sys/quotas/rate-limit/lost"} {
			if status, _, a := request(t, secondary, n, "GET", path, nil); !gone(status, nil) {
				t.Errorf("%s on %s: status %d: %.200s", path, n.ID, status, a.Body)
			}
		}
		for _, path := range []string{"sys/mounts", "sys/auth"} {
			_, mounts, _ := request(t, secondary, n, "GET", path, nil)
			for _, name := range []string{"lost/", "own/", "people/"} {
				if mounts[name] != nil {
					t.Errorf("%s on %s still has %s", path, n.ID, name)
				}
			}
		}
		if status, _, _ := request(t, secondary, n, "POST", "auth/people/login/bob", object{"password": "of bob"}); status == 200 {
			t.Errorf("a user of before can log in on %s", n.ID)
		}
	}
	standby := secondary.Standbys()[0] // its own seal opens it
	standby.Stop()
	standby.Start()
	standby.WaitHealth(200, 429) // the other may have lost the leadership meanwhile
	refused(t, "a used token", do(t, alone(t, "t"), "secondary/enable", object{"token": token, "ca_file": primary.CAFile}), 400)
}

// TestReplicationSecondaryPromoteForced: with the primary away a promotion is rejected unless it is forced, and then says what
// was last heard of the primary; other secondaries need a new token; the former primary, once it is back, is fenced by the
// new one, whichever node of that is active; and what the former primary alone has is lost to the set but not to its operator.
func TestReplicationSecondaryPromoteForced(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	third := alone(t, "t")
	harness.Replicate(primary, third, "us")
	fill(t, third, "local", true)
	must(t, primary, primary.Leader(), "POST", "shared/w", object{"value": "the last that arrives"}) // and says when both were equal
	secondary.AwaitHead(primary)
	primary.Nodes[0].Kill9()
	secondary.AwaitReplication("to notice", disconnected)
	refused(t, "promote", do(t, secondary, "secondary/promote", nil), 503, "final word", "last heard", "force")
	secondary.Nodes[0].Stop() // started again, it cannot tell how far behind it is
	primary.Nodes[0].Start()
	primary.WaitServing()
	must(t, primary, primary.Leader(), "POST", "shared/y", object{"value": "to the former primary"})
	primary.Nodes[0].Kill9()
	secondary.Nodes[0].Start()
	secondary.WaitServing()
	refused(t, "promote", do(t, secondary, "secondary/promote", nil), 503, "final word", "force")
	forced := must(t, secondary, secondary.Leader(), "POST", "sys/replication/performance/secondary/promote", object{"force": true})
	if forced["forced"] != true || forced["last_equal"] == "" || forced["position"] == "" || forced["epoch"] != 2.0 {
		t.Errorf("promoted by force: %v", forced)
	}
	if r := secondary.Replication(); r.Mode != "primary" || r.Epoch != 2 || len(r.KnownSecondaries) != 0 {
		t.Errorf("promoted: %+v", r)
	}
	must(t, secondary, secondary.Leader(), "POST", "shared/x", object{"value": "of the new primary"})

	// The other secondary does not follow by itself, nor by an address: it needs a token.
	refused(t, "an address", do(t, third, "secondary/update-primary", object{"update_primary_addrs": secondary.Leader().ClusterAddr()}), 400)
	reads(t, third, "shared/x", "shared")
	worked(t, "a token", do(t, third, "secondary/update-primary", object{"token": secondary.SecondaryToken("us"), "ca_file": secondary.CAFile}))
	third.AwaitStreaming()
	third.AwaitHead(secondary)
	reads(t, third, "shared/x", "of the new primary")
	reads(t, third, "local/x", "local")

	// The former one comes back and does not know. The new one has a new process, too, and tells it.
	secondary.Nodes[0].Stop()
	secondary.Nodes[0].Start()
	secondary.WaitServing()
	primary.Nodes[0].Start()
	primary.WaitServing()
	primary.AwaitReplication("to be fenced", func(r harness.Replication) bool { return r.Phase == "fenced" })
	status, _, a := request(t, primary, primary.Leader(), "POST", "shared/z", object{"value": "to the wrong one"})
	if id := secondary.Replication().ClusterID; status != 503 || !strings.Contains(string(a.Body), id) || !strings.Contains(string(a.Body), secondary.Leader().URL) {
		t.Errorf("a write to the fenced primary: status %d: %.400s, want 503 and the new primary's id and address", status, a.Body)
	}
	if got := must(t, primary, primary.Leader(), "GET", "sys/replication/performance/status", nil); fmt.Sprint(got["fenced_by"]) == "<nil>" {
		t.Errorf("status of the fenced primary: %v", got)
	}
	refused(t, "a token of the former primary", do(t, primary, "primary/secondary-token", object{"id": "back"}), 400, "no longer the primary")
	third.AwaitReplication("to follow the new primary", func(r harness.Replication) bool { return r.Epoch == 2 && r.Connection == "ready" })
	worked(t, "demote", do(t, primary, "primary/demote", nil))
	worked(t, "follow", do(t, primary, "secondary/update-primary", object{"token": secondary.SecondaryToken("former"), "ca_file": secondary.CAFile}))
	primary.AwaitStreaming()
	primary.AwaitHead(secondary)
	reads(t, primary, "shared/x", "of the new primary")
	isGone(t, primary, "shared/y")
	lost := must(t, primary, primary.Leader(), "GET", "sys/replication/performance/conflicts", nil)
	list, _ := lost["conflicts"].([]any)
	if !slices.ContainsFunc(list, func(c any) bool { return c.(object)["path"] == "shared/y" }) {
		t.Errorf("the write that was taken back is not among the conflicts: %v", lost)
	}
	for _, c := range list {
		key := fmt.Sprint(c.(object)["key"])
		if !strings.HasSuffix(key, "/y") {
			continue
		}
		one := must(t, primary, primary.Leader(), "GET", "sys/replication/performance/conflicts?key="+key, nil)
		if raw, err := base64.StdEncoding.DecodeString(fmt.Sprint(one["value"])); err != nil || !strings.Contains(string(raw), "to the former primary") {
			t.Errorf("its value is %v", one)
		}
	}
}

// TestReplicationSecondaryDisable: the data stays and is the cluster's own; enabled again, it has another id and begins
// with nothing.
func TestReplicationSecondaryDisable(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	before := secondary.Replication().ClusterID
	worked(t, "disable", do(t, secondary, "secondary/disable", nil))
	if r := secondary.Replication(); r.Mode != "disabled" {
		t.Errorf("disabled: %+v", r)
	}
	primary.AwaitReplication("to see it go", func(r harness.Replication) bool {
		return !slices.ContainsFunc(r.Secondaries, func(s struct {
			ID         string `json:"node_id"`
			ClusterID  string `json:"cluster_id"`
			Connection string `json:"connection_status"`
		}) bool {
			return s.Connection == "connected"
		})
	})
	reads(t, secondary, "shared/x", "shared")
	reads(t, secondary, "own/x", "own")
	must(t, secondary, secondary.Leader(), "POST", "shared/x", object{"value": "of neither"})
	reads(t, primary, "shared/x", "shared")
	refused(t, "update-primary", do(t, secondary, "secondary/update-primary", object{"update_primary_addrs": primary.Leader().ClusterAddr()}), 400)

	must(t, primary, primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": "eu"})
	secondary.EnableSecondary(primary, primary.SecondaryToken("eu"))
	secondary.AwaitStreaming()
	secondary.LogIn()
	if after := secondary.Replication().ClusterID; after == before || after == "" {
		t.Errorf("cluster id %q, before %q", after, before)
	}
	reads(t, secondary, "shared/x", "shared")
	isGone(t, secondary, "own/x")
}

// TestReplicationSecondaryUpdatePrimary: by token or by address the data is not wiped, and a blank token makes it forget
// the primary.
func TestReplicationSecondaryUpdatePrimary(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	addr := primary.Leader().ClusterAddr()
	update := func(what string, body object) {
		t.Helper()
		worked(t, what, do(t, secondary, "secondary/update-primary", body))
		secondary.AwaitStreaming()
		secondary.AwaitHead(primary)
		reads(t, secondary, "shared/x", "shared")
		reads(t, secondary, "own/x", "own") // with the token of before
	}
	refused(t, "both", do(t, secondary, "secondary/update-primary", object{"token": "a.b.c", "update_primary_addrs": addr}), 400, "mutually exclusive")
	refused(t, "neither", do(t, secondary, "secondary/update-primary", nil), 400, `"token"`)
	refused(t, "nobody", do(t, secondary, "secondary/update-primary", object{"update_primary_addrs": []string{"127.0.0.1:1", secondary.Leader().ClusterAddr()}}), 400, "127.0.0.1:1", secondary.Leader().ClusterAddr())
	update("addresses", object{"update_primary_addrs": []string{"127.0.0.1:1", addr}})
	if got := status(t, secondary)["primary_cluster_addr"]; got != addr {
		t.Errorf("it follows %v, want %s", got, addr)
	}
	update("a token of another id", object{"token": primary.SecondaryToken("other"), "ca_file": primary.CAFile})
	if got := status(t, secondary)["secondary_id"]; got != "other" {
		t.Errorf("its id is %v", got)
	}
	if r := primary.Replication(); !slices.Equal(r.KnownSecondaries, []string{"other"}) {
		t.Errorf("the primary knows %q", r.KnownSecondaries)
	}

	worked(t, "a blank token", do(t, secondary, "secondary/update-primary", object{"token": ""}))
	secondary.AwaitReplication("to be alone", disconnected)
	got := status(t, secondary)
	if got["mode"] != "secondary" || got["primary_cluster_addr"] != "" || got["secondary_id"] != "" || len(got["primaries"].([]any)) != 0 || len(got["known_primary_cluster_addrs"].([]any)) != 0 {
		t.Errorf("after a blank token: %v", got)
	}
	refused(t, "addresses without a certificate", do(t, secondary, "secondary/update-primary", object{"update_primary_addrs": addr}), 400, "token")
	reads(t, secondary, "own/x", "own")
	// It cannot prove any more who it was.
	refused(t, "a token of another id", do(t, secondary, "secondary/update-primary", object{"token": primary.SecondaryToken("eu"), "ca_file": primary.CAFile}), 400, "revoke")
	must(t, primary, primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": "other"})
	update("a token", object{"token": primary.SecondaryToken("other"), "ca_file": primary.CAFile})
}

// status returns all of what the active node says.
func status(t *testing.T, c *harness.Cluster) object {
	t.Helper()
	return must(t, c, c.Leader(), "GET", "sys/replication/performance/status", nil)
}

// TestReplicationRevokeSecondary: it is disconnected at once, its writes are not forwarded any more, and only a new token
// lets it in.
func TestReplicationRevokeSecondary(t *testing.T) {
	t.Parallel()
	primary, secondary := two(t)
	unused := primary.SecondaryToken("unused")
	for _, id := range []string{"eu", "unused"} {
		must(t, primary, primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": id})
	}
	if r := primary.Replication(); len(r.KnownSecondaries) != 0 || len(r.Secondaries) != 0 {
		t.Errorf("the primary lists %+v", r)
	}
	secondary.AwaitReplication("to be shut out", disconnected)
	if code, _, a := request(t, secondary, secondary.Leader(), "POST", "shared/x", object{"value": "of a revoked one"}); code < 400 {
		t.Errorf("a shared write of a revoked secondary: status %d: %.200s", code, a.Body)
	}
	reads(t, primary, "shared/x", "shared")
	refused(t, "its address", do(t, secondary, "secondary/update-primary", object{"update_primary_addrs": primary.Leader().ClusterAddr()}), 400)
	refused(t, "a token that was revoked", do(t, secondary, "secondary/update-primary", object{"token": unused, "ca_file": primary.CAFile}), 400)
	must(t, primary, primary.Leader(), "POST", "shared/x", object{"value": "later"})
	reads(t, secondary, "shared/x", "shared")

	worked(t, "a new token", do(t, secondary, "secondary/update-primary", object{"token": primary.SecondaryToken("eu"), "ca_file": primary.CAFile}))
	secondary.AwaitStreaming()
	secondary.AwaitHead(primary)
	reads(t, secondary, "shared/x", "later")
	reads(t, secondary, "own/x", "own")
}

// TestReplicationTokenTTL: a token is good for as long as it was asked for.
func TestReplicationTokenTTL(t *testing.T) {
	t.Parallel()
	primary, secondary := alone(t, "p"), alone(t, "s")
	primary.EnablePrimary()
	fill(t, secondary, "kept", false)
	a := do(t, primary, "primary/secondary-token", object{"id": "eu", "ttl": "1s"})
	var out struct {
		Wrap struct {
			Token string
			TTL   int
		} `json:"wrap_info"`
	}
	if a.Decode(t, &out); out.Wrap.TTL != 1 {
		t.Fatalf("wrap_info: %+v", out.Wrap)
	}
	_, payload, _ := strings.Cut(out.Wrap.Token, ".")
	payload, _, _ = strings.Cut(payload, ".")
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		t.Fatal(err)
	}
	var claims struct{ Exp int64 }
	if err := json.Unmarshal(raw, &claims); err != nil || claims.Exp == 0 {
		t.Fatalf("claims %s, %v", raw, err)
	}
	harness.Await(t, "its end", time.Minute, func() error {
		if now := time.Now().Unix(); now <= claims.Exp {
			return fmt.Errorf("%d of %d", now, claims.Exp)
		}
		return nil
	})
	refused(t, "an expired token", do(t, secondary, "secondary/enable", object{"token": out.Wrap.Token, "ca_file": primary.CAFile}), 400, "expired")
	reads(t, secondary, "kept/x", "kept")
	if r := secondary.Replication(); r.Mode != "disabled" {
		t.Errorf("mode %s", r.Mode)
	}
	if r := primary.Replication(); len(r.KnownSecondaries) != 0 {
		t.Errorf("the primary lists %q", r.KnownSecondaries)
	}
}

// TestReplicationPublicKey: a token that is encrypted needs no call to the primary's API, and is of no use elsewhere.
func TestReplicationPublicKey(t *testing.T) {
	t.Parallel()
	primary, secondary := alone(t, "p"), alone(t, "s")
	fill(t, primary, "shared", false)
	primary.EnablePrimary()
	primary.AddOperator()
	key := func(c *harness.Cluster) any {
		return must(t, c, c.Leader(), "POST", "sys/replication/performance/secondary/generate-public-key", nil)["secondary_public_key"]
	}
	encrypted := func(key any) any {
		return must(t, primary, primary.Leader(), "POST", "sys/replication/performance/primary/secondary-token", object{"id": "eu", "secondary_public_key": key})["token"]
	}
	key(secondary)
	foreign := encrypted(key(alone(t, "o")))
	refused(t, "a token for another cluster", do(t, secondary, "secondary/enable", object{"token": foreign}), 400, "public key")
	worked(t, "enable", do(t, secondary, "secondary/enable", object{"token": encrypted(key(secondary)), "primary_api_addr": "https://127.0.0.1:1"}))
	secondary.AwaitStreaming()
	secondary.Adopt(primary)
	secondary.LogIn()
	reads(t, secondary, "shared/x", "shared")
}

// front forwards connections to an address, and counts them.
type front struct {
	addr  string
	conns atomic.Int64
}

func newFront(t *testing.T, to string) *front {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	f := &front{addr: ln.Addr().String()}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			f.conns.Add(1)
			go pump(in, out)
			go pump(out, in)
		}
	}()
	return f
}

func pump(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
}

// TestReplicationAddresses: secondaries go to the cluster address that enable or promote was given, and to the API address
// and the CA that their operator has named. Without a CA those of the system count.
func TestReplicationAddresses(t *testing.T) {
	primary := alone(t, "p")
	t.Setenv("SSL_CERT_FILE", primary.CAFile)
	secondary := alone(t, "s")
	fill(t, primary, "shared", false)
	cluster, api := newFront(t, primary.Nodes[0].ClusterAddr()), newFront(t, strings.TrimPrefix(primary.Nodes[0].URL, "https://"))
	worked(t, "enable", do(t, primary, "primary/enable", object{"primary_cluster_addr": cluster.addr}))
	if got := status(t, primary)["primary_cluster_addr"]; got != cluster.addr {
		t.Errorf("the primary gives %v", got)
	}
	primary.AddOperator()
	worked(t, "the system's CAs", do(t, secondary, "secondary/enable", object{"token": primary.SecondaryToken("eu"), "primary_api_addr": "https://" + api.addr}))
	secondary.Adopt(primary)
	secondary.AwaitStreaming()
	secondary.LogIn()
	if cluster.conns.Load() == 0 || api.conns.Load() == 0 {
		t.Errorf("%d connections to the cluster address, %d to the API address", cluster.conns.Load(), api.conns.Load())
	}
	got := status(t, secondary)
	if got["primary_cluster_addr"] != cluster.addr || fmt.Sprint(got["known_primary_cluster_addrs"]) != "["+cluster.addr+"]" {
		t.Errorf("the secondary goes to %v, and knows %v", got["primary_cluster_addr"], got["known_primary_cluster_addrs"])
	}

	// After the switch-over it is the other way round, with the CA from a directory.
	dir := t.TempDir()
	text, err := os.ReadFile(secondary.CAFile)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "ca.pem"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	back := newFront(t, secondary.Nodes[0].ClusterAddr())
	worked(t, "demote", do(t, primary, "primary/demote", nil))
	harness.Await(t, "the promotion", time.Minute, func() error {
		if a := do(t, secondary, "secondary/promote", object{"primary_cluster_addr": back.addr}); a.Status != 200 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
	token := secondary.SecondaryToken("former")
	refused(t, "another one's CA", do(t, primary, "secondary/update-primary", object{"token": token}), 400, "ca_file")
	worked(t, "ca_path", do(t, primary, "secondary/update-primary", object{"token": token, "ca_path": dir}))
	primary.AwaitStreaming()
	if got := status(t, primary)["primary_cluster_addr"]; got != back.addr || back.conns.Load() == 0 {
		t.Errorf("the former primary goes to %v, %d connections", got, back.conns.Load())
	}
}

// TestReplicationStatusWithoutKeys: the status needs no token, on an active node and on a standby. A sealed one says that it
// is sealed.
func TestReplicationStatusWithoutKeys(t *testing.T) {
	t.Parallel()
	primary, secondary := alone(t, "p"), harness.NewCluster(t, 2, harness.Options{Prefix: "s", Shamir: true})
	harness.Replicate(primary, secondary, "eu")
	if r, err := primary.Nodes[0].Replication(); err != nil || r.Mode != "primary" || len(r.Secondaries) != 1 { // sends no token
		t.Errorf("the primary says %+v, %v", r, err)
	}
	for _, n := range secondary.Nodes {
		if r, err := n.Replication(); err != nil || r.Mode != "secondary" || r.Connection != "ready" {
			t.Errorf("%s says %+v, %v", n.ID, r, err)
		}
	}
	standby := secondary.Standbys()[0]
	standby.MustDo("PUT", "/v1/sys/seal", nil)
	standby.WaitHealth(503)
	code, _, a := request(t, &harness.Cluster{}, standby, "GET", "sys/replication/status", nil)
	if code != 503 || !strings.Contains(strings.Join(a.Errors(), ""), "sealed") { // it cannot know, and does not say "disabled"
		t.Errorf("%s, sealed: status %d: %.300s", standby.ID, code, a.Body)
	}
}
