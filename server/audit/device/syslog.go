package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// syslogPaths are where a syslog daemon of this machine listens.
var syslogPaths = []string{"/dev/log", "/var/run/syslog", "/var/run/log"}

// facilities are the names of RFC 3164 section 4.1.1.
var facilities = map[string]int{
	"KERN": 0, "USER": 1, "MAIL": 2, "DAEMON": 3, "AUTH": 4, "SYSLOG": 5, "LPR": 6, "NEWS": 7, "UUCP": 8, "CRON": 9,
	"AUTHPRIV": 10, "FTP": 11, "LOCAL0": 16, "LOCAL1": 17, "LOCAL2": 18, "LOCAL3": 19, "LOCAL4": 20, "LOCAL5": 21,
	"LOCAL6": 22, "LOCAL7": 23,
}

const (
	severityInfo = 6
	maxTagBytes  = 32
	// syslogBufferBytes is asked for as the send buffer: it bounds a datagram, and so a record. The system may
	// grant less; a record that does not fit is rejected.
	syslogBufferBytes = 4 << 20
)

// newSyslog returns the device of type "syslog": messages as of RFC 3164, in the form without host name that
// daemons expect on their local socket, one of paths.
func newSyslog(o options, paths []string) Device {
	priority, tag, pid := o.facility*8+severityInfo, o.tag, os.Getpid()
	header := func() string {
		return fmt.Sprintf("<%d>%s %s[%d]: ", priority, time.Now().Format(time.Stamp), tag, pid)
	}
	return newConn(o.timeout, header, func(ctx context.Context) (net.Conn, error) { return dialSyslog(ctx, paths) })
}

func dialSyslog(ctx context.Context, paths []string) (net.Conn, error) {
	var last error
	for _, network := range []string{"unixgram", "unix"} {
		for _, path := range paths {
			var d net.Dialer
			c, err := d.DialContext(ctx, network, path)
			if err == nil {
				c.(*net.UnixConn).SetWriteBuffer(syslogBufferBytes) // as much as the system lets us have
				return c, nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				last = err
			}
		}
	}
	if last != nil {
		return nil, fmt.Errorf("no syslog daemon listens on this machine: %w", last)
	}
	return nil, fmt.Errorf("no syslog daemon listens on this machine, at %s", strings.Join(paths, ", "))
}

func parseFacility(value string) (int, error) {
	f, ok := facilities[strings.ToUpper(value)]
	if !ok {
		return 0, engines.Invalid(`option "facility" must be the name of a syslog facility, such as "AUTH" or "LOCAL7"`)
	}
	return f, nil
}

// parseTag checks what stands before the colon of a message.
func parseTag(value string) (string, error) {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(":[]", r) }
	if value == "" || len(value) > maxTagBytes || strings.ContainsFunc(value, bad) {
		return "", engines.Invalid(`option "tag" must be 1 to %d letters, digits or signs other than ":", "[" and "]"`, maxTagBytes)
	}
	return value, nil
}
