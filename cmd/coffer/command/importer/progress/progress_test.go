package progress_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/progress"
)

func TestLine(t *testing.T) {
	for want, c := range map[string]struct {
		done, all int
		taken     time.Duration
	}{
		"secrets: 0":                           {0, 0, 0},
		"secrets: 5, 1/s":                      {5, 0, 5 * time.Second},
		"secrets: 250 of 1000, 25/s, 30s left": {250, 1000, 10 * time.Second},
		"secrets: 10 of 10, 2/s":               {10, 10, 5 * time.Second},
		"secrets: 0 of 10":                     {0, 10, 5 * time.Second},
	} {
		if got := progress.Line("secrets", c.done, c.all, c.taken); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pipe, terminal bytes.Buffer
		bars := []*progress.Bar{progress.New(&pipe, false), progress.New(&terminal, true)}
		for _, b := range bars {
			b.Begin("secrets", 300)
		}
		for range 250 { // 25 s
			time.Sleep(100 * time.Millisecond)
			for _, b := range bars {
				b.Add(1)
			}
		}
		for _, b := range bars {
			b.End()
		}
		if want := "secrets: 100 of 300, 10/s, 20s left\nsecrets: 200 of 300, 10/s, 10s left\n"; pipe.String() != want {
			t.Errorf("in a pipe %q, want %q", pipe.String(), want)
		}
		if got := terminal.String(); !strings.HasPrefix(got, "\rsecrets: 0 of 300") || strings.Contains(got, "\n") || !strings.HasSuffix(got, " \r") {
			t.Errorf("on a terminal %q", got)
		}
	})
}
