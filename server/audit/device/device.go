// Package device has the audit devices: a file or standard stream, a socket, the syslog daemon of the machine.
//
// It promises that a device stores a line completely or returns an error, in bounded time, and that the file of a device is
// below the directories that the configuration of the server names. Which devices there are, and what is done when one fails,
// is said in package audit. Start reading at Device, then Config, whose Open makes one.
package device

import (
	"context"
	"path/filepath"
)

// Device stores lines. Safe for concurrent use.
type Device interface {
	// Write stores one line, which ends in a newline and may not be kept, completely or returns an error.
	// It does not give up because ctx ended: a record is due even if the client is gone.
	Write(ctx context.Context, line []byte) error
	// Reload reopens what an operator may have moved away. On error the device goes on as before.
	Reload() error
	Close() error
}

// Dir returns the directory of the file that a device writes, "" if it writes none.
func Dir(d Device) string {
	if f, ok := d.(*fileDevice); ok {
		return filepath.Dir(f.at.String())
	}
	return ""
}

// Outside returns the file of a device of before there were roots, if it is not below those of now; else "".
func (f Files) Outside(d Device) string {
	file, ok := d.(*fileDevice)
	if !ok || file.at.root != "" {
		return ""
	}
	if _, err := f.locate(file.at.file); err == nil {
		return ""
	}
	return file.at.file
}
