package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
)

// InitResult is what initialisation hands out, once. KeyShares are empty with an automatic seal.
type InitResult struct {
	KeyShares [][]byte
	RootToken string
}

// Init makes this node the first of a new cluster. shares and threshold are those of Shamir's scheme and are
// ignored with an automatic seal. Afterwards the node is sealed (Shamir) or active (automatic). An Init that
// is interrupted leaves a node that is not initialised: the seal configuration is written last. After that
// the keys are returned whatever happens.
func (n *Node) Init(ctx context.Context, shares, threshold int) (InitResult, error) {
	ctx, done := n.transition(ctx)
	defer done()
	switch {
	case n.Initialized(ctx):
		return InitResult{}, ErrInitialized
	case n.pending != nil || len(n.opts.RetryJoin) > 0:
		return InitResult{}, engines.Invalid("this node is set to join a cluster: initialize one of the others, or remove retry_join")
	}
	setup, err := n.newSeal(shares, threshold)
	if err != nil {
		return InitResult{}, err
	}
	result := InitResult{KeyShares: setup.Shares}
	ca, err := n.opts.NewCA()
	if err != nil {
		return InitResult{}, fmt.Errorf("creating the cluster's CA: %w", err)
	}
	founded := false
	fill := func(ctx context.Context, c Cluster) error {
		token, err := n.found(ctx, c, ca, setup)
		result.RootToken, founded = token, err == nil
		return err
	}
	err = n.up(ctx, ca, setup.Wrapper, fill)
	if !founded {
		return InitResult{}, fmt.Errorf("initializing: %w", err)
	}
	if err == nil && n.opts.AutoSeal == nil {
		err = n.down(context.WithoutCancel(ctx))
	}
	if err != nil {
		// The keys exist nowhere else: they go out, whatever failed since.
		n.log.Warn("the cluster is initialized, but the node had trouble afterwards", "err", err)
	}
	return result, nil
}

func (n *Node) newSeal(shares, threshold int) (*seal.Setup, error) {
	if n.opts.AutoSeal != nil {
		return seal.InitStatic(n.opts.AutoSeal), nil
	}
	setup, err := seal.Init(shares, threshold)
	if err != nil {
		return nil, engines.Invalid("%v", err)
	}
	return setup, nil
}

// found writes the first state of a cluster of one.
func (n *Node) found(ctx context.Context, c Cluster, ca CA, setup *seal.Setup) (rootToken string, err error) {
	if err := c.Bootstrap(ctx); err != nil {
		return "", fmt.Errorf("bootstrapping Raft: %w", err)
	}
	if err := waitLeader(ctx, c); err != nil {
		return "", err
	}
	// What an interrupted attempt left is under keys that nobody has.
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		if err := storage.DeletePrefix(ctx, n.opts.Router, storage.Key(string(class)+"/")); err != nil {
			return "", err
		}
	}
	root, ring, err := n.opts.Barrier.NewRing()
	if err != nil {
		return "", err
	}
	if _, err := n.opts.Router.Commit(ctx, storage.Batch{Puts: []storage.Put{ring}}); err != nil {
		return "", err
	}
	if err := n.opts.Barrier.Unseal(ctx, root); err != nil {
		return "", err
	}
	puts, err := n.opts.Hooks.FirstPuts()
	if err != nil {
		return "", err
	}
	name := n.opts.ClusterName
	if name == "" {
		name = "coffer-" + uuid.NewString()[:8]
	}
	puts = append(puts, put(caKey, ca), put(clusterKey, Identity{ID: uuid.NewString(), Name: name}))
	if _, err := n.opts.Barrier.Commit(ctx, storage.Batch{Puts: puts}); err != nil {
		return "", err
	}
	if rootToken, err = n.opts.Hooks.RootToken(ctx); err != nil {
		return "", fmt.Errorf("creating the root token: %w", err)
	}
	last, err := setup.Puts(root)
	if err != nil {
		return "", fmt.Errorf("wrapping the root key: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	// From here on nobody's patience counts: a cluster that is initialized without anybody knowing its keys is lost.
	_, err = n.opts.Router.Commit(context.WithoutCancel(ctx), storage.Batch{Puts: last})
	return rootToken, err
}

func put(key storage.Key, v any) storage.Put {
	value, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs only
	}
	return storage.Put{Key: key, Value: value}
}

