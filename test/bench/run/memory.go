package run

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// StatusMiB returns a size that the kernel knows of a process, "self" for this one; field is a name in
// /proc/<process>/status, with its colon.
func StatusMiB(process, field string) (float64, error) {
	text, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("the kernel does not tell %s", field)
}

// HeapBytes is what of a process's memory is in use, as its heap profile in text form says.
func HeapBytes(s *Scope, profile []byte) float64 {
	_, rest, _ := strings.Cut(string(profile), "# HeapAlloc = ")
	number, _, _ := strings.Cut(rest, "\n")
	size, err := strconv.ParseFloat(number, 64)
	s.Check(err)
	return size
}

// DiskUse is how many bytes of a disk the files of a directory take.
func DiskUse(s *Scope, dir string) float64 {
	total := 0.0
	s.Check(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		total += float64(info.Sys().(*syscall.Stat_t).Blocks) * 512
		return nil
	}))
	return total
}
