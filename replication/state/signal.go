package state

import "sync"

// Signal wakes everyone who waits for something to be looked at again. Level-triggered: take C first, look, then wait.
type Signal struct {
	mu sync.Mutex
	c  chan struct{} // closed by raise, nil without a waiter
}

func (s *Signal) Raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}

func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}
