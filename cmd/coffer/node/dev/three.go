package dev

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// restartAfter is how long a node that was killed is away, so that one sees what its absence does.
	restartAfter = 10 * time.Second
	startTime    = time.Minute
	sealVariable = "COFFER_DEV_SEAL_KEY"
)

// three are the nodes of -dev-ha, which are processes of this program.
type three struct {
	*Options
	dir    string
	env    []string
	names  []string
	urls   []string
	client *http.Client
	stderr io.Writer
	mu     sync.Mutex // around stderr
}

// RunThree runs a development cluster of three nodes until ctx ends, at Listen and the ports after it.
func (d *Options) RunThree(ctx context.Context, stderr io.Writer) (err error) {
	if d.Dir != "" {
		return errors.New("-dev-ha keeps its data in a temporary directory: leave out -dev-data-dir")
	}
	dir, err := os.MkdirTemp("", "coffer-dev-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	key := make([]byte, 32)
	rand.Read(key)
	c := &three{
		Options: d, dir: dir, stderr: stderr, names: []string{"n1", "n2", "n3"},
		env: append(os.Environ(), sealVariable+"="+base64.StdEncoding.EncodeToString(key)),
	}
	if err := c.configure(); err != nil {
		return err
	}
	nodes, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	pids := make(chan string, len(c.names))
	failed := make(chan error, len(c.names))
	for _, name := range c.names {
		running.Go(func() { failed <- c.keep(nodes, name, pids) })
	}
	var lines []string
	for range c.names {
		select {
		case line := <-pids:
			lines = append(lines, line)
		case err := <-failed:
			return err
		}
	}
	slices.Sort(lines)
	ready := make(chan error, 1)
	running.Go(func() { ready <- c.found(nodes, strings.Join(lines, "")) })
	defer d.RemoveToken()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed: // before ctx ended
			return err
		case err := <-ready:
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// configure writes the nodes' files.
func (c *three) configure() error {
	host, text, err := net.SplitHostPort(c.Listen)
	port, err2 := strconv.Atoi(text)
	if err := errors.Join(err, err2); err != nil || net.ParseIP(host) == nil || net.ParseIP(host).IsUnspecified() {
		return fmt.Errorf("-dev-listen-address %q must be an IP address of this machine and a port, with five free ports after it", c.Listen)
	}
	scheme, trust, secure := "http", "", "tls_disable = true"
	transport := &http.Transport{DisableKeepAlives: true}
	if c.TLS {
		if c.TLSDir == "" {
			c.TLSDir = filepath.Join(c.dir, "tls")
		}
		files, err := prepare(c.TLSDir, append([]string{"localhost", "127.0.0.1", "::1", host}, c.TLSNames...))
		if err != nil {
			return err
		}
		ca, err := os.ReadFile(files.CA)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
		scheme, c.caFile = "https", files.CA
		trust = fmt.Sprintf("leader_ca_cert_file = %q", files.CA)
		secure = fmt.Sprintf("tls_cert_file = %q\n  tls_key_file = %q", files.Cert, files.Key)
	}
	c.client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	joins := ""
	at := func(n int) string { return net.JoinHostPort(host, strconv.Itoa(port+n)) }
	for i := range c.names {
		url := scheme + "://" + at(2*i)
		c.urls = append(c.urls, url)
		joins += fmt.Sprintf("\n  retry_join {\n    leader_api_addr = %q\n    %s\n  }", url, trust)
	}
	for i, name := range c.names {
		text := fmt.Sprintf(`cluster_name = "dev"
log_level = "warn"
api_addr = %q
listener "tcp" {
  address = %q
  cluster_address = %q
  %s
}
storage "raft" {
  path = %q
  node_id = %q%s
}
seal "static" {
  current_key = "env://%s"
  current_key_id = "dev"
}
audit { file_roots = [%q, "/tmp"] }
`, c.urls[i], at(2*i), at(2*i+1), secure, filepath.Join(c.dir, name), name, joins, sealVariable, os.TempDir())
		if err := os.WriteFile(filepath.Join(c.dir, name+".hcl"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// keep runs a node until ctx ends, and starts it again some time after it has ended. pids gets what to print of the first one. A
// node that ends before it could serve is an error.
func (c *three) keep(ctx context.Context, name string, pids chan<- string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	i := int(name[1] - '1')
	for first := true; ; first = false {
		file, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, program, "server", "-config="+filepath.Join(c.dir, name+".hcl"))
		cmd.Env, cmd.Stdout, cmd.Stderr = c.env, file, file
		cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, 30*time.Second
		begun := time.Now()
		err = cmd.Start()
		if file.Close(); err != nil {
			return err
		}
		line := fmt.Sprintf("  %s   %s   process %d\n", name, c.urls[i], cmd.Process.Pid)
		if first {
			pids <- line
		} else {
			c.say("%s runs again:\n%s", name, line)
		}
		err = cmd.Wait()
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begun) < time.Second { // its address is taken, or the like
			text, _ := os.ReadFile(filepath.Join(c.dir, name+".log"))
			return fmt.Errorf("node %s ended: %w\n%s", name, err, text)
		}
		c.say("%s has ended (%v); the others go on without it. It starts again in %v.\n", name, err, restartAfter)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartAfter):
		}
	}
}

func (c *three) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.stderr, format, args...)
}

