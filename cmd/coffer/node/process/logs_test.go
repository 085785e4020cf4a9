package process

import (
	"bufio"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

// A log without a reader blocks nothing: lines are dropped, and come again when it is read.
func TestLogThatNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	slow := newImpatient(w)
	slow.patience = 200 * time.Millisecond
	log := slog.New(slog.NewTextHandler(slow, nil))
	for !slow.stuck.Load() {
		log.Info(strings.Repeat("x", 4000))
	}
	slow.patience = time.Hour // no caller waits behind a line that is stuck
	for range 1000 {
		log.Info("dropped")
	}
	lines := bufio.NewScanner(r)
	got := make(chan string)
	go func() {
		defer close(got)
		for lines.Scan() {
			got <- lines.Text()
		}
	}()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for line := ""; !strings.Contains(line, "read again"); {
		select {
		case line = <-got:
			if !strings.HasPrefix(line, "time=") || strings.Contains(line, "dropped") {
				t.Fatalf("read %q", line)
			}
		case <-again.C:
			log.Info("read again")
		}
	}
	r.Close()
	w.Close()
	for range got {
	}
}

// The log of a server without a file goes through it.
func TestLogIsImpatient(t *testing.T) {
	var text strings.Builder
	l, err := OpenLogs(&text, &config.Config{}, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	l.Named("x").Info("hello")
	if !strings.Contains(text.String(), "msg=hello") {
		t.Errorf("the log holds %q", &text)
	}
}
