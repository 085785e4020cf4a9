package conformance_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/openbao/openbao/api/v2"
)

func (s *suite) mounts(t *testing.T) {
	sys := s.root.Sys()
	t.Run("built-in ones", func(t *testing.T) {
		list, err := sys.ListMounts()
		noErr(t, err)
		for path, kind := range map[string]string{"sys/": "system", "cubbyhole/": "cubbyhole"} {
			if list[path] == nil || list[path].Type != kind {
				t.Errorf("%s: %+v", path, list[path])
			}
		}
		auths, err := sys.ListAuth()
		noErr(t, err)
		if auths["token/"] == nil || auths["token/"].Type != "token" {
			t.Errorf("token/: %+v", auths["token/"])
		}
		status(t, sys.Unmount("sys"), 400)
		status(t, sys.Unmount("cubbyhole"), 400)
	})
	t.Run("enable", func(t *testing.T) {
		s.mount(t, "team/app", "kv", map[string]string{"version": "2"})
		list, err := sys.ListMounts()
		noErr(t, err)
		m := list["team/app/"]
		if m == nil || m.Type != "kv" || m.Options["version"] != "2" || m.UUID == "" || !strings.HasPrefix(m.Accessor, "kv_") || m.Local {
			t.Fatalf("team/app/: %+v", m)
		}
		one, err := sys.MountInfo("team/app")
		noErr(t, err)
		same(t, "accessor", one.Accessor, m.Accessor)
		for _, taken := range []string{"team/app", "team/app/deeper", "team", "sys/x", "auth/x"} {
			status(t, sys.Mount(taken, &api.MountInput{Type: "kv"}), 400)
		}
	})
	t.Run("kv-v2 is kv", func(t *testing.T) {
		s.mount(t, "alias", "kv-v2", nil)
		m, err := sys.MountInfo("alias")
		noErr(t, err)
		same(t, "type, version", []string{m.Type, m.Options["version"]}, []string{"kv", "2"})
	})
	t.Run("unknown type", func(t *testing.T) {
		status(t, sys.Mount("what", &api.MountInput{Type: "no-such-engine"}), 400)
		status(t, sys.Mount("what", &api.MountInput{}), 400, "type")
	})
	t.Run("tune", func(t *testing.T) {
		s.mount(t, "tuned", "kv", nil)
		text := "for people"
		noErr(t, sys.TuneMount("tuned", api.MountConfigInput{DefaultLeaseTTL: "1h", MaxLeaseTTL: "2h", Description: &text, ListingVisibility: "unauth"}))
		c, err := sys.MountConfig("tuned")
		noErr(t, err)
		same(t, "config", []any{c.DefaultLeaseTTL, c.MaxLeaseTTL, c.ListingVisibility}, []any{3600, 7200, "unauth"})
		m, err := sys.MountInfo("tuned")
		noErr(t, err)
		same(t, "description", m.Description, text)
		status(t, sys.TuneMount("tuned", api.MountConfigInput{DefaultLeaseTTL: "3h", MaxLeaseTTL: "2h"}), 400, "default_lease_ttl")
		status(t, sys.TuneMount("nowhere", api.MountConfigInput{DefaultLeaseTTL: "3h"}), 400)
	})
	t.Run("defaults", func(t *testing.T) {
		s.mount(t, "plain", "kv", nil)
		c, err := sys.MountConfig("plain")
		noErr(t, err)
		same(t, "ttl", []int{c.DefaultLeaseTTL, c.MaxLeaseTTL}, []int{768 * 3600, 768 * 3600})
	})
	t.Run("local", func(t *testing.T) {
		noErr(t, sys.Mount("here", &api.MountInput{Type: "kv", Local: true}))
		m, err := sys.MountInfo("here")
		noErr(t, err)
		same(t, "local", m.Local, true)
		_, err = s.root.Logical().Write("here/a", map[string]any{"x": 1})
		noErr(t, err)
		noErr(t, sys.Unmount("here"))
	})
	t.Run("disable deletes", func(t *testing.T) {
		noErr(t, sys.Mount("temp", &api.MountInput{Type: "kv"}))
		_, err := s.root.Logical().Write("temp/a", map[string]any{"x": 1})
		noErr(t, err)
		noErr(t, sys.Unmount("temp"))
		_, err = s.root.Logical().Write("temp/a", map[string]any{"x": 1})
		status(t, err, 404)
		s.mount(t, "temp", "kv", nil)
		r, err := s.root.Logical().Read("temp/a")
		noErr(t, err)
		if r != nil {
			t.Errorf("the data of the mount before is still there")
		}
	})
	t.Run("nothing is mounted there", func(t *testing.T) {
		_, err := s.root.Logical().Write("no/such/mount", map[string]any{"x": 1})
		status(t, err, 404)
	})
}