// found initialises the first node, waits for the others, and says how to use the cluster. list names the nodes.
func (c *three) found(ctx context.Context, list string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var keys struct {
		RootToken    string   `json:"root_token"`
		RecoveryKeys []string `json:"recovery_keys_base64"`
	}
	err := c.until(ctx, func() error {
		for _, url := range c.urls { // all must be there before one of them founds the cluster
			if _, err := c.call(ctx, http.MethodGet, url, "sys/seal-status", "", nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := c.call(ctx, http.MethodPut, c.urls[0], "sys/init", "", map[string]any{"recovery_shares": 1, "recovery_threshold": 1}, &keys); err != nil {
		return fmt.Errorf("initializing the development cluster: %w", err)
	}
	token := keys.RootToken
	for _, url := range c.urls {
		if err := c.until(ctx, func() error {
			_, err := c.call(ctx, http.MethodGet, url, "sys/health?standbyok=true&perfstandbyok=true", "", nil, nil)
			return err
		}); err != nil {
			return err
		}
	}
	if err := c.voters(ctx, token); err != nil {
		return err
	}
	if c.RootToken != "" {
		request := map[string]any{"id": c.RootToken, "policies": []string{"root"}, "no_parent": true}
		if _, err := c.call(ctx, http.MethodPost, c.urls[0], "auth/token/create", token, request, nil); err != nil {
			return fmt.Errorf("creating the root token: %w", err)
		}
		token = c.RootToken
	}
	if !c.NoKV {
		version := "2"
		if c.KV1 {
			version = "1"
		}
		request := map[string]any{"type": "kv", "options": map[string]string{"version": version}, "description": "key/value secret storage"}
		if _, err := c.call(ctx, http.MethodPost, c.urls[0], "sys/mounts/secret", token, request, nil); err != nil {
			return fmt.Errorf("mounting secret/: %w", err)
		}
	}
	if c.KeepToken {
		c.storeToken(token, c.stderr)
	}
	trust := ""
	if c.TLS {
		trust = "\n  export COFFER_CACERT=" + c.caFile
	}
	c.say(`
This is a development cluster: three nodes, unsealed. Its data is gone when it stops.

%s
  Root token     %s
  Recovery key   %s
  Logs           %s

Kill one with "kill -9 PROCESS" and see the others go on; it starts again after %v. In another terminal:

  export COFFER_ADDR=%s%s
  export COFFER_TOKEN=%s
  coffer operator raft list-peers

coffer: ready at %s
`, list, token, strings.Join(keys.RecoveryKeys, " "), filepath.Join(c.dir, "*.log"), restartAfter, c.urls[0], trust, token, c.urls[0])
	return nil
}

// voters waits until each node votes, so that one of them may be killed. In a cluster of people's own that takes longer.
func (c *three) voters(ctx context.Context, token string) error {
	if _, err := c.call(ctx, http.MethodPost, c.urls[0], "sys/storage/raft/autopilot/configuration", token, map[string]any{"server_stabilization_time": "1s"}, nil); err != nil {
		return err
	}
	return c.until(ctx, func() error {
		var peers struct {
			Data struct {
				Config struct {
					Servers []struct {
						Voter bool `json:"voter"`
					} `json:"servers"`
				} `json:"config"`
			} `json:"data"`
		}
		if _, err := c.call(ctx, http.MethodGet, c.urls[0], "sys/storage/raft/configuration", token, nil, &peers); err != nil {
			return err
		}
		voters := 0
		for _, s := range peers.Data.Config.Servers {
			if s.Voter {
				voters++
			}
		}
		if voters < len(c.names) {
			return fmt.Errorf("%d of %d nodes vote", voters, len(c.names))
		}
		return nil
	})
}

// until tries until it succeeds.
func (c *three) until(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the development cluster did not come up in time: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// call makes a request. A status of 300 and more is an error.
func (c *three) call(ctx context.Context, method, url, path, token string, in, out any) (status int, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, method, url+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if in == nil {
		r.Body, r.ContentLength = http.NoBody, 0
	}
	if token != "" {
		r.Header.Set("X-Vault-Token", token)
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return resp.StatusCode, err
	case resp.StatusCode >= 300:
		return resp.StatusCode, fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, text)
	case out != nil:
		err = json.Unmarshal(text, out)
	}
	return resp.StatusCode, err
}
