//go:build !linux

package scrub

import (
	"errors"
	"os"
)

func openDirect(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

func pread(*os.File, []byte, int64) (int, error) { return 0, errors.ErrUnsupported }
