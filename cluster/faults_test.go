package cluster

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// disk is a log store's disk that a test can fill up or let hang.
type disk struct {
	mu   sync.Mutex
	err  error
	hang chan struct{} // closed to let go
	left int           // failures still to come; negative: no limit
	hits int
}

func (d *disk) fault() error {
	d.mu.Lock()
	hang, err := d.hang, d.err
	if err != nil || hang != nil {
		d.hits++
	}
	if d.left == 0 {
		err = nil
	} else if err != nil {
		d.left--
	}
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

func (d *disk) fail(err error, times int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.left = err, times
}

func (d *disk) block() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hang = make(chan struct{})
	hang := d.hang
	return sync.OnceFunc(func() {
		d.mu.Lock()
		d.hang = nil
		d.mu.Unlock()
		close(hang)
	})
}

func (d *disk) hit() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hits
}

// threeWithDisks starts three nodes whose disks can fail; the first leads.
func threeWithDisks(t *testing.T, change func(*Options)) ([]*member, map[*member]*disk) {
	disks := map[string]*disk{}
	all := three(t, func(o *Options) {
		d := &disk{}
		disks[string(o.ID)] = d
		o.logFault = d.fault
		change(o)
	})
	of := map[*member]*disk{}
	for _, m := range all {
		of[m] = disks[string(m.opts.ID)]
	}
	return all, of
}

func catchUp(t *testing.T, m, leader *member) {
	t.Helper()
	until(t, string(m.opts.ID)+" to catch up", func() bool {
		_, last, _ := m.logs.Size()
		return last >= leader.raft.Raft().LastIndex() && m.machine.AppliedIndex() >= leader.machine.AppliedIndex()
	})
}

// One failed append on a follower wedges Raft's own pipeline for good.
func TestFollowerThatFailsBrieflyCatchesUp(t *testing.T) {
	t.Parallel()
	all, disks := threeWithDisks(t, func(o *Options) { patient(o); o.stuckAfter = time.Hour }) // without W2's help
	d := disks[all[2]]
	for range 4 {
		hits := d.hit()
		d.fail(errors.New("the disk had a moment"), 3)
		// One write for each look: a load without limit would leave more to catch up with than a busy machine can.
		until(t, "the failures", func() bool { mustCommit(t, all[0], "k", "v"); return d.hit() >= hits+3 })
		for range 50 {
			mustCommit(t, all[0], "k", "v")
		}
		catchUp(t, all[2], all[0]) // or Raft's pauses add up: they double with each failure
	}
	if s := all[0].Stats(); s.PipelineResets != 0 {
		t.Errorf("the pipeline was reset %d times: the test does not test", s.PipelineResets)
	}
}

func TestLeaderWithAHangingDiskIsReplaced(t *testing.T) {
	t.Parallel()
	all, disks := threeWithDisks(t, func(o *Options) { o.stallAfter = 100 * time.Millisecond })
	old := all[0]
	release := disks[old].block()
	defer release()
	go old.Commit(testContext(t), put("k", "hangs")) // its outcome is unknown
	next := leaderOf(t, all[1:])
	mustCommit(t, next, "k2", "goes on")
	until(t, "the old leader to notice", func() bool { return !old.IsLeader() && old.Stats().StallsSeen > 0 })
	if _, err := old.Commit(testContext(t), put("k3", "x")); err == nil {
		t.Error("the leader with the hanging disk still takes writes")
	}
	release()
	until(t, "the old leader to follow", func() bool { return old.raft.Raft().State() == raft.Follower })
	catchUp(t, old, leaderOf(t, all))
}

func TestLeaderWithAFullDiskIsReplaced(t *testing.T) {
	t.Parallel()
	all, disks := threeWithDisks(t, func(o *Options) { o.stuckAfter = time.Hour })
	old := all[0]
	disks[old].fail(syscall.ENOSPC, -1)
	if _, err := old.Commit(testContext(t), put("k", "1")); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("Commit with a full disk = %v, want ErrOutcomeUnknown", err)
	}
	next := leaderOf(t, all[1:])
	mustCommit(t, next, "k", "2")
	disks[old].fail(nil, 0)
	catchUp(t, old, leaderOf(t, all))
}

// W2 cuts the pipeline of a follower that answers but does not move, and then lets another node try.
func TestFollowerThatDoesNotMove(t *testing.T) {
	t.Parallel()
	all, disks := threeWithDisks(t, func(o *Options) { o.stuckAfter = 100 * time.Millisecond })
	stuck := all[2]
	disks[stuck].fail(errors.New("wedged, not by the disk"), -1)
	mustCommit(t, all[0], "k", "1")
	until(t, "the pipeline to be cut", func() bool { return all[0].Stats().PipelineResets > 0 })
	until(t, "the leadership to move", func() bool { return all[1].IsLeader() })
	until(t, "a write at one of the two", func() bool { // it may move on
		for _, m := range all[:2] {
			if _, err := m.Commit(testContext(t), put("k", "2")); err == nil {
				return true
			}
		}
		return false
	})
	disks[stuck].fail(nil, 0)
	catchUp(t, stuck, leaderOf(t, all[:2]))
}

// transferFlag reaches into Raft: the flag gets stuck by a race that cannot be had on demand.
func transferFlag(r *raft.Raft) *int32 {
	f := reflect.ValueOf(r).Elem().FieldByName("leaderState").FieldByName("leadershipTransferInProgress")
	return (*int32)(unsafe.Pointer(f.UnsafeAddr()))
}

func TestTransferThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	m := single(t)
	mustCommit(t, m, "k", "1")
	atomic.StoreInt32(transferFlag(m.raft.Raft()), 1)
	until(t, "writes again", func() bool {
		_, err := m.Commit(testContext(t), put("k", "2"))
		return err == nil
	})
	if m.Stats().RaftRestarts == 0 {
		t.Error("Raft was not restarted: the test does not test")
	}
	if m.value("k") != "2" {
		t.Errorf("k = %q", m.value("k"))
	}
}

// Raft truncates a conflicting tail first and appends then. If that fails it still believes in the old end.
func TestLogThatLostItsTail(t *testing.T) {
	t.Parallel()
	all := three(t)
	c := all[2]
	mustCommit(t, all[0], "k", "1")
	catchUp(t, c, all[0])
	_, last, _ := c.logs.Size()
	if err := c.logs.Truncate(last); err != nil {
		t.Fatal(err)
	}
	until(t, "Raft to be restarted", func() bool { return c.Stats().RaftRestarts > 0 })
	mustCommit(t, all[0], "k", "2")
	catchUp(t, c, all[0])
}
