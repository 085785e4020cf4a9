package security_test

import (
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// listener counts the connections to an address that the server must not talk to.
func listener(t *testing.T) (addr string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			conn.Close()
		}
	}()
	return l.Addr().String(), connections
}

// TestOrdinaryTokensReachNoService: everything that makes the server talk to an address asks for an operator.
func TestOrdinaryTokensReachNoService(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	addr, connections := listener(t)
	root.people("bob", "default")
	for who, u := range map[string]user{"nobody": root.nobody(), "a default token": root.with(root.login("bob").Token)} {
		u.refused(who+": an audit socket", "POST", "sys/audit/x", fields{"type": "socket", "options": fields{"address": addr, "socket_type": "tcp"}})
		u.refused(who+": a snapshot to S3", "POST", "sys/storage/raft/snapshot-auto/config/x", fields{
			"storage_type": "aws-s3", "aws_s3_endpoint": "http://" + addr, "aws_s3_bucket": "b", "interval": "1h",
		})
		u.do("POST", "sys/storage/raft/join", fields{"leader_api_addr": "http://" + addr}) // the node is in a cluster: it may say so
		u.do("POST", "sys/init", fields{"secret_shares": 1, "secret_threshold": 1})
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("the server made %d connections to an address that a stranger named", n)
	}
}

// TestRedirectsAreNotFollowed: the node that a joiner asks cannot send it elsewhere.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{Bare: true, NoRetryJoin: true})
	u := user{t: t, n: c.Nodes[0]}
	inner, reached := listener(t)
	var asked atomic.Int64
	leader := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "http://"+inner+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer leader.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leader.Certificate().Raw})
	a := u.do("POST", "sys/storage/raft/join", fields{"leader_api_addr": leader.URL, "leader_ca_cert": string(ca)})
	if a.Status < 400 || asked.Load() == 0 {
		t.Errorf("joining by a redirect: status %d, asked %d times: %.200s", a.Status, asked.Load(), a.Body)
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	if strings.Contains(string(a.Body), inner) {
		t.Errorf("the error shows what the other side answered: %.200s", a.Body)
	}
}

// TestLockout: wrong passwords lock a name, however it is spelled, and whether it exists or not.
func TestLockout(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "default")
	root.people("carol", "default")
	spellings := []string{"bob", "BOB", "Bob", "bOb", "boB"}
	for _, name := range spellings {
		root.nobody().refused("wrong password", "POST", "auth/people/login/"+name, fields{"password": "wrong"})
	}
	for _, name := range append(spellings, "%62ob", "bob/", "bob%20", "%20bob", "BO%42") {
		a := root.nobody().do("POST", "auth/people/login/"+name, fields{"password": "bob-password-1"})
		if a.Status < 300 {
			t.Errorf("%s logs in although the name is locked", name)
		}
	}
	root.login("carol") // others are not concerned
	// Somebody who does not exist is locked the same way: the answers tell nothing.
	var known, unknown []int
	for range 7 {
		known = append(known, root.nobody().do("POST", "auth/people/login/carol", fields{"password": "wrong"}).Status)
		unknown = append(unknown, root.nobody().do("POST", "auth/people/login/dave", fields{"password": "wrong"}).Status)
	}
	if !slices.Equal(known, unknown) {
		t.Errorf("wrong passwords answer %v, unknown names %v", known, unknown)
	}
}

