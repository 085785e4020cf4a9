package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"golang.org/x/term"
)

// IsTerminal reports whether a stream is one a person sits at.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Ask prompts on stderr and reads one line from the terminal without showing it.
func (c *Call) Ask(ctx context.Context, prompt string) (string, error) {
	if !IsTerminal(c.In) {
		return "", Usagef("stdin is no terminal to ask for the %s on; give - to read it from stdin", prompt)
	}
	fmt.Fprintf(c.Err, "%s (will be hidden): ", strings.ToUpper(prompt[:1])+prompt[1:])
	fd := int(c.In.(*os.File).Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return "", Usagef("reading the %s: %v", prompt, err)
	}
	b, err := Interruptible(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	fmt.Fprintln(c.Err)
	if ctx.Err() != nil {
		_ = term.Restore(fd, state)
		return "", ctx.Err()
	}
	if err != nil {
		return "", Usagef("reading the %s: %v", prompt, err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return "", Usagef("no %s was typed", prompt)
	}
	return text, nil
}

// Interruptible is read, given up when ctx ends. A read from a terminal cannot be cancelled, so its goroutine then stays
// until the process ends, which it is about to.
func Interruptible(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1) // never blocks the reader that was given up on
	go func() {
		b, err := read()
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.b, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Progress shows on stderr how far something is that may take long.
func (c *Call) Progress() *progress.Bar { return progress.New(c.Err, IsTerminal(c.Err)) }

// StyleOf is how tables on a stream look: on a terminal they fit it, and times are relative.
func StyleOf(w io.Writer) table.Style {
	if !IsTerminal(w) {
		return table.Style{}
	}
	width, _, err := term.GetSize(int(w.(*os.File).Fd()))
	if err != nil || width < 40 {
		width = usualWidth
	}
	return table.Style{Width: width, Now: time.Now(), Colours: Coloured(w)}
}

// usualWidth is that of a terminal that does not say its width.
const usualWidth = 100

// Coloring is a text in a colour, where the stream has colours.
func Coloring(w io.Writer, code, text string) string {
	if !Coloured(w) {
		return text
	}
	return table.Colour(code, text)
}

// Coloured reports whether a stream is a terminal with colours that its user wants.
func Coloured(w io.Writer) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
