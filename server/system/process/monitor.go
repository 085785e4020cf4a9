package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
)

// monitorLines is how many lines a slow reader of sys/monitor may lag behind before it loses some.
const monitorLines = 512

// monitors are those who read the log as it is written. The zero value has none.
type monitors struct {
	mu     sync.Mutex
	all    map[*monitor]bool
	lowest atomic.Int64 // level that any of them wants, plus offset; 0: there are none
}

// monitor formats records for one reader.
type monitor struct {
	level slog.Level
	json  bool
	lines chan []byte
	lost  atomic.Int64
}

func (s *monitors) add(m *monitor) (remove func()) {
	change := func(there bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.all == nil {
			s.all = map[*monitor]bool{}
		}
		if delete(s.all, m); there {
			s.all[m] = true
		}
		lowest := int64(0)
		for one := range s.all {
			if at := int64(one.level) + offset; lowest == 0 || at < lowest {
				lowest = at
			}
		}
		s.lowest.Store(lowest)
	}
	change(true)
	return func() { change(false) }
}

// offset makes every level positive.
const offset = 1 << 16

func (s *monitors) want(l slog.Level) bool {
	lowest := s.lowest.Load()
	return lowest != 0 && int64(l)+offset >= lowest
}

// write gives a record to the monitors; with gives their handlers what the logger has.
func (s *monitors) write(ctx context.Context, r slog.Record, with func(slog.Handler) slog.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.all {
		if r.Level < m.level {
			continue
		}
		var line bytes.Buffer
		options := &slog.HandlerOptions{Level: LevelTrace}
		var h slog.Handler = slog.NewTextHandler(&line, options)
		if m.json {
			h = slog.NewJSONHandler(&line, options)
		}
		if with(h).Handle(ctx, r) != nil {
			continue
		}
		select {
		case m.lines <- line.Bytes():
		default:
			m.lost.Add(1)
		}
	}
}

type monitorInput struct {
	Level  string `json:"log_level" default:"info" enum:"trace,debug,info,notice,warn,warning,error,err" help:"The lowest level to show, whatever the loggers have."`
	Format string `json:"log_format" default:"standard" enum:"standard,text,json" help:"\"standard\" (text) or \"json\"."`
}

// monitor streams the log of this node until the client goes or the node stops.
func (l *Loggers) monitor(_ context.Context, _ *engines.Request, in *monitorInput) (*engines.Response, error) {
	level, ok := ParseLevel(in.Level)
	if !ok {
		level = slog.LevelInfo
	}
	kind := "text/plain; charset=utf-8"
	if in.Format == "json" {
		kind = "application/x-ndjson"
	}
	return &engines.Response{Raw: &engines.Raw{ContentType: kind, Stream: func(ctx context.Context, w interface{ Write([]byte) (int, error) }) error {
		m := &monitor{level: level, json: in.Format == "json", lines: make(chan []byte, monitorLines)}
		defer l.monitors.add(m)()
		return m.copy(ctx, w)
	}}}, nil
}

func (m *monitor) copy(ctx context.Context, w io.Writer) error {
	flush := func() {
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
	}
	flush() // the header: from here on no line is missed
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-m.lines:
			if n := m.lost.Swap(0); n > 0 {
				line = append(fmt.Appendf(nil, "%d lines were dropped: they are read too slowly\n", n), line...)
			}
			if _, err := w.Write(line); err != nil {
				return nil //nolint:nilerr // the client has gone
			}
			flush()
		}
	}
}
