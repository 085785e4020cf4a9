package hostile_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestClusterPort knocks at the port that only members may use: with noise, without a certificate, and with one
// that another CA has issued. Nobody gets a byte of protocol, and the cluster does not mind.
func TestClusterPort(t *testing.T) {
	c := harness.NewCluster(t, 1, harness.Options{})
	n := c.Nodes[0]
	foreign := selfSigned(t)
	for _, protocol := range []string{"coffer-raft", "coffer-forward", "coffer-replication", "h2", ""} {
		for name, certificates := range map[string][]tls.Certificate{"without a certificate": nil, "with a foreign one": {foreign}} {
			t.Run(fmt.Sprintf("%q %s", protocol, name), func(t *testing.T) {
				config := &tls.Config{InsecureSkipVerify: true, Certificates: certificates, MinVersion: tls.VersionTLS12}
				if protocol != "" {
					config.NextProtos = []string{protocol}
				}
				conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", n.ClusterAddr(), config)
				if err != nil {
					return // refused during the handshake
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
				got := make([]byte, 1)
				if k, err := conn.Read(got); k > 0 || err == nil {
					t.Errorf("the port answered a stranger")
				} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
					t.Errorf("the port keeps a stranger waiting")
				}
			})
		}
	}
	t.Run("noise", func(t *testing.T) {
		for range 20 {
			conn, err := net.Dial("tcp", n.ClusterAddr())
			if err != nil {
				t.Fatal(err)
			}
			noise := make([]byte, 4096)
			rand.Read(noise)
			_, _ = conn.Write(noise)
			conn.Close()
		}
	})
	if got := n.Health(); got != 200 {
		t.Errorf("afterwards sys/health answers %d", got)
	}
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n1"}, DNSNames: []string{"n1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestSealed asks a sealed node for everything. Only what is open without a key may answer.
func TestSealed(t *testing.T) {
	c := harness.NewCluster(t, 1, harness.Options{Shamir: true, NoRetryJoin: true})
	n := c.Nodes[0]
	ops := documented(t, n)
	n.MustDo("POST", "/v1/sys/seal", nil)
	n.WaitHealth(503)
	for _, op := range ops {
		if op.String() == "POST /sys/unseal" || op.String() == "POST /sys/storage/raft/join" {
			continue // they work
		}
		h := &attack{t: t, n: n, op: op, token: c.RootToken}
		a, ok := h.sendAny(op)
		if ok && a.Status != 503 && !op.open {
			t.Errorf("%v: status %d, want 503: %.200s", op, a.Status, a.Body)
		}
		if ok && a.Status == 500 {
			t.Errorf("%v: status 500: %.200s", op, a.Body)
		}
	}
	n.Unseal()
	n.WaitHealth(200)
}
