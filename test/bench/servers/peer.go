package servers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// Peer measures one node beside one of another server of the family, with Raft storage and without TLS, in turn with the same load.
func Peer(b *run.Bench, s *run.Scope) {
	if b.Peer == "" {
		fmt.Fprintln(os.Stderr, "  left out: -peer names no program")
		return
	}
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	own := addr(c.Nodes[0])
	token := prepare(s, c.Nodes[0])
	p := startPeer(b, s)
	readable(b, s, own, token)
	readable(b, s, p.addr, p.token)
	for _, w := range []struct {
		name string
		of   func(addr, token string) run.Work
	}{
		{"KV read, 64 clients", reads},
		{"token lookup-self, 64 clients", func(addr, token string) run.Work {
			return run.Work{Addr: addr, Method: "GET", Path: "/v1/auth/token/lookup-self", Conns: readConns, Token: token}
		}},
		{"KV write, 1 KiB, 1 client", func(addr, token string) run.Work { return writes(addr, token, "p", 1) }},
		{"KV write, 1 KiB, 64 clients", func(addr, token string) run.Work { return writes(addr, token, "p", 64) }},
		{"token create, 64 clients", func(addr, token string) run.Work {
			return run.Work{Addr: addr, Method: "POST", Path: "/v1/auth/token/create", Body: `{"ttl":"1h"}`, Conns: readConns, Token: token}
		}},
	} {
		yard, o := b.Versus(s, w.of(p.addr, p.token), w.of(own, token))
		b.AddLoad(p.name+": "+w.name, yard, run.Row{})
		b.AddLoad("Coffer beside it: "+w.name, o, run.Row{Yardstick: yard.Rate(), Beside: p.name})
	}
}

// peer is another server of the family.
type peer struct {
	name  string // with its version
	addr  string
	token string // of an ordinary policy, as prepare makes it
	root  string
}

// startPeer starts the program with one node until the section ends, and sets it up as prepare does.
func startPeer(b *run.Bench, s *run.Scope) peer {
	dir := s.TempDir()
	p := peer{name: filepath.Base(b.Peer), addr: fmt.Sprintf("127.0.0.1:%d", harness.FreePort(s))}
	config := filepath.Join(dir, "peer.hcl")
	s.Check(os.Mkdir(filepath.Join(dir, "data"), 0o700))
	s.Check(os.WriteFile(config, fmt.Appendf(nil, `
storage "raft" {
  path    = %q
  node_id = "n1"
}
listener "tcp" {
  address     = %q
  tls_disable = true
}
disable_mlock = true
api_addr      = "http://%s"
cluster_addr  = "http://127.0.0.1:%d"
`, filepath.Join(dir, "data"), p.addr, p.addr, harness.FreePort(s)), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	s.Check(err)
	cmd := exec.Command(b.Peer, "server", "-config="+config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.Check(cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	harness.Await(s, p.name+" to listen at "+p.addr, time.Minute, func() error {
		conn, err := net.Dial("tcp", p.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	var init struct {
		Keys []string
		Root string `json:"root_token"`
	}
	p.do(s, "PUT", "sys/init", map[string]any{"secret_shares": 1, "secret_threshold": 1}, &init)
	p.root = init.Root
	var health struct{ Version string }
	p.do(s, "PUT", "sys/unseal", map[string]any{"key": init.Keys[0]}, &health)
	p.name += " " + health.Version
	harness.Await(s, p.name+" to be active", time.Minute, func() error {
		_, err := p.try("GET", "sys/mounts", nil)
		return err
	})
	p.do(s, "POST", "sys/mounts/bench", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}}, nil)
	p.do(s, "PUT", "sys/policies/acl/bench", map[string]any{"policy": policyText}, nil)
	var made struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	p.do(s, "POST", "auth/token/create", map[string]any{"policies": []string{"bench"}, "ttl": "24h"}, &made)
	p.token = made.Auth.Token
	harness.Await(s, "the mount of "+p.name, time.Minute, func() error { // versions are enabled after the mount
		_, err := p.try("POST", "bench/data/k", map[string]any{"data": map[string]string{"a": "b"}})
		return err
	})
	return p
}

// do makes a request that succeeds.
func (p peer) do(s *run.Scope, method, path string, body, into any) {
	text, err := p.try(method, path, body)
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	s.Check(err)
}

func (p peer) try(method, path string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(method, "http://"+p.addr+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-Vault-Token", p.root)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: status %d: %.200s", method, path, resp.StatusCode, answer)
	}
	return answer, err
}
