package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// restorePattern names the files in which a snapshot waits until it is verified.
const restorePattern = "restore-*.tmp"

// RestoreSnapshot replaces the state of the whole cluster by a stream of fsm.FSM.WriteSnapshot, on the
// leader. The stream is verified before anything changes: a bad one is a *storage.CorruptError, one in formats that a member does
// not read a RejectedError. No write is
// carried over into the new state, for which it was not meant: those that Raft has are waited for, those that wait for
// it, or come meanwhile, end with storage.ErrUnavailable. Other nodes get the state from the leader.
func (n *Node) RestoreSnapshot(ctx context.Context, state io.Reader) error {
	if err := n.raft.MustLead(); err != nil {
		return err
	}
	// Raft reads the stream on its main goroutine: it must not wait for a client's network.
	f, err := os.CreateTemp(n.opts.Dir, restorePattern)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	info, formats, err := spool(ctx, f, state)
	if err == nil {
		err = n.canRestore(formats)
	}
	if err != nil {
		return err
	}
	release, err := n.raft.HoldWrites(ctx)
	if err != nil {
		return err
	}
	defer release()
	n.states.SetRestoring(true)
	defer n.states.SetRestoring(false)
	return n.raft.Restore(info, f)
}

// spool copies the stream to f, and leaves f at its beginning once it is known to be good. formats is the generation of the state.
func spool(ctx context.Context, f *os.File, state io.Reader) (info fsm.SnapshotInfo, formats uint32, err error) {
	if _, err := io.Copy(f, contextReader{ctx, state}); err != nil {
		return info, 0, fmt.Errorf("reading the snapshot: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return info, 0, err
	}
	info, text, err := fsm.VerifySnapshot(f, formatsKey)
	if err == nil {
		formats, err = parseFormats(text)
	}
	if c, ok := errors.AsType[*storage.CorruptError](err); ok {
		err = &storage.CorruptError{File: "snapshot", Detail: c.Detail}
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return info, formats, err
}

// contextReader stops reading when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
