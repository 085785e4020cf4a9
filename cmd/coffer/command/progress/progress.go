// Package progress shows how far something that takes long has come: how much is done, of how much, at what rate, and how long the rest takes.
// On a terminal it is one line that is drawn again, otherwise a line every ten seconds. What is done within two seconds shows nothing.
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
	patience = 2 * time.Second        // before the first line
	drawn    = 250 * time.Millisecond // between two lines on a terminal
	lines    = 10 * time.Second       // and elsewhere
	width    = 100                    // of a line on a terminal
)

// Bar is one thing that is under way. Safe for concurrent use.
type Bar struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex
	state State
	begun time.Time
	first int64         // what was done then
	shown string        // what is on the line of a terminal
	stop  chan struct{} // ends the goroutine that draws; nil if there is none
	ended chan struct{} // closed when it has
}

// State is what is shown.
type State struct {
	What      string // such as "saving"
	Done, All int64  // All is 0 as long as it is not known
	Bytes     bool   // they are counted in bytes
	Note      string // more, such as what the server says of the rest
}

// New returns a Bar that writes to w.
func New(w io.Writer, terminal bool) *Bar { return &Bar{w: w, terminal: terminal} }

// Begin starts to count something else; all is 0 as long as it is not known how much there is.
func (b *Bar) Begin(what string, all int) { b.begin(State{What: what, All: int64(all)}) }

// BeginBytes is Begin for bytes.
func (b *Bar) BeginBytes(what string, all int64) { b.begin(State{What: what, All: all, Bytes: true}) }

func (b *Bar) begin(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.begun, b.first = s, time.Now(), s.Done
	if b.stop == nil {
		b.stop, b.ended = make(chan struct{}), make(chan struct{})
		go b.draw(b.stop, b.ended)
	}
}

// Add counts n more.
func (b *Bar) Add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Done += int64(n)
}

// Set says how it is now, for what is not counted here. The rate and the time left count from the first Set with the same What.
func (b *Bar) Set(s State) {
	b.mu.Lock()
	same := b.stop != nil && s.What == b.state.What
	if same {
		b.state = s
	}
	b.mu.Unlock()
	if !same {
		b.begin(s)
	}
}

// Write counts bytes.
func (b *Bar) Write(p []byte) (int, error) {
	b.Add(len(p))
	return len(p), nil
}

// Done is how much there is by now.
func (b *Bar) Done() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.Done
}

// End removes the line of a terminal. Nothing is drawn after it, until the next Begin.
func (b *Bar) End() {
	b.mu.Lock()
	stop, ended := b.stop, b.ended
	b.stop = nil
	b.mu.Unlock()
	if stop == nil {
		return
	}
	close(stop)
	<-ended
	if b.shown != "" {
		fmt.Fprintf(b.w, "\r%s\r", strings.Repeat(" ", len([]rune(b.shown))))
		b.shown = ""
	}
}

// draw shows the state until stop is closed.
func (b *Bar) draw(stop, ended chan struct{}) {
	defer close(ended)
	next := patience
	for {
		timer := time.NewTimer(next)
		select {
		case <-stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		b.mu.Lock()
		line := Line(b.state, b.first, time.Since(b.begun))
		b.mu.Unlock()
		if next = lines; b.terminal {
			next = drawn
		}
		if !b.terminal {
			fmt.Fprintln(b.w, line)
			continue
		}
		if r := []rune(line); len(r) > width {
			line = string(r[:width-1]) + "…"
		}
		fmt.Fprintf(b.w, "\r%s%s", line, strings.Repeat(" ", max(0, len([]rune(b.shown))-len([]rune(line)))))
		b.shown = line
	}
}

// Line is what there is to say after some time, in which it has come from first to where it is.
func Line(s State, first int64, taken time.Duration) string {
	amount := func(n int64) string {
		if s.Bytes {
			return table.Size(n)
		}
		return fmt.Sprint(n)
	}
	line := table.Printable(s.What)
	if s.Done > 0 || s.All > 0 {
		line += ": " + amount(s.Done)
	}
	if s.All > 0 {
		line += " of " + amount(s.All)
	}
	if taken >= time.Second && s.Done > first {
		perSecond := float64(s.Done-first) / taken.Seconds()
		if s.Bytes || perSecond >= 10 {
			line += ", " + amount(int64(perSecond)) + "/s"
		} else {
			line += fmt.Sprintf(", %.1f/s", perSecond)
		}
		if s.All > s.Done {
			line += fmt.Sprintf(", %s left", time.Duration(float64(s.All-s.Done)/perSecond*float64(time.Second)).Round(time.Second))
		}
	}
	if s.Note != "" {
		line += ", " + table.Printable(s.Note)
	}
	return line
}
