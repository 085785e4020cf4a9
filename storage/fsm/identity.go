package fsm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
)

// IdentityFile is the file in a data directory with its identity in full: a storage.FileIdentity.
const IdentityFile = "identity"

// foreign names the node that a state file belongs to, if it is one of the members that the file knows.
func (f *FSM) foreign(err error) error {
	mark, ok := errors.AsType[*boltstore.MarkError](err)
	if !ok {
		return err
	}
	is := storage.FileIdentity{Incarnation: fmt.Sprintf("%016x", mark.Incarnation)}
	if m, err := newMeta(stateID, mark.Position, 0); err == nil {
		for _, s := range m.Configuration.Servers {
			if storage.NodeMark(string(s.ID)) == mark.Node {
				is.Node = string(s.ID)
			}
		}
	}
	if storage.NodeMark(f.owner.Node) == mark.Node {
		is.Node = f.owner.Node
	}
	return &storage.ForeignError{File: f.path(), Is: is, Want: f.owner}
}

// emptyBytes is more than an empty state file has.
const emptyBytes = 64 << 10

// IsEmpty reports whether no entry has been applied to the state in dir, or there is none. No FSM may be open on it.
func IsEmpty(dir string) (bool, error) {
	info, err := os.Stat(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil || info.Size() > emptyBytes {
		return false, err
	}
	f, err := Open(dir, Options{})
	if err != nil {
		return false, err
	}
	empty := f.AppliedIndex() == 0
	return empty, f.Close()
}
