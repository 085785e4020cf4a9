package consensus

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
)

// ackedPoll is how often the leader checks what the members have acknowledged.
const ackedPoll = 5 * time.Millisecond

// AwaitAcked waits, on the leader, until all members that count have acknowledged the log as it is now. It waits for patience, and longer while a snapshot
// is on its way to one that has not. When patience or ctx ends, the error names those that have not.
func (n *Runner) AwaitAcked(ctx context.Context, patience time.Duration, counts func(certs.NodeID) bool) error {
	index := n.Raft().LastIndex()
	var wanted []raft.ServerID
	for _, s := range n.Servers() {
		if id := certs.NodeID(s.ID); id != n.opts.ID && counts(id) {
			wanted = append(wanted, s.ID)
		}
	}
	patient := time.Now().Add(patience)
	tick := time.NewTicker(ackedPoll)
	defer tick.Stop()
	for {
		if err := n.MustLead(); err != nil {
			return err
		}
		var missing []string
		installing := false
		t := n.Transport()
		for _, id := range wanted {
			if t.Acked.At(id, n.Raft().CurrentTerm()) < index {
				missing = append(missing, string(id))
				installing = installing || t.IsInstalling(id)
			}
		}
		switch {
		case len(missing) == 0:
			return nil
		case ctx.Err() != nil || time.Now().After(patient) && !installing:
			return fmt.Errorf("waiting for members to have what the leader has: %s: %w", strings.Join(missing, ", "), cmp.Or(ctx.Err(), context.DeadlineExceeded))
		}
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return n.ctx.Err()
		}
	}
}
