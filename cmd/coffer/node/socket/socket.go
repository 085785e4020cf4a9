// Package socket makes the unix sockets that the API is served at, and bounds the connections of listeners.
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

// Listen makes a socket that only its user may connect to, and then gives it the user, group and mode that the configuration says.
// A socket that a server left which was killed is replaced.
func Listen(c config.Listener) (net.Listener, error) {
	if info, err := os.Lstat(c.Address); err == nil && info.Mode().Type() == fs.ModeSocket {
		conn, err := net.Dial("unix", c.Address)
		if err == nil {
			conn.Close()
			return nil, fmt.Errorf("%s: another process listens there", c.Address)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			if err := os.Remove(c.Address); err != nil {
				return nil, err
			}
		}
	}
	before := syscall.Umask(0o177)
	l, err := net.Listen("unix", c.Address)
	syscall.Umask(before)
	if err != nil {
		return nil, err
	}
	if err := grant(c); err != nil {
		return nil, errors.Join(fmt.Errorf("listener %s: %w", c.Address, err), l.Close())
	}
	return l, nil
}

func grant(c config.Listener) error {
	s := c.Socket
	uid, err := number(s.User, "socket_user", func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
	if err != nil {
		return err
	}
	gid, err := number(s.Group, "socket_group", func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
	if err != nil {
		return err
	}
	if uid >= 0 || gid >= 0 {
		if err := os.Chown(c.Address, uid, gid); err != nil {
			return err
		}
	}
	if s.Mode != 0 {
		return os.Chmod(c.Address, s.Mode)
	}
	return nil
}

// number returns the id of a user or a group, -1 for none.
func number(text, key string, lookup func(string) (string, error)) (int, error) {
	if text == "" {
		return -1, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return n, nil
	}
	id, err := lookup(text)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", key, err)
	}
	return strconv.Atoi(id)
}

// Descriptors that the connections of listeners do not get: a share, or this many if that is more. They are those of the
// data, the logs, the cluster port and the connections to other services.
const keptDescriptors = 64

// mostConnections of a listener unless its configuration says more: each may take some 50 KiB.
const mostConnections = 8192

// Connections returns the bounds of a listener's connections, of which there are so many listeners: all, and those of one
// address, which gets a quarter.
func Connections(c config.Listener, listeners int) (total, each int) {
	var files syscall.Rlimit
	most := uint64(mostConnections)
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil { // as raised by the runtime to what is allowed
		limit := uint64(files.Cur)
		most = min(most, (limit-min(limit, max(limit/4, keptDescriptors)))/uint64(listeners))
	}
	total, each = int(max(most, 8)), int(c.MaxConnectionsEach)
	if c.MaxConnections > 0 {
		total = int(c.MaxConnections)
	}
	if each == 0 {
		each = max(total/4, 8)
	}
	return total, min(each, total)
}
