package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// pendingJoin is a join that waits for the seal key.
type pendingJoin struct {
	target    join.Target
	challenge []byte
	config    seal.Config
}

// Purposes separate join answers, and the keys of nodes that join, from everything else sealed under the same key.
const (
	purposeJoin    = "coffer join answer v1"
	purposeJoining = "coffer key of a joining node v1"
)

// joinGrant is what the answer buys, sealed under the seal key.
type joinGrant struct {
	Trust []byte      `json:"trust"` // the register of members, the joiner among them
	CA    passport.CA `json:"ca"`    // of active nodes of earlier versions, which know no register
}

// Join takes the first step into the cluster of target. It reports whether the node is in: with Shamir it
// first needs the cluster's unseal keys, through Unseal. Joining a cluster the node is in already is fine.
func (n *Node) Join(ctx context.Context, target join.Target) (joined bool, err error) {
	ctx, done := n.transition(ctx)
	defer done()
	if n.Initialized(ctx) {
		return true, nil
	}
	if n.closed {
		return false, errStopping
	}
	client, err := target.Client()
	if err != nil {
		return false, err
	}
	challenge, err := target.Challenge(ctx, client, n.opts.NodeID)
	if err != nil {
		return false, err
	}
	if err := challenge.Seal.Validate(); err != nil {
		return false, &engines.Error{Kind: engines.KindUnavailable, Detail: "the leader described a seal this node cannot use: " + err.Error()}
	}
	o, err := n.seals.Open(challenge.Seal)
	if err != nil || o.Migrate {
		return false, engines.Invalid("the cluster's seal is %q, this node is configured for another: use the same seal stanza on every node", challenge.Seal.Type)
	}
	n.unsealer = nil
	n.pending = &pendingJoin{target: target, challenge: challenge.Challenge, config: challenge.Seal}
	if o.Wrapper == nil {
		n.log.Info("joining: waiting for the cluster's unseal keys", "leader", target.LeaderAPIAddr)
		return false, nil
	}
	if err := n.finishJoin(ctx, o.Wrapper); err != nil {
		n.pending = nil
		return false, err
	}
	return true, nil
}

// finishJoin enters the cluster and waits until the state has arrived. If it fails the join stays pending, so
// that the same keys can be given again. n.mu is held.
func (n *Node) finishJoin(ctx context.Context, w seal.Wrapper) error {
	p := n.pending
	private, public, err := n.opts.Raft.NewKey()
	if err != nil {
		return err
	}
	grant, err := n.admission(ctx, p, w, public)
	if err != nil {
		return err
	}
	sealed, err := seal.SealTo(ctx, w, purposeJoining, private)
	if err != nil {
		return fmt.Errorf("sealing the key of this node: %w", err)
	}
	if err := n.keyFile.KeepJoining(sealed); err != nil {
		return err
	}
	own := passport.Passport{Key: private, Trust: grant.Trust, CA: grant.CA, Records: passport.NewRecords(n.opts.Barrier), Entering: true}
	err = n.up(ctx, own, w, nil, func(ctx context.Context, c members.Cluster) error { return n.awaitState(ctx, w) })
	if err == nil || n.Initialized(n.life) {
		n.pending = nil // from here on it is a node like any other, that unseals by itself
	}
	return err
}

// admission answers a challenge and returns what that buys. The challenge is a fresh one: people may have taken
// longer to bring their keys than the first one lasts, or another node may lead by now.
func (n *Node) admission(ctx context.Context, p *pendingJoin, w seal.Wrapper, public []byte) (grant joinGrant, err error) {
	client, err := p.target.Client()
	if err != nil {
		return grant, err
	}
	challenge, err := p.target.Challenge(ctx, client, n.opts.NodeID)
	if err != nil {
		return grant, err
	}
	answer, err := seal.AnswerChallenge(ctx, w, n.opts.NodeID, challenge.Challenge)
	if err != nil {
		return grant, fmt.Errorf("answering the join challenge: %w", err)
	}
	sealed, err := p.target.Answer(ctx, client, join.Answer{
		ServerID: n.opts.NodeID, ClusterAddr: n.opts.ClusterAddr, Answer: answer, PublicKey: public, Formats: n.opts.Formats,
		NonVoter: p.target.NonVoter, Rejoin: n.opts.Raw.AppliedIndex() == 0,
	})
	if err != nil {
		return grant, err
	}
	plain, err := seal.OpenFrom(ctx, w, purposeJoin, sealed)
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
func (n *Node) rejoinAfterRekey(ctx context.Context, targets []join.Target) {
	ctx, cancel := context.WithTimeout(ctx, missedTimeout)
	defer cancel()
	own, _, err := seal.Load(ctx, n.opts.Raw)
	if err != nil || own.Auto() {
		return
	}
	for _, target := range join.Each(ctx, targets) {
		client, err := target.Client()
		if err != nil {
			continue
		}
		c, err := target.Challenge(ctx, client, n.opts.NodeID)
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
func (n *Node) retryJoin(ctx context.Context, targets []join.Target) bool {
	n.mu.Lock()
	waiting := n.pending != nil
	n.mu.Unlock()
	if waiting {
		return true // for an operator's keys
	}
	for _, target := range join.Each(ctx, targets) {
		joined, err := n.Join(ctx, target)
		switch {
		case err != nil:
			n.log.Warn("joining failed, trying again", "leader", target.LeaderAPIAddr, "err", err)
			n.joinFailed.Store(new(err.Error()))
		case joined || n.opts.AutoSeal == nil:
			return true
		}
	}
	return false
}

// JoinLater adds a target to what Run keeps trying.
func (n *Node) JoinLater(target join.Target) {
	select {
	case n.later <- target:
	default: // one is waiting already
	}
}

// Challenge makes a challenge for a node that wants to join. Only the active node does.
func (n *Node) Challenge(ctx context.Context, serverID string) (join.Challenge, error) {
	r := n.running.Load()
	if r == nil || !n.Active() {
		return join.Challenge{}, storage.ErrReadOnly
	}
	config, _, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return join.Challenge{}, err
	}
	w, err := n.wrapperOf(ctx, r)
	if err != nil {
		return join.Challenge{}, err
	}
	blob, err := r.challenges.Issue(ctx, w, serverID)
	if err != nil {
		return join.Challenge{}, err
	}
	return join.Challenge{Challenge: blob, Seal: config}, nil
}

// Admit checks a joiner's answer and makes it a member. It returns the grant, sealed for the joiner.
func (n *Node) Admit(ctx context.Context, a join.Answer) ([]byte, error) {
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
