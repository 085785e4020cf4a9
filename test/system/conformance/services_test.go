package conformance_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// collector is a log collector that listens on a loopback port.
type collector struct {
	address string
	l       net.Listener
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	lines []string
}

func (c *collector) open(t *testing.T) {
	t.Helper()
	if c.address == "" {
		c.address = "127.0.0.1:0"
	}
	var err error
	c.l, err = net.Listen("tcp4", c.address)
	noErr(t, err)
	c.address = c.l.Addr().String()
	l := c.l
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.conns = append(c.conns, conn)
			c.mu.Unlock()
			c.wg.Go(func() { c.collect(conn) })
		}
	})
}

func (c *collector) collect(conn net.Conn) {
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		c.mu.Lock()
		c.lines = append(c.lines, lines.Text())
		c.mu.Unlock()
	}
}

// close drops the listener and all connections.
func (c *collector) close() {
	c.l.Close()
	c.mu.Lock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
	c.mu.Unlock()
	c.wg.Wait()
}

func (c *collector) has(words ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range c.lines {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

func (x *tour) audit(t *testing.T) {
	c := x.root
	file := filepath.Join(t.TempDir(), "audit.log")
	ns := x.my("audited")
	x.namespace(t, c, ns)
	in := c.in(ns)
	noErr(t, in.mount("kv", api.MountInput{Type: "kv"}))
	secret := "in-clear-nowhere-" + x.name
	t.Run("file", func(t *testing.T) {
		noErr(t, c.enableAudit(x.my("file"), api.EnableAuditOptions{Type: "file", Options: map[string]string{"file_path": file, "mode": "0600"}}))
		all, err := c.audits()
		noErr(t, err)
		if d := all[x.my("file")+"/"]; d == nil || d.Type != "file" || d.Options["file_path"] != file {
			t.Errorf("device: %+v", d)
		}
	})
	t.Run("records of a namespace", func(t *testing.T) {
		done(t)(in.write("kv/a", map[string]any{"password": secret}))
		found := false
		for _, r := range audited(t, file) {
			request := r["request"].(map[string]any)
			if request["path"] == "kv/a" && r["type"] == "response" {
				found = true
				same(t, "namespace", request["namespace"].(map[string]any)["path"], any(ns+"/"))
			}
		}
		same(t, "recorded", found, true)
	})
	t.Run("hashes", func(t *testing.T) {
		hash, err := c.auditHash(x.my("file"), secret)
		noErr(t, err)
		text, err := os.ReadFile(file)
		noErr(t, err)
		same(t, "hash, clear", []bool{strings.Contains(string(text), hash), strings.Contains(string(text), secret)}, []bool{true, false})
	})
	t.Run("wrapped answers", func(t *testing.T) {
		w := wrap(t)(in.wrapped("60s").read("kv/a"))
		text, err := os.ReadFile(file)
		noErr(t, err)
		if strings.Contains(string(text), w.Token) || !strings.Contains(string(text), `"wrap_info"`) {
			t.Errorf("the wrapping token is in clear, or nothing tells of it")
		}
	})
	t.Run("who it was", func(t *testing.T) {
		x.method(t, c, x.my("who"), "userpass")
		user(t, c, x.my("who"), "ann", nil)
		a := login(t, c, x.my("who"), "ann")
		done(t)(c.as(a.ClientToken).lookupSelf())
		text, err := os.ReadFile(file)
		noErr(t, err)
		if !strings.Contains(string(text), a.EntityID) || strings.Contains(string(text), a.ClientToken) {
			t.Errorf("the entity is not there, or the token is")
		}
	})
	t.Run("request headers", func(t *testing.T) {
		at := "sys/config/auditing/request-headers"
		done(t)(c.write(at+"/X-Ticket", map[string]any{"hmac": false}))
		done(t)(c.write(at+"/X-Hidden", map[string]any{"hmac": true}))
		done(t)(c.read(at))
		done(t)(c.with("X-Ticket", "T-"+x.name).with("X-Hidden", "H-"+x.name).read("sys/policies/acl"))
		text, err := os.ReadFile(file)
		noErr(t, err)
		same(t, "clear, hashed", []bool{strings.Contains(string(text), "T-"+x.name), strings.Contains(string(text), "H-"+x.name)}, []bool{true, false})
		done(t)(c.remove(at + "/X-Ticket"))
		done(t)(c.remove(at + "/X-Hidden"))
	})
	var sink collector
	t.Run("socket", func(t *testing.T) {
		refused(t, c.enableAudit(x.my("socket"), api.EnableAuditOptions{Type: "socket", Options: map[string]string{"address": "127.0.0.1:1", "socket_type": "tcp"}}), 400)
		sink.open(t)
		noErr(t, c.enableAudit(x.my("socket"), api.EnableAuditOptions{Type: "socket", Options: map[string]string{"address": sink.address, "socket_type": "tcp", "write_timeout": "1s"}}))
		done(t)(in.write("kv/socket", map[string]any{"password": secret}))
		harness.Await(t, "the record", patience, func() error {
			if !sink.has(`"kv/socket"`, `"response"`) {
				return fmt.Errorf("nothing")
			}
			return nil
		})
		same(t, "in clear", sink.has(secret), false)
	})
	t.Run("one device is enough", func(t *testing.T) {
		sink.close()
		for range 3 {
			done(t)(in.read("kv/a"))
		}
	})
	t.Run("none is too few", func(t *testing.T) {
		refused(t, c.disableAudit(x.my("file")), 500) // it is done, but the answer could not be recorded
		for _, n := range x.Nodes {
			a := x.raw(t, n, "POST", "/v1/kv/b", x.RootToken, map[string]any{"x": "1"}, "X-Vault-Namespace", ns)
			same(t, "status", a.Status, 500)
		}
		sink.open(t)
		harness.Await(t, "the device", patience, func() error {
			for _, n := range x.Nodes {
				if a := x.raw(t, n, "GET", "/v1/kv/a", x.RootToken, nil, "X-Vault-Namespace", ns); a.Status != 200 {
					return fmt.Errorf("status %d", a.Status)
				}
			}
			return nil
		})
		absent(t)(in.read("kv/b"))
	})
	t.Run("disable", func(t *testing.T) {
		noErr(t, c.disableAudit(x.my("socket")))
		all, err := c.audits()
		noErr(t, err)
		same(t, "devices", len(all), 0)
		sink.close()
	})
	t.Run("syslog", func(t *testing.T) { x.syslog(t) })
}

// syslog needs a place where a daemon listens, which it takes only if there is none.
func (x *tour) syslog(t *testing.T) {
	c := x.root
	options := api.EnableAuditOptions{Type: "syslog", Options: map[string]string{"facility": "LOCAL3", "tag": "coffer-test"}}
	refused(t, c.enableAudit(x.my("bad"), api.EnableAuditOptions{Type: "syslog", Options: map[string]string{"facility": "NOWHERE"}}), 400)
	if _, err := os.Stat("/dev/log"); err == nil {
		t.Skip("a syslog daemon runs on this machine")
	}
	const path = "/var/run/syslog"
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		says(t, c.enableAudit(x.my("syslog"), options), 400, "syslog")
		t.Skip("nobody but root may listen where syslog daemons do")
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer os.Remove(path)
	defer l.Close()
	lines := make(chan string, 64) // more than are sent; whatever comes later is dropped
	all.Go(func() {
		defer close(lines)
		buf := make([]byte, 1<<20)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return
			}
			select {
			case lines <- string(buf[:n]):
			default:
			}
		}
	})
	noErr(t, c.enableAudit(x.my("syslog"), options))
	done(t)(c.read("sys/policies/acl/default"))
	noErr(t, c.disableAudit(x.my("syslog")))
	for line := range lines {
		if !strings.HasPrefix(line, "<158>") || !strings.Contains(line, " coffer-test[") {
			t.Fatalf("message %.60q", line)
		}
		_, record, _ := strings.Cut(line, "]: ")
		var r map[string]any
		noErr(t, json.Unmarshal([]byte(record), &r))
		if request, _ := r["request"].(map[string]any); request["path"] == "sys/policies/acl/default" {
			return
		}
	}
}

