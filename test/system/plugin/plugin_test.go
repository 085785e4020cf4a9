package plugin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// patience is for what an election takes on a busy machine.
const patience = time.Minute

// TestPlugins mounts the test plugin and uses it as clients use any engine.
func TestPlugins(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, harness.Options{Prefix: "solo"})
	n, root := c.Nodes[0], c.RootToken
	n.MustDo("POST", "/v1/sys/mounts/p", map[string]any{"type": "thing"})
	n.MustDo("POST", "/v1/sys/mounts/q", map[string]any{"type": "plugin", "plugin_name": "thing"})
	n.MustDo("POST", "/v1/sys/mounts/kv", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/sys/auth/door", map[string]any{"type": "door"})
	n.MustDo("PUT", "/v1/sys/policies/acl/tester", map[string]any{"policy": `
path "p/data/*" { capabilities = ["create", "read"] }
path "p/creds" { capabilities = ["read"] }
path "p/system" { capabilities = ["read"] }
path "p/guarded/*" { capabilities = ["read"] }
path "sys/leases/renew" { capabilities = ["update"] }`})

	t.Run("data", func(t *testing.T) {
		if got := field(t, do(t, n, 200, "POST", "p/data/a", root, map[string]any{"value": "1"}), "operation"); got != "create" {
			t.Errorf("the first write is a %s", got)
		}
		if got := field(t, do(t, n, 200, "POST", "p/data/a", root, map[string]any{"value": "2"}), "operation"); got != "update" {
			t.Errorf("the second write is a %s", got)
		}
		if got := field(t, do(t, n, 200, "GET", "p/data/a", root, nil), "value"); got != "2" {
			t.Errorf("it has %s", got)
		}
		if got := field(t, do(t, n, 200, "GET", "p/data/?list=true", root, nil), "keys"); got != "[a]" {
			t.Errorf("it lists %s", got)
		}
		do(t, n, 404, "GET", "q/data/a", root, nil) // the other mount's data is its own, though one process serves both
		a := do(t, n, 400, "POST", "p/data/b", root, map[string]any{})
		if e := a.Errors(); len(e) != 1 || e[0] != "a value is needed" {
			t.Errorf("errors %q", e)
		}
		do(t, n, 404, "GET", "p/data/none", root, nil)
		do(t, n, 404, "GET", "p/nothing", root, nil)
		do(t, n, 405, "DELETE", "p/system", root, nil)
		do(t, n, 204, "DELETE", "p/data/a", root, nil)
		do(t, n, 404, "GET", "p/data/a", root, nil)
	})
	t.Run("transactions", func(t *testing.T) {
		do(t, n, 204, "POST", "p/transfer", root, map[string]any{"value": "yes"})
		do(t, n, 500, "POST", "p/transfer", root, map[string]any{"value": "fail"})
		for _, name := range []string{"one", "two"} {
			if got := field(t, do(t, n, 200, "GET", "p/data/"+name, root, nil), "value"); got != "yes" {
				t.Errorf("%s is %s", name, got)
			}
		}
	})
	user := func(name string) string {
		a := do(t, n, 200, "POST", "auth/door/login", "", map[string]any{"user": name})
		var out struct {
			Auth struct {
				Token    string `json:"client_token"`
				EntityID string `json:"entity_id"`
			}
		}
		if a.Decode(t, &out); out.Auth.Token == "" || out.Auth.EntityID == "" {
			t.Fatalf("login: %s", a.Body)
		}
		return out.Auth.Token
	}
	t.Run("login", func(t *testing.T) {
		do(t, n, 403, "POST", "auth/door/login", "", map[string]any{"user": "nobody"})
		token := user("ann")
		do(t, n, 200, "POST", "p/data/ann", token, map[string]any{"value": "1"})
		do(t, n, 403, "POST", "p/data/ann", token, map[string]any{"value": "2"}) // create only
		do(t, n, 200, "POST", "auth/token/renew-self", token, nil)
		do(t, n, 500, "POST", "auth/token/renew-self", user("gone"), nil)
	})
	t.Run("special paths", func(t *testing.T) {
		do(t, n, 200, "GET", "p/open/any/door", "", nil)
		do(t, n, 403, "GET", "p/open/any/window", "", nil)
		do(t, n, 200, "GET", "p/public/x/y", "", nil)
		do(t, n, 403, "GET", "p/data/one", "", nil)
		do(t, n, 403, "GET", "p/guarded/x", user("ann"), nil) // needs sudo
		do(t, n, 200, "GET", "p/guarded/x", root, nil)
	})
	t.Run("leases", func(t *testing.T) {
		a := do(t, n, 200, "GET", "p/creds", user("ann"), nil)
		var out struct {
			LeaseID string `json:"lease_id"`
			Seconds int    `json:"lease_duration"`
		}
		if a.Decode(t, &out); out.LeaseID == "" || out.Seconds != 3600 {
			t.Fatalf("lease %s", a.Body)
		}
		id := field(t, a, "id")
		do(t, n, 200, "GET", "p/data/things/"+id, root, nil)
		a = do(t, n, 200, "POST", "sys/leases/renew", root, map[string]any{"lease_id": out.LeaseID})
		if a.Decode(t, &out); out.Seconds != 7200 {
			t.Errorf("renewed %s", a.Body)
		}
		do(t, n, 204, "POST", "sys/leases/revoke", root, map[string]any{"lease_id": out.LeaseID, "sync": true})
		do(t, n, 404, "GET", "p/data/things/"+id, root, nil)
	})
	t.Run("what it may know", func(t *testing.T) {
		n.MustDo("PUT", "/v1/sys/policies/password/short", map[string]any{"policy": "length = 12\nrule \"charset\" { charset = \"ab\" }"})
		n.MustDo("POST", "/v1/sys/mounts/p/tune", map[string]any{"default_lease_ttl": "30m", "max_lease_ttl": "5h"})
		a := do(t, n, 200, "GET", "p/system", user("ann"), nil)
		for name, want := range map[string]string{"default_ttl": "30m0s", "max_ttl": "5h0m0s", "local": "false"} {
			if got := field(t, a, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		if got := field(t, a, "password"); len(got) != 12 || strings.Trim(got, "ab") != "" {
			t.Errorf("password %q (%s)", got, field(t, a, "password_error"))
		}
		if field(t, a, "entity") == "<nil>" {
			t.Errorf("it does not know the entity: %s", a.Body)
		}
	})
	t.Run("what it is not given", func(t *testing.T) {
		a := do(t, n, 200, "GET", "p/public/x", "", nil)
		env := field(t, a, "env")
		for _, foreign := range []string{"PATH=", "HOME=", "COFFER_", "GOCOVERDIR"} {
			if strings.Contains(env, foreign) {
				t.Errorf("its environment has %s: %s", foreign, env)
			}
		}
		if !strings.Contains(env, "ONLY=this") {
			t.Errorf("its environment lacks what was registered: %s", env)
		}
		open := field(t, do(t, n, 200, "GET", "p/misbehave/descriptors", root, nil), "open")
		if strings.Contains(open, "raft.db") || strings.Contains(open, "fsm.db") || strings.Contains(open, ".log") {
			t.Errorf("it has descriptors of the server: %s", open)
		}
	})
	t.Run("audit", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "audit.log")
		do(t, n, 204, "POST", "sys/audit/file", root, map[string]any{"type": "file", "options": map[string]any{"file_path": file}})
		n.MustDo("POST", "/v1/sys/mounts/p/tune", map[string]any{"audit_non_hmac_request_keys": "value", "audit_non_hmac_response_keys": "value"})
		do(t, n, 200, "POST", "p/data/audited", root, map[string]any{"value": "in the clear", "other": "other-hidden"})
		do(t, n, 200, "GET", "p/data/audited", root, nil)
		do(t, n, 200, "POST", "q/data/audited", root, map[string]any{"value": "value-hidden"})
		do(t, n, 204, "PUT", "sys/plugins/catalog/secret/audited", root, map[string]any{"sha256": sum, "command": "testplugin", "env": "PASSWORD=env-hidden"})
		do(t, n, 204, "DELETE", "sys/plugins/catalog/secret/audited", root, nil)
		do(t, n, 204, "DELETE", "sys/audit/file", root, nil)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		log := string(text)
		if got := strings.Count(log, `"value":"in the clear"`); got != 2 { // the request of the write, and the response of the read
			t.Errorf("what is to be in the clear is so in %d places", got)
		}
		if strings.Contains(log, "-hidden") || !strings.Contains(log, `"path":"sys/plugins/catalog/secret/audited"`) {
			t.Errorf("values are in the clear, or records are missing: %s", log)
		}
	})
	t.Run("headers", func(t *testing.T) {
		n.MustDo("POST", "/v1/sys/mounts/p/tune", map[string]any{
			"passthrough_request_headers": []string{"x-wanted", "authorization", "X-Vault-Token", "Cookie"},
			"allowed_response_headers":    []string{"x-allowed", "X-Vault-Index", "Set-Cookie"},
		})
		for authorization, seen := range map[string]bool{"Bearer " + root: false, "Negotiate abc": true} {
			a, err := n.Do(t.Context(), "GET", "/v1/p/public/x", root, nil, "X-Wanted", "1", "X-Unwanted", "2", "Cookie", "a=b", "Authorization", authorization)
			if err != nil || a.Status != 200 {
				t.Fatalf("status %d: %s, %v", a.Status, a.Body, err)
			}
			want := "map[X-Wanted:[1]]"
			if seen {
				want = "map[Authorization:[Negotiate abc] X-Wanted:[1]]"
			}
			if got := field(t, a, "headers"); got != want {
				t.Errorf("the plugin sees %s, want %s", got, want)
			}
			if a.Header.Get("X-Allowed") != "yes" || a.Header.Get("X-Other") != "" || a.Header.Get("Set-Cookie") != "" || a.Header.Get("X-Vault-Index") == "no" {
				t.Errorf("headers of the response: %v", a.Header)
			}
		}
	})
	t.Run("catalogue", func(t *testing.T) {
		for name, body := range map[string]map[string]any{
			"a path":      {"sha256": sum, "command": "../testplugin"},
			"no checksum": {"command": "testplugin"},
			"a short one": {"sha256": "abc", "command": "testplugin"},
			"a version":   {"sha256": sum, "command": "testplugin", "version": "one"},
			"a type":      {"sha256": sum, "command": "testplugin", "oci_image": "x"},
		} {
			a, err := n.Do(t.Context(), "PUT", "/v1/sys/plugins/catalog/secret/bad", root, body)
			if err != nil || a.Status != 400 {
				t.Errorf("%s: %d %s, %v", name, a.Status, a.Body, err)
			}
		}
		do(t, n, 204, "PUT", "sys/plugins/catalog/secret/other", root, map[string]any{"sha256": strings.Repeat("0", 64), "command": "testplugin"})
		if a := do(t, n, 400, "POST", "sys/mounts/other", root, map[string]any{"type": "other"}); !strings.Contains(string(a.Body), "SHA-256") {
			t.Errorf("another checksum: %s", a.Body)
		}
		do(t, n, 400, "POST", "sys/mounts/other", root, map[string]any{"type": "door"})
		if a := do(t, n, 400, "POST", "sys/auth/jwt", root, map[string]any{"type": "jwt"}); !strings.Contains(string(a.Body), "make plugins") {
			t.Errorf("a plugin that comes with Coffer and is not there: %s", a.Body)
		}
		if a := do(t, n, 400, "POST", "sys/mounts/jwt", root, map[string]any{"type": "jwt"}); !strings.Contains(string(a.Body), "no plugin secret/jwt is registered") {
			t.Errorf("an auth method that comes with Coffer, as a secrets engine: %s", a.Body)
		}
		a := do(t, n, 400, "PUT", "sys/plugins/catalog/database/redis", root, map[string]any{"sha256": sum, "command": "testplugin"})
		if !strings.Contains(string(a.Body), "database engine") {
			t.Errorf("a plugin of a database: %s", a.Body)
		}
		do(t, n, 400, "POST", "sys/mounts/other", root, map[string]any{"type": "thing", "plugin_version": "v9.9.9"})
		do(t, n, 204, "PUT", "sys/plugins/catalog/secret/thing", root, map[string]any{"sha256": sum, "command": "testplugin", "version": "1.2.0"})
		do(t, n, 204, "POST", "sys/mounts/versioned", root, map[string]any{"type": "thing", "plugin_version": "v1.2.0"})
		do(t, n, 200, "POST", "versioned/data/a", root, map[string]any{"value": "1"})
		a = do(t, n, 200, "GET", "sys/mounts/versioned", root, nil)
		if version, running := field(t, a, "plugin_version"), field(t, a, "running_plugin_version"); version != "v1.2.0" || running != "v1.2.0" || field(t, a, "running_sha256") != sum {
			t.Errorf("the mount has version %s and runs %s: %s", version, running, a.Body)
		}
		a = do(t, n, 400, "POST", "sys/mounts/versioned/tune", root, map[string]any{"plugin_version": "v9.9.9"})
		if !strings.Contains(string(a.Body), "no plugin secret/thing@v9.9.9 is registered") {
			t.Errorf("a version that there is not: %s", a.Body)
		}
		do(t, n, 400, "POST", "sys/mounts/kv/tune", root, map[string]any{"plugin_version": "v1.2.0"})
		do(t, n, 200, "GET", "versioned/data/a", root, nil)
		do(t, n, 204, "PUT", "sys/plugins/pins/secret/thing", root, map[string]any{"version": "v1.2.0"})
		do(t, n, 400, "PUT", "sys/plugins/pins/secret/thing", root, map[string]any{"version": "v7.0.0"})
		do(t, n, 204, "PUT", "sys/plugins/reload/secret/thing", root, nil)
		do(t, n, 200, "GET", "versioned/data/a", root, nil)
	})
	t.Run("metrics", func(t *testing.T) {
		text := string(do(t, n, 200, "GET", "sys/metrics?format=prometheus", root, nil).Body)
		for _, want := range []string{
			`coffer_plugin_processes{plugin="secret/thing"} [1-9]`, `coffer_plugin_processes{plugin="auth/door"} 1`,
			`coffer_plugin_starts_total{plugin="secret/thing"} [1-9]`, `coffer_plugin_failures_total{plugin="secret/other"} 1`,
			`coffer_plugin_requests_total{plugin="secret/thing"} [1-9]`, `coffer_plugin_request_seconds_total{plugin="auth/door"} [0-9.]*[1-9]`,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %s in\n%s", want, regexp.MustCompile("(?m)^coffer_plugin.*$").FindAllString(text, -1))
			}
		}
	})
	t.Run("disabled", func(t *testing.T) {
		pid := processes(t, n)
		for _, m := range []string{"sys/mounts/p", "sys/mounts/q", "sys/mounts/versioned", "sys/auth/door"} {
			do(t, n, 204, "DELETE", m, root, nil)
		}
		harness.Await(t, "the end of the processes", patience, func() error {
			if left := processes(t, n); len(left) > 0 {
				return fmt.Errorf("%v of %v are left", left, pid)
			}
			return nil
		})
	})
}

