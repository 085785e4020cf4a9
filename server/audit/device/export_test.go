package device

import (
	"context"
	"io"
	"net"
	"os"
	"time"
)

// NewTornDevice returns a file device over w, for writes that fail half way.
func NewTornDevice(w io.WriteCloser) Device { return &fileDevice{file: w} }

// NewSyslogAt returns a syslog device whose daemon listens at one of paths.
func NewSyslogAt(facility, tag string, timeout time.Duration, paths ...string) Device {
	return newSyslog(options{facility: facilities[facility], tag: tag, timeout: timeout}, paths)
}

// NewConnAt returns a device over the connections that dial makes.
func NewConnAt(timeout time.Duration, dial func(context.Context) (net.Conn, error)) Device {
	return newConn(timeout, nil, dial)
}

// AwaitHangUp waits until a device over a connection has noticed that its peer is gone.
func AwaitHangUp(d Device) { <-d.(*connDevice).link.gone }

// NewStreamAt returns a device of a standard stream that is f.
func NewStreamAt(f *os.File, timeout time.Duration) Device {
	p := newPatient(f)
	p.timeout = timeout
	return stream{p}
}
