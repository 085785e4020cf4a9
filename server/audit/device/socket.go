package device

import (
	"context"
	"net"
	"path/filepath"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
)

// How long a record may take to leave through a connection.
const (
	defaultTimeout = 2 * time.Second
	maxTimeout     = time.Minute
)

// newSocket returns the device of type "socket". On streams lines are told apart by their newlines; a datagram
// holds one line, and a line that does not fit in one is rejected.
func newSocket(o options) Device {
	return newConn(o.timeout, nil, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, o.network, o.address)
	})
}

func parseNetwork(value string) (string, error) {
	switch value {
	case "tcp", "udp", "unix", "unixgram":
		return value, nil
	}
	return "", engines.Invalid(`option "socket_type" must be "tcp", "udp", "unix" or "unixgram"`)
}

func parseTimeout(value string) (time.Duration, error) {
	d, err := input.ParseDuration(value)
	if err != nil || d < time.Millisecond || d > maxTimeout {
		return 0, engines.Invalid(`option "write_timeout" must be a duration from "1ms" to "1m", such as "2s"`)
	}
	return d, nil
}

func (o *options) checkSocket() error {
	switch o.network {
	case "unix", "unixgram":
		if !filepath.IsAbs(o.address) {
			return engines.Invalid(`option "address" must be the absolute path of the socket`)
		}
	default:
		if _, port, err := net.SplitHostPort(o.address); err != nil || port == "" {
			return engines.Invalid(`option "address" must be a host and a port, such as "collector.example:5140"`)
		}
	}
	return nil
}
