package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/storage"
)

// memberTimeout bounds one change of the configuration, when the context does not.
const memberTimeout = 30 * time.Second

// Servers returns the members in Raft's latest configuration, sorted by id.
func (n *Runner) Servers() []raft.Server {
	servers := slices.Clone(n.Raft().GetConfiguration().Configuration().Servers)
	slices.SortFunc(servers, func(a, b raft.Server) int { return cmp.Compare(a.ID, b.ID) })
	return servers
}

// OtherVoters counts the voters beside this node.
func (n *Runner) OtherVoters() int {
	voters := 0
	for _, s := range n.Servers() {
		if s.Suffrage == raft.Voter && certs.NodeID(s.ID) != n.opts.ID {
			voters++
		}
	}
	return voters
}

// IsMember reports whether the node is in Raft's latest configuration, as this node knows it.
func (n *Runner) IsMember(id certs.NodeID) bool {
	return slices.ContainsFunc(n.Raft().GetConfiguration().Configuration().Servers, func(s raft.Server) bool { return certs.NodeID(s.ID) == id })
}

// Change runs one change of the configuration. If the context ends first the change may still happen.
func (n *Runner) Change(ctx context.Context, do func(*raft.Raft, time.Duration) raft.Future) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	i := n.instance.Load()
	answer := make(chan error, 1)
	go func() { answer <- i.await(do(i.raft, memberTimeout)) }()
	select {
	case err := <-answer:
		if err != nil {
			return commitError(err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", storage.ErrOutcomeUnknown, ctx.Err())
	}
}

// TransferLeadership hands leadership to the voter that is furthest ahead, or to another one if that does not take it.
// storage.ErrUnavailable: there is none, or none took it.
func (n *Runner) TransferLeadership(ctx context.Context) error {
	i := n.instance.Load()
	switch {
	case i.raft.State() != raft.Leader:
		return storage.ErrReadOnly
	case n.OtherVoters() == 0:
		return fmt.Errorf("%w: there is no other voter", storage.ErrUnavailable)
	}
	answer := make(chan error, 1)
	go func() { answer <- n.transfer(ctx, i) }()
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, ctx.Err())
	}
}

// transfer tries the voter of Raft's choice, then each of the others. One that is silent costs an election timeout, one that
// was restarted a connection that turns out to be dead.
func (n *Runner) transfer(ctx context.Context, i *instance) error {
	n.handedOver.Store(true)
	err := i.await(i.raft.LeadershipTransfer())
	for _, s := range n.Servers() {
		for err != nil && s.Suffrage == raft.Voter && certs.NodeID(s.ID) != n.opts.ID && i.raft.State() == raft.Leader && ctx.Err() == nil {
			n.log.Info("a voter did not take over: trying", "node", string(s.ID), "err", err)
			err = i.await(i.raft.LeadershipTransferToServer(s.ID, s.Address))
			if !errors.Is(err, raft.ErrLeadershipTransferInProgress) || !n.pause(10*time.Millisecond) {
				break // else the try before has not ended yet
			}
		}
	}
	if i.raft.State() != raft.Leader {
		return nil
	}
	return err
}

// HandOver hands leadership to another voter, if this node leads and there is one. It does nothing while another call is at it.
func (n *Runner) HandOver(why string) {
	if n.Raft().State() != raft.Leader || n.OtherVoters() == 0 || !n.handing.TryLock() {
		return
	}
	defer n.handing.Unlock()
	n.log.Warn("handing leadership over", "reason", why)
	ctx, cancel := context.WithTimeout(n.ctx, 2*n.opts.ElectionTimeout)
	defer cancel()
	if err := n.TransferLeadership(ctx); err != nil {
		n.log.Warn("handing leadership over failed", "err", err)
	}
}
