package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/coffer-project/coffer/test/harness"
)

// stage is a harness.TB: it collects what has to be cleaned up.
type stage struct {
	mu       sync.Mutex
	cleanups []func()
	problem  error
}

// inStage runs do, then the cleanups in reverse order. The error is the first that do reported.
func inStage(do func(*stage)) error {
	s := &stage{}
	done := make(chan struct{}) // closed when everything is cleaned up
	go func() {                 // Fatalf ends the goroutine, as a test's does
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(s.cleanups) {
				f()
			}
			harness.RemoveBinary()
		}()
		do(s)
	}()
	<-done
	return s.problem
}

// Helper implements harness.TB.
func (s *stage) Helper() {}

// Logf implements harness.TB.
func (s *stage) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Errorf implements harness.TB.
func (s *stage) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem == nil {
		s.problem = fmt.Errorf(format, args...)
	}
}

// Fatalf implements harness.TB.
func (s *stage) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}

// Cleanup implements harness.TB.
func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Failed implements harness.TB.
func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem != nil
}

// TempDir implements harness.TB.
func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp("", "coffer-demo-")
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
