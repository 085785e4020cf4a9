package fsm

import (
	"context"
	"io"

	"github.com/coffer-project/coffer/storage"
)

// SnapshotInfo describes one snapshot stream.
type SnapshotInfo struct {
	Index   storage.Index // of the last entry it contains
	Term    uint64        // of that entry
	Entries uint64        // keys
	Bytes   int64         // of the whole stream
}

// WriteSnapshot writes the current state to w as one self-checking stream.
func (f *FSM) WriteSnapshot(ctx context.Context, w io.Writer) (SnapshotInfo, error) {
	return SnapshotInfo{}, errTODO
}

// VerifySnapshot reads a whole stream, up to the end of r, and reports what it holds. A stream that is
// damaged, truncated or followed by anything is a *storage.CorruptError.
func VerifySnapshot(r io.Reader) (SnapshotInfo, error) { return SnapshotInfo{}, errTODO }

// Quarantine moves the database files (*.db and what was left unfinished) of a data directory into its
// subdirectory name, which the caller chooses (corrupt-<unix nanoseconds>), and returns that directory.
func Quarantine(dir, name string) (string, error) { return "", errTODO }
