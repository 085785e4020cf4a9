package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// watchReplication shows the status until ctx ends, which is how it is meant to end. A server that cannot answer now is
// shown as such: a watch has to outlive what is watched for.
func watchReplication(ctx context.Context, c *call) error {
	every, err := parseDuration(c.String("interval"))
	if err != nil || every <= 0 {
		return usagef("-interval takes a duration such as 1s")
	}
	if c.String("field") != "" {
		return usagef("-watch and -field exclude each other")
	}
	if err := c.checkFormat(); err != nil {
		return err
	}
	screen := newWatch(c)
	defer screen.end()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s, a, err := c.replicationStatus(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !passing(err) {
			return err
		}
		if err := screen.show(s, a, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watch draws one status after the other, of replication or of something else.
type watch struct {
	call   *call
	w      io.Writer
	format string
	fd     int // of the terminal, -1 if there is none
	lines  int // drawn last
	last   string
	now    func() time.Time
}

func newWatch(c *call) *watch {
	w := &watch{call: c, w: c.out, format: c.format(), fd: -1, now: time.Now}
	if isTerminal(c.out) && w.format == formatTable {
		w.fd = int(c.out.(*os.File).Fd())
	}
	return w
}

// show draws a status, or why there is none.
func (w *watch) show(s *replicationStatus, a *answer, failure error) error {
	switch {
	case w.fd >= 0:
		return w.redraw(s, failure)
	case w.format != formatTable:
		return w.document(a)
	}
	line := "no answer: " + shortly(failure)
	if failure == nil {
		line = s.line()
	}
	return w.line(line)
}

// line prints a line that differs from the last one, for a watch that is not looked at.
func (w *watch) line(line string) error {
	if line == w.last {
		return nil
	}
	w.last = line
	_, err := fmt.Fprintf(w.w, "%s %s\n", w.now().Format(time.TimeOnly), line)
	return err
}

// document prints a changed status for machines: JSON on a line of its own, or a YAML document.
func (w *watch) document(a *answer) error {
	if a == nil {
		return nil
	}
	var out struct{ Data json.RawMessage }
	if err := json.Unmarshal(a.raw, &out); err != nil {
		return err
	}
	return w.changed(out.Data)
}

// changed prints a document that differs from the last one.
func (w *watch) changed(raw []byte) error {
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return err
	}
	if line.String() == w.last {
		return nil
	}
	w.last = line.String()
	if w.format == formatYAML {
		if _, err := io.WriteString(w.w, "---\n"); err != nil {
			return err
		}
		return w.call.printRaw(line.Bytes())
	}
	line.WriteByte('\n')
	_, err := w.w.Write(line.Bytes())
	return err
}

// redraw puts the status where the one before stands.
func (w *watch) redraw(s *replicationStatus, failure error) error {
	var text bytes.Buffer
	if failure != nil {
		fmt.Fprintln(&text, "No answer: "+shortly(failure))
	} else if err := s.write(&text); err != nil {
		return err
	}
	return w.paint(text.String(), nil)
}

// paint puts a text where the one before stands. Lines are cut to the width of the terminal, then colour, if there is one,
// colours them.
func (w *watch) paint(text string, colour func(line string) string) error {
	text += fmt.Sprintf("\n%s, ^C ends\n", w.now().Format(time.TimeOnly))
	width, height, err := term.GetSize(w.fd)
	if err != nil || width < 1 || height < 2 {
		width, height = 1<<10, 1<<10
	}
	var out strings.Builder
	if w.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\x1b[J", w.lines)
	}
	w.lines = 0
	for line := range strings.Lines(text) {
		if w.lines == height-1 {
			break // what has scrolled away cannot be drawn over
		}
		// A line that wraps would count for two.
		if r := []rune(strings.TrimSuffix(line, "\n")); len(r) > width {
			line = string(r[:width-1]) + "…\n"
		}
		if colour != nil {
			line = colour(line)
		}
		out.WriteString(line)
		w.lines++
	}
	_, err = io.WriteString(w.w, out.String())
	return err
}

// end leaves the last status standing.
func (w *watch) end() {
	if w.fd >= 0 {
		fmt.Fprintln(w.w)
	}
}

// shortly is the first line of what went wrong.
func shortly(err error) string {
	var e *requestError
	text := ""
	if err != nil {
		text = err.Error()
	}
	if errors.As(err, &e) {
		text = e.explain()
	}
	text, _, _ = strings.Cut(text, "\n")
	return printable(text)
}
