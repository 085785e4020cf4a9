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
)

func TestFreshness(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	var f freshness
	check := func(what string, want time.Time) {
		t.Helper()
		if !f.asOf.Equal(want) {
			t.Errorf("%s: as of %v, want %v", what, f.asOf.Sub(start), want.Sub(start))
		}
	}
	f.note(at(0), 7, 5)
	check("before anything is applied", time.Time{})
	f.note(at(1), 8, 5)
	f.note(at(2), 9, 7)
	check("the first moment is reached", at(0))
	f.settle(8)
	check("the second is", at(1))
	f.note(at(3), 9, 9)
	check("in step", at(3))
	f.note(at(4), 9, 9)
	check("in step while nothing is written", at(4))
	for i := 5; i < 60; i++ {
		f.note(at(i), 10, 9)
	}
	check("stuck", at(4))
	if len(f.pending) > 12 {
		t.Errorf("%d moments are kept", len(f.pending))
	}
	f.settle(10)
	if f.asOf.Before(at(49)) {
		t.Errorf("after catching up: as of %v", f.asOf.Sub(start))
	}
}

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
		{"full disk", syscall.ENOSPC, DiskFailing},
		{"read-only disk", syscall.EROFS, DiskFailing},
		{"wedged", errors.New("for no reason known"), DiskOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log logText
			all, disks := threeWithDisks(t, func(o *Options) {
				o.currentFor, o.stuckAfter = 1500*time.Millisecond, 400*time.Millisecond
				if tt.disk == DiskOK {
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
			if tt.disk == DiskFailing && log.count("handing leadership over") > 0 {
				t.Error("the leadership was handed over")
			}
			until(t, "the log to say so", func() bool { return log.count("this node has not applied what the leader had") > 0 })
			if tt.disk == DiskFailing && (log.count("the disk takes no writes") != 1 || log.count(tt.fault.Error()) == 0 || log.count("level=ERROR") == 0) {
				t.Errorf("the log does not say once what is wrong:\n%s", &log.b)
			}
			disks[stuck].fail(nil, 0)
			until(t, "the follower to be current again", stuck.Current)
			until(t, "the leader to know", func() bool { return seen().Healthy && seen().Disk == DiskOK })
		})
	}
}

// A leader without room on its disk hands over to a node that has room, if there is one.
func TestLeaderWithoutRoomHandsOver(t *testing.T) {
	t.Parallel()
	room := map[NodeID]*atomic.Uint32{}
	all := three(t, func(o *Options) {
		state := &atomic.Uint32{}
		room[o.ID] = state
		o.Disk = func() Disk { return Disk(state.Load()) }
	})
	old := all[0]
	until(t, "the others to be healthy", func() bool {
		nodes := old.Nodes()
		return nodes[1].Healthy && nodes[2].Healthy
	})
	room["b"].Store(uint32(DiskFull))
	until(t, "the leader to know", func() bool { return old.Nodes()[1].Disk == DiskFull })
	if !old.IsLeader() || !old.Roomier() {
		t.Error("a follower without room moved the leadership, or the other one is not known to have room")
	}
	room["a"].Store(uint32(DiskFull))
	until(t, "the leadership to be where there is room", all[2].IsLeader)
	room["c"].Store(uint32(DiskFull))
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
