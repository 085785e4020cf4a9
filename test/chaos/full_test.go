package chaos_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// stuff fills a small file system up to the last byte.
func stuff(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "stuffing"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4 << 10, 1} {
		for page := make([]byte, size); ; {
			if n, err := f.Write(page); err != nil || n < size {
				break
			}
		}
	}
}

// TestFullStandby fills a standby's disk.
func TestFullStandby(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	small := t.TempDir()
	mount(t, small, "32m")
	full := func() { stuff(t, small) }
	brokenStandby(t, small, "no space left on device", full, full, func() { remount(t, small, "512m") })
}

// TestStalledStandby lets every write to a standby's disk hang.
func TestStalledStandby(t *testing.T) {
	harness.LongOnly(t)
	dir := t.TempDir()
	freeze, thaw := mountFreezable(t, dir)
	brokenStandby(t, dir, "a write has been under way", freeze, func() {}, thaw)
}

// brokenStandby breaks the disk of a standby. It serves nothing from its state once that is too old: a token that was revoked
// since is not accepted, and every status says what is wrong. After the repair it is a member like before.
func brokenStandby(t *testing.T, small, cause string, breakIt, keepBroken, repair func()) {
	c := harness.NewCluster(t, 3, harness.Options{Dir: func(id string) string {
		if id == "n3" {
			return filepath.Join(small, "data")
		}
		return ""
	}})
	leader, full := c.Leader(), c.Node("n3")
	if leader == full {
		full.MustDo("PUT", "/v1/sys/step-down", nil)
		leader = c.Leader()
	}
	get := func(n *harness.Node, token, path string, header ...string) harness.Answer {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		a, err := n.Do(ctx, "GET", path, token, nil, header...)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	leader.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	leader.MustDo("POST", "/v1/sys/policies/acl/reader", map[string]any{"policy": `path "ack/*" { capabilities = ["read"] }`})
	var made struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	leader.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"reader"}, "no_default_policy": true}).Decode(t, &made)
	leader.MustDo("POST", "/v1/ack/secret", map[string]any{"v": "old"})
	if a := get(full, made.Auth.Token, "/v1/ack/secret", "X-Vault-Consistency", "linearizable"); a.Status != 200 {
		t.Fatalf("reading through the standby: %d %s", a.Status, a.Body)
	}

	breakIt()
	pad := strings.Repeat("p", 60<<10)
	for i := 0; full.Health() == 429; i++ {
		if i > 3000 {
			t.Fatal("the standby still calls itself healthy")
		}
		keepBroken()
		leader.MustDo("POST", fmt.Sprintf("/v1/ack/pad%d", i%50), map[string]any{"pad": pad})
		time.Sleep(20 * time.Millisecond) // paced by the clock: the standby is behind after ten seconds
	}
	leader.MustDo("POST", "/v1/auth/token/revoke", map[string]any{"token": made.Auth.Token})
	leader.MustDo("POST", "/v1/ack/secret", map[string]any{"v": "new"})

	if a := get(full, made.Auth.Token, "/v1/ack/secret"); a.Status != 403 {
		t.Errorf("a revoked token on the full standby: %d %s", a.Status, a.Body)
	}
	if a := get(full, c.RootToken, "/v1/ack/secret"); a.Status != 200 || !strings.Contains(string(a.Body), `"new"`) {
		t.Errorf("reading through the full standby: %d %s", a.Status, a.Body)
	}
	if a := get(full, made.Auth.Token, "/v1/sys/host-info"); a.Status != 503 {
		t.Errorf("a request about the full standby: %d %s", a.Status, a.Body)
	}
	for _, query := range []string{"", "?standbyok=true"} {
		if a := get(full, "", "/v1/sys/health"+query); a.Status != 503 || !strings.Contains(string(a.Body), "standby_error") {
			t.Errorf("health%s of the full standby: %d %s", query, a.Status, a.Body)
		}
	}
	var state struct {
		Data struct {
			Healthy bool
			Leader  string
			Servers map[string]struct {
				Healthy bool
				Disk    string
			}
		}
	}
	get(leader, c.RootToken, "/v1/sys/storage/raft/autopilot/state").Decode(t, &state)
	if d := state.Data; d.Healthy || d.Servers["n3"].Healthy || d.Servers["n3"].Disk != "failing" || d.Leader != leader.ID {
		t.Errorf("autopilot says %+v; %s led", d, leader.ID)
	}
	log := full.Log()
	if n := strings.Count(log, "the disk takes no writes"); n != 1 || !strings.Contains(log, cause) || !strings.Contains(log, "ERROR") {
		t.Errorf("the log says %d times that the disk takes no writes", n)
	}
	begin := time.Now()
	full.MustDo("POST", "/v1/ack/through", map[string]any{"v": "x"})
	t.Logf("a write through the full standby took %v", time.Since(begin))

	repair()
	full.WaitHealth(429)
	c.WaitVoters(3)
	if a := get(full, made.Auth.Token, "/v1/ack/secret", "X-Vault-Consistency", "linearizable"); a.Status != 403 {
		t.Errorf("a revoked token on the standby that has caught up: %d %s", a.Status, a.Body)
	}
}

