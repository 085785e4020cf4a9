// Package progress shows how far something with many parts has come: how many are done, of how many, at what rate, and how long the rest takes.
// On a terminal it is one line that is drawn again, otherwise a line every ten seconds.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command/table"
)

const (
	drawn = 250 * time.Millisecond // between two lines on a terminal
	lines = 10 * time.Second       // and elsewhere
)

// Bar is one thing that is under way. Safe for concurrent use.
type Bar struct {
	w        io.Writer
	terminal bool

	mu         sync.Mutex
	what       string
	done, all  int
	begun      time.Time
	shown      time.Time
	drawnBytes int
}

// New returns a Bar that writes to w.
func New(w io.Writer, terminal bool) *Bar { return &Bar{w: w, terminal: terminal} }

// Begin starts to count something else; all is 0 as long as it is not known how much there is.
func (b *Bar) Begin(what string, all int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.what, b.done, b.all, b.begun = what, 0, all, time.Now()
	if b.shown.IsZero() {
		b.shown = b.begun
	}
	if b.terminal {
		b.show()
	}
}

// Add counts n more.
func (b *Bar) Add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	interval := lines
	if b.terminal {
		interval = drawn
	}
	if time.Since(b.shown) >= interval {
		b.show()
	}
}

// End removes the line of a terminal.
func (b *Bar) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drawnBytes > 0 {
		fmt.Fprintf(b.w, "\r%s\r", strings.Repeat(" ", b.drawnBytes))
		b.drawnBytes = 0
	}
}

func (b *Bar) show() {
	b.shown = time.Now()
	line := Line(b.what, b.done, b.all, b.shown.Sub(b.begun))
	if !b.terminal {
		fmt.Fprintln(b.w, line)
		return
	}
	fmt.Fprintf(b.w, "\r%s%s", line, strings.Repeat(" ", max(0, b.drawnBytes-len(line))))
	b.drawnBytes = len(line)
}

// Line is what there is to say after some time.
func Line(what string, done, all int, taken time.Duration) string {
	line := fmt.Sprintf("%s: %d", table.Printable(what), done)
	if all > 0 {
		line += fmt.Sprintf(" of %d", all)
	}
	if taken < time.Second || done == 0 {
		return line
	}
	perSecond := float64(done) / taken.Seconds()
	line += fmt.Sprintf(", %.0f/s", perSecond)
	if all > done {
		line += fmt.Sprintf(", %s left", time.Duration(float64(all-done)/perSecond*float64(time.Second)).Round(time.Second))
	}
	return line
}
