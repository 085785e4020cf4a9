// Package join has what a node that wants to join a cluster, or is to found one, and the nodes of the cluster say to each other: the
// target with how to trust it, the challenge that only a holder of the seal key can open, and the answer to it. What both sides do
// about it is package lifecycle's.
package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
)

// Target is a node of the cluster to join, by its API address, and how to trust it.
type Target struct {
	LeaderAPIAddr string
	CACert        []byte // PEM; nil: the system's roots
	ClientCert    []byte // PEM
	ClientKey     []byte // PEM
	ServerName    string // expected in the leader's certificate; "": the address's host
	NonVoter      bool
	ip            string // one of the addresses of the host, "": any
}

// lookup is a variable for tests only.
var lookup = net.DefaultResolver.LookupHost

const lookupTimeout = 2 * time.Second

// Each returns the targets with one for every address of a host that has several: the name of a headless service stands for all nodes.
func Each(ctx context.Context, targets []Target) []Target {
	var all []Target
	for _, t := range targets {
		u, err := url.Parse(t.LeaderAPIAddr)
		if err != nil || net.ParseIP(u.Hostname()) != nil {
			all = append(all, t)
			continue
		}
		limited, cancel := context.WithTimeout(ctx, lookupTimeout)
		ips, err := lookup(limited, u.Hostname())
		cancel()
		if err != nil || len(ips) < 2 {
			all = append(all, t) // trying says what is wrong
			continue
		}
		for _, ip := range ips {
			t.ip = ip
			all = append(all, t)
		}
	}
	return all
}

// dial prefers the target's own address to others of its host.
func (t Target) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	if _, port, err := net.SplitHostPort(addr); err == nil && t.ip != "" {
		if conn, err := d.DialContext(ctx, network, net.JoinHostPort(t.ip, port)); err == nil {
			return conn, nil
		}
	}
	return d.DialContext(ctx, network, addr)
}

// Challenge is what the leader gives to a node that wants to join: something only a holder of the seal key
// can open.
type Challenge struct {
	Challenge []byte      `json:"challenge"`
	Seal      seal.Config `json:"seal_config"`
}

// Answer is the joiner's reply.
type Answer struct {
	ServerID    string `json:"server_id"`
	ClusterAddr string `json:"cluster_addr"`
	Answer      []byte `json:"answer"`
	PublicKey   []byte `json:"public_key"` // of the node's own key
	Formats     uint32 `json:"formats"`    // newest generation of stored formats that the node reads; 0 from earlier versions
	NonVoter    bool   `json:"non_voter"`
	// Rejoin says that the node has lost its data (or never had any) and must not vote with an empty log.
	Rejoin bool `json:"rejoin"`
}

// Client returns a client for the node's API.
func (t Target) Client() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if len(t.CACert) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(t.CACert) {
			return nil, engines.Invalid("leader_ca_cert holds no PEM certificate")
		}
	}
	if len(t.ClientCert) > 0 {
		pair, err := tls.X509KeyPair(t.ClientCert, t.ClientKey)
		if err != nil {
			return nil, engines.Invalid("leader_client_cert and leader_client_key do not fit together")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, DialContext: t.dial, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		// The server at the address must not choose what else this node talks to.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// Challenge asks the leader for a challenge to the server.
func (t Target) Challenge(ctx context.Context, client *http.Client, serverID string) (c Challenge, err error) {
	err = t.put(ctx, client, "challenge", map[string]string{"server_id": serverID}, &c)
	return c, err
}

// Answer sends the answer to a challenge, and returns what that buys: sealed under the seal key.
func (t Target) Answer(ctx context.Context, client *http.Client, a Answer) (grant []byte, err error) {
	var reply struct {
		Grant []byte `json:"grant"`
	}
	err = t.put(ctx, client, "answer", a, &reply)
	return reply.Grant, err
}

// put calls one step of the bootstrap at the leader and decodes "data".
func (t Target) put(ctx context.Context, client *http.Client, step string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	url := strings.TrimRight(t.LeaderAPIAddr, "/") + "/v1/sys/storage/raft/bootstrap/" + step
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return engines.Invalid("leader_api_addr is not a URL such as https://10.0.0.1:8200")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Vault-Request", "true")
	resp, err := client.Do(req)
	if err != nil {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "could not reach the leader at " + t.LeaderAPIAddr, Err: err}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "the leader's answer broke off", Err: err}
	}
	var envelope struct {
		Data   json.RawMessage `json:"data"`
		Errors []string        `json:"errors"`
	}
	if err := json.Unmarshal(answer, &envelope); err != nil || resp.StatusCode != http.StatusOK {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: fmt.Sprintf(
			"the node at %s refused the join (%d): %s", t.LeaderAPIAddr, resp.StatusCode, strings.Join(envelope.Errors, "; "))}
	}
	if err := json.Unmarshal(envelope.Data, out); err != nil {
		return fmt.Errorf("decoding the leader's answer: %w", err)
	}
	return nil
}

// Status is what a node tells of itself in sys/seal-status.
type Status struct {
	Initialized  bool
	Initializing string
}

// Status asks the node.
func (t Target) Status(ctx context.Context) (s Status, err error) {
	client, err := t.Client()
	if err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(t.LeaderAPIAddr, "/")+"/v1/sys/seal-status", nil)
	if err != nil {
		return s, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return s, err
	}
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("its seal-status answers %d", resp.StatusCode)
	}
	return s, json.Unmarshal(text, &s)
}
