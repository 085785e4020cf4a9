package cluster

import "github.com/coffer-project/coffer/storage/fsm"

// VerifyLog checks that the Raft log in dir is whole and fits the state machine beside it, so that a damaged
// one is found when the process starts and not when the node is unsealed. The error is Open's: a damaged or
// missing log is a *storage.CorruptError. No Node may run on dir.
func VerifyLog(dir string, machine *fsm.FSM) error {
	l, _, err := openState(Options{Dir: dir, Machine: machine})
	if err != nil {
		return err
	}
	return l.Close()
}
