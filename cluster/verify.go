package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// VerifyLog checks that the Raft log in dir is whole, has the identity and fits the state machine beside it, so that a
// damaged one is found when the process starts and not when the node is unsealed. The error is Open's: a damaged or
// missing log is a *storage.CorruptError, that of another node a *storage.ForeignError. No Node may run on dir.
func VerifyLog(dir string, machine *fsm.FSM, identity storage.FileIdentity) error {
	l, _, err := openState(Options{Dir: dir, Machine: machine, Identity: identity})
	if err != nil {
		return err
	}
	return l.Close()
}

// identityKey is where the stable store keeps its identity. Versions that do not know it leave it there.
var identityKey = []byte("FileIdentity")

// belongs compares the identity in the store with the one it should have, and stores that if there is none, or if the cluster's id
// differs: a restored snapshot replaces the cluster, not the node's files.
func (s *stable) belongs(want storage.FileIdentity) error {
	if want.IsZero() {
		return nil
	}
	text, err := s.Get(identityKey)
	if err == nil {
		is, err := storage.DecodeFileIdentity(text)
		if err != nil {
			return &storage.CorruptError{File: s.logs.path, Detail: "its identity: " + err.Error()}
		}
		if !is.Same(want) {
			return &storage.ForeignError{File: s.logs.path, Is: is, Want: want}
		}
	}
	if !bytes.Equal(text, want.Encode()) {
		_ = s.Set(identityKey, want.Encode()) // on a full disk: the next Open tries again
	}
	return nil
}

// LogIdentity returns the identity of the Raft log in dir; zero if it has none, is missing or damaged.
func LogIdentity(dir string) storage.FileIdentity {
	found, err := checkLogs(filepath.Join(dir, logFile))
	if err != nil {
		return storage.FileIdentity{}
	}
	is, err := storage.DecodeFileIdentity(found.stable[string(identityKey)])
	if err != nil {
		return storage.FileIdentity{}
	}
	return is
}

// LogIsUsed reports whether the Raft log in dir has entries or a vote, or is damaged.
func LogIsUsed(dir string) bool {
	path := filepath.Join(dir, logFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	found, err := checkLogs(path)
	return err != nil || found.last != 0 || len(found.stable["CurrentTerm"]) > 0
}

// setLogAside moves a log without a state aside: where index and term of its entries match those of the cluster that the node
// joins, they would become part of the state.
func setLogAside(o Options) error {
	if o.Machine.AppliedIndex() != 0 || !LogIsUsed(o.Dir) {
		return nil
	}
	to, err := fsm.SetAside(o.Dir, fmt.Sprintf("unused-%d", time.Now().UnixNano()), logFile)
	if err == nil {
		o.Logger.Warn("this node has no state: the Raft log that was there is moved aside", "moved_to", to)
	}
	return err
}
