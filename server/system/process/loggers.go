package process

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/engines"
)

// LevelTrace is below Debug, as operators of the family know it.
const LevelTrace = slog.LevelDebug - 4

// ParseLevel reads the name of a log level: trace, debug, info, warn or error.
func ParseLevel(text string) (slog.Level, bool) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "trace":
		return LevelTrace, true
	case "debug":
		return slog.LevelDebug, true
	case "info", "notice":
		return slog.LevelInfo, true
	case "warn", "warning":
		return slog.LevelWarn, true
	case "error", "err":
		return slog.LevelError, true
	}
	return 0, false
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelDebug:
		return "trace"
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}

// Loggers are named loggers over one handler whose levels can be changed while the node runs. A level that was
// set is forgotten when the process ends. Safe for concurrent use.
type Loggers struct {
	handler slog.Handler

	monitors monitors

	mu      sync.Mutex
	initial slog.Level
	levels  map[string]*slog.LevelVar
}

// NewLoggers returns loggers that write to h, which must take records of every level, and begin at level.
func NewLoggers(h slog.Handler, level slog.Level) *Loggers {
	return &Loggers{handler: h, initial: level, levels: map[string]*slog.LevelVar{}}
}

// Named returns the logger of a component, such as "cluster". Records carry the name as "logger".
func (l *Loggers) Named(name string) *slog.Logger {
	l.mu.Lock()
	defer l.mu.Unlock()
	level := l.levels[name]
	if level == nil {
		level = &slog.LevelVar{}
		level.Set(l.initial)
		l.levels[name] = level
	}
	return slog.New(leveled{l.handler, level, &l.monitors, func(h slog.Handler) slog.Handler { return h }}.WithAttrs([]slog.Attr{slog.String("logger", name)}))
}

// leveled asks the level instead of the handler, and lets monitors read along.
type leveled struct {
	slog.Handler
	level    *slog.LevelVar
	monitors *monitors
	with     func(slog.Handler) slog.Handler // gives a handler the attributes and groups that this one has
}

func (h leveled) Enabled(_ context.Context, l slog.Level) bool {
	return l >= h.level.Level() || h.monitors.want(l)
}

func (h leveled) Handle(ctx context.Context, r slog.Record) error {
	if h.monitors.want(r.Level) {
		h.monitors.write(ctx, r, h.with)
	}
	if r.Level < h.level.Level() {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h leveled) WithAttrs(a []slog.Attr) slog.Handler {
	return leveled{h.Handler.WithAttrs(a), h.level, h.monitors, func(o slog.Handler) slog.Handler { return h.with(o).WithAttrs(a) }}
}

func (h leveled) WithGroup(name string) slog.Handler {
	return leveled{h.Handler.WithGroup(name), h.level, h.monitors, func(o slog.Handler) slog.Handler { return h.with(o).WithGroup(name) }}
}

// Routes declares sys/loggers.
func (l *Loggers) Routes(r *engines.Router) {
	const node = engines.AnyNode | engines.RootNamespace
	engines.On(r, engines.Read, "monitor", "Stream the log of this node as it is written, from a level on.", node|engines.Sudo, l.monitor).
		Returns("application/x-ndjson;")
	engines.On(r, engines.Read, "loggers", "Read the level of every logger of this node.", node, l.readAll).Returns("top; *: string")
	engines.On(r, engines.Update, "loggers", "Set the level of every logger of this node, until it restarts.", node|engines.Sudo, l.writeAll)
	engines.On(r, engines.Delete, "loggers", "Set every logger of this node back to the level of the configuration.", node|engines.Sudo, l.resetAll)
	engines.On(r, engines.Read, "loggers/{name}", "Read the level of one logger.", node, l.readOne).Returns("top; *: string")
	engines.On(r, engines.Update, "loggers/{name}", "Set the level of one logger, until the node restarts.", node|engines.Sudo, l.writeOne)
	engines.On(r, engines.Delete, "loggers/{name}", "Set one logger back to the level of the configuration.", node|engines.Sudo, l.resetOne)
}

type levelInput struct {
	Level string `json:"level" required:"true" enum:"trace,debug,info,notice,warn,warning,error,err" help:"The lowest level that is logged: trace, debug, info, warn or error."`
}

type loggerName struct {
	Name string `json:"name" help:"Name of the logger, as sys/loggers lists it."`
}

type oneLevelInput struct {
	loggerName
	levelInput
}

func (l *Loggers) snapshot() map[string]*slog.LevelVar {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.levels)
}

func (l *Loggers) find(name string) (*slog.LevelVar, error) {
	all := l.snapshot()
	if v := all[name]; v != nil {
		return v, nil
	}
	return nil, engines.NotFound("no logger has this name: there are " + strings.Join(slices.Sorted(maps.Keys(all)), ", "))
}

func (l *Loggers) set(level slog.Level) {
	for _, v := range l.snapshot() {
		v.Set(level)
	}
}

func (l *Loggers) configured() slog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.initial
}

// Configure takes a level that replaces the one the loggers began with. Levels that were set stay, unless it differs.
func (l *Loggers) Configure(level slog.Level) {
	l.mu.Lock()
	differs := l.initial != level
	l.initial = level
	l.mu.Unlock()
	if differs {
		l.set(level)
	}
}

func (l *Loggers) readAll(context.Context, *engines.Request, *none) (*engines.Response, error) {
	out := map[string]any{}
	for name, v := range l.snapshot() {
		out[name] = levelName(v.Level())
	}
	return both(out), nil
}

func (l *Loggers) writeAll(_ context.Context, _ *engines.Request, in *levelInput) (*engines.Response, error) {
	level, _ := ParseLevel(in.Level) // the enum has been checked
	l.set(level)
	return nil, nil
}

func (l *Loggers) resetAll(context.Context, *engines.Request, *none) (*engines.Response, error) {
	l.set(l.configured())
	return nil, nil
}

func (l *Loggers) readOne(_ context.Context, _ *engines.Request, in *loggerName) (*engines.Response, error) {
	v, err := l.find(in.Name)
	if err != nil {
		return nil, err
	}
	return both(map[string]any{in.Name: levelName(v.Level())}), nil
}

func (l *Loggers) writeOne(_ context.Context, _ *engines.Request, in *oneLevelInput) (*engines.Response, error) {
	v, err := l.find(in.Name)
	if err != nil {
		return nil, err
	}
	level, _ := ParseLevel(in.Level)
	v.Set(level)
	return nil, nil
}

func (l *Loggers) resetOne(_ context.Context, _ *engines.Request, in *loggerName) (*engines.Response, error) {
	v, err := l.find(in.Name)
	if err != nil {
		return nil, err
	}
	v.Set(l.configured())
	return nil, nil
}
