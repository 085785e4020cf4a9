//go:build !linux

package powerfs

import "errors"

// Mount needs Linux.
func (d *Disk) Mount(string) (unmount func() error, err error) {
	return nil, errors.New("powerfs needs the FUSE of Linux")
}
