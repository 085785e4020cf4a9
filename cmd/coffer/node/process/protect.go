package process

import (
	"os"
	"syscall"
)

// noCoreDumps sets the limit of core dumps to none, for good.
func noCoreDumps() error {
	return os.NewSyscallError("setrlimit", syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}))
}
