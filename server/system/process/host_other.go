//go:build !linux && !darwin && !freebsd

package process

import "errors"

func fileSystem(string) (map[string]any, error) {
	return nil, errors.New("not supported on this system")
}
