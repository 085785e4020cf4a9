// Package peer runs another server of the family, to be measured beside: with Raft storage on this machine and without TLS.
package peer

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

// Node is one node of the other server, with version 2 of KV at bench/.
type Node struct {
	Name  string // with the version
	Addr  string // host:port
	Token string // of an ordinary policy beside the default one

	root string
}

// Start starts the program until the section ends. The policy is that of the token.
func Start(s *run.Scope, program, policy string) Node {
	dir := s.TempDir()
	p := Node{Name: filepath.Base(program), Addr: fmt.Sprintf("127.0.0.1:%d", harness.FreePort(s))}
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
`, filepath.Join(dir, "data"), p.Addr, p.Addr, harness.FreePort(s)), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	s.Check(err)
	cmd := exec.Command(program, "server", "-config="+config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.Check(cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	harness.Await(s, p.Name+" to listen at "+p.Addr, time.Minute, func() error {
		conn, err := net.Dial("tcp", p.Addr)
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
	p.Name += " " + health.Version
	harness.Await(s, p.Name+" to be active", time.Minute, func() error {
		_, err := p.try("GET", "sys/mounts", nil)
		return err
	})
	p.do(s, "POST", "sys/mounts/bench", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}}, nil)
	p.do(s, "PUT", "sys/policies/acl/bench", map[string]any{"policy": policy}, nil)
	var made struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	p.do(s, "POST", "auth/token/create", map[string]any{"policies": []string{"bench"}, "ttl": "24h"}, &made)
	p.Token = made.Auth.Token
	harness.Await(s, "the mount of "+p.Name, time.Minute, func() error { // versions are enabled after the mount
		_, err := p.try("POST", "bench/data/k", map[string]any{"data": map[string]string{"a": "b"}})
		return err
	})
	return p
}

// do makes a request that succeeds.
func (p Node) do(s *run.Scope, method, path string, body, into any) {
	text, err := p.try(method, path, body)
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	s.Check(err)
}

func (p Node) try(method, path string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(method, "http://"+p.Addr+"/v1/"+path, bytes.NewReader(text))
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
