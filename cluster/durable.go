package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// A committed entry is in the logs of a majority. A sealed node cannot read its log: all it knows is its state file, into
// which the state machine folds what was applied a moment later. What such a node needs to unseal is acknowledged only
// once a majority has it there.

// durablePoll is how often the leader compares what the others have reported.
const durablePoll = 5 * time.Millisecond

// AwaitDurable waits, on the leader, until the state files of a majority of voters, this node's among them, have
// everything up to index, as far as they report it: nodes of earlier versions do not. When ctx ends first, the error
// names the voters that have not reported.
func (n *Node) AwaitDurable(ctx context.Context, index storage.Index) error {
	flushed := make(chan error, 1) // a disk may hang for longer than ctx
	go func() { flushed <- n.opts.Machine.Flush() }()
	select {
	case err := <-flushed:
		if err != nil {
			return fmt.Errorf("making the state file durable: %w", err)
		}
	case <-ctx.Done():
		return fmt.Errorf("making the state file durable: %w", ctx.Err())
	}
	tick := time.NewTicker(durablePoll)
	defer tick.Stop()
	for {
		missing, enough := n.unconfirmed(index)
		if enough {
			return nil
		}
		if err := n.raft.MustLead(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the state files of a majority: %s: %w", strings.Join(missing, ", "), ctx.Err())
		}
	}
}

// AwaitMembers is consensus.Runner.AwaitAcked for the members that the leader is in contact with, however far behind they are: a restored snapshot may have
// put them there.
func (n *Node) AwaitMembers(ctx context.Context, patience time.Duration) error {
	return n.raft.AwaitAcked(ctx, patience, n.health.InContact)
}

// unconfirmed returns the voters whose state files do not have everything up to index, and whether the others are a majority.
func (n *Node) unconfirmed(index storage.Index) (missing []string, enough bool) {
	voters := slices.DeleteFunc(n.raft.Servers(), func(s raft.Server) bool { return s.Suffrage != raft.Voter })
	for _, s := range voters {
		durable := n.health.Info(NodeID(s.ID)).Durable
		if NodeID(s.ID) == n.opts.ID {
			durable = n.opts.Machine.DurableIndex()
		}
		if durable < index {
			missing = append(missing, string(s.ID))
		}
	}
	return missing, len(voters)-len(missing) > len(voters)/2
}

// FoldNow makes what this node has applied durable in its state file soon, and reports that to the leader. It does not wait.
func (n *Node) FoldNow() {
	select {
	case n.fold <- struct{}{}:
	default:
	}
}

// foldLoop does what FoldNow asks for.
func (n *Node) foldLoop() {
	for {
		select {
		case <-n.fold:
		case <-n.ctx.Done():
			return
		}
		if err := n.opts.Machine.Flush(); err != nil {
			n.log.Warn("the state file cannot be made durable", "err", err)
			continue
		}
		if !n.IsLeader() {
			n.report()
		}
	}
}
