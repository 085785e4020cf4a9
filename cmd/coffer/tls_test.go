package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// writeCertificate writes a self-signed certificate with this serial number.
func writeCertificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// serial asks the server for its health over HTTP/2 on a new connection and returns the serial number of the
// certificate it showed.
func serial(t *testing.T, url string) int64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
	}}
	resp, err := client.Get(url + "/v1/sys/health")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("health = %d over %s, want 200 over HTTP/2", resp.StatusCode, resp.Proto)
	}
	return resp.TLS.PeerCertificates[0].SerialNumber.Int64()
}

// hangUp sends SIGHUP to this process and returns when it has arrived. On a busy machine that takes a moment, and after the server's end
// it would end the process.
func hangUp(t *testing.T) {
	t.Helper()
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGHUP)
	defer signal.Stop(arrived)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-arrived
}

func TestCertificatesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	file := filepath.Join(dir, "coffer.hcl")
	text := `listener "tcp" {
  address       = "127.0.0.1:0"
  tls_cert_file = "` + dir + `/cert.pem"
  tls_key_file  = "` + dir + `/key.pem"
}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := serverHere(t, "-config="+file)
	defer stop()
	if got := serial(t, url); got != 1 {
		t.Fatalf("serial = %d, want 1", got)
	}
	writeCertificate(t, dir, 2)
	hangUp(t)
	deadline := time.After(10 * time.Second)
	for serial(t, url) != 2 {
		select {
		case <-deadline:
			t.Fatal("the new certificate is not in use after SIGHUP")
		case <-time.After(10 * time.Millisecond):
		}
	}
	// A broken file must not take the working certificate away.
	if err := os.WriteFile(filepath.Join(dir, "cert.pem"), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangUp(t)
	if got := serial(t, url); got != 2 {
		t.Errorf("serial = %d after a broken reload, want still 2", got)
	}
}

// SIGHUP takes the log level, headers and files of certificates from the configuration. One with an error changes nothing of them.
func TestConfigurationIsReloaded(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, other, 2)
	file := filepath.Join(dir, "coffer.hcl")
	write := func(level, certs, header string) {
		t.Helper()
		text := `log_level = "` + level + `"
listener "tcp" {
  address       = "127.0.0.1:0"
  tls_cert_file = "` + certs + `/cert.pem"
  tls_key_file  = "` + certs + `/key.pem"
  custom_response_headers {
    "default" = { "X-Site" = "` + header + `" }
  }
}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("info", dir, "a")
	url, stop := serverHere(t, "-config="+file, "-dev-root-token-id=root")
	defer stop()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	is := func() string {
		t.Helper()
		var levels [2]map[string]any
		var resp *http.Response
		for i, path := range []string{"/v1/sys/loggers/server", "/v1/sys/config/state/sanitized"} {
			req, err := http.NewRequest(http.MethodGet, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Vault-Token", "root")
			if resp, err = client.Do(req); err != nil {
				t.Fatal(err)
			}
			if err := json.NewDecoder(resp.Body).Decode(&levels[i]); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		return fmt.Sprint(levels[0]["server"], levels[1]["log_level"], resp.TLS.PeerCertificates[0].SerialNumber, resp.Header.Get("X-Site"))
	}
	becomes := func(want string) {
		t.Helper()
		hangUp(t)
		deadline := time.After(10 * time.Second)
		for is() != want {
			select {
			case <-deadline:
				t.Fatalf("the server has %q, want %q", is(), want)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	if got, want := is(), fmt.Sprint("info", "info", 1, "a"); got != want {
		t.Fatalf("the server has %q, want %q", got, want)
	}
	write("debug", other, "b")
	becomes(fmt.Sprint("debug", "debug", 2, "b"))
	write("loud", dir, "c")
	writeCertificate(t, other, 3) // which shows that the signal was heard
	becomes(fmt.Sprint("debug", "debug", 3, "b"))
}
