//go:build linux || darwin || freebsd

package process

import (
	"errors"
	"syscall"
)

// fileSystem describes the file system that a path is on, in bytes.
func fileSystem(path string) (map[string]any, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return nil, errors.New("a file system does not answer: " + err.Error())
	}
	block := uint64(s.Bsize) //nolint:gosec,unconvert // never negative; its type differs between systems
	total, free, available := uint64(s.Blocks)*block, uint64(s.Bfree)*block, uint64(s.Bavail)*block
	inodes, inodesFree := uint64(s.Files), uint64(s.Ffree)
	out := map[string]any{
		"total": total, "free": available, "used": total - free, "usedPercent": 0.0,
		"inodesTotal": inodes, "inodesFree": inodesFree, "inodesUsed": inodes - inodesFree, "inodesUsedPercent": 0.0,
	}
	if total > 0 {
		out["usedPercent"] = 100 * float64(total-free) / float64(total)
	}
	if inodes > 0 {
		out["inodesUsedPercent"] = 100 * float64(inodes-inodesFree) / float64(inodes)
	}
	return out, nil
}
