package workqueue

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// scripted answers what the test says.
type scripted struct {
	destination.Destination
	err   error
	mu    sync.Mutex
	calls int
	hang  bool
	wait  time.Duration
}

func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *scripted) Read(ctx context.Context, _ string) (destination.Found, error) {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	time.Sleep(s.wait)
	if s.hang {
		<-ctx.Done()
		return destination.Found{}, &destination.Error{Class: destination.External, Code: destination.Unreachable, Err: ctx.Err()}
	}
	return destination.Found{}, s.err
}

func (s *scripted) Write(context.Context, destination.Item, destination.Found) (destination.Held, error) {
	s.calls++
	return destination.Held{}, s.err
}

func (s *scripted) Delete(context.Context, destination.Found) error { s.calls++; return s.err }

func (s *scripted) List(context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		for range 1000 {
			if !yield(destination.Found{}, nil) {
				return
			}
		}
	}
}

var (
	trouble  = &destination.Error{Class: destination.External, Code: destination.Unavailable, Text: "trouble"}
	testRate = destination.Rate{Writes: 2, WriteBurst: 4, Reads: 10, ReadBurst: 10, Concurrency: 1}
)

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*destination.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

func TestPaceHoldsTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRateLimited(&scripted{}, testRate, nil)
		took := func(n int, do func() error) time.Duration {
			began := time.Now()
			for range n {
				if err := do(); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		write := func() error { _, err := p.Write(t.Context(), destination.Item{}, destination.Found{}); return err }
		if d := took(4, write); d != 0 {
			t.Errorf("a burst took %v", d)
		}
		if d := took(6, write); d != 3*time.Second {
			t.Errorf("six more writes at two a second took %v", d)
		}
		if d := took(2, func() error { return p.Delete(t.Context(), destination.Found{}) }); d != time.Second {
			t.Errorf("two deletions, which are writes, took %v", d)
		}
		if d := took(30, func() error { _, err := p.Read(t.Context(), ""); return err }); d != 2*time.Second {
			t.Errorf("thirty reads at ten a second took %v", d)
		}
		time.Sleep(time.Hour)
		began, n := time.Now(), 0
		for _, err := range p.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if d := time.Since(began); n != 1000 || d.Round(time.Millisecond) != 100*time.Millisecond { // eleven reads, of which ten at once
			t.Errorf("a list of %d took %v", n, d)
		}
	})
}

func TestBreakerOpensAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{err: trouble}
		p := NewRateLimited(s, testRate, nil)
		read := func() error { _, err := p.Read(t.Context(), ""); return err }
		for range tolerated + 1 {
			if err := read(); !errors.Is(err, trouble) {
				t.Fatalf("failed with %v", err)
			}
		}
		if err := read(); errors.Is(err, trouble) || retryAfter(err) != firstBreak || s.calls != tolerated+1 {
			t.Fatalf("%v after %d calls, retry after %v", err, s.calls, retryAfter(err))
		}
		if e, ok := errors.AsType[*destination.Error](read()); !ok || e.Class != destination.External {
			t.Errorf("the error is %v", e)
		}
		last := time.Duration(0)
		for range 12 { // longer each time
			time.Sleep(time.Until(p.Circuit().Until))
			if err := read(); !errors.Is(err, trouble) {
				t.Fatalf("no call after the pause: %v", err)
			}
			pause := time.Until(p.Circuit().Until)
			if pause < last || pause > longBreak {
				t.Errorf("a pause of %v after one of %v", pause, last)
			}
			last = pause
		}
		if last != longBreak {
			t.Errorf("the last pause is %v", last)
		}
		time.Sleep(last)
		s.err = nil
		if err := read(); err != nil || p.breaker.failures != 0 {
			t.Errorf("%v, %d failures", err, p.breaker.failures)
		}
	})
}

func TestBreakerKeepsToRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{err: &destination.Error{Class: destination.External, Code: destination.Throttled, RetryAfter: 90 * time.Second}}
		p := NewRateLimited(s, testRate, nil)
		for range 2 {
			_, err := p.Read(t.Context(), "")
			if retryAfter(err) != 90*time.Second || s.calls != 1 {
				t.Errorf("retry after %v, %d calls", retryAfter(err), s.calls)
			}
		}
		s.err = nil
		time.Sleep(90 * time.Second)
		if _, err := p.Read(t.Context(), ""); err != nil {
			t.Error(err)
		}
		// Failures that need action by an operator do not open it.
		s.err = &destination.Error{Class: destination.Client, Code: destination.Denied}
		for range 10 {
			p.Read(t.Context(), "") //nolint:errcheck // it fails
		}
		if s.calls != 12 {
			t.Errorf("%d calls", s.calls)
		}
	})
}

func TestACallIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRateLimited(&scripted{hang: true}, testRate, nil)
		began := time.Now()
		if _, err := p.Read(t.Context(), ""); err == nil || time.Since(began) != longestCall {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// A caller who goes away says nothing about the destination.
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			p.Read(ctx, "") //nolint:errcheck // it fails
			cancel()
		}
		if p.breaker.failures != 1 {
			t.Errorf("%d failures", p.breaker.failures)
		}
	})
}

