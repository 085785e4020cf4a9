package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/lifecycle/sealing"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Run unseals by itself where it can, joins where it is told to, and follows a replaced state, until ctx
// ends. It then stops the node.
func (n *Node) Run(ctx context.Context) error {
	var tending sync.WaitGroup
	defer tending.Wait()
	for _, w := range []seal.Wrapper{n.opts.AutoSeal, n.opts.OldSeal} {
		if w != nil {
			tending.Go(func() { seal.Run(ctx, w) })
		}
	}
	tending.Go(func() { n.awaitDistrust(ctx) })
	if n.opts.StaySealed {
		n.log.Info("an operator has sealed this node: it stays sealed until it is given its key shares or, with an automatic seal, started again")
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	failures := 0 // of auto-unseal, in a row
	for {
		select {
		case <-ctx.Done():
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			return n.Close(stop)
		case <-n.reset:
			n.reload(ctx)
			retry.Reset(time.Second) // it may have sealed itself
		case <-n.moved:
			n.follow(ctx)
			retry.Reset(time.Second)
		case target := <-n.later:
			n.mu.Lock()
			n.opts.RetryJoin = append(n.opts.RetryJoin, target)
			n.mu.Unlock()
			retry.Reset(time.Second)
		case <-retry.C:
			done, err := n.tryUnattended(ctx)
			switch {
			case err != nil:
				wait := min(time.Second<<min(failures, 6), maxUnsealWait)
				failures++
				n.log.Warn("auto-unseal failed, trying again", "err", err, "in", wait)
				retry.Reset(wait)
			case !done:
				retry.Reset(time.Second)
			default:
				failures = 0
			}
		}
	}
}

// maxUnsealWait is the longest time between two tries to unseal: how much longer than its key service a node is away.
const maxUnsealWait = 30 * time.Second

// tryUnattended tries what needs no operator. It reports whether there is nothing left to try; the error is why the node
// has not unsealed by itself.
func (n *Node) tryUnattended(ctx context.Context) (done bool, err error) {
	if !n.Sealed() {
		return true, nil
	}
	if n.Initialized(ctx) {
		if n.opts.StaySealed || n.removed.Load() {
			return true, nil
		}
		err := n.autoUnseal(ctx)
		return err == nil, err
	}
	n.mu.Lock()
	targets := n.opts.RetryJoin
	n.mu.Unlock()
	return len(targets) == 0 || n.retryJoin(ctx, targets), nil
}

// Close seals the node for good. Closing twice is fine.
func (n *Node) Close(ctx context.Context) error {
	n.end()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	return n.down(ctx)
}

// Seal forgets all keys and leaves the cluster. The node needs its unseal keys again.
func (n *Node) Seal(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.Sealed() {
		return nil
	}
	n.log.Info("sealing")
	defer n.ending(true)()
	return n.down(ctx)
}

// ending announces that the node seals. Call the result when it is sealed. n.mu is held.
func (n *Node) ending(stay bool) func() {
	if n.opts.Sealing == nil || n.closed {
		return func() {}
	}
	n.closed = true // the keys that it might be given are for the process that follows
	return n.opts.Sealing(stay)
}

func (n *Node) autoUnseal(ctx context.Context) error {
	ctx, done := n.transition(ctx)
	defer done()
	if !n.Sealed() {
		return nil
	}
	config, _, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return fmt.Errorf("reading the seal: %w", err)
	}
	o, err := n.seals.Open(config)
	switch {
	case err != nil:
		return err
	case o.Migrate:
		n.log.Info("a change of the seal is configured: unseal with the old seal's key shares and migrate", "from", config.Type, "to", n.seals.Type())
		return nil
	case o.Wrapper == nil:
		return nil // people do
	}
	return n.openWith(ctx, o.Wrapper)
}

// openWith unseals an initialised node with the key that wraps its root key.
func (n *Node) openWith(ctx context.Context, w seal.Wrapper) error {
	root, err := n.rootKey(ctx, w)
	if err != nil {
		return err
	}
	defer clear(root)
	if err := n.opts.Barrier.Unseal(ctx, root); err != nil {
		return fmt.Errorf("unsealing the barrier: %w", err)
	}
	return n.start(ctx, w, nil)
}

// start brings the node up behind an open barrier. On error the barrier is sealed again.
func (n *Node) start(ctx context.Context, w seal.Wrapper, m *sealing.Migration) error {
	p, err := n.ownPassport(ctx, w)
	if err == nil {
		err = n.keyFile.Keep(p.Key) // before anyone registers it
	}
	if err != nil {
		n.opts.Barrier.Seal()
		return err
	}
	return n.up(ctx, p, w, m, nil)
}

// rootKey unwraps the root key. seal.ErrWrongKey means that w belongs to another cluster.
func (n *Node) rootKey(ctx context.Context, w seal.Wrapper) ([]byte, error) {
	_, wrapped, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading the seal: %w", err)
	}
	return seal.UnwrapRoot(ctx, w, wrapped)
}

