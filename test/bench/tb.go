package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
)

// scope is a harness.TB for one group of measurements: it collects what has to be cleaned up.
type scope struct {
	failed   bool
	cleanups []func()
	problem  error
}

// inScope runs do, then the cleanups in reverse order. The error is the first that do reported.
func inScope(do func(*scope)) error {
	s := &scope{}
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

func (s *scope) Helper() {}

func (s *scope) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (s *scope) Errorf(format string, args ...any) {
	s.failed = true
	if s.problem == nil {
		s.problem = fmt.Errorf(format, args...)
	}
}

func (s *scope) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) Failed() bool { return s.failed }

func (s *scope) TempDir() string {
	dir, err := os.MkdirTemp("", "coffer-bench-")
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// check ends the measurement if there is an error.
func (s *scope) check(err error) {
	if err != nil {
		s.Fatalf("%v", err)
	}
}