func (x *tour) quotas(t *testing.T) {
	c := x.root
	x.kv(t, c, x.my("limited"))
	done(t)(c.write(x.my("limited")+"/a", map[string]any{"x": "1"}))
	at := "sys/quotas/rate-limit/" + x.my("slow")
	t.Run("write and read", func(t *testing.T) {
		done(t)(c.write(at, map[string]any{"path": x.my("limited") + "/", "rate": 3, "interval": "10m"}))
		fields(t, data(t)(c.read(at)), map[string]any{"name": x.my("slow"), "type": "rate-limit", "path": x.my("limited") + "/", "rate": 3, "interval": 600})
	})
	t.Run("list", func(t *testing.T) {
		contains(t, "quotas", texts(data(t)(c.list("sys/quotas/rate-limit"))["keys"]), x.my("slow"))
	})
	t.Run("too many requests", func(t *testing.T) {
		n, codes := x.node(), []int{}
		var last harness.Answer
		for range 4 {
			last = x.raw(t, n, "GET", "/v1/"+x.my("limited")+"/a", x.RootToken, nil)
			codes = append(codes, last.Status)
		}
		same(t, "statuses", codes, []int{200, 200, 200, 429})
		if last.Header.Get("Retry-After") == "" {
			t.Errorf("no Retry-After")
		}
	})
	t.Run("elsewhere is not limited", func(t *testing.T) {
		for range 5 {
			done(t)(c.read("sys/policies/acl/default"))
		}
	})
	t.Run("the clients see it", func(t *testing.T) {
		var err error
		for range 3 * 4 { // each node counts what it serves
			if _, err = c.read(x.my("limited") + "/a"); err != nil {
				break
			}
		}
		says(t, err, 429, "rate limit")
	})
	t.Run("headers", func(t *testing.T) {
		done(t)(c.write("sys/quotas/config", map[string]any{"enable_rate_limit_response_headers": true}))
		fields(t, data(t)(c.read("sys/quotas/config")), map[string]any{"enable_rate_limit_response_headers": true})
		done(t)(c.write(at, map[string]any{"path": x.my("limited") + "/", "rate": 50, "interval": "10m"}))
		h := x.raw(t, x.node(), "GET", "/v1/"+x.my("limited")+"/a", x.RootToken, nil).Header
		if h.Get("X-Ratelimit-Limit") != "50" || h.Get("X-Ratelimit-Remaining") == "" || h.Get("X-Ratelimit-Reset") == "" {
			t.Errorf("headers: %v", h)
		}
		done(t)(c.write("sys/quotas/config", map[string]any{"enable_rate_limit_response_headers": false}))
	})
	t.Run("delete", func(t *testing.T) {
		done(t)(c.remove(at))
		absent(t)(c.read(at))
		for range 5 {
			done(t)(c.read(x.my("limited") + "/a"))
		}
	})
	t.Run("bad ones", func(t *testing.T) {
		for _, bad := range []map[string]any{{"rate": 0}, {"rate": -1}, {"rate": 1, "path": x.my("nowhere") + "/"}, {}} {
			_, err := c.write(at, bad)
			refused(t, err, 400)
		}
	})
	t.Run("of a role", func(t *testing.T) {
		x.method(t, c, x.my("rated"), "approle")
		method := "auth/" + x.my("rated") + "/"
		enter := func(name string) error {
			id := data(t)(c.read(method + "role/" + name + "/role-id"))["role_id"]
			_, err := c.as("").write(method+"login", map[string]any{"role_id": id, "secret_id": secretID(t, c, method, name, nil)})
			return err
		}
		role(t, c, method, "slow", nil)
		role(t, c, method, "fast", nil)
		done(t)(c.write(at, map[string]any{"path": method, "role": "slow", "rate": 1, "interval": "10m"}))
		var err error
		for range 4 {
			if err = enter("slow"); err != nil {
				break
			}
		}
		refused(t, err, 429)
		noErr(t, enter("fast"))
		done(t)(c.remove(at))
	})
	t.Run("lease counts", func(t *testing.T) {
		at := "sys/quotas/lease-count/" + x.my("few")
		done(t)(c.write(at, map[string]any{"path": x.my("limited") + "/", "max_leases": 10}))
		fields(t, data(t)(c.read(at)), map[string]any{"name": x.my("few"), "type": "lease-count", "max_leases": 10, "path": x.my("limited") + "/"})
		contains(t, "quotas", texts(data(t)(c.list("sys/quotas/lease-count"))["keys"]), x.my("few"))
		done(t)(c.read(x.my("limited") + "/a"))
		done(t)(c.remove(at))
		absent(t)(c.read(at))
	})
	t.Run("a namespace has no say", func(t *testing.T) {
		ns := x.my("quotas")
		x.namespace(t, c, ns)
		_, err := c.in(ns).write("sys/quotas/rate-limit/x", map[string]any{"rate": 1})
		refused(t, err, 400, 403, 404)
		done(t)(c.write(at, map[string]any{"path": ns + "/", "rate": 2, "interval": "10m"}))
		for range 3 * 3 {
			if _, err = c.in(ns).read("sys/policies/acl/default"); err != nil {
				break
			}
		}
		refused(t, err, 429)
		done(t)(c.remove(at))
	})
}

