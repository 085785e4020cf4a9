package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// OpenFitting opens the log and the stable store in dir, which must have the identity, and be those from which a state machine has
// applied entries up to an index and term.
func OpenFitting(dir string, applied, term uint64, identity storage.FileIdentity) (*Log, *Stable, error) {
	l, s, err := open(filepath.Join(dir, FileName), applied == 0, identity)
	if err != nil {
		return nil, nil, err
	}
	s.mark(identity)
	l.checked = createJournal(filepath.Join(dir, JournalName), l.half) == nil // not when an entry waits for it; on a full disk that tries again
	if err := l.fits(applied, term); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, s, nil
}

// fits reports, as an error, that the log cannot be the one from which the state machine has applied entries up to an index
// and term.
func (l *Log) fits(applied, term uint64) error {
	first, last, _ := l.Size()
	switch {
	case last == 0 || applied > last:
		return nil
	case first > applied+1:
		return &storage.CorruptError{File: l.path, Detail: fmt.Sprintf(
			"the log begins at entry %d, but the state machine beside it is at %d: one of them is from elsewhere", first, applied)}
	case first > applied:
		return nil
	}
	var e raft.Log
	if err := l.GetLog(applied, &e); err != nil {
		return err
	}
	if e.Term != term {
		return &storage.CorruptError{File: l.path, Detail: fmt.Sprintf(
			"entry %d of the log is of term %d, but the state machine beside it has applied one of term %d: one of them is from elsewhere", applied, e.Term, term)}
	}
	return nil
}

// identityKey is where the stable store keeps its identity. Versions that do not know it leave it there.
var identityKey = []byte("FileIdentity")

// belongs compares the identity among the values of the stable store with the one it should have.
func belongs(path string, values map[string][]byte, want storage.FileIdentity) error {
	text, ok := values[string(identityKey)]
	if !ok || want.IsZero() {
		return nil
	}
	is, err := storage.DecodeFileIdentity(text)
	if err != nil {
		return &storage.CorruptError{File: path, Detail: "its identity: " + err.Error()}
	}
	if !is.Same(want) {
		return &storage.ForeignError{File: path, Is: is, Want: want}
	}
	return nil
}

// mark stores the identity if there is none, or if the cluster's id differs: a restored snapshot replaces the cluster, not the node's files.
func (s *Stable) mark(want storage.FileIdentity) {
	if text, _ := s.Get(identityKey); !want.IsZero() && !bytes.Equal(text, want.Encode()) {
		_ = s.Set(identityKey, want.Encode()) // on a full disk: the next Open tries again
	}
}

// Identity returns the identity of the Raft log in dir; zero if it has none, is missing or damaged.
func Identity(dir string) storage.FileIdentity {
	found, err := checkLogs(filepath.Join(dir, FileName))
	if err != nil {
		return storage.FileIdentity{}
	}
	is, err := storage.DecodeFileIdentity(found.stable[string(identityKey)])
	if err != nil {
		return storage.FileIdentity{}
	}
	return is
}

// IsUsed reports whether the Raft log in dir has entries or a vote, or is damaged.
func IsUsed(dir string) bool {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	found, err := checkLogs(path)
	return err != nil || found.last != 0 || found.journal.id != 0 || len(found.stable["CurrentTerm"]) > 0
}
