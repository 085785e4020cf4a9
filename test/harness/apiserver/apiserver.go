// Package apiserver runs Kubernetes' own API server for tests, with an etcd of its own. test/e2e/run builds both.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// Object is one of the API.
type Object map[string]any

// Server is an API server on loopback. No controllers run: what they would do, such as removing what another object owns, is not done.
type Server struct {
	URL    *url.URL
	CA     string // PEM
	Client *http.Client
	Admin  string // a token that may do everything
}

// Start starts what test/e2e/run has built, until the test ends.
func Start(t *testing.T) *Server {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Admin: rand.Text()}
	keyFile, tokens := filepath.Join(dir, "accounts.key"), filepath.Join(dir, "tokens.csv")
	for file, content := range map[string]string{
		keyFile: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
		tokens:  s.Admin + ",admin,1,system:masters\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// "server" is etcd, as its module names it.
	store, peer, port := loopback(t), loopback(t), loopback(t)
	daemon(t, dir, "server", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", "http://"+store, "--advertise-client-urls", "http://"+store,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer)
	_, number, _ := net.SplitHostPort(port)
	daemon(t, dir, "kube-apiserver", "--etcd-servers", "http://"+store, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", number,
		"--cert-dir", filepath.Join(dir, "certificates"), "--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.0.0.0/24",
		"--authorization-mode", "RBAC", "--token-auth-file", tokens,
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile)
	s.URL = &url.URL{Scheme: "https", Host: port}
	harness.Await(t, "the API server to be ready", time.Minute, func() error {
		text, err := os.ReadFile(filepath.Join(dir, "certificates", "apiserver.crt"))
		if err != nil {
			return err
		}
		if s.Client == nil {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(text)
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
			t.Cleanup(transport.CloseIdleConnections)
			s.CA, s.Client = string(text), &http.Client{Transport: transport}
		}
		if status, body := s.Try(t, http.MethodGet, "/readyz", nil, nil); status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
	return s
}

// daemon starts a program of test/e2e/kubernetes. What it logs is shown if the test fails.
func daemon(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, "test", "e2e", "kubernetes", "bin", name), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run test/e2e/run, which builds it", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
		if text, err := os.ReadFile(out.Name()); t.Failed() && err == nil {
			t.Logf("the last that %s logged:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

func loopback(t *testing.T) string { return fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t)) }

// Try makes a call of the administrator. A body is an object, or a text in YAML.
func (s *Server) Try(t *testing.T, method, path string, body, into any) (status int, said string) {
	t.Helper()
	return s.TryAs(t, s.Admin, method, path, body, into)
}

// TryAs makes a call with a token.
func (s *Server) TryAs(t *testing.T, token, method, path string, body, into any) (status int, said string) {
	t.Helper()
	var in []byte
	switch body := body.(type) {
	case nil:
	case string:
		in = []byte(body)
	default:
		var err error
		if in, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	r, err := http.NewRequestWithContext(context.Background(), method, s.URL.String()+path, bytes.NewReader(in)) // cleanups call, too
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/yaml") // as JSON is
	r.Header.Set("Accept", "application/json")
	resp, err := s.Client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	if into != nil && resp.StatusCode < 300 {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, string(text)
}

// Do makes a call of the administrator that succeeds.
func (s *Server) Do(t *testing.T, method, path string, body, into any) {
	t.Helper()
	if status, said := s.Try(t, method, path, body, into); status >= 300 || status == 0 {
		t.Fatalf("%s %s: status %d: %s", method, path, status, said)
	}
}

// NewNamespace creates a namespace with a service account.
func (s *Server) NewNamespace(t *testing.T, name, account string) {
	t.Helper()
	s.Do(t, http.MethodPost, "/api/v1/namespaces", Object{"metadata": Object{"name": name}}, nil)
	s.Do(t, http.MethodPost, "/api/v1/namespaces/"+name+"/serviceaccounts", Object{"metadata": Object{"name": account}}, nil)
}

// NewToken returns a token of a service account, as kubectl create token does.
func (s *Server) NewToken(t *testing.T, namespace, account string, lives time.Duration) string {
	t.Helper()
	var made struct{ Status struct{ Token string } }
	s.Do(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", Object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": Object{"expirationSeconds": int(lives.Seconds())},
	}, &made)
	return made.Status.Token
}
