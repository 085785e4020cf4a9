package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"golang.org/x/term"
)

// browserWait waits for a user to complete a login in a browser.
type browserWait struct {
	ask        func() (*command.Response, error)
	until      time.Time
	retryAfter func() time.Duration // what the server asked for in its last answer
	status     *waitStatus
	opened     <-chan error // what became of the browser; nil: none was opened
	abort      bool         // give up if the browser cannot be opened
}

const (
	// waitPatience is how long the server may fail in a row: long enough for a cluster to elect a leader.
	waitPatience = 30 * time.Second
	// waitQuick is how long the server is asked each second. Who takes longer does not notice two.
	waitQuick = 30 * time.Second
	waitSlow  = 2 * time.Minute
)

var errLoginInterrupted = &command.ExitError{Code: command.ExitLocal, Err: errors.New("interrupted; nothing was stored")}

// run asks until there is a response. Only 401 says that the user is not done.
func (w *browserWait) run(ctx context.Context) (*command.Response, error) {
	w.status.begin(w.until)
	defer w.status.end()
	began, failing := time.Now(), time.Time{}
	for {
		a, err := w.ask()
		switch {
		case err == nil:
			return a, nil
		case ctx.Err() != nil:
			return nil, errLoginInterrupted
		case command.StatusOf(err) == http.StatusUnauthorized, command.StatusOf(err) == http.StatusTooManyRequests:
			failing = time.Time{}
		case !command.Passing(err):
			return nil, err
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > waitPatience:
			return nil, err
		}
		if !time.Now().Before(w.until) {
			return nil, command.ServerErrorf("the login was not completed in time; nothing was stored. Start another login with the same command")
		}
		if err := w.pause(ctx, time.Since(began)); err != nil {
			return nil, err
		}
	}
}

// pause waits until it is time to ask again. A browser that did not open is told about in the meantime.
func (w *browserWait) pause(ctx context.Context, waited time.Duration) error {
	every := time.Second
	switch {
	case waited >= waitSlow:
		every = 3 * time.Second
	case waited >= waitQuick:
		every = 2 * time.Second
	}
	timer := time.NewTimer(max(every, w.retryAfter()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return errLoginInterrupted
		case err := <-w.opened:
			w.opened = nil
			if err == nil {
				return nil // it may have been a browser that returns when its user is done
			}
			if w.abort {
				return command.Usagef("the browser could not be opened: %v; nothing was stored", err)
			}
			w.status.sayf("The browser could not be opened: %v. Open the URL above in one.", err)
		case <-timer.C:
			return nil
		}
	}
}

// waitStatus tells on a terminal how much time is left.
type waitStatus struct {
	w    io.Writer
	term bool

	mu     sync.Mutex
	shown  bool // a line that must be cleared
	closed chan struct{}
	done   sync.WaitGroup
}

func waiting(c *command.Call) *waitStatus {
	return &waitStatus{w: c.Err, term: command.IsTerminal(c.Err)}
}

// spinnerStep is how long one picture of the spinner stands.
const spinnerStep = 120 * time.Millisecond

var spinnerPictures = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

func (s *waitStatus) begin(until time.Time) {
	if !s.term {
		fmt.Fprintf(s.w, "Waiting up to %s for the sign-in. Interrupt to give up.\n", table.Duration(int64(time.Until(until).Round(time.Second).Seconds())))
		return
	}
	s.closed = make(chan struct{}) // closed by end
	s.done.Go(func() {
		tick := time.NewTicker(spinnerStep)
		defer tick.Stop()
		for n := 0; ; n++ {
			s.draw(n, time.Until(until))
			select {
			case <-s.closed:
				return
			case <-tick.C:
			}
		}
	})
}

func (s *waitStatus) draw(n int, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := []rune(waitLine(n, left))
	if f, ok := s.w.(*os.File); ok {
		// A line that wraps could not be drawn over.
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 1 && len(text) >= width {
			text = text[:width-1]
		}
	}
	s.shown = true
	fmt.Fprintf(s.w, "\r\x1b[K%s", string(text))
}

// waitLine is the n-th picture of the spinner with the time that is left.
func waitLine(n int, left time.Duration) string {
	left = max(left, 0).Round(time.Second)
	return fmt.Sprintf("%c Waiting for you to sign in, %d:%02d left (^C gives up)",
		spinnerPictures[n%len(spinnerPictures)], int(left.Minutes()), int(left.Seconds())%60)
}

// sayf writes a line of its own.
func (s *waitStatus) sayf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearLocked()
	fmt.Fprintf(s.w, format+"\n", args...)
}

// clearLocked removes the line.
func (s *waitStatus) clearLocked() {
	if s.shown {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
	s.shown = false
}

// end removes the line.
func (s *waitStatus) end() {
	if s.closed != nil {
		close(s.closed)
		s.done.Wait()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearLocked()
}
