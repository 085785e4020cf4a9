package process

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

// logFile appends to a file that others may move away, and that it moves away itself if it is to.
type logFile struct {
	path     string
	rotation config.LogRotation
	stderr   io.Writer

	mu      sync.Mutex
	file    *os.File
	size    int64
	written time.Time // the last time; of an old file, as the disk has it
	retry   time.Time // the file could not be moved: not again before
}

func (l *logFile) reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("opening the log file: %w", err)
	}
	if l.file != nil {
		l.file.Close() // every line has been written
	}
	l.file, l.size, l.written = f, info.Size(), info.ModTime()
	return nil
}

// Write implements io.Writer. A line is never split between two files.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.due(now, int64(len(b))) {
		if err := l.rotate(now); err != nil { // go on with the file that there is
			l.retry = now.Add(time.Minute)
			fmt.Fprintf(l.stderr, "The log file could not be rotated: %v\n", err)
		}
	}
	n, err := l.file.Write(b)
	l.size += int64(n)
	l.written = now
	return n, err
}

func (l *logFile) due(now time.Time, more int64) bool {
	if l.size == 0 || now.Before(l.retry) {
		return false
	}
	r := l.rotation
	return r.Bytes > 0 && l.size+more > r.Bytes ||
		r.Every > 0 && now.Truncate(r.Every).After(l.written)
}

// archived is how the names of older files have the time at which they were moved away.
const archived = "20060102T150405.000000000Z"

// rotate moves the file away, begins another, and removes the files that are too many.
func (l *logFile) rotate(now time.Time) error {
	suffix := filepath.Ext(l.path)
	prefix := strings.TrimSuffix(l.path, suffix) + "-"
	older := prefix + now.UTC().Format(archived) + suffix
	if err := os.Rename(l.path, older); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.open(); err != nil {
		return err
	}
	if l.rotation.Keep == 0 {
		return nil
	}
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil {
		return err
	}
	var names []string // in the order of time
	for _, e := range entries {
		text, isOurs := strings.CutPrefix(e.Name(), filepath.Base(prefix))
		if _, err := time.Parse(archived, strings.TrimSuffix(text, suffix)); isOurs && err == nil && strings.HasSuffix(text, suffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names[:max(0, len(names)-int(max(0, l.rotation.Keep)))] {
		err = cmp.Or(err, os.Remove(filepath.Join(filepath.Dir(l.path), name)))
	}
	return err
}