// gone awaits the end of a process.
func gone(t *testing.T, pid int) {
	t.Helper()
	harness.Await(t, "the end of a process", patience, func() error {
		if syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d is there", pid)
		}
		return nil
	})
}

// processes returns the ids of a node's plugins.
func processes(t *testing.T, n *harness.Node) []int {
	t.Helper()
	return childrenOf(t, n.PID())
}

// childrenOf returns the ids of the processes that a process has started and that run.
func childrenOf(t *testing.T, of int) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		var pid, parent int
		var state string
		_, rest, _ := strings.Cut(string(stat), ") ")
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && parent == of && state != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// namespaced reports whether plugins are in PID namespaces of their own, which the kernel permits or not.
func namespaced(n *harness.Node) bool { return strings.Contains(n.Log(), "pid_namespace=true") }

// TestMisbehaviour has a plugin do what it must not: its own requests fail, and nothing else does.
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, harness.Options{Prefix: "bad"})
	n, root := c.Nodes[0], c.RootToken
	n.MustDo("POST", "/v1/sys/mounts/p", map[string]any{"type": "thing"})
	n.MustDo("POST", "/v1/sys/mounts/kv", map[string]any{"type": "kv"})
	n.MustDo("POST", "/v1/kv/a", map[string]any{"value": "1"})
	healthy := func(t *testing.T) {
		t.Helper()
		do(t, n, 200, "GET", "kv/a", root, nil)
		harness.Await(t, "the plugin", patience, func() error {
			a, err := n.Do(t.Context(), "POST", "/v1/p/data/a", root, map[string]any{"value": "1"})
			if err == nil && a.Status != 200 {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			return err
		})
	}
	for name, want := range map[string]int{"crash": 503, "large": 503, "memory": 503, "put": 0, "escape": 500, "log": 404, "odd-log": 404, "orphan": 503} {
		t.Run(name, func(t *testing.T) {
			n.MustDo("PUT", "/v1/sys/plugins/reload/secret/thing", nil) // without what it has done before
			switch name {
			case "log": // it may wait for its log, which is bounded
				go n.Do(t.Context(), "GET", "/v1/p/misbehave/log", root, nil) //nolint:errcheck // it may end with the test
			case "put": // its response is that the value is too large, if its memory suffices for that
				if a, err := n.Do(t.Context(), "GET", "/v1/p/misbehave/put", root, nil); err != nil || a.Status != 500 && a.Status != 503 {
					t.Errorf("status %d: %.300s, %v", a.Status, a.Body, err)
				}
			default:
				do(t, n, want, "GET", "p/misbehave/"+name, root, nil)
			}
			healthy(t)
		})
	}
	t.Run("hang", func(t *testing.T) {
		ended := make(chan harness.Answer, 1)
		go func() {
			a, _ := n.Do(t.Context(), "GET", "/v1/p/misbehave/hang", root, nil)
			ended <- a
		}()
		healthy(t)
		n.MustDo("PUT", "/v1/sys/plugins/reload/secret/thing", nil)
		if a := <-ended; a.Status != 503 {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		healthy(t)
	})
	t.Run("stopped", func(t *testing.T) {
		pid := processes(t, n)[0]
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		n.MustDo("PUT", "/v1/sys/plugins/reload/secret/thing", nil)
		healthy(t)
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("process %d is still there", pid)
		}
	})
	for _, arg := range []string{"garbage", "exit", "elsewhere", "silent"} {
		t.Run("at the start: "+arg, func(t *testing.T) {
			register(n, "secret", "broken", arg)
			a := do(t, n, 400, "POST", "sys/mounts/broken", root, map[string]any{"type": "broken"})
			if len(a.Body) > 1000 {
				t.Errorf("the error has %d bytes", len(a.Body))
			}
			healthy(t)
		})
	}
	t.Run("reloaded with its children", func(t *testing.T) {
		do(t, n, 404, "GET", "p/misbehave/child", root, nil)
		children := childrenOf(t, processes(t, n)[0])
		n.MustDo("PUT", "/v1/sys/plugins/reload/secret/thing", nil)
		if !namespaced(n) { // one in a session of its own is left
			children = slices.DeleteFunc(children, func(pid int) bool {
				group, err := syscall.Getpgid(pid)
				return err == nil && group == pid && syscall.Kill(pid, syscall.SIGKILL) == nil
			})
		}
		for _, child := range children {
			gone(t, child)
		}
		healthy(t)
	})
	t.Run("killed with its children", func(t *testing.T) {
		do(t, n, 404, "GET", "p/misbehave/child", root, nil)
		plugin := processes(t, n)[0]
		children := childrenOf(t, plugin)
		if len(children) != 2 {
			t.Fatalf("its children are %v", children)
		}
		n.Kill9()
		gone(t, plugin)
		for _, child := range children {
			if namespaced(n) {
				gone(t, child)
			} else { // the kernel tells a killed server's plugin, not what that has started
				syscall.Kill(child, syscall.SIGKILL) //nolint:errcheck // it has ended, then
			}
		}
		n.Start()
		n.WaitHealth(200)
		if left, err := filepath.Glob(filepath.Join(n.Dir, "plugin-dir*")); err != nil || len(left) > 0 {
			t.Errorf("the killed server's sockets are left: %v, %v", left, err)
		}
		healthy(t)
	})
	if log := n.Log(); strings.Contains(log, "hush-hush") {
		t.Error("values that the plugin logs are in the log of the server")
	}
}

