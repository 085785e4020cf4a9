package progress_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
)

func TestLine(t *testing.T) {
	tests := []struct {
		state progress.State
		first int64
		taken time.Duration
		want  string
	}{
		{progress.State{What: "reading"}, 0, time.Minute, "reading"},
		{progress.State{What: "secrets", All: 50}, 0, 0, "secrets: 0 of 50"},
		{progress.State{What: "secrets", Done: 20, All: 50}, 0, 10 * time.Second, "secrets: 20 of 50, 2.0/s, 15s left"},
		{progress.State{What: "keys", Done: 40, All: 50}, 30, 5 * time.Second, "keys: 40 of 50, 2.0/s, 5s left"},
		{progress.State{What: "sending", Done: 3 << 20, All: 6 << 20, Bytes: true}, 0, 3 * time.Second, "sending: 3.0 MiB of 6.0 MiB, 1.0 MiB/s, 3s left"},
		{progress.State{What: "saving", Done: 1 << 20, Bytes: true}, 0, 2 * time.Second, "saving: 1.0 MiB, 512.0 KiB/s"},
		{progress.State{What: "a\x1b[2Jb", Note: "c\x07"}, 0, 0, `a\x1b[2Jb, c\a`},
	}
	for _, tt := range tests {
		if got := progress.Line(tt.state, tt.first, tt.taken); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// TestLines: what is quick shows nothing, and what takes long a line every ten seconds, or one that is drawn again.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := progress.New(&out, false)
		b.Begin("quick", 2)
		<-time.After(time.Second)
		b.End()
		b.End()
		if out.Len() > 0 {
			t.Errorf("quick work shows %q", &out)
		}
		b.Begin("slow", 100)
		for range 25 {
			<-time.After(time.Second)
			b.Add(1)
		}
		b.End()
		if n := strings.Count(out.String(), "\n"); n != 3 || !strings.Contains(out.String(), " of 100, 1.0/s, ") {
			t.Errorf("25 seconds show %d lines: %s", n, &out)
		}
		out.Reset()
		b = progress.New(&out, true)
		b.BeginBytes("sending", 0)
		if _, err := io.Copy(b, strings.NewReader("12345")); err != nil || b.Done() != 5 {
			t.Errorf("%d bytes, %v", b.Done(), err)
		}
		<-time.After(3 * time.Second)
		b.Set(progress.State{What: "waiting", Note: "for the server"})
		<-time.After(3 * time.Second)
		b.End()
		if text := out.String(); strings.Contains(text, "\n") || !strings.Contains(text, "\rsending: 5 bytes") || !strings.Contains(text, "\rwaiting, for the server") || !strings.HasSuffix(text, " \r") {
			t.Errorf("a terminal gets %q", text)
		}
	})
}