// TestAnOpenCircuitKeepsTheCause: calls that are not made fail with what has failed, and say until when.
func TestAnOpenCircuitKeepsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []Circuit
		s := &scripted{err: trouble}
		p := NewRateLimited(s, testRate, func(c Circuit) { changes = append(changes, c) })
		read := func() error { _, err := p.Read(t.Context(), ""); return err }
		for range tolerated + 1 {
			read() //nolint:errcheck // it fails
		}
		err := read()
		e, _ := errors.AsType[*destination.Error](err)
		if want := "trouble; backing off until " + Clock(time.Now().Add(firstBreak)); e.Code != destination.Unavailable || e.Text != want || CauseOf(err) != error(trouble) {
			t.Errorf("%s %q for %v, want %q", e.Code, e.Text, CauseOf(err), want)
		}
		// A list that fails leaves the circuit open, and one that begins closes it.
		time.Sleep(firstBreak)
		if c := p.Circuit(); !c.Open || len(changes) != 1 || !changes[0].Open || changes[0].Cause != trouble {
			t.Errorf("%+v after %+v", c, changes)
		}
		for range p.List(t.Context()) {
		}
		if c := p.Circuit(); c.Open || len(changes) != 2 || changes[1].Open {
			t.Errorf("%+v after %+v", c, changes)
		}
	})
}

// TestOneCallTriesAnOpenCircuit: the others wait for it, and share its outcome.
func TestOneCallTriesAnOpenCircuit(t *testing.T) {
	for _, success := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{err: trouble}
			p := NewRateLimited(s, testRate, nil)
			for range tolerated + 1 {
				p.Read(t.Context(), "") //nolint:errcheck // it fails
			}
			time.Sleep(firstBreak)
			if s.calls, s.hang = 0, true; success {
				s.hang, s.err, s.wait = false, nil, time.Second
			}
			failed := make(chan error, 5)
			for range 5 {
				go func() { _, err := p.Read(t.Context(), ""); failed <- err }()
			}
			synctest.Wait()
			if n := s.count(); n != 1 {
				t.Errorf("%d calls at once", n)
			}
			for range 5 {
				if err := <-failed; (err == nil) != success {
					t.Errorf("success %v: %v", success, err)
				}
			}
			if want := map[bool]int{true: 5, false: 1}[success]; s.count() != want {
				t.Errorf("success %v: %d calls, want %d", success, s.count(), want)
			}
		})
	}
}

// TestHalfOpen: a human does not wait for a circuit that has opened after failures, but for a destination that has asked to.
func TestHalfOpen(t *testing.T) {
	for asked, calls := range map[time.Duration]int{0: 1, time.Minute: 0} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{err: &destination.Error{Class: destination.External, Code: destination.Throttled, RetryAfter: asked}}
			p := NewRateLimited(s, testRate, nil)
			for range tolerated + 1 {
				p.Read(t.Context(), "") //nolint:errcheck // it fails
			}
			s.calls = 0
			if before := p.HalfOpen(); !before.Open || before.Asked != (asked > 0) {
				t.Errorf("before: %+v", before)
			}
			for range 3 {
				p.Read(t.Context(), "") //nolint:errcheck // it fails
			}
			if s.calls != calls {
				t.Errorf("%d calls, want %d", s.calls, calls)
			}
			// A changed configuration may help in any case.
			other := NewRateLimited(s, testRate, nil)
			other.Share(p)
			s.err = nil
			if _, err := other.Read(t.Context(), ""); err != nil {
				t.Errorf("after a change: %v", err)
			}
		})
	}
}

// TestCallsAtOnce: links may be more than the calls that a destination takes at once; a list of it is none of these.
func TestCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{wait: time.Second}
		r := destination.Rate{Writes: 1000, WriteBurst: 1000, Reads: 1000, ReadBurst: 1000, Concurrency: 2}
		p := NewRateLimited(s, r, nil)
		began := time.Now()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				if _, err := p.Read(t.Context(), ""); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := s.count(); n != 2 {
			t.Errorf("%d calls at once, want 2", n)
		}
		within, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := p.Read(within, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that has no time to wait ended with %v", err)
		}
		for _, err := range p.List(t.Context()) {
			if err != nil || time.Since(began) > 500*time.Millisecond {
				t.Fatalf("a list after %v: %v", time.Since(began), err)
			}
		}
		again := NewRateLimited(s, r, nil) // the configuration has changed
		again.Share(p)
		all.Go(func() {
			if _, err := again.Read(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("seven calls of a second, two at once, took %v", took)
		}
	})
}

func TestNamesAtOnce(t *testing.T) {
	for _, c := range []struct {
		writes      float64
		concurrency int
		want        int
	}{{25, 8, 20}, {2, 10, 20}, {500.0 / 3600, 4, 8}, {0.01, 4, 1}, {100, 0, 20}} {
		if got := NamesAtOnce(destination.Rate{Writes: c.writes, Concurrency: c.concurrency}); got != c.want {
			t.Errorf("%v writes per second, %d at once: %d names, want %d", c.writes, c.concurrency, got, c.want)
		}
	}
}

func TestLinksAtOnce(t *testing.T) {
	for _, c := range []struct {
		writes            float64
		concurrency, want int
	}{{25, 8, 8}, {0.1, 4, 4}, {200, 8, 20}, {100_000, 8, 128}} {
		if got := LinksAtOnce(destination.Rate{Writes: c.writes, Concurrency: c.concurrency}); got != c.want {
			t.Errorf("%v writes a second, %d calls at once: %d links, want %d", c.writes, c.concurrency, got, c.want)
		}
	}
}
