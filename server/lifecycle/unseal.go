package lifecycle

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// SealStatus is what anybody may know of a node's seal.
type SealStatus struct {
	Type        string
	Initialized bool
	Sealed      bool
	Recovery    bool // Threshold and Shares are those of the recovery key
	Threshold   int
	Shares      int
	Progress    int
	Nonce       string
	Joining     bool
	Migration   bool // the configuration has another seal than the state
	// Founding is the nonce of the initialization under way, "" if there is none.
	Founding string
	// JoinTargets are the API addresses of the nodes that this one tries to join, while it is in no cluster; JoinError is
	// why the last attempt failed, or "".
	JoinTargets []string
	JoinError   string
}

// Status returns the state of the seal. During a change that takes long, such as a join that waits for data,
// it answers at once what stood before.
func (n *Node) Status(ctx context.Context) SealStatus {
	founding := n.founding.Load() // first: when it has ended, the status is that of afterwards
	if founding == nil {
		founding = new(string)
	}
	var s SealStatus
	if n.mu.TryLock() {
		s = n.statusLocked(ctx)
		n.mu.Unlock()
	} else {
		s = *n.last.Load()
		s.Sealed = n.Sealed()
	}
	s.Founding = *founding
	return s
}

// StatusFor is Status with the nonce of the attempt that the source has begun to unseal the node, if it has.
func (n *Node) StatusFor(ctx context.Context, source string) SealStatus {
	s := n.Status(ctx)
	if n.mu.TryLock() {
		defer n.mu.Unlock()
		return n.withNonce(s, source)
	}
	return s
}

// withNonce adds the nonce of the source's attempt. Others do not see it: with it they could spoil the attempt. n.mu is held.
func (n *Node) withNonce(s SealStatus, source string) SealStatus {
	if n.unsealer != nil && s.Sealed {
		s.Nonce = n.unsealer.Nonce(source)
	}
	return s
}

func (n *Node) statusLocked(ctx context.Context) SealStatus {
	s := SealStatus{Type: "shamir", Sealed: n.Sealed(), Initialized: n.Initialized(ctx), Joining: n.pending != nil}
	if n.opts.AutoSeal != nil {
		s.Type, s.Recovery = n.opts.AutoSeal.Type(), true
	}
	config, err := n.sealConfig(ctx)
	if err != nil {
		n.joinStatus(&s)
		n.last.Store(&s)
		return s
	}
	s.Initialized = true // a joining node has the seal of its cluster
	s.Type, s.Recovery = config.Type, config.Auto()
	s.Shares, s.Threshold = config.Held()
	if o, err := n.seals.Open(config); err == nil {
		s.Migration = o.Migrate
	}
	if n.unsealer != nil && s.Sealed {
		s.Progress = n.unsealer.Progress()
	}
	n.last.Store(&s)
	return s
}

// joinStatus adds which nodes this one tries to join. n.mu is held.
func (n *Node) joinStatus(s *SealStatus) {
	if s.Initialized {
		return
	}
	for _, target := range n.opts.RetryJoin {
		s.JoinTargets = append(s.JoinTargets, target.LeaderAPIAddr)
	}
	if failed := n.joinFailed.Load(); failed != nil && len(s.JoinTargets) > 0 {
		s.JoinError = *failed
	}
}

func (n *Node) sealConfig(ctx context.Context) (seal.Config, error) {
	if n.pending != nil {
		return n.pending.config, nil
	}
	config, _, err := seal.Load(ctx, n.opts.Raw)
	if errors.Is(err, storage.ErrNotFound) {
		return config, ErrNotInitialized
	}
	return config, err
}

// Share is one key share, or the wish to drop those that were given so far.
type Share struct {
	Source string // where it comes from; see seal.Attempts
	Nonce  string // of the attempt that it belongs to; "": that of Source
	Key    string
	Reset  bool // drop the shares of the attempt
	// Migrate gives the share to a node whose configuration has another seal than its cluster. The shares are those of the
	// old one: of the unseal key, or of the recovery key. They become the shares of what the new one has instead. The root key
	// is wrapped by the new seal as soon as the node is the active one.
	Migrate bool
}

// Unseal is Submit of a share from this machine.
func (n *Node) Unseal(ctx context.Context, share string, reset bool) (SealStatus, error) {
	return n.Submit(ctx, Share{Key: share, Reset: reset})
}

// Migrate is Submit of a share from this machine, to change the seal.
func (n *Node) Migrate(ctx context.Context, share string, reset bool) (SealStatus, error) {
	return n.Submit(ctx, Share{Key: share, Reset: reset, Migrate: true})
}

// Submit takes one key share. When the threshold is reached the node unseals, or joins its cluster.
func (n *Node) Submit(ctx context.Context, in Share) (SealStatus, error) {
	migrate := in.Migrate
	n.joinFirst(ctx)
	ctx, over := n.transition(ctx)
	defer over()
	if n.closed {
		return SealStatus{}, errStopping
	}
	if !n.Sealed() {
		return n.statusLocked(ctx), nil
	}
	config, err := n.sealConfig(ctx)
	if err != nil {
		return SealStatus{}, err
	}
	if n.Removed() && n.Initialized(ctx) {
		return SealStatus{}, engines.Invalid("this node was removed from its cluster: move its data directory away and let it join again, "+
			"or remove %s to use the data after all", n.opts.KeyFile)
	}
	if in.Reset {
		if n.unsealer != nil {
			n.unsealer.Reset(in.Source, in.Nonce)
		}
		return n.statusLocked(ctx), nil
	}
	o, err := n.seals.Open(config)
	if err != nil {
		return SealStatus{}, err
	}
	if err := n.seals.MayUse(o, migrate, n.pending != nil); err != nil {
		return SealStatus{}, err
	}
	if n.unsealer == nil || n.migrates != migrate {
		var verify func([]byte) error // a recovery key is checked when it is complete
		if !config.Auto() {
			verify = n.opensWith()
		}
		n.unsealer, n.migrates = seal.NewAttempts(config, verify), migrate
	}
	done, key, err := n.unsealer.Submit(in.Source, in.Nonce, in.Key)
	if err != nil {
		return SealStatus{}, engines.Invalid("%v", err)
	}
	if !done {
		return n.withNonce(n.statusLocked(ctx), in.Source), nil
	}
	n.unsealer = nil
	defer clear(key)
	switch {
	case migrate:
		err = n.openToMigrate(ctx, o, key)
	case n.pending != nil:
		err = n.finishJoin(ctx, seal.NewKEKWrapper(key))
	default:
		err = n.openWith(ctx, seal.NewKEKWrapper(key))
	}
	return n.statusLocked(ctx), err
}

// opensWith returns the check of a combined key: it must open what this node has of the cluster, the wrapped
// root key or, for a joiner, the challenge. n.life is later than the request that began the attempt.
func (n *Node) opensWith() func(kek []byte) error {
	if p := n.pending; p != nil {
		return func(kek []byte) error {
			_, err := seal.AnswerChallenge(n.life, seal.NewKEKWrapper(kek), n.opts.NodeID, p.challenge)
			return err
		}
	}
	return func(kek []byte) error {
		_, err := n.rootKey(n.life, seal.NewKEKWrapper(kek))
		return err
	}
}
