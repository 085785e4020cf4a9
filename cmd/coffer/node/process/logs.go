// Package process prepares the process of a server: its log, which does not block it, its memory limit, its process id file, and the protection
// of its memory from others.
package process

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/server/system/process"
)

// Logs are the server's logs: named loggers over one handler, which writes to stderr or to a file.
type Logs struct {
	*process.Loggers
	file  *logFile // nil: stderr
	level string   // that wins over the configuration's; "": none
	dev   bool
}

// OpenLogs writes text or JSON to the file that the configuration names, or else to w. level overrides the
// configuration's.
func OpenLogs(w io.Writer, cfg *config.Config, level string, dev bool) (*Logs, error) {
	l := &Logs{level: level, dev: dev}
	from, err := l.levelOf(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.LogFile != "" {
		l.file = &logFile{path: cfg.LogFile, rotation: cfg.LogRotation, stderr: newImpatient(w)}
		if err := l.file.reopen(); err != nil {
			return nil, err
		}
		w = l.file
	} else {
		w = newImpatient(w)
	}
	options := &slog.HandlerOptions{Level: process.LevelTrace} // the loggers choose
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if cfg.LogFormat == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	l.Loggers = process.NewLoggers(handler, from)
	return l, nil
}

func (l *Logs) levelOf(cfg *config.Config) (slog.Level, error) {
	otherwise := "info"
	if l.dev {
		otherwise = "warn"
	}
	level, ok := process.ParseLevel(cmp.Or(l.level, cfg.LogLevel, otherwise))
	if !ok {
		return 0, errors.New("-log-level must be trace, debug, info, warn or error")
	}
	return level, nil
}

// Reconfigure takes the level of a configuration that was read again.
func (l *Logs) Reconfigure(cfg *config.Config) error {
	level, err := l.levelOf(cfg)
	if err == nil {
		l.Configure(level)
	}
	return err
}

// Reopen begins a new file if the old one was moved.
func (l *Logs) Reopen() error {
	if l.file == nil {
		return nil
	}
	return l.file.reopen()
}

// impatient writes to what may stop taking anything, such as a pipe whose reader hangs. It drops lines rather than
// hold the server up, which could not even end any more.
type impatient struct {
	w        io.Writer
	turn     chan struct{}
	patience time.Duration
	stuck    atomic.Bool // the last line was not taken in time
}

func newImpatient(w io.Writer) *impatient {
	return &impatient{w: w, turn: make(chan struct{}, 1), patience: time.Second}
}

// Write implements io.Writer.
func (l *impatient) Write(b []byte) (int, error) {
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	if !l.begin(timer.C) {
		return 0, os.ErrDeadlineExceeded
	}
	done := make(chan error, 1)
	line := slices.Clone(b) // it may outlive the call
	go func() {
		_, err := l.w.Write(line)
		l.stuck.Store(false)
		<-l.turn
		done <- err
	}()
	select {
	case err := <-done:
		return len(b), err
	case <-timer.C:
		l.stuck.Store(true)
		return 0, os.ErrDeadlineExceeded
	}
}

// begin waits for the turn, but not behind a line that is stuck.
func (l *impatient) begin(late <-chan time.Time) bool {
	select {
	case l.turn <- struct{}{}:
		return true
	default:
	}
	if l.stuck.Load() {
		return false
	}
	select {
	case l.turn <- struct{}{}:
		return true
	case <-late:
		return false
	}
}
