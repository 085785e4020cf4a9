package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// fileDevice appends lines to a file. It opens the file with the first line.
type fileDevice struct {
	at   location
	mode fs.FileMode // 0 leaves an existing file's mode alone

	mu     sync.Mutex
	file   io.WriteCloser // nil until the first line, and after Close
	torn   bool           // the file may end within a line
	closed bool
}

// stream is a standard stream, or nothing at all, as a device.
type stream struct{ w *patient }

// newStream returns the device of type "file" for options that name no file.
func newStream(o options) Device {
	switch o.filePath {
	case "stdout":
		return stream{stdout}
	case "stderr":
		return stream{stderr}
	}
	return stream{discard}
}

// The standard streams are each one, whatever number of devices write to them.
var stdout, stderr, discard = newPatient(os.Stdout), newPatient(os.Stderr), newPatient(nil)

func (s stream) Write(_ context.Context, line []byte) error {
	_, err := s.w.Write(line)
	return err
}

func (stream) Reload() error { return nil }
func (stream) Close() error  { return nil }

// patient writes to what may take as long as it likes, such as a pipe whose reader has stopped, and gives up on it
// after a while: a record that waited for ever would hold up all others, the end of the server too. What was given up
// may still be written later.
type patient struct {
	f       *os.File // nil: nowhere
	turn    chan struct{}
	timeout time.Duration
}

func newPatient(f *os.File) *patient {
	return &patient{f: f, turn: make(chan struct{}, 1), timeout: defaultTimeout}
}

var errStuck = errors.New("timed out: the reader does not read what is written")

func (p *patient) Write(line []byte) (int, error) {
	if p.f == nil {
		return len(line), nil
	}
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	select {
	case p.turn <- struct{}{}:
	case <-timer.C:
		return 0, errStuck
	}
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	line = slices.Clone(line) // it may outlive the call
	go func() {
		defer func() { <-p.turn }()
		n, err := p.f.Write(line)
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return r.n, r.err
	case <-timer.C:
		return 0, errStuck
	}
}

func (p *patient) Close() error { return p.f.Close() }

// Write implements Device: one write(2) for the line. After a write that was cut short the file ends in a
// piece of a line, so the next one begins on a line of its own.
func (d *fileDevice) Write(_ context.Context, line []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fs.ErrClosed
	}
	if d.file == nil {
		f, torn, err := openLog(d.at, d.mode)
		if err != nil {
			return err
		}
		d.use(f, torn)
	}
	torn := d.torn
	if torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := d.file.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if err != nil {
		if n > 0 {
			d.torn = true
		}
		return fmt.Errorf("writing %d of %d bytes: %w", n, len(line), err)
	}
	d.torn = false
	return nil
}

// Reload implements Device.
func (d *fileDevice) Reload() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.file == nil {
		return nil
	}
	f, torn, err := openLog(d.at, d.mode)
	if err != nil {
		return err
	}
	old := d.file
	d.use(f, torn)
	return old.Close()
}

// use writes to f from now on. d.mu is held.
func (d *fileDevice) use(f *os.File, torn bool) {
	d.file, d.torn = f, torn
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		d.file = newPatient(f)
	}
}

// Close implements Device.
func (d *fileDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.file == nil {
		return nil
	}
	err := d.file.Close()
	d.file = nil
	return err
}

// openLog opens a file for appending and reports whether it ends within a line.
func openLog(at location, mode fs.FileMode) (f *os.File, torn bool, err error) {
	dir, name, err := at.open()
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	info, err := dir.Stat(name)
	// Opening a pipe that has no reader would block, and appending to a socket or block device makes no sense.
	if err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeCharDevice == 0 {
		return nil, false, fmt.Errorf("%s is not a regular file", at)
	}
	create := mode
	if create == 0 {
		create = 0o600
	}
	if f, err = dir.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, create); err != nil {
		return nil, false, err
	}
	if info, err = f.Stat(); err == nil && info.Mode().IsRegular() {
		if mode != 0 && info.Mode().Perm() != mode {
			err = f.Chmod(mode)
		}
		torn = info.Size() > 0 && !endsInNewline(dir, name, info.Size())
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f, torn, nil
}

// read opens the file to be read, and returns its size; one that is not there is an error of fs.ErrNotExist.
func (l location) read() (*os.File, int64, error) {
	dir, name, err := l.open()
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	// Opening a pipe would block.
	info, err := dir.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, engines.Invalid("%s is not a regular file: only files can be searched", l)
	}
	f, err := dir.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// endsInNewline reports whether the file's last byte is a newline. If it cannot be read it reports false: an
// empty line too many does no harm.
func endsInNewline(dir directory, name string, size int64) bool {
	f, err := dir.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	var last [1]byte
	_, err = f.ReadAt(last[:], size-1)
	return err == nil && last[0] == '\n'
}
