package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
)

// InitResult is what initialisation hands out, once: KeyShares, or with an automatic seal RecoveryShares.
type InitResult struct {
	KeyShares      [][]byte
	RecoveryShares [][]byte
	RootToken      string
}

// Init makes this node the first of a new cluster, unless one of those that it would join is in a cluster. shares and threshold are those of the unseal key or, with an
// automatic seal, of the recovery key, which 0 shares leave out. Afterwards the node is sealed (Shamir) or active (automatic). An Init that
// is interrupted leaves a node that is not initialised: the seal configuration is written last. After that
// the keys are returned whatever happens.
func (n *Node) Init(ctx context.Context, shares, threshold int) (InitResult, error) {
	ctx, done := n.transition(ctx)
	defer done()
	switch {
	case n.Initialized(ctx):
		return InitResult{}, ErrInitialized
	case n.pending != nil:
		return InitResult{}, engines.Invalid("this node joins the cluster of %s: give it the key shares of that", n.pending.target.LeaderAPIAddr)
	}
	setup, err := n.newSeal(shares, threshold)
	if err != nil {
		return InitResult{}, err
	}
	settled, err := n.announceFounding(ctx)
	if err != nil {
		return InitResult{}, err
	}
	defer func() {
		n.statusLocked(n.life) // what the others are told now must not be from before
		settled()
	}()
	result := InitResult{KeyShares: setup.Shares, RecoveryShares: setup.RecoveryShares}
	ca, err := n.opts.Raft.NewCA()
	if err != nil {
		return InitResult{}, fmt.Errorf("creating the cluster's CA: %w", err)
	}
	founded := false
	fill := func(ctx context.Context, c members.Cluster) error {
		token, err := n.found(ctx, c, ca, setup)
		result.RootToken, founded = token, err == nil
		return err
	}
	p, err := n.ownPassport(ctx, setup.Wrapper)
	if err != nil {
		return InitResult{}, err
	}
	p.CA, p.Entering = ca, true
	err = n.up(ctx, p, setup.Wrapper, nil, fill)
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

func (n *Node) newSeal(shares, threshold int) (setup *seal.Setup, err error) {
	if n.opts.OldSeal != nil {
		return nil, engines.Invalid("the configuration has a disabled seal, which a new cluster has no use for: remove it")
	}
	if auto := n.opts.AutoSeal; auto != nil {
		setup, err = seal.InitAuto(auto, shares, threshold)
	} else {
		setup, err = seal.Init(shares, threshold)
	}
	if err != nil {
		return nil, engines.Invalid("%v", err)
	}
	return setup, nil
}

// found writes the first state of a cluster of one.
func (n *Node) found(ctx context.Context, c members.Cluster, ca passport.CA, setup *seal.Setup) (rootToken string, err error) {
	if err := c.Bootstrap(ctx); err != nil {
		return "", fmt.Errorf("bootstrapping Raft: %w", err)
	}
	if err := waitLeader(ctx, c); err != nil {
		return "", err
	}
	// What an interrupted attempt left is under keys that were never given out.
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
	puts, err := n.opts.Service.FirstPuts()
	if err != nil {
		return "", err
	}
	name := n.opts.ClusterName
	if name == "" {
		name = "coffer-" + uuid.NewString()[:8]
	}
	puts = append(puts, put(passport.CAEntry, ca), put(clusterKey, Identity{ID: uuid.NewString(), Name: name}))
	if _, err := n.opts.Barrier.Commit(ctx, storage.Batch{Puts: puts}); err != nil {
		return "", err
	}
	if rootToken, err = n.opts.Service.RootToken(ctx); err != nil {
		return "", fmt.Errorf("creating the root token: %w", err)
	}
	last, err := setup.Puts(ctx, root, n.opts.Barrier.SealBytes)
	if err != nil {
		return "", fmt.Errorf("wrapping the root key: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	// From here on no timeout of the caller counts: a cluster that is initialized without anybody knowing its keys is lost.
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
func waitLeader(ctx context.Context, c members.Cluster) error {
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
