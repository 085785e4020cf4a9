package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/server/lifecycle/sealing"
	"github.com/coffer-project/coffer/server/seal"
)

// wrapperOf returns the wrapper of the seal as it is stored now: another node may have changed it since this one
// was unsealed.
func (n *Node) wrapperOf(ctx context.Context, r *running) (seal.Wrapper, error) {
	config, wrapped, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return nil, err
	}
	w := r.seal.Get()
	opens := func(w seal.Wrapper) bool {
		root, err := seal.UnwrapRoot(ctx, w, wrapped)
		clear(root)
		return err == nil
	}
	switch {
	case config.Auto() && w.Type() == config.Type && !seal.NeedsRewrap(w, wrapped):
		return w, nil // opening it would ask the service each time
	case config.Auto():
		o, err := n.seals.Open(config)
		if err == nil {
			r.seal.Use(o.Wrapper)
		}
		return o.Wrapper, err
	case w.Type() == seal.TypeShamir && opens(w):
		return w, nil
	}
	if w, err = seal.Follow(ctx, n.opts.Raw, n.opts.Barrier.OpenBytes); err == nil && !opens(w) {
		err = seal.ErrWrongKey
	}
	if err != nil {
		return nil, fmt.Errorf("the stored root key belongs to other unseal keys than this node has: seal and unseal it: %w", err)
	}
	r.seal.Use(w)
	return w, nil
}

// openToMigrate unseals with the old seal, on the authority of a key that people hold, and prepares the change to the
// new one. Their key goes on as what the new seal has of them.
func (n *Node) openToMigrate(ctx context.Context, o sealing.Opening, key []byte) (err error) {
	old := o.Wrapper
	if old == nil {
		old = seal.NewKEKWrapper(key)
	}
	was, err := seal.LoadStored(ctx, n.opts.Raw)
	if err != nil {
		return err
	}
	root, err := seal.UnwrapRoot(ctx, old, was.Root)
	if err != nil {
		return fmt.Errorf("opening the old seal: %w", err)
	}
	defer clear(root)
	if err := n.opts.Barrier.Unseal(ctx, root); err != nil {
		return fmt.Errorf("unsealing the barrier: %w", err)
	}
	m, err := n.seals.Migration(ctx, n.opts.Raw, n.opts.Barrier, o, was, key, root)
	if err != nil {
		n.opts.Barrier.Seal()
		return err
	}
	return n.start(ctx, old, m)
}

// migrate carries out the change of seal that was decided when this node was unsealed, now that it is active.
func (n *Node) migrate(ctx context.Context, r *running) error {
	m := r.migration
	if m == nil {
		return nil
	}
	err := m.Apply(ctx, n.opts.Router)
	if errors.Is(err, seal.ErrReplaced) {
		n.log.Warn("the seal or its keys have been changed since this node was unsealed: the change of seal that was decided then is void")
		return nil
	}
	if err != nil {
		return err
	}
	r.seal.Use(m.To)
	n.log.Info("the root key is now wrapped by another seal: start every node with its configuration", "seal", m.To.Type(), "key_id", seal.KeyID(m.To))
	return nil
}

// heard returns the keys of the other nodes, and the names of those that have not told theirs.
func (n *Node) heard(r *running) (keys [][]byte, silent []string, err error) {
	peers, err := r.cluster.Peers()
	for _, p := range peers {
		switch {
		case p.ID == n.opts.NodeID:
		case len(p.FollowKey) > 0:
			keys = append(keys, p.FollowKey)
		default:
			silent = append(silent, p.ID)
		}
	}
	return keys, silent, err
}
