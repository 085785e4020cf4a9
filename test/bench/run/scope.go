package run

import (
	"fmt"
	"os"
	"runtime"
	"slices"
)

// Scope is a harness.TB for one group of measurements: it collects what has to be cleaned up.
type Scope struct {
	failed   bool
	cleanups []func()
	problem  error
}

// InScope runs do, then the cleanups in reverse order. The error is the first that do reported.
func InScope(do func(*Scope)) error {
	s := &Scope{}
	done := make(chan struct{})
	go func() { // Fatalf ends the goroutine, as a test's does
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(s.cleanups) {
				f()
			}
		}()
		do(s)
	}()
	<-done
	return s.problem
}

func (s *Scope) Helper() {}

func (s *Scope) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (s *Scope) Errorf(format string, args ...any) {
	s.failed = true
	if s.problem == nil {
		s.problem = fmt.Errorf(format, args...)
	}
}

func (s *Scope) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}

func (s *Scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *Scope) Failed() bool { return s.failed }

func (s *Scope) TempDir() string {
	dir, err := os.MkdirTemp("", "coffer-bench-")
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Check ends the measurement if there is an error.
func (s *Scope) Check(err error) {
	if err != nil {
		s.Fatalf("%v", err)
	}
}
