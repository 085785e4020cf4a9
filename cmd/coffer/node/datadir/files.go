// Package datadir opens the data directory of a node: its state and its log of changes, both whole and both this node's. Data that is
// damaged or another node's is never served. Start with Open.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/wal"
)

// Files are the open files of a data directory.
type Files struct {
	Machine  *fsm.FSM
	Changes  *wal.Log // for other clusters
	Identity storage.FileIdentity

	lock *os.File // the directory
}

func (f *Files) Close() error {
	return errors.Join(f.Machine.Close(), f.Changes.Close(), f.lock.Close())
}

// Open opens the replicated state and checks that the log is whole and all of it this node's. Damaged data is never
// served: if there are nodes to rejoin it is moved aside and fetched again, otherwise the node does not start.
func Open(c *config.Config, node string, log *slog.Logger) (*Files, error) {
	lock, err := lockDir(c.Storage.Path)
	if err != nil {
		return nil, fmt.Errorf("opening the data in %s: %w", c.Storage.Path, err)
	}
	f, err := open(c, node, log)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	f.lock = lock
	return f, nil
}

// lockDir keeps other processes off the files: to open them is to repair them. Where a directory cannot be locked, the state file still can.
func lockDir(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = boltfile.Lock(d, time.Second)
	if _, other := errors.AsType[syscall.Errno](err); err == nil || other {
		return d, nil
	}
	return nil, errors.Join(err, d.Close())
}

func open(c *config.Config, node string, log *slog.Logger) (*Files, error) {
	s := c.Storage
	if err := setLogsAside(s, log); err != nil {
		return nil, fmt.Errorf("opening the data: %w", err)
	}
	f, err := openFiles(c, node, log)
	if err == nil {
		return f, nil
	}
	var corrupt *storage.CorruptError
	if !errors.As(err, &corrupt) {
		return nil, fmt.Errorf("opening the data: %w", err)
	}
	if len(s.RetryJoin) == 0 {
		return nil, fmt.Errorf("%w\nThe node does not start on damaged data. Either name the cluster's other nodes in retry_join, "+
			"so that it can fetch everything from them, or move %s away, start empty and restore a snapshot", err, s.Path)
	}
	aside, moveErr := fsm.Quarantine(s.Path, fmt.Sprintf("corrupt-%d", time.Now().UnixNano()))
	if moveErr != nil {
		return nil, errors.Join(err, moveErr)
	}
	log.Error("the data is damaged: moved aside, rejoining the cluster without it", "err", err, "moved_to", aside)
	return openFiles(c, node, log)
}

