package node

import (
	"os"
	"path/filepath"
	"syscall"
	"unsafe"
)

const prSetName = 15

// A process that has executed itself by its file in /proc would be listed as "exe". The name is the main thread's, on
// which initialisation runs.
func init() {
	if os.Getenv(handoverVar) == "" {
		return
	}
	var name [16]byte // with a zero at the end
	copy(name[:15], filepath.Base(os.Args[0]))
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetName, uintptr(unsafe.Pointer(&name[0])), 0)
}