// audited reads the records of an audit file.
func audited(t *testing.T, file string) []map[string]any {
	t.Helper()
	f, err := os.Open(file)
	noErr(t, err)
	defer f.Close()
	var out []map[string]any
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var record map[string]any
		noErr(t, json.Unmarshal(lines.Bytes(), &record))
		out = append(out, record)
	}
	noErr(t, lines.Err())
	return out
}

func (s *suite) audit(t *testing.T) {
	sys := s.root.Sys()
	file := filepath.Join(t.TempDir(), "audit.log")
	const marker = "a-value-that-must-not-be-in-clear"
	t.Run("enable", func(t *testing.T) {
		noErr(t, sys.EnableAuditWithOptions("trail", &api.EnableAuditOptions{Type: "file", Description: "d", Options: map[string]string{"file_path": file}}))
		list, err := sys.ListAudit()
		noErr(t, err)
		if d := list["trail/"]; d == nil || d.Type != "file" || d.Options["file_path"] != file {
			t.Errorf("trail/: %+v", d)
		}
	})
	t.Run("a device that cannot write is refused", func(t *testing.T) {
		err := sys.EnableAuditWithOptions("bad", &api.EnableAuditOptions{Type: "file", Options: map[string]string{"file_path": filepath.Join(t.TempDir(), "no", "such", "dir", "x")}})
		status(t, err, 400)
		if _, err := os.Stat("/dev/full"); err == nil {
			err = sys.EnableAuditWithOptions("bad", &api.EnableAuditOptions{Type: "file", Options: map[string]string{"file_path": "/dev/full"}})
			status(t, err, 400)
		}
		err = sys.EnableAuditWithOptions("bad", &api.EnableAuditOptions{Type: "pigeon"})
		status(t, err, 400, "file")
	})
	t.Run("records", func(t *testing.T) {
		s.mount(t, "audited", "kv", nil)
		_, err := s.root.Logical().Write("audited/x", map[string]any{"password": marker})
		noErr(t, err)
		_, err = s.root.Logical().Read("audited/x")
		noErr(t, err)
		_, err = s.as("hvs.nobody").Logical().Read("audited/x")
		status(t, err, 403)
		kinds := map[string]int{}
		denied := false
		for _, r := range audited(t, file) {
			request, _ := r["request"].(map[string]any)
			if request["path"] == "audited/x" {
				kinds[fmt.Sprint(r["type"], " ", request["operation"])]++
				denied = denied || r["error"] != nil && r["error"] != ""
			}
		}
		for _, want := range []string{"request create", "response create", "request read", "response read"} {
			if kinds[want] == 0 && kinds[strings.Replace(want, "create", "update", 1)] == 0 {
				t.Errorf("no record %q among %v", want, kinds)
			}
		}
		if !denied {
			t.Errorf("the refused request left no record with an error")
		}
	})
	t.Run("values are hashed", func(t *testing.T) {
		text, err := os.ReadFile(file)
		noErr(t, err)
		if strings.Contains(string(text), marker) || strings.Contains(string(text), s.RootToken) {
			t.Errorf("the trail holds a secret in clear")
		}
		hash, err := sys.AuditHash("trail", marker)
		noErr(t, err)
		if !strings.HasPrefix(hash, "hmac-sha256:") || !strings.Contains(string(text), hash) {
			t.Errorf("the hash of the value is not in the trail")
		}
	})
	t.Run("rotation", func(t *testing.T) {
		noErr(t, os.Rename(file, file+".1"))
		s.n1.Reload()
		harness.Await(t, "a new file", patience, func() error {
			if _, err := s.root.Logical().Read("sys/mounts"); err != nil {
				return err
			}
			_, err := os.Stat(file)
			return err
		})
	})
	t.Run("disable", func(t *testing.T) {
		noErr(t, sys.DisableAudit("trail"))
		before := len(audited(t, file))
		_, err := sys.ListMounts()
		noErr(t, err)
		same(t, "records", len(audited(t, file)), before)
		list, err := sys.ListAudit()
		noErr(t, err)
		same(t, "devices", len(list), 0)
	})
}

