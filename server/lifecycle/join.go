package lifecycle

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// JoinTarget is a node of the cluster to join, by its API address, and how to trust it.
type JoinTarget struct {
	LeaderAPIAddr string
	CACert        []byte // PEM; nil: the system's roots
	ClientCert    []byte // PEM
	ClientKey     []byte // PEM
	ServerName    string // expected in the leader's certificate; "": the address's host
	NonVoter      bool
}

// pendingJoin is a join that waits for the seal key.
type pendingJoin struct {
	target    JoinTarget
	challenge []byte
	config    seal.Config
}

// purposeJoin separates join answers from everything else sealed under the same key.
const purposeJoin = "coffer join answer v1"

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

// joinGrant is what the answer buys, sealed under the seal key.
type joinGrant struct {
	Trust []byte `json:"trust"` // the register of members, the joiner among them
	CA    CA     `json:"ca"`    // of active nodes of earlier versions, which know no register
}

// Join takes the first step into the cluster of target. It reports whether the node is in: with Shamir it
// first needs the cluster's unseal keys, through Unseal. Joining a cluster the node is in already is fine.
func (n *Node) Join(ctx context.Context, target JoinTarget) (joined bool, err error) {
	ctx, done := n.transition(ctx)
	defer done()
	if n.Initialized(ctx) {
		return true, nil
	}
	if n.closed {
		return false, errStopping
	}
	client, err := target.client()
	if err != nil {
		return false, err
	}
	challenge, err := target.challenge(ctx, client, n.opts.NodeID)
	if err != nil {
		return false, err
	}
	if err := challenge.Seal.Validate(); err != nil {
		return false, &engines.Error{Kind: engines.KindUnavailable, Detail: "the leader described a seal this node cannot use: " + err.Error()}
	}
	o, err := n.opening(challenge.Seal)
	if err != nil || o.migrate {
		return false, engines.Invalid("the cluster's seal is %q, this node is configured for another: use the same seal stanza on every node", challenge.Seal.Type)
	}
	n.unsealer = nil
	n.pending = &pendingJoin{target: target, challenge: challenge.Challenge, config: challenge.Seal}
	if o.wrapper == nil {
		n.log.Info("joining: waiting for the cluster's unseal keys", "leader", target.LeaderAPIAddr)
		return false, nil
	}
	if err := n.finishJoin(ctx, o.wrapper); err != nil {
		n.pending = nil
		return false, err
	}
	return true, nil
}

// finishJoin enters the cluster and waits until the state has arrived. If it fails the join stays pending, so
// that the same keys can be given again. n.mu is held.
func (n *Node) finishJoin(ctx context.Context, w seal.Wrapper) error {
	p := n.pending
	private, public, err := n.opts.NewKey()
	if err != nil {
		return err
	}
	grant, err := n.admission(ctx, p, w, public)
	if err != nil {
		return err
	}
	own := Passport{Key: private, Trust: grant.Trust, CA: grant.CA, Records: Records{n.opts.Barrier}, Entering: true}
	err = n.up(ctx, own, w, nil, func(ctx context.Context, c Cluster) error { return n.awaitState(ctx, w) })
	if err == nil || n.Initialized(n.life) {
		n.pending = nil // from here on it is a node like any other, that unseals by itself
	}
	return err
}

// admission answers a challenge and returns what that buys. The challenge is a fresh one: people may have taken
// longer to bring their keys than the first one lasts, or another node may lead by now.
func (n *Node) admission(ctx context.Context, p *pendingJoin, w seal.Wrapper, public []byte) (grant joinGrant, err error) {
	client, err := p.target.client()
	if err != nil {
		return grant, err
	}
	challenge, err := p.target.challenge(ctx, client, n.opts.NodeID)
	if err != nil {
		return grant, err
	}
	answer, err := seal.AnswerChallenge(ctx, w, n.opts.NodeID, challenge.Challenge)
	if err != nil {
		return grant, fmt.Errorf("answering the join challenge: %w", err)
	}
	var reply struct {
		Grant []byte `json:"grant"`
	}
	request := Answer{
		ServerID: n.opts.NodeID, ClusterAddr: n.opts.ClusterAddr, Answer: answer, PublicKey: public, Formats: n.opts.Formats,
		NonVoter: p.target.NonVoter, Rejoin: n.opts.Raw.AppliedIndex() == 0,
	}
	if err := p.target.put(ctx, client, "answer", request, &reply); err != nil {
		return grant, err
	}
	plain, err := seal.OpenFrom(ctx, w, purposeJoin, reply.Grant)
	if err != nil {
		return grant, fmt.Errorf("opening the join grant: %w", err)
	}
	if err := json.Unmarshal(plain, &grant); err != nil {
		return grant, fmt.Errorf("decoding the join grant: %w", err)
	}
	return grant, nil
}

// awaitState waits until the leader has sent the first state, then opens the barrier with it.
func (n *Node) awaitState(ctx context.Context, w seal.Wrapper) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for index := storage.Index(1); ; index = n.opts.Raw.AppliedIndex() + 1 {
		if err := n.opts.Raw.WaitApplied(ctx, index); err != nil {
			return fmt.Errorf("waiting for the cluster's state: %w", err)
		}
		if !n.Initialized(ctx) {
			continue
		}
		root, err := n.rootKey(ctx, w)
		if errors.Is(err, seal.ErrWrongKey) {
			continue // the state is still the one from before a rekey
		}
		if err != nil {
			return err
		}
		if err := n.opts.Barrier.Unseal(ctx, root); err != nil {
			return err
		}
		if _, err := n.opts.Barrier.Get(ctx, clusterKey); err == nil {
			return nil
		}
	}
}

