package process

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"time"
)

const (
	// maxLineBytes is how much of a line is kept of what a plugin logs, and maxEntryBytes how much of it is looked at.
	maxLineBytes  = 500
	maxEntryBytes = 16 << 10
	// droppedFactor is how many times more than it may log a plugin can write in a second before it waits.
	droppedFactor = 64
)

// second counts the bytes of the current second.
type second struct {
	began time.Time
	bytes int
}

// add counts n bytes, after a wait for the next second if there are limit in this one. When a new second begins, ended gets the bytes
// of the one before.
func (s *second) add(n, limit int, ended func(bytes int)) {
	if s.bytes >= limit {
		<-time.After(time.Until(s.began.Add(time.Second)))
	}
	if time.Since(s.began) >= time.Second {
		ended(s.bytes)
		s.began, s.bytes = time.Now(), 0
	}
	s.bytes += n
}

// throttled reads no more than so many bytes in a second.
type throttled struct {
	io.ReadCloser
	bytesPerSecond int
	second         second
}

// Read implements io.Reader.
func (t *throttled) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	t.second.add(n, t.bytesPerSecond, func(int) {})
	return n, err
}

// journal writes what a plugin logs to the server's log: the messages without their values, which may be secret. What is more than
// bytesPerSecond is dropped.
type journal struct {
	log            *slog.Logger
	bytesPerSecond int

	second    second
	panicking bool // the lines that follow are those of a stack
	last      string
	repeated  int // how many times the last message has come again
}

// follow reads until the end.
func (j *journal) follow(from io.Reader) {
	in := bufio.NewReaderSize(from, maxEntryBytes)
	for {
		line, cut, err := in.ReadLine()
		if err != nil {
			break
		}
		size := len(line)
		for cut && err == nil { // the rest of a long line
			line = nil
			var rest []byte
			rest, cut, err = in.ReadLine()
			j.spend(len(rest))
		}
		if j.spend(size); j.second.bytes <= j.bytesPerSecond {
			j.line(line)
		}
	}
	j.flush(j.second.bytes)
}

// spend counts bytes, and waits if there are far too many in this second.
func (j *journal) spend(n int) { j.second.add(n, j.bytesPerSecond*droppedFactor, j.flush) }

// flush tells what was left out of a second.
func (j *journal) flush(bytes int) {
	if j.repeated > 0 {
		j.log.Info("the last message of the plugin was repeated", "times", j.repeated)
	}
	if over := bytes - j.bytesPerSecond; over > 0 {
		j.log.Warn("the plugin logs more than it may", "dropped_bytes", over)
	}
	j.repeated, j.last = 0, ""
}

// line writes one line: an entry in JSON, or plain text. A nil line was too long to be looked at.
func (j *journal) line(text []byte) {
	var entry map[string]json.RawMessage
	var message, level string
	switch {
	case text == nil:
		message = "a line that is too long"
	case json.Unmarshal(text, &entry) == nil:
		json.Unmarshal(entry["@message"], &message) //nolint:errcheck // empty, then
		json.Unmarshal(entry["@level"], &level)     //nolint:errcheck // debug, then
	default:
		message = string(text)
		if strings.HasPrefix(message, "panic: ") || strings.HasPrefix(message, "fatal error: ") {
			j.panicking = true
		}
		if j.panicking {
			level = "error"
		}
	}
	if len(message) > maxLineBytes {
		message = message[:maxLineBytes] + "…"
	}
	if message == j.last {
		j.repeated++
		return
	}
	j.last = message
	j.log.Log(context.Background(), levels[level], message)
}

var levels = map[string]slog.Level{"": slog.LevelDebug, "trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
