package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/storage/fsm"
)

// roles tells who waits that IsLeader or Leader may have changed.
type roles struct {
	public chan struct{} // capacity 1, level-triggered; never closed

	mu  sync.Mutex
	era context.Context // ends, and is replaced, at every change
	end context.CancelFunc
}

func (r *roles) init() {
	r.public = make(chan struct{}, 1)
	r.era, r.end = context.WithCancel(context.Background())
}

// Signal says that a role has changed, or may have.
func (r *roles) Signal() {
	r.mu.Lock()
	r.end()
	r.era, r.end = context.WithCancel(context.Background())
	r.mu.Unlock()
	r.Announce()
}

// Announce signals LeaderChanges only.
func (r *roles) Announce() {
	select {
	case r.public <- struct{}{}:
	default:
	}
}

// Next is closed at the next change. Get it before looking at the state.
func (r *roles) Next() <-chan struct{} { return r.current().Done() }

func (r *roles) current() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.era
}

// Limit calls cancel at the next change, and after timeout at the latest: a leader that is silent keeps nothing waiting. stop
// ends that, and reports whether it came in time.
func (r *roles) Limit(timeout time.Duration, cancel context.CancelFunc) (stop func() bool) {
	timer := time.AfterFunc(timeout, cancel)
	change := context.AfterFunc(r.current(), cancel)
	return func() bool {
		late := !timer.Stop()
		return change() && !late
	}
}

// IsLeader reports whether this node leads and has applied everything earlier leaders committed. It can be
// wrong for as long as a lost leader does not know: ReadIndex is the proof.
func (n *Runner) IsLeader() bool {
	_, ok := n.Leads()
	return ok
}

// Leads returns the term this node leads in, if it does.
func (n *Runner) Leads() (term uint64, ok bool) {
	r := n.instance.Load().raft
	term = n.leaderTerm.Load()
	return term, term != 0 && r.State() == raft.Leader && r.CurrentTerm() == term &&
		!n.Broken.Load() && n.logs.StalledFor() <= n.opts.StallAfter
}

// LeaderChanges signals, level-triggered with capacity 1, that IsLeader or Leader may have changed. The
// channel is never closed and has one consumer.
func (n *Runner) LeaderChanges() <-chan struct{} { return n.Roles.public }

// State returns Raft's word for the node's role: "Leader", "Follower", "Candidate" or "Shutdown".
func (n *Runner) State() string { return n.Raft().State().String() }

// follow watches one run of Raft for changes of leadership.
func (n *Runner) follow(i *instance) {
	seen := make(chan raft.Observation, 16) // a lost one is made up for by LeaderCh, or by the next
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	i.raft.RegisterObserver(observer)
	defer i.raft.DeregisterObserver(observer)
	for {
		select {
		case leader := <-i.raft.LeaderCh():
			if leader {
				n.takeOver(i)
			} else if led := n.leaderTerm.Swap(0); led != 0 {
				n.log.Info("no longer leader", "node", string(n.opts.ID), "term", i.raft.CurrentTerm(), "reason", n.whyLost(i, led))
			}
			n.Roles.Signal()
		case <-seen:
			n.Roles.Signal()
		case <-i.stop:
			return
		}
	}
}

// whyLost says why this node leads no more, as far as it can be seen from here.
func (n *Runner) whyLost(i *instance, led uint64) string {
	stalled := n.logs.StalledFor()
	switch {
	case i.raft.State() == raft.Shutdown:
		return "Raft has ended on this node"
	case stalled > n.opts.StallAfter:
		return fmt.Sprintf("the disk has not finished a write of the Raft log for %s", stalled.Round(time.Millisecond))
	case n.handedOver.Load():
		return "leadership was handed over to another node"
	case i.raft.CurrentTerm() > led:
		return "another node was elected, or stands for election, in a newer term"
	case !slices.ContainsFunc(n.Servers(), func(s raft.Server) bool {
		return certs.NodeID(s.ID) == n.opts.ID && s.Suffrage == raft.Voter
	}):
		return "this node has no vote any more"
	}
	return fmt.Sprintf("no majority of the voters has answered for %s, or one of them has a newer term", n.opts.LeaderLeaseTimeout)
}

// takeOver ends when this node has applied an entry of its own term, and with it all that was committed
// before, or is no longer leader. The entry is an empty command, not one of Raft's barriers, because the
// state machine never sees those: a read index would wait for it for ever.
func (n *Runner) takeOver(i *instance) {
	for i.raft.State() == raft.Leader {
		term := i.raft.CurrentTerm()
		err := n.applyEmpty(i)
		if err == nil && i.raft.State() == raft.Leader && i.raft.CurrentTerm() == term {
			n.elections.Add(1)
			n.handedOver.Store(false)
			n.leaderTerm.Store(term)
			n.opts.Members.Lead()
			n.log.Info("now leader", "node", string(n.opts.ID), "term", term)
			return
		}
		if err != nil {
			n.log.Info("cannot take over yet", "node", string(n.opts.ID), "term", term, "err", err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-i.stop:
			return
		}
	}
}

func (n *Runner) applyEmpty(i *instance) error {
	command, err := fsm.EncodeCommand(time.Now().UnixMilli(), nil)
	if err != nil {
		return err
	}
	future := i.raft.Apply(command, proposeTimeout)
	if err := i.await(future); err != nil {
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			n.transferSeen()
		}
		return err
	}
	if err, ok := future.Response().(error); ok {
		return err
	}
	n.transferSince.Store(0)
	return nil
}
