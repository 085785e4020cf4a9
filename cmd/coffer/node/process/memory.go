package process

import (
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// LimitMemory tells the garbage collector how much memory the process may have: nine tenths of the limit of its cgroup,
// unless GOMEMLIMIT says something else. It returns the limit, 0 if there is none.
func LimitMemory(log *slog.Logger) int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		return ownLimit(debug.SetMemoryLimit(-1)) // the runtime has read it
	}
	limit := cgroupMemory("/")
	if limit == 0 {
		return 0
	}
	limit -= limit / 10
	debug.SetMemoryLimit(limit)
	log.Info("the memory limit of the cgroup is followed", "limit_bytes", limit)
	return limit
}

// ownLimit returns 0 for what is no limit.
func ownLimit(bytes int64) int64 {
	if bytes <= 0 || bytes >= 1<<60 {
		return 0
	}
	return bytes
}

// cgroupMemory returns the memory limit of the process's cgroup or of one above it, whichever is lowest; 0 if there is
// none. It knows versions 1 and 2. root is "/", but in tests.
func cgroupMemory(root string) int64 {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	lowest := int64(0)
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		dir, file := "sys/fs/cgroup", "memory.max"
		if controllers != "" {
			if !slices.Contains(strings.Split(controllers, ","), "memory") {
				continue
			}
			dir, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container the group may be named as outside of it, while the root of what is mounted is the container's.
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			if limit := readLimit(filepath.Join(root, dir, group, file)); limit > 0 && (lowest == 0 || limit < lowest) {
				lowest = limit
			}
			if group == "/" {
				break
			}
		}
	}
	return lowest
}

func readLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return ownLimit(limit)
}
