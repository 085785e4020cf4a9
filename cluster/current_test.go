package cluster

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cluster/health"
)

// logText is a log that a test reads while it is written.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// A follower that cannot store what it receives is not current after a while, and says so at both ends. Its disk is no reason
// to move the leadership.
func TestStuckFollowerIsNotCurrent(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault error
		disk  Disk
	}{
		{"full disk", syscall.ENOSPC, health.DiskFailing},
		{"read-only disk", syscall.EROFS, health.DiskFailing},
		{"wedged", errors.New("for no reason known"), health.DiskOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log logText
			all, disks := threeWithDisks(t, func(o *Options) {
				o.currentFor, o.stuckAfter = 1500*time.Millisecond, 400*time.Millisecond
				if tt.disk == health.DiskOK {
					o.stuckAfter = time.Hour
				}
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			leader, stuck := all[0], all[2]
			seen := func() NodeInfo {
				for _, info := range leader.Nodes() {
					if info.ID == stuck.opts.ID {
						return info
					}
				}
				return NodeInfo{}
			}
			until(t, "all to be current and healthy", func() bool { return leader.Current() && stuck.Current() && seen().Healthy })
			disks[stuck].fail(tt.fault, -1)
			mustCommit(t, leader, "k", "v")
			until(t, "the follower not to be current", func() bool { return !stuck.Current() })
			until(t, "the leader to know", func() bool {
				info := seen()
				return !info.Healthy && info.Disk == tt.disk && info.Behind >= stuck.Node.opts.currentFor
			})
			if tt.disk == health.DiskFailing && log.count("handing leadership over") > 0 {
				t.Error("the leadership was handed over")
			}
			until(t, "the log to say so", func() bool { return log.count("this node has not applied what the leader had") > 0 })
			if tt.disk == health.DiskFailing && (log.count("the disk takes no writes") != 1 || log.count(tt.fault.Error()) == 0 || log.count("level=ERROR") == 0) {
				t.Errorf("the log does not say once what is wrong:\n%s", &log.b)
			}
			disks[stuck].fail(nil, 0)
			until(t, "the follower to be current again", stuck.Current)
			until(t, "the leader to know", func() bool { return seen().Healthy && seen().Disk == health.DiskOK })
		})
	}
}

// roomOf is the Space of a node.
type roomOf struct{ atomic.Uint32 }

func (r *roomOf) Disk() Disk { return Disk(r.Load()) }

// A leader without room on its disk hands over to a node that has room, if there is one.
func TestLeaderWithoutRoomHandsOver(t *testing.T) {
	t.Parallel()
	room := map[NodeID]*roomOf{}
	all := three(t, patient, func(o *Options) {
		state := &roomOf{}
		room[o.ID] = state
		o.Space = state
	})
	old := all[0]
	until(t, "the others to be healthy", func() bool {
		nodes := old.Nodes()
		return nodes[1].Healthy && nodes[2].Healthy
	})
	room["b"].Store(uint32(health.DiskFull))
	until(t, "the leader to know", func() bool { return old.Nodes()[1].Disk == health.DiskFull })
	if !old.IsLeader() || !old.Roomier() {
		t.Error("a follower without room moved the leadership, or the other one is not known to have room")
	}
	room["a"].Store(uint32(health.DiskFull))
	until(t, "the leadership to be where there is room", all[2].IsLeader)
	room["c"].Store(uint32(health.DiskFull))
	until(t, "it to know that there is room nowhere", func() bool { return all[2].IsLeader() && !all[2].Roomier() })
	mustCommit(t, all[2], "k", "v") // what may be written is not decided here
}

// A follower whose disk hangs is not current once the leader has more.
func TestStalledFollowerIsNotCurrent(t *testing.T) {
	t.Parallel()
	all, disks := threeWithDisks(t, func(o *Options) { o.currentFor, o.stallAfter = time.Second, 100*time.Millisecond })
	stuck := all[1]
	until(t, "it to be current", stuck.Current)
	release := disks[stuck].block()
	defer release()
	mustCommit(t, all[0], "k", "v")
	until(t, "it not to be current", func() bool { return !stuck.Current() })
	if err := stuck.DiskFault(); err == nil {
		t.Error("its disk has no fault")
	}
	release()
	until(t, "it to be current again", stuck.Current)
}

// A follower without a majority around it is not current after a while.
func TestCutOffFollowerIsNotCurrent(t *testing.T) {
	t.Parallel()
	all := three(t, func(o *Options) { o.currentFor = time.Second })
	last := all[2]
	until(t, "it to be current", last.Current)
	all[0].kill()
	all[1].kill()
	until(t, "it not to be current", func() bool { return !last.Current() })
}
