// Package leaktest finds goroutines that go on after what started them has ended.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience is how long goroutines that are about to end may take.
const patience = 10 * time.Second

// Main runs a package's tests, and fails if a goroutine is left; call it from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := Check(nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// endless are functions of libraries whose goroutines never end.
var endless = []string{
	"os/signal.signal_recv", "runtime.ensureSigM",
	// raft v1.7.3 leaves the two goroutines of a transfer that met the end of the leadership.
	"raft.(*Raft).leadershipTransfer(", "raft.(*Raft).leaderLoop.func2(",
	// It never answers the futures that its channels hold when it shuts down; who awaits one returns, the goroutine for it stays.
	"consensus.(*instance).await.func1(",
}

// Running returns the stacks of the goroutines, by number, without the caller's own and those of libraries that never end.
func Running() map[string]string {
	text := make([]byte, 1<<20)
	n := runtime.Stack(text, true)
	for n == len(text) {
		text = make([]byte, 2*n)
		n = runtime.Stack(text, true)
	}
	running := map[string]string{}
	for _, stack := range strings.Split(string(text[:n]), "\n\n")[1:] { // the first is the caller's
		if slices.ContainsFunc(endless, func(name string) bool { return strings.Contains(stack, name) }) {
			continue
		}
		number, _, _ := strings.Cut(stack, " [") // such as "goroutine 7"
		running[number] = stack
	}
	return running
}

// Check returns an error with the stacks of the goroutines that run and did not before.
func Check(before map[string]string) error { return check(before, patience) }

func check(before map[string]string, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		var left []string
		for number, stack := range Running() {
			if before[number] == "" {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
	}
}
