package transport

import (
	"context"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// logger lets Raft log through slog, below the levels it asks for: what Raft calls an error, and repeats many
// times a second, is mostly a node that does not answer. Roles and the health of members we log ourselves.
type logger struct {
	log  *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = logger{}

// NewLog returns Raft's logger over log.
func NewLog(log *slog.Logger) hclog.Logger { return logger{log: log} }

func level(l hclog.Level) slog.Level {
	if l >= hclog.Error {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Log implements hclog.Logger.
func (r logger) Log(l hclog.Level, msg string, args ...any) {
	if !r.log.Enabled(context.Background(), level(l)) {
		return
	}
	all := make([]any, 0, len(args)+len(r.args)+2)
	all = append(all, "part", "raft")
	for _, pairs := range [][]any{r.args, args} {
		for i, v := range pairs {
			if v == "error" && i%2 == 0 {
				v = "err"
			}
			all = append(all, v)
		}
	}
	r.log.Log(context.Background(), level(l), msg, all...)
}

func (r logger) Trace(string, ...any)          {}
func (r logger) Debug(msg string, args ...any) { r.Log(hclog.Debug, msg, args...) }
func (r logger) Info(msg string, args ...any)  { r.Log(hclog.Info, msg, args...) }
func (r logger) Warn(msg string, args ...any)  { r.Log(hclog.Warn, msg, args...) }
func (r logger) Error(msg string, args ...any) { r.Log(hclog.Error, msg, args...) }

func (r logger) IsTrace() bool { return false }
func (r logger) IsDebug() bool { return r.enabled(hclog.Debug) }
func (r logger) IsInfo() bool  { return r.enabled(hclog.Info) }
func (r logger) IsWarn() bool  { return r.enabled(hclog.Warn) }
func (r logger) IsError() bool { return r.enabled(hclog.Error) }

func (r logger) enabled(l hclog.Level) bool {
	return r.log.Enabled(context.Background(), level(l))
}

func (r logger) ImpliedArgs() []any { return r.args }
func (r logger) Name() string       { return r.name }

func (r logger) With(args ...any) hclog.Logger {
	r.args = append(r.args[:len(r.args):len(r.args)], args...)
	return r
}

func (r logger) Named(name string) hclog.Logger {
	r.name = name
	return r
}

func (r logger) ResetNamed(name string) hclog.Logger { return r.Named(name) }

func (r logger) SetLevel(hclog.Level)  {}
func (r logger) GetLevel() hclog.Level { return hclog.Debug }

func (r logger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(r.StandardWriter(nil), "", 0)
}

func (r logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return logWriter(r) }

type logWriter logger

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (int, error) {
	logger(w).Debug(string(p))
	return len(p), nil
}