// openFiles opens the state and, beside it, the log of its changes that is kept for other clusters, and checks the Raft log.
func openFiles(c *config.Config, node string, log *slog.Logger) (*Files, error) {
	dir := c.Storage.Path
	identity, err := fileIdentity(dir, node, log)
	if err == nil {
		err = ownChanges(dir, identity, log)
	}
	if err != nil {
		return nil, err
	}
	done := make(chan struct{}) // closed when both files have been checked
	defer close(done)
	go boltfile.ReadAhead(filepath.Join(dir, "raft.db"), done) // while the state is checked
	changes, err := wal.Open(filepath.Join(dir, "wal"), wal.Options{
		MaxBytes: c.Replication.LogBytes, MaxAge: c.Replication.LogAge, CursorKey: replication.CursorKey, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	whole := c.Storage.VerifyAtStart
	if whole == 0 {
		whole = -1
	}
	machine, err := fsm.Open(dir, fsm.Options{Logger: log, Log: changes, Identity: identity, WholeBytes: whole})
	if err != nil {
		return nil, errors.Join(err, changes.Close())
	}
	f := &Files{Machine: machine, Changes: changes, Identity: identity}
	if err := cluster.VerifyLog(dir, machine, identity); err != nil {
		if closing := errors.Join(machine.Close(), changes.Close()); closing != nil {
			return nil, errors.Join(err, closing)
		}
		return nil, err
	}
	return f, nil
}

// setLogsAside moves the logs of a node without a state aside: they belong to no state, and a node that is to join begins
// without them. Without retry_join the Raft log stays, and opening it says that the state is missing.
func setLogsAside(s config.Storage, log *slog.Logger) error {
	if empty, err := fsm.IsEmpty(s.Path); err != nil || !empty {
		return nil //nolint:nilerr // openFiles says what is wrong
	}
	var left []string
	if used, err := changesUsed(s.Path); err != nil {
		return err
	} else if used {
		left = append(left, "wal")
	}
	if len(s.RetryJoin) > 0 && raftlog.IsUsed(s.Path) {
		left = append(left, raftlog.FileName, raftlog.JournalName)
	}
	if len(left) == 0 {
		return nil
	}
	aside, err := fsm.SetAside(s.Path, fmt.Sprintf("unused-%d", time.Now().UnixNano()), left...)
	if err == nil {
		log.Warn("this node has no state: the logs that were there are moved aside", "files", left, "moved_to", aside)
	}
	return err
}

// changesUsed reports whether the log of changes has anything but the identity of the data directory.
func changesUsed(dir string) (bool, error) {
	in, err := os.ReadDir(filepath.Join(dir, "wal"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the log of changes: %w", err)
	}
	if len(in) != 1 {
		return len(in) > 0, nil
	}
	own, err := readIdentity(filepath.Join(dir, fsm.IdentityFile))
	if err != nil {
		return false, err
	}
	is, err := readIdentity(filepath.Join(dir, "wal", fsm.IdentityFile))
	return is.IsZero() || !is.Same(own), err
}

// fileIdentity returns the identity of the data directory: that in its identity file, else the one in the Raft log, else a new
// one. It is zero if a new one cannot be written, for lack of space perhaps: that keeps no node from starting.
func fileIdentity(dir, node string, log *slog.Logger) (storage.FileIdentity, error) {
	path := filepath.Join(dir, fsm.IdentityFile)
	identity, err := readIdentity(path)
	if err != nil {
		return identity, err
	}
	known := !identity.IsZero()
	if !known {
		if identity = raftlog.Identity(dir); identity.IsZero() {
			identity = storage.NewFileIdentity(node)
		}
	}
	if identity.Node != node {
		return identity, fmt.Errorf("the data directory %s belongs to %s, and this node is configured as node %q: give each node its own directory back, "+
			"or set node_id to that of the directory", dir, identity, node)
	}
	if !known {
		if err := writeIdentity(path, identity); err != nil {
			log.Warn("the files of this node are not marked as its own", "err", err)
			return storage.FileIdentity{}, nil
		}
	}
	return identity, nil
}

// readIdentity returns the zero value if there is no such file, and also if it is damaged: the other files have the identity too.
func readIdentity(path string) (storage.FileIdentity, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return storage.FileIdentity{}, nil
	}
	if err != nil {
		return storage.FileIdentity{}, fmt.Errorf("reading the identity of the data: %w", err)
	}
	identity, err := storage.DecodeFileIdentity(text)
	if err != nil {
		return storage.FileIdentity{}, nil
	}
	return identity, nil
}

func writeIdentity(path string, identity storage.FileIdentity) error {
	err := local.WritePrivate(path, func(f *os.File) error {
		_, err := f.Write(identity.Encode())
		return err
	})
	if err == nil {
		err = boltfile.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("writing the identity of the data: %w", err)
	}
	return nil
}

// ownChanges checks the identity of the log of changes. One without an identity gets this one.
func ownChanges(dir string, identity storage.FileIdentity, log *slog.Logger) error {
	changes := filepath.Join(dir, "wal")
	if err := boltfile.MkdirAll(changes); err != nil {
		return err
	}
	path := filepath.Join(changes, fsm.IdentityFile)
	switch is, err := readIdentity(path); {
	case err != nil:
		return err
	case identity.IsZero() || is == identity:
		return nil
	case !is.IsZero() && !is.Same(identity):
		return &storage.ForeignError{File: changes, Is: is, Want: identity}
	}
	if err := writeIdentity(path, identity); err != nil {
		log.Warn("the log of changes is not marked as this node's", "err", err)
	}
	return nil
}

// SetCluster records the cluster's id in the identity file. The other files get it when they are opened next.
func (f *Files) SetCluster(dir string, id lifecycle.Identity) error {
	if f.Identity.IsZero() || f.Identity.Cluster == id.ID {
		return nil
	}
	f.Identity.Cluster = id.ID
	return writeIdentity(filepath.Join(dir, fsm.IdentityFile), f.Identity)
}
