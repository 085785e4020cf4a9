//go:build amd64 || arm64

package boltfile

import (
	"os"
	"syscall"
)

// cacheBytes is how much of a file may be in memory ahead of its use.
func cacheBytes() int64 {
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit) / 2
}

// ask has the system read a part of a file, and does not wait for it. It reports whether asking again makes sense.
func ask(f *os.File, off, n int64) bool {
	const willNeed = 3
	_, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), uintptr(off), uintptr(n), willNeed, 0, 0)
	return errno == 0
}