// TestFullDiskOfOne fills the only node's disk, first by writes and then from outside. Writes are rejected before it is full;
// what makes room goes on even when nothing is left, by the ballast.
func TestFullDiskOfOne(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	small := t.TempDir()
	mount(t, small, "96m")
	c := harness.NewCluster(t, 1, harness.Options{
		Dir:           func(string) string { return filepath.Join(small, "data") },
		StorageConfig: "  ballast_size = \"8MiB\"\n  free_space_minimum = \"8MiB\"",
	})
	n := c.Leader()
	n.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/sys/auth/userpass", map[string]any{"type": "userpass"})
	n.MustDo("POST", "/v1/auth/userpass/users/ann", map[string]any{"password": "correct horse battery"})
	n.MustDo("POST", "/v1/sys/policies/acl/reader", map[string]any{"policy": `path "ack/*" { capabilities = ["read"] }`})
	var made struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"reader"}}).Decode(t, &made)
	ballast := filepath.Join(small, "data", "ballast")
	held := func() int64 {
		info, err := os.Stat(ballast)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	do := func(method, path string, body any) harness.Answer {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		a, err := n.Do(ctx, method, path, c.RootToken, body)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for begin := time.Now(); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Since(begin) > 20*time.Second {
				t.Fatalf("waiting in vain: %s", what)
			}
		}
	}
	eventually("the ballast", func() bool { return held() == 8<<20 })

	pad := strings.Repeat("p", 120<<10)
	var rejected harness.Answer
	written := 0
	for ; rejected.Status == 0; written++ {
		if written > 5000 {
			t.Fatal("writes are never rejected")
		}
		switch a := do("POST", fmt.Sprintf("/v1/ack/pad%d", written), map[string]any{"pad": pad}); {
		case a.Status == 503:
			rejected = a
		case a.Status != 204:
			t.Fatalf("write %d: %d %s", written, a.Status, a.Body)
		}
	}
	if !strings.Contains(string(rejected.Body), "no room for writes") || strings.Contains(n.Log(), "no space left on device") {
		t.Errorf("write %d was rejected with %s; the disk was full before: %v", written, rejected.Body, strings.Contains(n.Log(), "no space left on device"))
	}
	repairs := func(round string) {
		t.Helper()
		if a := do("GET", "/v1/ack/pad1", nil); a.Status != 200 {
			t.Errorf("%s: reading: %d", round, a.Status)
		}
		for i := range 5 {
			if a := do("DELETE", fmt.Sprintf("/v1/ack/pad%s%d", round, i), nil); a.Status != 204 {
				t.Errorf("%s: deleting: %d %s", round, a.Status, a.Body)
			}
		}
		if a := do("POST", "/v1/auth/userpass/login/ann", map[string]any{"password": "correct horse battery"}); a.Status != 200 {
			t.Errorf("%s: logging in: %d %s", round, a.Status, a.Body)
		}
		if a := do("POST", "/v1/ack/more", map[string]any{"pad": pad}); a.Status != 503 {
			t.Errorf("%s: writing: %d", round, a.Status)
		}
		eventually("health to say that the disk is full", func() bool { // and not "failing", until what failed was tried again
			a := do("GET", "/v1/sys/health", nil)
			return a.Status == 200 && strings.Contains(string(a.Body), `"disk":"full"`)
		})
	}
	repairs("1")

	eventually("the state file to have what was accepted: there is room for it", func() bool {
		return strings.Contains(string(n.MustDo("GET", "/v1/sys/metrics?format=prometheus", nil).Body), "\ncoffer_disk_data_pending_bytes 0\n")
	})
	stuff(t, small)
	eventually("the ballast to be released", func() bool { return held() == 0 })
	eventually("the node to lead again", func() bool { return do("DELETE", "/v1/ack/pad20", nil).Status == 204 && n.Health() == 200 })
	if a := do("POST", "/v1/auth/token/revoke", map[string]any{"token": made.Auth.Token}); a.Status >= 300 {
		t.Errorf("revoking on a full disk: %d %s", a.Status, a.Body)
	}
	repairs("2")

	if err := os.Remove(filepath.Join(small, "stuffing")); err != nil {
		t.Fatal(err)
	}
	remount(t, small, "160m")
	eventually("writes again", func() bool {
		return do("POST", "/v1/ack/after", map[string]any{"v": "x"}).Status == 204
	})
	eventually("the ballast again", func() bool { return held() == 8<<20 })
	for i := 30; i < written-1; i++ {
		if a := do("GET", fmt.Sprintf("/v1/ack/pad%d", i), nil); a.Status != 200 {
			t.Fatalf("pad%d: %d %s", i, a.Status, a.Body)
		}
	}
}

