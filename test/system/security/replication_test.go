package security_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestNewSecondary follows a cluster that becomes a secondary: nothing of before is good for anything any more, on no node,
// and no secret of the way there is in a log, a trail or a file.
func TestNewSecondary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	primary := harness.NewCluster(t, 1, harness.Options{Prefix: "a", Config: `log_level = "trace"`})
	secondary := harness.NewCluster(t, 3, harness.Options{Prefix: "b", Config: `log_level = "trace"`})
	v := &tour{user: user{t, primary.Leader(), primary.RootToken, ""}, secrets: map[string]string{}}
	trail := func(name string) string { return filepath.Join(dir, name) }
	v.must("POST", "sys/audit/shared", fields{"type": "file", "options": fields{"file_path": trail("shared.log")}})
	v.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	v.must("POST", "kv/shared", fields{"x": v.note("shared secret", "sHaReD-sEcReT-1")})

	old := user{t, secondary.Leader(), secondary.RootToken, ""}
	old.must("POST", "sys/audit/own", fields{"type": "file", "local": true, "options": fields{"file_path": trail("own.log")}})
	old.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	old.must("POST", "kv/own", fields{"x": v.note("secret of before", "oWn-sEcReT-2")})
	const everything = `path "*" { capabilities = ["create","read","update","delete","list","sudo"] }`
	old.policy("operators", everything) // as the primary's policy is called
	tokens := map[string]user{
		"root token": old, "child": old.having("operators"), "orphan": old.child(fields{"policies": []string{"operators"}, "no_parent": true, "ttl": "1h"}),
		"batch token": old.child(fields{"policies": []string{"operators"}, "type": "batch", "no_parent": true, "ttl": "1h"}),
	}
	wrapping := old.wrapped()
	for name, u := range tokens {
		for _, n := range secondary.Nodes { // so that every node has it in memory
			if a := u.at(n).do("GET", "sys/mounts", nil); a.Status != 200 {
				t.Fatalf("the %s on %s: status %d", name, n.ID, a.Status)
			}
		}
	}

	primary.EnablePrimary()
	primary.AddOperator()
	token := v.note("activation token", primary.SecondaryToken("b"))
	v.note("wrapping token of the bundle", claim(t, token, "jti"))
	// A changed copy uses nothing up: neither through the secondary nor by hand.
	signature := strings.LastIndexByte(token, '.') + 1
	swapped := token[:signature] + token[signature+1:signature+2] + token[signature:signature+1] + token[signature+2:]
	if swapped == token {
		swapped = token[:signature] + "_" + token[signature+1:]
	}
	if a := old.do("POST", "sys/replication/performance/secondary/enable", fields{"token": swapped, "ca_file": primary.CAFile}); a.Status != 400 || !strings.Contains(string(a.Body), "unchanged copy") {
		t.Errorf("a changed activation token: status %d: %.300s", a.Status, a.Body)
	}
	for _, part := range []string{swapped, claim(t, token, "jti")} {
		if a := v.with(part).do("POST", "sys/wrapping/unwrap", nil); a.Status != 400 {
			t.Errorf("unwrapping with a part of the activation token: status %d: %.300s", a.Status, a.Body)
		}
	}
	secondary.EnableSecondary(primary, token)
	secondary.Adopt(primary)
	secondary.AwaitStreaming()
	for name, u := range tokens {
		for _, n := range secondary.Nodes {
			if a := u.at(n).do("GET", "kv/shared", nil); a.Status != 403 {
				t.Errorf("the %s of before on %s: status %d", name, n.ID, a.Status)
			}
		}
	}
	if a := old.with(wrapping).do("POST", "sys/wrapping/unwrap", nil); a.Status < 400 || strings.Contains(string(a.Body), hidden) {
		t.Errorf("what was wrapped before: status %d", a.Status)
	}
	secondary.LogIn()
	now := user{t, secondary.Leader(), secondary.RootToken, ""}
	v.note("token of the secondary", now.token)
	now.must("GET", "kv/shared", nil)
	if a := now.do("GET", "kv/own", nil); a.Status != 404 {
		t.Errorf("what the cluster held before: status %d", a.Status)
	}
	now.must("POST", "kv/forwarded", fields{"x": v.note("secret that is written through the secondary", "fOrWaRdEd-3")})
	if a := v.with(now.token).do("GET", "kv/shared", nil); a.Status != 403 {
		t.Errorf("the secondary's token on the primary: status %d", a.Status)
	}
	// A used token, here and by another cluster.
	for _, u := range []user{now, v.user} {
		a := u.do("POST", "sys/replication/performance/secondary/update-primary", fields{"token": token, "ca_file": primary.CAFile})
		if a.Status < 400 || a.Status >= 500 {
			t.Errorf("the token a second time: status %d", a.Status)
		}
		v.errors.Write(a.Body)
	}
	for _, path := range []string{"sys/replication/status", "sys/replication/performance/status", "sys/metrics?format=prometheus"} {
		for _, u := range []user{now, v.user} {
			v.find(path, u.do("GET", path, nil).Body)
		}
	}
	for _, c := range []*harness.Cluster{primary, secondary} {
		for _, n := range c.Nodes {
			n.Stop()
			v.find("the log of "+n.ID, []byte(n.Log()))
			if strings.Contains(n.Log(), "PRIVATE KEY") {
				t.Errorf("the log of %s has a private key", n.ID)
			}
			v.searchFiles(n.Dir)
		}
	}
	v.find("the errors", v.errors.Bytes())
	for _, name := range []string{"shared.log", "own.log"} {
		text, err := os.ReadFile(trail(name))
		if err != nil || !strings.Contains(string(text), "replication/performance") {
			t.Errorf("%s has %d bytes, and nothing about replication: %v", name, len(text), err)
		}
		v.find(name, text)
	}
}

