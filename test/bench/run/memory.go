package run

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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