func (s *suite) meta(t *testing.T) {
	s.mount(t, "seen", "kv", map[string]string{"version": "2"})
	t.Run("mount of a path", func(t *testing.T) {
		r, err := s.root.Logical().Read("sys/internal/ui/mounts/seen/a/b")
		noErr(t, err)
		same(t, "path, type, version", []any{r.Data["path"], r.Data["type"], r.Data["options"].(map[string]any)["version"]}, []any{"seen/", "kv", "2"})
	})
	t.Run("mounts cannot be probed", func(t *testing.T) {
		token := s.policy(t, "nothing", `path "other/x" { capabilities = ["read"] }`)
		_, there := s.as(token).Logical().Read("sys/internal/ui/mounts/seen/a")
		status(t, there, 403)
		_, absent := s.as(token).Logical().Read("sys/internal/ui/mounts/absent/a")
		status(t, absent, 403)
		var a, b *api.ResponseError
		errors.As(there, &a)
		errors.As(absent, &b)
		same(t, "answers", a.Errors, b.Errors)
	})
	t.Run("listing without a token", func(t *testing.T) {
		r := s.raw(t, s.n1, "GET", "/v1/sys/internal/ui/mounts", "", nil)
		same(t, "status", r.Status, 200)
		if strings.Contains(string(r.Body), "seen/") {
			t.Errorf("a hidden mount is listed")
		}
		noErr(t, s.root.Sys().TuneMount("seen", api.MountConfigInput{ListingVisibility: "unauth"}))
		if r := s.raw(t, s.n1, "GET", "/v1/sys/internal/ui/mounts", "", nil); !strings.Contains(string(r.Body), `"seen/"`) {
			t.Errorf("a visible mount is not listed: %s", r.Body)
		}
	})
	t.Run("openapi", func(t *testing.T) {
		a := s.raw(t, s.n1, "GET", "/v1/sys/internal/specs/openapi", s.RootToken, nil)
		same(t, "status", a.Status, 200)
		doc, err := openapi3.NewLoader().LoadFromData(a.Body)
		noErr(t, err)
		noErr(t, doc.Validate(s.ctx()))
		for _, path := range []string{"/sys/health", "/sys/mounts", "/seen/data/{path}", "/auth/token/create"} {
			if doc.Paths.Value(path) == nil {
				t.Errorf("%s is not documented", path)
			}
		}
	})
	t.Run("help", func(t *testing.T) {
		h, err := s.root.Help("seen/config")
		noErr(t, err)
		if h.Help == "" {
			t.Errorf("no help for seen/config")
		}
	})
	t.Run("metrics for prometheus", func(t *testing.T) {
		a := s.raw(t, s.n1, "GET", "/v1/sys/metrics?format=prometheus", s.RootToken, nil)
		same(t, "status", a.Status, 200)
		for _, name := range []string{"coffer_requests_total", "coffer_request_seconds_bucket", "go_goroutines", "coffer_active 1"} {
			if !strings.Contains(string(a.Body), name) {
				t.Errorf("no %q", name)
			}
		}
	})
	t.Run("metrics as JSON", func(t *testing.T) {
		a := s.raw(t, s.n1, "GET", "/v1/sys/metrics", s.RootToken, nil)
		same(t, "status", a.Status, 200)
		var out struct{ Gauges, Counters, Samples []map[string]any }
		a.Decode(t, &out)
		if len(out.Gauges) == 0 || len(out.Counters) == 0 || len(out.Samples) == 0 {
			t.Errorf("%d gauges, %d counters, %d samples", len(out.Gauges), len(out.Counters), len(out.Samples))
		}
	})
	t.Run("metrics need a token", func(t *testing.T) {
		same(t, "status", s.raw(t, s.n1, "GET", "/v1/sys/metrics", "", nil).Status, 403)
	})
}

// strong returns the client as its makers recommend it for several nodes.
func (s *suite) strong(t *testing.T, n *harness.Node) *api.Client {
	t.Helper()
	config := api.DefaultConfig()
	config.Address, config.DefaultStrongConsistency, config.MaxRetries = n.URL, true, 0
	noErr(t, config.ConfigureTLS(&api.TLSConfig{CACert: s.CAFile}))
	c, err := api.NewClient(config)
	noErr(t, err)
	c.SetToken(s.RootToken)
	return c
}

