package process

import (
	"os"
	"syscall"
)

const prSetDumpable = 4

// Protect keeps the memory of a server from debuggers and core dumps.
func Protect() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return noCoreDumps()
}