// TestUnknownIsLikeWrong: a login tells who exists neither by its status nor by its words nor by its header.
func TestUnknownIsLikeWrong(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "default")
	root.must("POST", "sys/auth/machines", fields{"type": "approle"})
	root.must("POST", "auth/machines/role/m", fields{"token_policies": "default"})
	id := dataOf(t, root.must("GET", "auth/machines/role/m/role-id", nil))["role_id"]
	u := root.nobody()
	pairs := map[string][2]harness.Answer{
		"user": {
			u.do("POST", "auth/people/login/bob", fields{"password": "wrong"}), u.do("POST", "auth/people/login/nobody", fields{"password": "wrong"}),
		},
		"role": {
			u.do("POST", "auth/machines/login", fields{"role_id": id, "secret_id": "wrong"}), u.do("POST", "auth/machines/login", fields{"role_id": "wrong", "secret_id": "wrong"}),
		},
		"token": {
			u.with("hvs.wrong").do("GET", "sys/audit", nil), root.having("none").do("GET", "sys/audit", nil),
		},
		"mount": {
			root.having("none").do("GET", "sys/mounts/cubbyhole", nil), root.having("none").do("GET", "sys/mounts/nothing", nil),
		},
		"path": {
			root.having("none").do("GET", "identity/entity/name/x", nil), root.having("none").do("GET", "nothing/entity/name/x", nil),
		},
	}
	for what, pair := range pairs {
		if pair[0].Status != pair[1].Status || string(pair[0].Body) != string(pair[1].Body) {
			t.Errorf("%s: status %d %s and status %d %s", what, pair[0].Status, pair[0].Body, pair[1].Status, pair[1].Body)
		}
		for name := range pair[0].Header {
			if _, ok := pair[1].Header[name]; !ok {
				t.Errorf("%s: only one of the answers has the header %s", what, name)
			}
		}
	}
}

// TestRateLimit: guesses are held to a rate before they cost anything, whatever way they are spelled.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "default")
	root.must("POST", "sys/quotas/rate-limit/logins", fields{"path": "auth/people", "rate": 3, "interval": "1h"})
	passed, limited := 0, 0
	for i := range 20 {
		path := []string{"auth/people/login/bob", "auth/people/login/BOB", "auth/people/login/x", "auth%2fpeople/login/bob"}[i%4]
		a := root.nobody().do("POST", path, fields{"password": "wrong"}, "X-Forwarded-For", "192.0.2."+string(rune('1'+i%9)))
		if a.Status == http.StatusTooManyRequests {
			limited++
		} else {
			passed++
		}
	}
	if passed > 4 || limited < 16 {
		t.Errorf("%d guesses passed and %d were limited, with 3 an hour", passed, limited)
	}
	if a := root.do("GET", "sys/mounts", nil); a.Status != 200 {
		t.Errorf("others are limited, too: status %d", a.Status)
	}
}

// fillDisk has the disk under an audit file be full as soon as it is opened again. The link is relative: it does not leave
// the root of audit files, which is /.
func fillDisk(t *testing.T, file string) {
	t.Helper()
	full, err := filepath.Rel(filepath.Dir(file), "/dev/full")
	if err == nil {
		err = os.Remove(file)
	}
	if err == nil {
		err = os.Symlink(full, file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fillDisk has the disk under an audit file be full from now on.
func (u user) fillDisk(file string) {
	u.t.Helper()
	fillDisk(u.t, file)
	u.n.Reload()
	harness.Await(u.t, "the trail to be reopened", time.Minute, func() error {
		if a := u.do("GET", "sys/mounts", nil); a.Status == 200 {
			return errors.New("requests are still recorded")
		}
		return nil
	})
}

// TestAuditFailsClosed: what cannot be recorded is not done and not answered.
func TestAuditFailsClosed(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	root.must("POST", "kv/x", fields{"secret": hidden})
	dir := t.TempDir()
	file := filepath.Join(dir, "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": file}})
	// The disk under the trail is full from now on.
	root.fillDisk(file)
	for _, request := range [][2]string{{"GET", "kv/x"}, {"POST", "kv/new"}, {"DELETE", "kv/x"}, {"LIST", "kv"}} {
		a := root.do(request[0], request[1], fields{"secret": "new"})
		if a.Status < 500 || strings.Contains(string(a.Body), hidden) {
			t.Errorf("%s %s without a trail: status %d: %.200s", request[0], request[1], a.Status, a.Body)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	root.n.Reload()
	harness.Await(t, "the trail to be back", time.Minute, func() error {
		if a := root.do("GET", "sys/mounts", nil); a.Status != 200 {
			return errors.New("requests are still refused")
		}
		return nil
	})
	if a := root.do("GET", "kv/new", nil); a.Status != 404 {
		t.Errorf("a write that was not recorded has happened: status %d", a.Status)
	}
	if a := root.do("GET", "kv/x", nil); a.Status != 200 {
		t.Errorf("a deletion that was not recorded has happened: status %d", a.Status)
	}
}
