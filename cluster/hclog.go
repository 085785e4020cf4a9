package cluster

import (
	"context"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLog lets Raft log through slog, below the levels it asks for: what Raft calls an error, and repeats many
// times a second, is mostly a node that does not answer. Roles and the health of members we log ourselves.
type raftLog struct {
	log  *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = raftLog{}

func level(l hclog.Level) slog.Level {
	if l >= hclog.Error {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Log implements hclog.Logger.
func (r raftLog) Log(l hclog.Level, msg string, args ...any) {
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

func (r raftLog) Trace(string, ...any)          {}
func (r raftLog) Debug(msg string, args ...any) { r.Log(hclog.Debug, msg, args...) }
func (r raftLog) Info(msg string, args ...any)  { r.Log(hclog.Info, msg, args...) }
func (r raftLog) Warn(msg string, args ...any)  { r.Log(hclog.Warn, msg, args...) }
func (r raftLog) Error(msg string, args ...any) { r.Log(hclog.Error, msg, args...) }

func (r raftLog) IsTrace() bool { return false }
func (r raftLog) IsDebug() bool { return r.enabled(hclog.Debug) }
func (r raftLog) IsInfo() bool  { return r.enabled(hclog.Info) }
func (r raftLog) IsWarn() bool  { return r.enabled(hclog.Warn) }
func (r raftLog) IsError() bool { return r.enabled(hclog.Error) }

func (r raftLog) enabled(l hclog.Level) bool {
	return r.log.Enabled(context.Background(), level(l))
}

func (r raftLog) ImpliedArgs() []any { return r.args }
func (r raftLog) Name() string       { return r.name }

func (r raftLog) With(args ...any) hclog.Logger {
	r.args = append(r.args[:len(r.args):len(r.args)], args...)
	return r
}

func (r raftLog) Named(name string) hclog.Logger {
	r.name = name
	return r
}

func (r raftLog) ResetNamed(name string) hclog.Logger { return r.Named(name) }

func (r raftLog) SetLevel(hclog.Level)  {}
func (r raftLog) GetLevel() hclog.Level { return hclog.Debug }

func (r raftLog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(r.StandardWriter(nil), "", 0)
}

func (r raftLog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return logWriter(r) }

type logWriter raftLog

// Write implements io.Writer.
func (w logWriter) Write(p []byte) (int, error) {
	raftLog(w).Debug(string(p))
	return len(p), nil
}
