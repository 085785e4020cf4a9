package diagnose

import (
	"context"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	filesFew = 1024
	filesLow = 8192
	// clockUnsynchronised is what adjtimex(2) returns while nothing keeps the clock right.
	clockUnsynchronised = 5
)

// builtAfter is a time that every clock must be past.
var builtAfter = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func diagnoseHost(_ context.Context, d *diagnosis) {
	var files, cores syscall.Rlimit
	switch err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); {
	case err != nil:
		d.add("open files", checkSkip, "%v", err)
	case files.Cur < filesFew:
		d.fail("open files", "the limit is %d: every connection needs one; set LimitNOFILE=65536", files.Cur)
	case files.Cur < filesLow:
		d.warn("open files", "the limit is %d; set LimitNOFILE=65536", files.Cur)
	default:
		d.ok("open files", "the limit is %d", files.Cur)
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &cores); err == nil && cores.Cur != 0 {
		d.warn("core dumps", "are allowed: one would hold the keys; set LimitCORE=0")
	} else if err == nil {
		d.ok("core dumps", "are turned off")
	}
	d.swap()
	d.clock()
}

// swap warns if memory, and so keys, may be written to a disk.
func (d *diagnosis) swap() {
	text, err := os.ReadFile("/proc/swaps")
	switch {
	case err != nil:
		d.add("swap", checkSkip, "%v", err)
	case strings.Count(string(text), "\n") > 1:
		d.warn("swap", "is on: keys in memory may reach the disk; turn it off, or encrypt it")
	default:
		d.ok("swap", "is off")
	}
}

func (d *diagnosis) clock() {
	now := time.Now()
	if now.Before(builtAfter) {
		d.fail("clock", "it is %s on this machine", now.UTC().Format(time.DateOnly))
		return
	}
	state, err := syscall.Adjtimex(&syscall.Timex{})
	switch {
	case err != nil:
		d.add("clock", checkSkip, "the kernel does not tell whether it is kept right: %v", err)
	case state == clockUnsynchronised:
		d.warn("clock", "nothing keeps it right: run chrony or another NTP client")
	default:
		d.ok("clock", "is kept right by the network")
	}
}

// diskSpace returns how much an ordinary user may still write, and the size of the file system.
func diskSpace(path string) (free, total int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil //nolint:gosec // no disk is that large
}
