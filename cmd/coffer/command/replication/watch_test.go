package replication

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
)

// TestReplicationRedraw puts each status where the last one stood, and lines that would wrap on one line.
func TestReplicationRedraw(t *testing.T) {
	var out bytes.Buffer
	w := &watch.Screen{Out: &out, Format: command.FormatTable, FD: 1 << 20, Now: func() time.Time { return time.Unix(0, 0).UTC() }}
	if err := showStatus(w, &status{Mode: "disabled"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "\x1b") || strings.Count(got, "\n") != w.Lines {
		t.Errorf("the first one is %q, counted as %d lines", got, w.Lines)
	}
	before := w.Lines
	out.Reset()
	if err := showStatus(w, nil, nil, &command.RequestError{Err: fmt.Errorf("no route\nat all")}); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("\x1b[%dA\x1b[JNo answer: cannot reach : no route\n\n00:00:00, ^C ends\n", before); out.String() != want {
		t.Errorf("the second one is %q, want %q", out.String(), want)
	}
}