func (n *Node) get(ctx context.Context, key storage.Key, into any) error {
	e, err := n.opts.Barrier.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	if err := json.Unmarshal(e.Value, into); err != nil {
		return fmt.Errorf("decoding %s: %w", key, err)
	}
	return nil
}

// up starts the cluster and then, once fill has run (it may wait for the state to arrive), the rest of the
// node. The barrier is open, or fill opens it. On error everything is down again. n.mu is held.
func (n *Node) up(ctx context.Context, p passport.Passport, w seal.Wrapper, m *sealing.Migration, fill func(context.Context, members.Cluster) error) (err error) {
	if n.closed {
		return errStopping
	}
	c, err := n.opts.Raft.OpenCluster(ctx, p)
	if err != nil {
		n.opts.Barrier.Seal()
		return fmt.Errorf("starting the cluster: %w", err)
	}
	n.opts.Router.Route(c)
	defer func() {
		if err != nil {
			n.opts.Router.Route(nil)
			n.opts.Barrier.Seal()
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, c.Close(stop))
		}
	}()
	if fill != nil {
		if err := fill(ctx, c); err != nil {
			return err
		}
	}
	if err := n.keyFile.Keep(p.Key); err != nil {
		return err
	}
	r := &running{cluster: c, migration: m, done: make(chan struct{}), unsealed: time.Now()}
	r.seal.Use(w)
	if err := n.get(ctx, clusterKey, &r.identity); err != nil {
		return err
	}
	if err := n.opts.Service.Load(ctx, r.identity); err != nil {
		return fmt.Errorf("loading: %w", err)
	}
	if n.opts.OwnFiles != nil {
		n.warn(ctx, "recording the cluster's id beside the files", n.opts.OwnFiles(r.identity))
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	n.removed.Store(false)
	n.running.Store(r)
	c.TrustChanged() // it may have arrived before
	n.log.Info("unsealed", "cluster", r.identity.Name, "cluster_id", r.identity.ID)
	go n.watch(watching, r)
	return nil
}

// errStopping is the answer of a node that takes no more keys.
var errStopping = &engines.Error{Kind: engines.KindUnavailable, Detail: "the server is stopping or restarting: try again in a moment"}

// down stops what up started. n.mu is held.
func (n *Node) down(ctx context.Context) error {
	n.unsealer, n.pending = nil, nil
	if r := n.running.Load(); r != nil {
		r.cluster.Drain(ctx)
	}
	r := n.stopServing()
	if r == nil {
		return nil
	}
	return n.closeCluster(ctx, r)
}

// stopServing ends all serving, but stays in the cluster. n.mu is held.
func (n *Node) stopServing() *running {
	r := n.running.Swap(nil)
	if r == nil {
		return nil
	}
	r.stop()
	<-r.done
	n.opts.Service.Unload()
	return r
}

// closeCluster ends this node's part in the cluster and forgets all keys. n.mu is held.
func (n *Node) closeCluster(ctx context.Context, r *running) error {
	if r.cluster.IsLeader() {
		saving, cancel := context.WithTimeout(ctx, saveTime)
		n.warn(ctx, "leaving", n.opts.Barrier.SaveCount(saving))
		cancel()
	}
	err := r.cluster.Close(ctx)
	n.opts.Router.Route(nil)
	n.opts.Barrier.Seal()
	return err
}

// saveTime is how long a node that leaves tries to leave its count of encryptions behind.
const saveTime = time.Second

// turn is one time of being the active node.
type turn struct {
	stop context.CancelFunc
	done chan struct{} // closed when Service.Active has returned
}

func (n *Node) begin(ctx context.Context, r *running) *turn {
	active, stop := context.WithCancel(ctx)
	t := &turn{stop: stop, done: make(chan struct{})}
	r.since.Store(time.Now().UnixNano())
	r.ceremony.Store(ceremony.NewTurn(ceremony.Keys{
		Wrapper: func(ctx context.Context) (seal.Wrapper, error) { return n.wrapperOf(ctx, r) },
		Use:     r.seal.Use,
		Heard:   func() ([][]byte, []string, error) { return n.heard(r) },
	}))
	r.active.Store(true)
	n.log.Info("now active")
	go func() {
		defer close(t.done)
		var tending sync.WaitGroup
		tending.Go(func() { n.keepKeys(active, r) })
		n.opts.Service.Active(active)
		tending.Wait()
	}()
	return t
}

func (n *Node) finish(t *turn, r *running) {
	if t == nil {
		return
	}
	r.active.Store(false)
	r.ceremony.Swap(nil).End()
	t.stop()
	<-t.done
	n.log.Info("now standby")
}

// watch turns leadership into the active role and back, until its context ends.
func (n *Node) watch(ctx context.Context, r *running) {
	defer close(r.done)
	var current *turn
	defer func() { n.finish(current, r) }()
	var leaving sync.Once
	for {
		switch {
		case r.cluster.Removed():
			leaving.Do(func() { go n.expelled(r) })
		case r.cluster.Distrusted() != nil:
			leaving.Do(func() { go n.distrusted(r) })
		}
		switch leader := r.cluster.IsLeader() && r.cluster.Verified(); {
		case leader && current == nil:
			current = n.begin(ctx, r)
		case !leader:
			n.finish(current, r)
			current = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cluster.Changes():
		}
	}
}