// TestFullDiskOfASecondary fills the disk of a secondary by what its primary sends. It stops taking before the disk is full, says
// so, goes on serving what it has, and follows again by itself once there is room, even if something else filled the rest meanwhile.
func TestFullDiskOfASecondary(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	small := t.TempDir()
	mount(t, small, "96m")
	primary := harness.NewCluster(t, 1, harness.Options{})
	secondary := harness.NewCluster(t, 1, harness.Options{
		Dir:           func(string) string { return filepath.Join(small, "data") },
		StorageConfig: "  ballast_size = \"8MiB\"\n  free_space_minimum = \"8MiB\"",
	})
	harness.Replicate(primary, secondary, "small")
	source, n := primary.Leader(), secondary.Leader()
	source.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	source.MustDo("POST", "/v1/ack/first", map[string]any{"v": "x"})
	secondary.AwaitHead(primary)

	pad := strings.Repeat("p", 120<<10)
	written := 0
	write := func(count int) {
		t.Helper()
		for range count {
			source.MustDo("POST", fmt.Sprintf("/v1/ack/pad%d", written), map[string]any{"pad": pad})
			written++
		}
	}
	state := harness.Replication{}
	for state.Phase != "paused" {
		if written > 5000 {
			t.Fatalf("the secondary takes everything: %+v", state)
		}
		write(5)
		state = secondary.Replication()
	}
	if !strings.Contains(state.Reason, "free_space_minimum") {
		t.Errorf("the reason is %q", state.Reason)
	}
	paused := func() string {
		body := string(n.MustDo("GET", "/v1/sys/metrics?format=prometheus", nil).Body)
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "coffer_replication_paused ") {
				return strings.TrimSpace(line)
			}
		}
		return ""
	}
	if got := paused(); got != "coffer_replication_paused 1" {
		t.Errorf("the metric says %q", got)
	}
	if strings.Contains(n.Log(), "no space left on device") {
		t.Error("the disk was full before the secondary stopped taking")
	}
	stuff(t, small)
	write(20)
	lag := func(least float64) func(harness.Replication) bool {
		return func(r harness.Replication) bool { return r.Phase == "paused" && r.LagSeconds > least }
	}
	secondary.AwaitReplication("a lag that grows", lag(1))
	secondary.AwaitReplication("a lag that grows", lag(2))
	if a := n.MustDo("GET", "/v1/ack/first", nil); !strings.Contains(string(a.Body), `"x"`) {
		t.Errorf("reading at the secondary: %s", a.Body)
	}
	if n := strings.Count(n.Log(), "replication is paused"); n != 1 {
		t.Errorf("the log says %d times that replication is paused", n)
	}

	if err := os.Remove(filepath.Join(small, "stuffing")); err != nil {
		t.Fatal(err)
	}
	remount(t, small, "512m")
	secondary.AwaitHead(primary)
	for i := range written {
		n.MustDo("GET", fmt.Sprintf("/v1/ack/pad%d", i), nil)
	}
	if got := paused(); got != "coffer_replication_paused 0" {
		t.Errorf("the metric says %q", got)
	}
	if a, b := primary.Replication(), secondary.Replication(); a.Root == "" || a.Root != b.Root {
		t.Errorf("the states differ: %q, %q", a.Root, b.Root)
	}
}
