package login

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/openbao/openbao/api/v2"
)

// refusedWith is the error of a request that the server answered with a status.
func refusedWith(status int) error {
	return &command.RequestError{Err: &api.ResponseError{StatusCode: status}}
}

// TestBrowserWait checks how long a login is asked for, and what ends that.
func TestBrowserWait(t *testing.T) {
	repeat := func(n int, err error) []error { return slices.Repeat([]error{err}, n) }
	pending, down := refusedWith(401), refusedWith(503)
	opened := func(err error) <-chan error {
		c := make(chan error, 1)
		c <- err
		return c
	}
	tests := []struct {
		name    string
		answers []error // of one request after the other; then it succeeds
		retry   time.Duration
		opened  <-chan error
		abort   bool
		asked   int
		took    time.Duration
		err     string // a part of it
		said    string
	}{
		{name: "at once", asked: 1},
		{name: "each second", answers: repeat(10, pending), asked: 11, took: 10 * time.Second},
		{name: "slower later", answers: repeat(30+45+10, pending), asked: 86, took: 30*time.Second + 90*time.Second + 30*time.Second},
		{name: "to the end", answers: repeat(1000, pending), asked: 30 + 45 + 60 + 1, took: 5 * time.Minute, err: "the login was not completed in time"},
		{name: "slowed down", answers: repeat(3, refusedWith(429)), retry: 7 * time.Second, asked: 4, took: 21 * time.Second},
		{name: "an election", answers: repeat(20, down), asked: 21, took: 20 * time.Second},
		{name: "down", answers: repeat(1000, down), asked: 32, took: 32 * time.Second, err: "503"},
		{name: "refused", answers: repeat(1, refusedWith(403)), asked: 1, err: "403"},
		{name: "gone", answers: append(repeat(2, pending), refusedWith(400)), asked: 3, took: 2 * time.Second, err: "400"},
		{name: "browser fails", answers: repeat(2, pending), opened: opened(errors.New("no such thing")), asked: 3, took: 2 * time.Second, said: "no such thing. Open the URL above"},
		{name: "browser opens", answers: repeat(2, pending), opened: opened(nil), abort: true, asked: 3, took: time.Second},
		{name: "abort", answers: repeat(9, pending), opened: opened(errors.New("no such thing")), abort: true, asked: 1, err: "no such thing; nothing was stored"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said bytes.Buffer
				asked, began := 0, time.Now()
				w := &browserWait{
					until: began.Add(5 * time.Minute), status: &waitStatus{w: &said}, opened: tt.opened, abort: tt.abort,
					retryAfter: func() time.Duration { return tt.retry },
					ask: func() (*command.Response, error) {
						if asked++; asked <= len(tt.answers) {
							return nil, tt.answers[asked-1]
						}
						return &command.Response{}, nil
					},
				}
				a, err := w.run(t.Context())
				if (err == nil) != (a != nil) || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("answer %v, error %v, want %q", a, err, tt.err)
				}
				if took := time.Since(began); asked != tt.asked || took != tt.took {
					t.Errorf("asked %d times in %v, want %d in %v", asked, took, tt.asked, tt.took)
				}
				if !strings.Contains(said.String(), tt.said) {
					t.Errorf("said %q, want %q", said.String(), tt.said)
				}
			})
		})
	}
}

// TestBrowserWaitInterrupted ends at once, whether it waits or asks, and says that nothing was stored.
func TestBrowserWaitInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		began := time.Now()
		w := &browserWait{
			until: began.Add(time.Minute), status: &waitStatus{w: new(bytes.Buffer)}, retryAfter: func() time.Duration { return 0 },
			ask: func() (*command.Response, error) { return nil, refusedWith(401) },
		}
		_, err := w.run(ctx)
		var said bytes.Buffer
		if status := command.Report(&said, err); status != 1 || said.String() != "Error: interrupted; nothing was stored\n" || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("status %d, said %q after %v", status, said.String(), time.Since(began))
		}
	})
}

// TestSpinner shows the time left, and leaves nothing behind.
func TestSpinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &waitStatus{w: &out, term: true}
		s.begin(time.Now().Add(90 * time.Second))
		time.Sleep(31 * time.Second)
		s.sayf("A remark.")
		s.end()
		text := out.String()
		for _, want := range []string{"⠋ Waiting for you to sign in, 1:30 left", " 1:00 left", "\r\x1b[KA remark.\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("drew %q, want %q in it", text, want)
			}
		}
		if last := text[strings.LastIndex(text, "\n")+1:]; last != "" && !strings.HasSuffix(last, "\r\x1b[K") {
			t.Errorf("left %q behind", last)
		}
	})
	if got := waitLine(0, -time.Second); !strings.Contains(got, "0:00 left") {
		t.Errorf("after the end: %q", got)
	}
}

// TestQRText compares the picture of a known code square by square, in both ways of drawing.
func TestQRText(t *testing.T) {
	const link = "https://coffer.example.com/v1/auth/saml/go/4WZ6K9PQ3M"
	plain, err := qrText(link, false)
	if err != nil {
		t.Fatal(err)
	}
	colours, err := qrText(link, true)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(plain, "\n"), "\n")
	width := len([]rune(lines[0]))
	for i, line := range lines {
		if n := len([]rune(line)); n != width {
			t.Errorf("line %d has %d squares, want %d", i, n, width)
		}
	}
	if width > 60 || len(lines) != (width+1)/2 {
		t.Errorf("the code takes %d columns and %d lines", width, len(lines))
	}
	if first := strings.Repeat("█", width); lines[0] != first || lines[1] != first || !strings.HasPrefix(lines[5], "████") {
		t.Error("there is no light zone around the code")
	}
	// The finder pattern in the corner: dark frame, light ring, dark middle.
	if got := string([]rune(lines[2])[4:11]); got != " ▄▄▄▄▄ " {
		t.Errorf("the corner begins with %q", got)
	}
	inverse := strings.NewReplacer("█", " ", " ", "█", "▀", "▄", "▄", "▀").Replace(plain)
	stripped := strings.NewReplacer("\x1b[30;107m", "", "\x1b[0m", "").Replace(colours)
	if stripped != inverse {
		t.Error("with colours the code is another one")
	}
	if _, err := qrText(strings.Repeat("x", 5000), false); err == nil {
		t.Error("a text of 5000 characters fits")
	}
}