// Restore replaces the state of the whole cluster by a snapshot, on the active node.
func (n *Node) Restore(ctx context.Context, state io.Reader) error {
	n.restoring.Lock()
	defer n.restoring.Unlock()
	c := n.Cluster()
	if c == nil {
		return storage.ErrSealed
	}
	return c.Restore(ctx, state)
}

// reload follows a state that was replaced as a whole, by a restore or by an installed snapshot. If it
// belongs to other keys, the node seals: only holders of those keys may unseal it.
func (n *Node) reload(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.running.Load()
	if r == nil {
		return
	}
	// The root key in memory opens the new key ring, or the state is not this cluster's. The seal is not asked: its
	// service may be away, and its keys may have changed since.
	err := n.sameCluster(ctx, r)
	if err == nil {
		err = n.opts.Service.Load(ctx, r.identity)
	}
	if err == nil {
		return
	}
	n.log.Warn("the restored state is not this cluster's: sealing, unseal with the keys it was made under", "err", err)
	n.drop(ctx, r, func(ctx context.Context) { n.awaitRestored(ctx, r.cluster) })
}

// drop seals a node whose keys do not open the state. before, if not nil, runs when it serves no more and has not left
// the cluster yet. n.mu is held.
func (n *Node) drop(ctx context.Context, r *running, before func(context.Context)) {
	defer n.ending(false)()
	n.stopServing()
	n.opts.Barrier.Seal()
	n.statusLocked(ctx)
	if before != nil {
		before(ctx)
	}
	if err := n.closeCluster(ctx, r); err != nil {
		n.log.Error("leaving the cluster", "err", err)
	}
}

// follow makes sure that this node still opens the state after the seal has changed. The barrier has followed to a new
// root key by itself if this node was told it; else an automatic seal opens it; else the node seals, because only who
// holds the new shares can.
func (n *Node) follow(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.running.Load()
	if r == nil || n.sameCluster(ctx, r) == nil {
		return
	}
	err := n.openAgain(ctx, r)
	if err == nil || ctx.Err() != nil {
		return
	}
	n.log.Warn("the root key was replaced, and this node was not told the new one because it was out of contact: sealing, unseal it with the new key shares", "err", err)
	n.drop(ctx, r, nil)
}

// openAgain opens the barrier with what the seal wraps now.
func (n *Node) openAgain(ctx context.Context, r *running) error {
	w, err := n.wrapperOf(ctx, r)
	if err != nil {
		return err
	}
	root, err := n.rootKey(ctx, w)
	if err != nil {
		return err
	}
	defer clear(root)
	return n.opts.Barrier.Unseal(ctx, root)
}

// sameCluster reports, as an error, that the state is another cluster's. Such a node must start again: the register of members
// in the state is not that of this node's cluster.
func (n *Node) sameCluster(ctx context.Context, r *running) error {
	var id Identity
	if err := n.get(ctx, clusterKey, &id); err != nil {
		return err
	}
	if id.ID != r.identity.ID {
		return errors.New("it is another cluster's")
	}
	return nil
}

// restoredTime is how long a node that has to seal after a restore stays for the others' sake. The last one may wait for no caller.
// installTime is how long a leader waits for a snapshot to arrive that is on its way to a member. Meanwhile it cannot be sealed or unsealed.
const restoredTime, installTime = 10 * time.Second, 10 * time.Minute

// awaitRestored waits until the cluster can no longer go back behind the restore: a majority has what the leader wrote after it. A node that
// left earlier could let the others go on from the state before. Then the leader waits for all members that it is in contact with: one that has not
// got the restored state cannot get it later, from a node that goes by the restored register of members. A standby stays until the leader leaves, at
// most restoredTime.
func (n *Node) awaitRestored(ctx context.Context, c members.Cluster) {
	long, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, restoredTime)
	defer cancel()
	if err := n.opts.Raw.WaitApplied(ctx, storage.Index(n.replaced.Load())+1); err != nil {
		n.log.Warn("leaving the cluster although the restore may not have reached a majority", "err", err)
	}
	n.restoring.Lock() // on the active node the caller still waits for the answer
	n.restoring.Unlock()
	if c.IsLeader() {
		if err := c.AwaitMembers(long, restoredTime); err != nil {
			n.log.Warn("leaving the cluster although members have not got the restored state: they have to join it again", "err", err)
		}
		return
	}
	leader, led := c.Leader()
	for now := leader; led && now.ID == leader.ID && !c.IsLeader() && ctx.Err() == nil; now, led = c.Leader() { // it may lead itself by now
		<-time.After(20 * time.Millisecond)
	}
}

// ReadIndex waits until local reads include every write acknowledged before the call. On a standby it asks
// the leader.
func (n *Node) ReadIndex(ctx context.Context) error {
	r := n.running.Load()
	if r == nil {
		return storage.ErrSealed
	}
	_, err := r.cluster.ReadIndex(ctx)
	return err
}