// waitLeader waits until this node leads.
func waitLeader(ctx context.Context, c Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for !c.IsLeader() {
		select {
		case <-ctx.Done():
			return errors.New("the node did not become leader of its own cluster in time")
		case <-c.Changes():
		}
	}
	return nil
}

// SealStatus is what anybody may know of a node's seal.
type SealStatus struct {
	Type        string
	Initialized bool
	Sealed      bool
	Threshold   int
	Shares      int
	Progress    int
	Nonce       string
	Joining     bool
}

// Status returns the state of the seal. During a change that takes long, such as a join that waits for data,
// it answers at once what stood before.
func (n *Node) Status(ctx context.Context) SealStatus {
	if !n.mu.TryLock() {
		s := *n.last.Load()
		s.Sealed = n.Sealed()
		return s
	}
	defer n.mu.Unlock()
	return n.statusLocked(ctx)
}

func (n *Node) statusLocked(ctx context.Context) SealStatus {
	s := SealStatus{Type: "shamir", Sealed: n.Sealed(), Initialized: n.Initialized(ctx), Joining: n.pending != nil}
	if n.opts.AutoSeal != nil {
		s.Type = n.opts.AutoSeal.Type()
	}
	config, err := n.sealConfig(ctx)
	if err != nil {
		n.last.Store(&s)
		return s
	}
	s.Initialized = true // a joining node has the seal of its cluster
	s.Type, s.Threshold, s.Shares = config.Type, config.Threshold, config.Shares
	if n.unsealer != nil && s.Sealed {
		s.Progress, s.Nonce = n.unsealer.Progress(), n.unsealer.Nonce()
	}
	n.last.Store(&s)
	return s
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

// Unseal takes one key share. When the threshold is reached the node unseals, or joins its cluster. reset
// drops the shares given so far.
func (n *Node) Unseal(ctx context.Context, share string, reset bool) (SealStatus, error) {
	n.joinFirst(ctx)
	ctx, over := n.transition(ctx)
	defer over()
	if !n.Sealed() {
		return n.statusLocked(ctx), nil
	}
	config, err := n.sealConfig(ctx)
	if err != nil {
		return SealStatus{}, err
	}
	if config.Type != seal.TypeShamir {
		return SealStatus{}, engines.Invalid("this cluster unseals by itself (seal %q): key shares are not used", config.Type)
	}
	if reset {
		n.unsealer = nil
		return n.statusLocked(ctx), nil
	}
	if n.unsealer == nil {
		n.unsealer = seal.NewUnsealer(config, n.opensWith())
	}
	done, kek, err := n.unsealer.Submit(share)
	if err != nil {
		return SealStatus{}, engines.Invalid("%v", err)
	}
	if !done {
		return n.statusLocked(ctx), nil
	}
	n.unsealer = nil
	defer clear(kek)
	wrapper := seal.NewKEKWrapper(kek)
	if n.pending != nil {
		err = n.finishJoin(ctx, wrapper)
	} else {
		err = n.openWith(ctx, wrapper)
	}
	return n.statusLocked(ctx), err
}

// opensWith returns the check of a combined key: it must open what this node has of the cluster, the wrapped
// root key or, for a joiner, the challenge.
func (n *Node) opensWith() func(kek []byte) error {
	if p := n.pending; p != nil {
		return func(kek []byte) error {
			_, err := seal.AnswerChallenge(seal.NewKEKWrapper(kek), n.opts.NodeID, p.challenge)
			return err
		}
	}
	return func(kek []byte) error {
		_, err := n.rootKey(n.life, seal.NewKEKWrapper(kek)) // later than the request that began the attempt
		return err
	}
}
