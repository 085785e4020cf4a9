package process

import (
	"context"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// throttle lets so many bytes through in a second: who writes more waits.
type throttle struct {
	from   io.ReadCloser
	rate   int
	closed chan struct{}
	end    sync.Once

	left  int
	since time.Time
}

func newThrottle(from io.ReadCloser, rate int) *throttle {
	return &throttle{from: from, rate: rate, closed: make(chan struct{}), left: rate}
}

// Read implements io.Reader.
func (t *throttle) Read(b []byte) (int, error) {
	if wait := time.Until(t.since.Add(time.Second)); t.left <= 0 && wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.closed:
			return 0, io.EOF
		}
	}
	if time.Since(t.since) >= time.Second {
		t.left, t.since = t.rate, time.Now()
	}
	n, err := t.from.Read(b[:min(len(b), max(t.left, 1))])
	t.left -= n
	return n, err
}

// Close implements io.Closer.
func (t *throttle) Close() error {
	t.end.Do(func() { close(t.closed) })
	return t.from.Close()
}

// logger writes what a plugin logs to the server's log: the messages without their values, which may be secret.
type logger struct{ log *slog.Logger }

var _ hclog.Logger = logger{}

func newLog(l *slog.Logger) hclog.Logger { return logger{l} }

// maxLineBytes is how much of a message is kept.
const maxLineBytes = 500

// Log implements hclog.Logger.
func (l logger) Log(level hclog.Level, msg string, _ ...any) {
	at := slog.LevelDebug
	switch level {
	case hclog.Error:
		at = slog.LevelError
	case hclog.Warn:
		at = slog.LevelWarn
	case hclog.Info:
		at = slog.LevelInfo
	}
	if len(msg) > maxLineBytes {
		msg = msg[:maxLineBytes] + "…"
	}
	l.log.Log(context.Background(), at, msg)
}

func (l logger) Trace(string, ...any)          {}
func (l logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l logger) IsTrace() bool { return false }
func (l logger) IsDebug() bool { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l logger) IsInfo() bool  { return l.log.Enabled(context.Background(), slog.LevelInfo) }
func (l logger) IsWarn() bool  { return l.log.Enabled(context.Background(), slog.LevelWarn) }
func (l logger) IsError() bool { return l.log.Enabled(context.Background(), slog.LevelError) }

func (l logger) ImpliedArgs() []any             { return nil }
func (l logger) With(...any) hclog.Logger       { return l }
func (l logger) Name() string                   { return "plugin" }
func (l logger) Named(string) hclog.Logger      { return l }
func (l logger) ResetNamed(string) hclog.Logger { return l }
func (l logger) SetLevel(hclog.Level)           {}
func (l logger) GetLevel() hclog.Level          { return hclog.Debug }
func (l logger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(io.Discard, "", 0)
}
func (l logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
