//go:build !linux

package diagnose

import (
	"context"
	"errors"
)

func diagnoseHost(_ context.Context, d *diagnosis) {
	d.add("all", checkSkip, "these checks know Linux only")
}

func diskSpace(string) (free, total int64, err error) {
	return 0, 0, errors.New("not known on this system")
}