// TestPluginsInACluster uses mounts on three nodes, whose active one is killed, and on a secondary.
func TestPluginsInACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, harness.Options{Prefix: "trio"})
	leader := c.Leader()
	leader.MustDo("POST", "/v1/sys/mounts/p", map[string]any{"type": "thing"})
	leader.MustDo("POST", "/v1/sys/auth/door", map[string]any{"type": "door"})
	use := func(n *harness.Node, value string) error {
		a, err := n.Do(t.Context(), "POST", "/v1/p/data/a", c.RootToken, map[string]any{"value": value})
		if err != nil || a.Status != 200 {
			return fmt.Errorf("write: %d %s, %v", a.Status, a.Body, err)
		}
		a, err = n.Do(t.Context(), "GET", "/v1/p/data/a", c.RootToken, nil)
		if err != nil || a.Status != 200 || field(t, a, "value") != value {
			return fmt.Errorf("read: %d %s, %v", a.Status, a.Body, err)
		}
		a, err = n.Do(t.Context(), "POST", "/v1/auth/door/login", "", map[string]any{"user": "ann"})
		if err != nil || a.Status != 200 {
			return fmt.Errorf("login: %d %s, %v", a.Status, a.Body, err)
		}
		return nil
	}
	for i, n := range c.Nodes {
		harness.Await(t, "the plugin through "+n.ID, patience, func() error { return use(n, fmt.Sprint(i)) })
	}
	for _, n := range c.Standbys() {
		if running := processes(t, n); len(running) > 0 {
			t.Errorf("%s is a standby and runs %v", n.ID, running)
		}
	}
	plugins := processes(t, leader)
	leader.Kill9()
	for _, pid := range plugins {
		gone(t, pid)
	}
	for _, n := range c.Nodes {
		if n != leader {
			harness.Await(t, "the plugin on the new active node, through "+n.ID, patience, func() error { return use(n, "after "+n.ID) })
		}
	}
	leader.Start()
}
