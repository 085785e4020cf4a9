package consensus

import (
	"context"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// HoldWrites keeps writes away from Raft until release is called, and waits for those that it has. Raft itself
// would apply what is waiting for it to the restored state.
func (n *Runner) HoldWrites(ctx context.Context) (release func(), err error) {
	idle, ok := n.queue.hold()
	if !ok {
		return nil, fmt.Errorf("%w: another snapshot is being restored", storage.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	select {
	case <-idle:
		return n.queue.release, nil
	case <-ctx.Done():
		n.queue.release()
		return nil, fmt.Errorf("%w: waiting for the writes under way: %w", storage.ErrUnavailable, ctx.Err())
	}
}

// Restore replaces the state of the whole cluster by a verified snapshot, on the leader. Writes are held meanwhile.
func (n *Runner) Restore(info fsm.SnapshotInfo, f io.Reader) (err error) {
	i := n.instance.Load()
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: uint64(info.Index), Term: info.Term, Size: info.Bytes}
	n.log.Warn("restoring a snapshot", "index", uint64(info.Index))
	answer := make(chan error, 1)
	go func() { answer <- i.raft.Restore(meta, f, memberTimeout) }()
	select {
	case err = <-answer:
	case <-i.ended:
		err = raft.ErrRaftShutdown
	}
	if err != nil {
		return fmt.Errorf("restoring: %w", commitError(err))
	}
	// Raft ends with a no-op, which read indexes must not point at: see takeOver.
	if err := n.applyEmpty(i); err != nil {
		return fmt.Errorf("after restoring: %w", commitError(err))
	}
	return nil
}
