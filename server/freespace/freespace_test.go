package freespace_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coffer-project/coffer/server/freespace"
)

// disks are freespace.Disks as the test says.
type disks struct {
	dirs  map[string][]string
	fault error
}

func (d *disks) Dirs() map[string][]string { return d.dirs }
func (d *disks) Fault() error              { return d.fault }

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	watch := func(threshold int64) *freespace.Watch {
		return freespace.New(freespace.Options{
			Disks:     &disks{dirs: map[string][]string{"data": {dir}, "audit": {filepath.Join(dir, "to", "be", "made"), dir}}},
			WarnBelow: threshold, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
	}
	enough := watch(1)
	enough.Check()
	if n := enough.Numbers(); n["disk_data_free_bytes"] <= 0 || n["disk_audit_free_bytes"] <= 0 || n["disk_directories_low"] != 0 {
		t.Errorf("Numbers = %v", n)
	}
	if log.Len() > 0 {
		t.Errorf("with enough room the log says %s", &log)
	}
	low := watch(math.MaxInt64)
	low.Check()
	low.Check()
	if n := low.Numbers(); n["disk_directories_low"] != 2 {
		t.Errorf("Numbers = %v", n)
	}
	if text := log.String(); strings.Count(text, "almost full") != 2 || strings.Count(text, "used_for=audit") < 1 { // once for each directory
		t.Errorf("the log says %s", text)
	}
}

// TestReserve goes through the life of a disk: the measures are those of the real one, so the thresholds move instead.
func TestReserve(t *testing.T) {
	const size = 1 << 20
	dir := t.TempDir()
	ballast := filepath.Join(dir, freespace.BallastFile)
	var log bytes.Buffer
	disk := &disks{dirs: map[string][]string{"data": {dir}}}
	pending := int64(0)
	check := func(what string, minimum, reserve int64, want freespace.State, wantBallast int64) {
		t.Helper()
		w := freespace.New(freespace.Options{
			Data: dir, Disks: disk, Minimum: minimum, Ballast: reserve, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Pending: func() int64 { return pending },
		})
		w.Check()
		w.Check()
		var held int64
		if info, err := os.Stat(ballast); err == nil {
			held = info.Size()
		}
		if n := w.Numbers(); w.State() != want || held != wantBallast || n["disk_data_ballast_bytes"] != float64(held) || n["disk_data_full"] != map[bool]float64{true: 1}[want == freespace.Full] {
			t.Errorf("%s: %v, a ballast of %d bytes, %v; want %v, %d", what, w.State(), held, n, want, wantBallast)
		}
	}
	check("room", 1, size, freespace.OK, size)
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("the log says %s", &log)
	}
	check("less than the minimum", math.MaxInt64/2, size, freespace.Full, size)
	if strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("the log says %s", &log)
	}
	disk.fault = fmt.Errorf("writing: %w", syscall.ENOSPC)
	check("no room at all", math.MaxInt64/2, size, freespace.Full, 0)
	disk.fault = nil
	check("still less than the minimum", math.MaxInt64/2, size, freespace.Full, 0)
	check("room again", 1, size, freespace.OK, size)
	check("another size", 1, 2*size, freespace.OK, 2*size)
	pending = math.MaxInt64 / 2
	check("more is accepted than there is room for", 1, 2*size, freespace.Full, 2*size)
	check("no minimum", 0, 2*size, freespace.OK, 2*size)
	pending = 0
	check("none configured", 0, 0, freespace.OK, 0)
	if got := freespace.Reserve(-1, 100<<20); got != 2<<20 {
		t.Errorf("on a disk of 100 MiB the default is %d bytes", got)
	}
	if got := freespace.Reserve(-1, 1<<40); got != 64<<20 {
		t.Errorf("on a large disk the default is %d bytes", got)
	}
}