// claim returns what a JWT says of itself.
func claim(t *testing.T, token, name string) string {
	t.Helper()
	var claims map[string]any
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(claims[name])
}

// TestRestoreOfAPrimary: a snapshot that is restored on a primary is what its secondary has afterwards, and both go on.
func TestRestoreOfAPrimary(t *testing.T) {
	t.Parallel()
	primary := harness.NewCluster(t, 1, harness.Options{Prefix: "a"})
	secondary := harness.NewCluster(t, 1, harness.Options{Prefix: "b"})
	on := user{t, primary.Leader(), primary.RootToken, ""}
	on.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	early := on.must("GET", "sys/storage/raft/snapshot", nil).Body
	harness.Replicate(primary, secondary, "b")
	there := user{t, secondary.Leader(), secondary.RootToken, ""}
	is := func(path, want string) {
		t.Helper()
		harness.Await(t, path+" to be "+want, time.Minute, func() error {
			a := there.do("GET", path, nil)
			var out struct{ Data struct{ X string } }
			if a.Status == 200 {
				a.Decode(t, &out)
			}
			if out.Data.X != want {
				return fmt.Errorf("status %d, %q", a.Status, out.Data.X)
			}
			return nil
		})
	}
	on.must("POST", "kv/a", fields{"x": "before"})
	snapshot := on.must("GET", "sys/storage/raft/snapshot", nil).Body
	on.must("POST", "kv/a", fields{"x": "after"})
	on.must("POST", "kv/b", fields{"x": "only after"})
	is("kv/a", "after")
	is("kv/b", "only after")
	on.must("POST", "sys/storage/raft/snapshot", snapshot)
	on.n.WaitHealth(200)
	is("kv/a", "before")
	is("kv/b", "")
	on.must("POST", "kv/c", fields{"x": "new"})
	is("kv/c", "new")

	// And one of the secondary: it catches up again.
	snapshot = there.must("GET", "sys/storage/raft/snapshot", nil).Body
	on.must("POST", "kv/c", fields{"x": "newer"})
	is("kv/c", "newer")
	there.must("POST", "sys/storage/raft/snapshot", snapshot)
	there.n.WaitHealth(200)
	is("kv/c", "newer")
	on.must("POST", "kv/d", fields{"x": "newest"})
	is("kv/d", "newest")

	// One from before a change of the role would undo that: a former primary would be a primary again.
	older := func(body []byte) {
		t.Helper()
		a := on.do("POST", "sys/storage/raft/snapshot", body)
		if text := strings.Join(a.Errors(), " "); a.Status != 400 || !strings.Contains(text, "role of this cluster in replication") {
			t.Errorf("status %d: %s", a.Status, text)
		}
	}
	older(early)
	snapshot = on.must("GET", "sys/storage/raft/snapshot", nil).Body
	on.must("POST", "sys/replication/performance/primary/demote", nil)
	older(snapshot)
	if a := on.do("POST", "kv/e", fields{"x": "x"}); a.Status != 503 {
		t.Errorf("a write to the demoted cluster: status %d", a.Status)
	}
}
