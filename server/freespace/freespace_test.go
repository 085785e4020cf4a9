package freespace_test

import (
	"bytes"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/freespace"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	watch := func(threshold int64) *freespace.Watch {
		return freespace.New(freespace.Options{
			Dirs: func() map[string][]string {
				return map[string][]string{"data": {dir}, "audit": {filepath.Join(dir, "to", "be", "made"), dir}}
			},
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
