package run

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Callers is how many callers Together has.
const Callers = 64

// Rated is a row of calls and how long each took.
func Rated(name string, took []time.Duration, elapsed time.Duration) Row {
	slices.Sort(took)
	return Row{
		Name: name, Value: float64(len(took)) / elapsed.Seconds(), Unit: "/s",
		Latency: Short(took[len(took)/2]) + " / " + Short(took[len(took)*99/100]),
	}
}

// Together calls do n times from so many Callers, and returns how long each call took and all of them.
func Together(s *Scope, n int, do func(i int) error) ([]time.Duration, time.Duration) {
	took := make([]time.Duration, n)
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var callers sync.WaitGroup
	begin := time.Now()
	for range Callers {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && failure.Load() == nil; i = next.Add(1) - 1 {
				before := time.Now()
				if err := do(int(i)); err != nil {
					failure.Store(&err)
				}
				took[i] = time.Since(before)
			}
		})
	}
	callers.Wait()
	if err := failure.Load(); err != nil {
		s.Check(*err)
	}
	return took, time.Since(begin)
}
