package boltfile

import "syscall"

// Unmap gives what is in memory of a mapped file back to the system, which keeps it in its cache: reading it again takes a moment longer.
func Unmap(data []byte) error { return syscall.Madvise(data, syscall.MADV_DONTNEED) }