// joinFirst asks the configured nodes for a challenge if this node has nothing to unseal yet, so that an
// operator need not wait for the next try in the background, and if it may have missed a rekey.
func (n *Node) joinFirst(ctx context.Context) {
	n.mu.Lock()
	targets, waiting := n.opts.RetryJoin, n.pending != nil || n.collecting()
	n.mu.Unlock()
	switch {
	case len(targets) == 0 || waiting || !n.Sealed():
	case n.Initialized(ctx):
		n.rejoinAfterRekey(ctx, targets)
	default:
		n.retryJoin(ctx, targets)
	}
}

// collecting reports whether key shares have been given. n.mu is held.
func (n *Node) collecting() bool { return n.unsealer != nil && n.unsealer.Progress() > 0 }

// missedTimeout is how long a node that is given its first key share asks the others whether it has missed a rekey.
const missedTimeout = 3 * time.Second

// rejoinAfterRekey lets a node that was away during a rekey take the new key shares, which do not open what it has on its
// disk: the others' challenge decides whether they are right, and the node fetches the rest before it opens anything.
func (n *Node) rejoinAfterRekey(ctx context.Context, targets []JoinTarget) {
	ctx, cancel := context.WithTimeout(ctx, missedTimeout)
	defer cancel()
	own, _, err := seal.Load(ctx, n.opts.Raw)
	if err != nil || own.Auto() {
		return
	}
	for _, target := range targets {
		client, err := target.client()
		if err != nil {
			continue
		}
		c, err := target.challenge(ctx, client, n.opts.NodeID)
		if err != nil || c.Seal.Validate() != nil || c.Seal.Auto() {
			continue // sealed itself, or away
		}
		n.mu.Lock()
		if c.Seal.Created.After(own.Created) && n.pending == nil && !n.collecting() && n.Sealed() {
			n.log.Info("this node has missed a rekey: it takes the new key shares, and fetches the state first", "leader", target.LeaderAPIAddr)
			n.unsealer = nil
			n.pending = &pendingJoin{target: target, challenge: c.Challenge, config: c.Seal}
		}
		n.mu.Unlock()
		return
	}
}

// retryJoin tries every configured target once. It reports whether there is nothing left to try.
func (n *Node) retryJoin(ctx context.Context, targets []JoinTarget) bool {
	n.mu.Lock()
	waiting := n.pending != nil
	n.mu.Unlock()
	if waiting {
		return true // for an operator's keys
	}
	for _, target := range targets {
		joined, err := n.Join(ctx, target)
		switch {
		case err != nil:
			n.log.Warn("joining failed, trying again", "leader", target.LeaderAPIAddr, "err", err)
		case joined || n.opts.AutoSeal == nil:
			return true
		}
	}
	return false
}

// JoinLater adds a target to what Run keeps trying.
func (n *Node) JoinLater(target JoinTarget) {
	select {
	case n.later <- target:
	default: // one is waiting already
	}
}

// Challenge makes a challenge for a node that wants to join. Only the active node does.
func (n *Node) Challenge(ctx context.Context, serverID string) (Challenge, error) {
	r := n.running.Load()
	if r == nil || !n.Active() {
		return Challenge{}, storage.ErrReadOnly
	}
	config, _, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return Challenge{}, err
	}
	w, err := n.wrapperOf(ctx, r)
	if err != nil {
		return Challenge{}, err
	}
	blob, err := r.challenges.Issue(ctx, w, serverID)
	if err != nil {
		return Challenge{}, err
	}
	return Challenge{Challenge: blob, Seal: config}, nil
}

// Admit checks a joiner's answer and makes it a member. It returns the grant, sealed for the joiner.
func (n *Node) Admit(ctx context.Context, a Answer) ([]byte, error) {
	r := n.running.Load()
	if r == nil || !n.Active() {
		return nil, storage.ErrReadOnly
	}
	if err := r.challenges.Verify(a.ServerID, a.Answer); err != nil {
		return nil, &engines.Error{Kind: engines.KindDenied, Detail: err.Error()}
	}
	w, err := n.wrapperOf(ctx, r)
	if err != nil {
		return nil, err
	}
	var grant joinGrant
	if grant.Trust, err = r.cluster.Admit(ctx, a); err != nil {
		return nil, fmt.Errorf("adding the node to the cluster: %w", err)
	}
	plain, err := json.Marshal(grant)
	if err != nil {
		return nil, err
	}
	n.log.Info("node joined", "node", a.ServerID, "address", a.ClusterAddr, "voter", !a.NonVoter, "rejoin", a.Rejoin)
	return seal.SealTo(ctx, w, purposeJoin, plain)
}

func (t JoinTarget) client() (*http.Client, error) {
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
		Transport: &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		// The server at the address must not choose what else this node talks to.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// challenge asks the leader for a challenge to the server.
func (t JoinTarget) challenge(ctx context.Context, client *http.Client, serverID string) (c Challenge, err error) {
	err = t.put(ctx, client, "challenge", map[string]string{"server_id": serverID}, &c)
	return c, err
}

// put calls one step of the bootstrap at the leader and decodes "data".
func (t JoinTarget) put(ctx context.Context, client *http.Client, step string, in, out any) error {
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
