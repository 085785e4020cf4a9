package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// isTerminal reports whether a stream is one a person sits at.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ask prompts on stderr and reads one line from the terminal without showing it.
func (c *call) ask(ctx context.Context, prompt string) (string, error) {
	if !isTerminal(c.in) {
		return "", usagef("stdin is no terminal to ask for the %s on; give - to read it from stdin", prompt)
	}
	fmt.Fprintf(c.err, "%s (will be hidden): ", strings.ToUpper(prompt[:1])+prompt[1:])
	fd := int(c.in.(*os.File).Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return "", usagef("reading the %s: %v", prompt, err)
	}
	b, err := interruptible(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	fmt.Fprintln(c.err)
	if ctx.Err() != nil {
		_ = term.Restore(fd, state)
		return "", ctx.Err()
	}
	if err != nil {
		return "", usagef("reading the %s: %v", prompt, err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return "", usagef("no %s was typed", prompt)
	}
	return text, nil
}

// interruptible is read, given up when ctx ends. A read from a terminal cannot be cancelled, so its goroutine then stays
// until the process ends, which it is about to.
func interruptible(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
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

// progress counts bytes and, on a terminal, shows how many there are so far. An upload may still be read when its answer is
// there already.
type progress struct {
	w    io.Writer // nil: no terminal
	verb string

	mu    sync.Mutex
	bytes int64
	shown int64
}

// progressStep is how many bytes pass between two updates of the line.
const progressStep = 1 << 20

func (c *call) progress(verb string) *progress {
	p := &progress{verb: verb}
	if isTerminal(c.err) {
		p.w = c.err
	}
	return p
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += int64(len(b))
	if p.w != nil && p.bytes-p.shown >= progressStep {
		p.shown = p.bytes
		fmt.Fprintf(p.w, "\r%s %s", p.verb, sizeText(p.bytes))
	}
	return len(b), nil
}

// done ends the line.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil && p.shown > 0 {
		fmt.Fprintf(p.w, "\r%s %s\n", p.verb, sizeText(p.bytes))
	}
}

func sizeText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
