package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coffer-project/coffer/cluster/raftlog"
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

// setLogAside moves a log without a state aside: where index and term of its entries match those of the cluster that the node
// joins, they would become part of the state.
func setLogAside(o Options) error {
	if o.Machine.AppliedIndex() != 0 || !raftlog.IsUsed(o.Dir) {
		return nil
	}
	to, err := fsm.SetAside(o.Dir, fmt.Sprintf("unused-%d", time.Now().UnixNano()), raftlog.FileName, raftlog.JournalName)
	if err == nil {
		o.Logger.Warn("this node has no state: the Raft log that was there is moved aside", "moved_to", to)
	}
	return err
}

// openState opens the log and checks that it fits the state machine.
func openState(o Options) (*raftlog.Log, *raftlog.Stable, error) {
	if left, err := filepath.Glob(filepath.Join(o.Dir, restorePattern)); err == nil {
		for _, name := range left {
			os.Remove(name) // of a restore that was cut short; harmless if it stays
		}
	}
	return raftlog.OpenFitting(o.Dir, uint64(o.Machine.AppliedIndex()), o.Machine.LastTerm(), o.Identity)
}
