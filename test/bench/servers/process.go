package servers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// cpuTime returns the processor time that a process has used.
func cpuTime(s *run.Scope, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	s.Check(err)
	_, rest, _ := strings.Cut(string(text), ") ") // the name may contain anything
	var ticks int64
	for _, field := range strings.Fields(rest)[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		s.Check(err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// residentMiB returns the resident memory of a process.
func residentMiB(s *run.Scope, pid int) float64 {
	size, err := run.StatusMiB(strconv.Itoa(pid), "VmRSS:")
	s.Check(err)
	return size
}

// ownMiB is a node's resident memory without mapped files.
func ownMiB(s *run.Scope, n *harness.Node) float64 {
	size, err := run.StatusMiB(strconv.Itoa(n.PID()), "RssAnon:")
	s.Check(err)
	return size
}

// heapMiB is what of a node's memory is in use after a garbage collection.
func heapMiB(s *run.Scope, n *harness.Node) float64 {
	return run.HeapBytes(s, n.MustDo("GET", "/v1/sys/pprof/heap?gc=true&debug=1", nil).Body) / (1 << 20)
}
