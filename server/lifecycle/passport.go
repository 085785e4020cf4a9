package lifecycle

import (
	"context"
	"errors"
	"math"

	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/seal"
)

// ownPassport returns the passport of a node that can open the barrier. A node without a key that it can read gets a new
// one: at the first start of this version, or when the state of another cluster was restored.
func (n *Node) ownPassport(ctx context.Context, w seal.Wrapper) (p passport.Passport, err error) {
	p.Records = passport.NewRecords(n.opts.Barrier)
	if p.Key, err = n.keyFile.Key(); err == nil && p.Key == nil {
		p.Key, err = n.joiningKey(ctx, w)
	}
	if err == nil && p.Key == nil {
		p.Key, _, err = n.opts.Raft.NewKey()
	}
	return p, err
}

// joiningKey returns the key of a node that ended while it joined, nil if it did not. An error is one of the service that has
// the seal's key.
func (n *Node) joiningKey(ctx context.Context, w seal.Wrapper) ([]byte, error) {
	sealed, err := n.keyFile.Joining()
	if err != nil || sealed == nil {
		return nil, err
	}
	key, err := seal.OpenFrom(ctx, w, purposeJoining, sealed)
	if errors.Is(err, seal.ErrWrongKey) || errors.Is(err, seal.ErrMalformed) {
		n.log.Warn("the key with which this node joined does not open: making a new one", "err", err)
		return nil, nil
	}
	return key, err
}

// expelled seals a node that was removed from its cluster: its data grows old, and its keys are not its own any more.
func (n *Node) expelled(r *running) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running.Load() != r {
		return
	}
	n.log.Error("this node was removed from its cluster: sealing. Move its data directory away to let it join again")
	n.warn(n.life, "noting that this node was removed", n.keyFile.Remove())
	defer n.ending(false)()
	n.warn(n.life, "leaving the cluster", n.down(n.life))
	n.removed.Store(true) // a node that says so serves nothing any more
	n.statusLocked(n.life)
}

// awaitDistrust restarts a sealed node whose files are damaged: what it says of itself is in them. watch does it for one
// that is unsealed.
func (n *Node) awaitDistrust(ctx context.Context) {
	for n.opts.Raw.Distrusted() == nil {
		if n.opts.Raw.WaitApplied(ctx, math.MaxUint64) == nil || ctx.Err() != nil {
			return
		}
		if n.opts.Raw.Distrusted() == nil { // it has stopped for another reason
			return
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running.Load() == nil && !n.closed {
		n.log.Error("the data of this node is damaged: starting again", "err", n.opts.Raw.Distrusted())
		n.ending(false)()
	}
}

// distrusted seals a node whose data is damaged, or differs from its cluster's. The next start moves the data aside.
func (n *Node) distrusted(r *running) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running.Load() != r {
		return
	}
	n.log.Error("the data of this node is damaged or not its cluster's: sealing, to start again", "err", r.cluster.Distrusted())
	n.drop(n.life, r, nil)
}
