package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// connDevice sends lines over a connection, which it makes with the first line and again after a failure. A
// write takes no longer than timeout, all in all: waiting for other lines, connecting and sending. That a line
// was sent does not mean that the peer read it: what a peer that dies had not read yet is lost.
type connDevice struct {
	dial    func(ctx context.Context) (net.Conn, error)
	header  func() string // begins each message; nil: there is none
	timeout time.Duration

	// turn holds a value while a goroutine uses what follows. A mutex could not be given up on. Never closed.
	turn   chan struct{}
	link   *link // nil while not connected
	closed bool
}

// link is a connection with a goroutine that notices when the peer hangs up: a write alone would still succeed
// once, into nowhere. What the peer says is ignored.
type link struct {
	net.Conn
	gone chan struct{} // closed when nothing more can be read; close waits for it
}

func newLink(c net.Conn) *link {
	l := &link{Conn: c, gone: make(chan struct{})}
	go func() {
		defer close(l.gone)
		io.Copy(io.Discard, c)
	}()
	return l
}

func (l *link) dead() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

func (l *link) close() error {
	err := l.Conn.Close()
	<-l.gone
	return err
}

func newConn(timeout time.Duration, header func() string, dial func(context.Context) (net.Conn, error)) *connDevice {
	return &connDevice{dial: dial, header: header, timeout: timeout, turn: make(chan struct{}, 1)}
}

var errBusy = errors.New("timed out behind other records")

// Write implements Device.
func (d *connDevice) Write(ctx context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.timeout)
	defer cancel()
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return errBusy
	}
	defer func() { <-d.turn }()
	if d.closed {
		return net.ErrClosed
	}
	if d.header != nil {
		line = append([]byte(d.header()), line...)
	}
	if d.link != nil && !d.link.dead() {
		if err := d.send(ctx, line); err == nil || final(err) {
			return err
		}
	}
	// The connection broke, perhaps long ago: a collector that was restarted costs no record.
	d.hangUp()
	c, err := d.dial(ctx)
	if err != nil {
		return err
	}
	d.link = newLink(c)
	return d.send(ctx, line)
}

// final reports whether another connection would be of no use: time is up, or the line is too long.
func final(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || TooLong(err)
}

// TooLong reports whether a line did not fit in a datagram. Shorter ones will.
func TooLong(err error) bool { return errors.Is(err, syscall.EMSGSIZE) }

// send writes the line. After a failure in the middle of it the connection is of no more use.
func (d *connDevice) send(ctx context.Context, line []byte) error {
	deadline, _ := ctx.Deadline()
	n, err := 0, d.link.SetWriteDeadline(deadline)
	if err == nil {
		n, err = d.link.Write(line)
	}
	if err == nil {
		return nil
	}
	d.hangUp()
	return fmt.Errorf("writing %d of %d bytes: %w", n, len(line), err)
}

func (d *connDevice) hangUp() {
	if d.link != nil {
		d.link.close() // it is broken: nothing to learn from the error
		d.link = nil
	}
}

// Reload implements Device: the next line goes over a new connection.
func (d *connDevice) Reload() error {
	d.turn <- struct{}{} // comes free within the timeout
	defer func() { <-d.turn }()
	d.hangUp()
	return nil
}

// Close implements Device.
func (d *connDevice) Close() error {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	d.closed = true
	if d.link == nil {
		return nil
	}
	err := d.link.close()
	d.link = nil
	return err
}