// everywhere calls do n times at once, spread over the nodes.
func everywhere(s *suite, n int, do func(node *harness.Node, i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(s.Nodes[i%len(s.Nodes)], i) })
	}
	all.Wait()
}

func (s *suite) standby(t *testing.T) {
	s.mount(t, "stand", "kv", map[string]string{"version": "2"})
	leader := s.Leader()
	n := s.Standbys()[0]
	c := n.Client(s.RootToken)
	t.Run("writes", func(t *testing.T) {
		_, err := c.KVv2("stand").Put(s.ctx(), "through", map[string]any{"a": "1"})
		noErr(t, err)
		r, err := leader.Client(s.RootToken).KVv2("stand").Get(s.ctx(), "through")
		noErr(t, err)
		same(t, "data", r.Data, map[string]any{"a": "1"})
	})
	t.Run("reads what it has forwarded", func(t *testing.T) {
		for i := range 20 {
			_, err := c.KVv2("stand").Put(s.ctx(), "own", map[string]any{"i": fmt.Sprint(i)})
			noErr(t, err)
			r, err := c.KVv2("stand").Get(s.ctx(), "own")
			noErr(t, err)
			same(t, "data", r.Data, map[string]any{"i": fmt.Sprint(i)})
		}
	})
	t.Run("read your writes, by header", func(t *testing.T) {
		for i := range 50 {
			path, value := "/v1/stand/data/ryw", fmt.Sprint(i)
			w := s.raw(t, leader, "POST", path, s.RootToken, map[string]any{"data": map[string]any{"i": value}})
			index := w.Header.Get("X-Vault-Index")
			if index == "" {
				t.Fatal("the answer to a write has no X-Vault-Index")
			}
			r := s.raw(t, n, "GET", path, s.RootToken, nil, "X-Vault-Index", index)
			var out struct {
				Data struct{ Data map[string]string }
			}
			r.Decode(t, &out)
			same(t, "data", out.Data.Data, map[string]string{"i": value})
		}
	})
	t.Run("read your writes, by the client", func(t *testing.T) {
		client := s.strong(t, leader)
		for i := range 20 {
			noErr(t, client.SetAddress(leader.URL))
			_, err := client.KVv2("stand").Put(s.ctx(), "strong", map[string]any{"i": fmt.Sprint(i)})
			noErr(t, err)
			noErr(t, client.SetAddress(n.URL)) // it remembers the state it has seen
			r, err := client.KVv2("stand").Get(s.ctx(), "strong")
			noErr(t, err)
			same(t, "data", r.Data, map[string]any{"i": fmt.Sprint(i)})
		}
	})
	t.Run("linearizable on request", func(t *testing.T) {
		for i := range 20 {
			_, err := leader.Client(s.RootToken).KVv2("stand").Put(s.ctx(), "lin", map[string]any{"i": fmt.Sprint(i)})
			noErr(t, err)
			r := s.raw(t, n, "GET", "/v1/stand/data/lin", s.RootToken, nil, "X-Vault-Consistency", "linearizable")
			if want := fmt.Sprintf(`"i":"%d"`, i); !strings.Contains(string(r.Body), want) {
				t.Fatalf("%s lacks %s", r.Body, want)
			}
		}
	})
	t.Run("on the active node on request", func(t *testing.T) {
		r := s.raw(t, n, "GET", "/v1/stand/data/lin", s.RootToken, nil, "X-Vault-Forward", "active-node")
		same(t, "status", r.Status, 200)
	})
	t.Run("redirect on request", func(t *testing.T) {
		r := s.raw(t, n, "POST", "/v1/stand/data/lin", s.RootToken, map[string]any{"data": map[string]any{}}, "X-Vault-No-Request-Forwarding", "true")
		same(t, "status, location", []any{r.Status, r.Header.Get("Location")}, []any{307, leader.URL + "/v1/stand/data/lin"})
	})
	t.Run("a state that nobody gave out", func(t *testing.T) {
		for _, index := range []string{"nonsense", "AAAA", "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"} {
			same(t, "status", s.raw(t, n, "GET", "/v1/stand/data/lin", s.RootToken, nil, "X-Vault-Index", index).Status, 400)
		}
	})
	t.Run("errors keep their status", func(t *testing.T) {
		_, err := c.KVv2("stand").Put(s.ctx(), "lin", map[string]any{"a": 1}, api.WithCheckAndSet(0))
		status(t, err, 400, "check-and-set")
		_, err = n.Client("hvs.wrong").KVv2("stand").Put(s.ctx(), "lin", map[string]any{"a": 1})
		status(t, err, 403)
	})
	t.Run("tokens", func(t *testing.T) {
		secret, err := c.Auth().Token().Create(&api.TokenCreateRequest{NumUses: 2})
		noErr(t, err)
		one := n.Client(secret.Auth.ClientToken)
		for range 2 {
			_, err = one.Auth().Token().LookupSelf()
			noErr(t, err)
		}
		_, err = one.Auth().Token().LookupSelf()
		status(t, err, 403)
	})
	t.Run("a token's uses are counted once, from everywhere", func(t *testing.T) {
		const uses = 10
		token := s.token(t, api.TokenCreateRequest{NumUses: uses})
		index := s.raw(t, leader, "GET", "/v1/sys/mounts", s.RootToken, nil).Header.Get("X-Vault-Index")
		var used atomic.Int64
		everywhere(s, 30, func(n *harness.Node, _ int) {
			if s.raw(t, n, "GET", "/v1/auth/token/lookup-self", token, nil, "X-Vault-Index", index).Status == 200 {
				used.Add(1)
			}
		})
		same(t, "uses", used.Load(), int64(uses))
	})
	t.Run("one of many wins a check-and-set", func(t *testing.T) {
		var won atomic.Int64
		everywhere(s, 30, func(n *harness.Node, i int) {
			a := s.raw(t, n, "POST", "/v1/stand/data/race", s.RootToken, map[string]any{"data": map[string]any{"by": i}, "options": map[string]any{"cas": 0}})
			if a.Status == 200 {
				won.Add(1)
			} else if a.Status != 400 {
				t.Errorf("status %d: %s", a.Status, a.Body)
			}
		})
		same(t, "winners", won.Load(), int64(1))
	})
	t.Run("every concurrent write has its version", func(t *testing.T) {
		var mu sync.Mutex
		seen := map[int]bool{}
		everywhere(s, 30, func(n *harness.Node, i int) {
			var out struct{ Data struct{ Version int } }
			a := s.raw(t, n, "POST", "/v1/stand/data/versions", s.RootToken, map[string]any{"data": map[string]any{"by": i}})
			if err := json.Unmarshal(a.Body, &out); err != nil || a.Status != 200 {
				t.Errorf("status %d, %v", a.Status, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[out.Data.Version] {
				t.Errorf("version %d was given twice", out.Data.Version)
			}
			seen[out.Data.Version] = true
		})
		same(t, "versions", len(seen), 30)
	})
	t.Run("a revoked token ends everywhere", func(t *testing.T) {
		token := s.token(t, api.TokenCreateRequest{})
		index := s.raw(t, leader, "GET", "/v1/sys/mounts", s.RootToken, nil).Header.Get("X-Vault-Index")
		same(t, "before", s.raw(t, n, "GET", "/v1/auth/token/lookup-self", token, nil, "X-Vault-Index", index).Status, 200)
		index = s.raw(t, leader, "POST", "/v1/auth/token/revoke", s.RootToken, map[string]any{"token": token}).Header.Get("X-Vault-Index")
		same(t, "after", s.raw(t, n, "GET", "/v1/auth/token/lookup-self", token, nil, "X-Vault-Index", index).Status, 403)
	})
	t.Run("a changed policy counts everywhere", func(t *testing.T) {
		token := s.policy(t, "spread", `path "stand/data/lin" { capabilities = ["read"] }`)
		index := s.raw(t, leader, "GET", "/v1/sys/mounts", s.RootToken, nil).Header.Get("X-Vault-Index")
		same(t, "before", s.raw(t, n, "GET", "/v1/stand/data/lin", token, nil, "X-Vault-Index", index).Status, 200)
		index = s.raw(t, leader, "DELETE", "/v1/sys/policies/acl/spread", s.RootToken, nil).Header.Get("X-Vault-Index")
		same(t, "after", s.raw(t, n, "GET", "/v1/stand/data/lin", token, nil, "X-Vault-Index", index).Status, 403)
	})
	t.Run("a large body", func(t *testing.T) {
		big := strings.Repeat("x", 900<<10)
		_, err := c.KVv2("stand").Put(s.ctx(), "big", map[string]any{"v": big})
		noErr(t, err)
	})
}