// moved starts a move and waits for its end.
func (x *tour) moved(t *testing.T, c client, from, to string) {
	t.Helper()
	m, err := c.startRemount(from, to)
	noErr(t, err)
	harness.Await(t, "the move", patience, func() error {
		s, err := c.remountStatus(m.MigrationID)
		noErr(t, err)
		switch s.MigrationInfo.MigrationStatus {
		case "success":
			return nil
		case "failure":
			t.Fatalf("the move failed: %+v", s.MigrationInfo)
		}
		return fmt.Errorf("it is %s", s.MigrationInfo.MigrationStatus)
	})
}

func (x *tour) remount(t *testing.T) {
	c, a, b := x.root, x.my("from"), x.my("to")
	noErr(t, c.mount(a, api.MountInput{Type: "kv", Options: map[string]string{"version": "2"}}))
	done(t)(c.write(a+"/data/x", map[string]any{"data": map[string]any{"k": "v"}}))
	want := map[string]any{"k": "v"}
	ns := x.my("moves")
	x.namespace(t, c, ns)
	t.Run("secrets engine", func(t *testing.T) {
		x.moved(t, c, a, b)
		same(t, "data", data(t)(c.read(b + "/data/x"))["data"], any(want))
		absent(t, 400)(c.read(a + "/data/x"))
	})
	t.Run("at once", func(t *testing.T) {
		_, err := c.startRemount(b, a)
		noErr(t, err)
		same(t, "data", data(t)(c.read(a + "/data/x"))["data"], any(want))
		x.moved(t, c, a, b)
	})
	t.Run("into a namespace and back", func(t *testing.T) {
		x.moved(t, c, b, ns+"/inner")
		same(t, "inside", data(t)(c.in(ns).read("inner/data/x"))["data"], any(want))
		x.moved(t, c, ns+"/inner", b)
		same(t, "outside", data(t)(c.read(b + "/data/x"))["data"], any(want))
	})
	t.Run("within a namespace", func(t *testing.T) {
		noErr(t, c.in(ns).mount("one", api.MountInput{Type: "kv"}))
		done(t)(c.in(ns).write("one/x", want))
		x.moved(t, c.in(ns), "one", "two")
		same(t, "data", data(t)(c.in(ns).read("two/x")), want)
	})
	t.Run("auth method", func(t *testing.T) {
		noErr(t, c.enableAuth(a, "userpass"))
		user(t, c, a, "ann", nil)
		entity := login(t, c, a, "ann").EntityID
		x.moved(t, c, "auth/"+a, "auth/"+b)
		same(t, "entity", login(t, c, b, "ann").EntityID, entity)
		noErr(t, c.disableAuth(b))
	})
	t.Run("what cannot move", func(t *testing.T) {
		for _, m := range [][2]string{{"sys", a}, {"identity", a}, {x.my("nothing"), a}, {b, "identity"}, {b, "auth/" + a}, {b, b}} {
			_, err := c.startRemount(m[0], m[1])
			refused(t, err, 400)
		}
	})
	t.Run("onto another mount", func(t *testing.T) {
		x.kv(t, c, a)
		_, err := c.startRemount(b, a)
		refused(t, err, 400)
	})
	t.Run("an unknown move", func(t *testing.T) {
		_, err := c.remountStatus("00000000-0000-0000-0000-000000000000")
		if status, _, ok := answerOf(err); ok && status != 404 {
			t.Errorf("status %d", status)
		} else if err == nil {
			t.Errorf("it is known")
		}
	})
	noErr(t, c.unmount(b))
}
