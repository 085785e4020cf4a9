// Package watch shows one status after the other: drawn over the last one on a terminal, as lines or documents that differ from
// the last one otherwise. Start with Screen.
package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"golang.org/x/term"
)

// Screen draws one status after the other, of replication or of something else.
type Screen struct {
	call   *command.Call
	Out    io.Writer
	Format string
	FD     int // of the terminal, -1 if there is none
	Lines  int // drawn last
	last   string
	Now    func() time.Time
}

func New(c *command.Call) *Screen {
	w := &Screen{call: c, Out: c.Out, Format: c.Format(), FD: -1, Now: time.Now}
	if command.IsTerminal(c.Out) && w.Format == command.FormatTable {
		w.FD = int(c.Out.(*os.File).Fd())
	}
	return w
}

// Line prints a line that differs from the last one, for a watch that is not looked at.
func (w *Screen) Line(line string) error {
	if line == w.last {
		return nil
	}
	w.last = line
	_, err := fmt.Fprintf(w.Out, "%s %s\n", w.Now().Format(time.TimeOnly), line)
	return err
}

// Document prints a changed status for machines: JSON on a line of its own, or a YAML document.
func (w *Screen) Document(a *command.Response) error {
	if a == nil {
		return nil
	}
	var out struct{ Data json.RawMessage }
	if err := json.Unmarshal(a.Raw, &out); err != nil {
		return err
	}
	return w.Changed(out.Data)
}

// Changed prints a document that differs from the last one.
func (w *Screen) Changed(raw []byte) error {
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return err
	}
	if line.String() == w.last {
		return nil
	}
	w.last = line.String()
	if w.Format == command.FormatYAML {
		if _, err := io.WriteString(w.Out, "---\n"); err != nil {
			return err
		}
		return w.call.PrintRaw(line.Bytes())
	}
	line.WriteByte('\n')
	_, err := w.Out.Write(line.Bytes())
	return err
}

// Paint puts a text where the one before stands. Lines are cut to the width of the terminal, then colour, if there is one,
// colours them.
func (w *Screen) Paint(text string, colour func(line string) string) error {
	text += fmt.Sprintf("\n%s, ^C ends\n", w.Now().Format(time.TimeOnly))
	width, height, err := term.GetSize(w.FD)
	if err != nil || width < 1 || height < 2 {
		width, height = 1<<10, 1<<10
	}
	var out strings.Builder
	if w.Lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\x1b[J", w.Lines)
	}
	w.Lines = 0
	for line := range strings.Lines(text) {
		if w.Lines == height-1 {
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
		w.Lines++
	}
	_, err = io.WriteString(w.Out, out.String())
	return err
}

// End leaves the last status standing.
func (w *Screen) End() {
	if w.FD >= 0 {
		fmt.Fprintln(w.Out)
	}
}
