package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/process"
)

// A monitor sees what its own level lets through, in its own form, with the names and attributes of the loggers.
func TestMonitor(t *testing.T) {
	var written strings.Builder
	loggers := process.NewLoggers(slog.NewTextHandler(&written, &slog.HandlerOptions{Level: process.LevelTrace}), slog.LevelWarn)
	log := loggers.Named("cluster").With("node", "n1")
	r := engines.NewRouter()
	loggers.Routes(r)
	if _, err := r.Handle(t.Context(), &engines.Request{Op: engines.Read, Path: "monitor", Query: url.Values{"log_level": {"loud"}}}); err == nil {
		t.Error("an unknown level is accepted")
	}
	resp, err := r.Handle(t.Context(), &engines.Request{Op: engines.Read, Path: "monitor", Query: url.Values{"log_level": {"info"}, "log_format": {"json"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	started, ended := make(chan bool, 1), make(chan error)
	go func() { ended <- resp.Raw.Stream(ctx, &flushed{out, started}) }()
	<-started
	log.Debug("too low")
	log.Info("seen by the monitor only", "term", 3)
	log.Warn("seen by both")
	lines := bufio.NewScanner(in)
	for _, want := range []string{"seen by the monitor only", "seen by both"} {
		var got map[string]any
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &got) != nil || got["msg"] != want || got["logger"] != "cluster" || got["node"] != "n1" {
			t.Fatalf("line %q, want %q", lines.Text(), want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	log.Info("after the monitor")
	if text := written.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "seen by both") {
		t.Errorf("the log itself has %q", text)
	}
}

// flushed tells when the response is first flushed.
type flushed struct {
	io.Writer
	started chan bool
}

func (f *flushed) Flush() {
	select {
	case f.started <- true:
	default:
	}
}
