package audit

import (
	"io"
	"time"
)

// NewTornDevice returns a file device over w, for writes that fail half way.
func NewTornDevice(w io.WriteCloser) Device { return &fileDevice{file: w} }

// NewSyslogAt returns a syslog device whose daemon listens at one of paths.
func NewSyslogAt(facility, tag string, timeout time.Duration, paths ...string) Device {
	return newSyslog(options{facility: facilities[facility], tag: tag, timeout: timeout}, paths)
}

// MaxPause is the longest time that a failed device is left alone.
const MaxPause = maxPause
