package token

import (
	"context"
	"sync"
)

// tally counts the stored tokens of logins, for those who limit them. It reads all tokens when it is first asked and
// keeps count from then on, which only the active node can, because there every token is made and removed. A token
// that is made during that first reading may be counted twice.
type tally struct {
	mu     sync.Mutex
	counts map[login]int // nil until somebody asked
}

// login is where a token came from.
type login struct{ namespace, path, role string }

func loginOf(e *Entry) login { return login{e.Namespace, e.Path, e.Role} }

func (t *tally) add(e *Entry, n int) {
	if e.Mount == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		return
	}
	l := loginOf(e)
	if t.counts[l] += n; t.counts[l] <= 0 {
		delete(t.counts, l)
	}
}

func (t *tally) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts = nil
}

// CountLogins returns how many stored tokens came from the logins that match says: by namespace id, by path within
// that, and by the role that the auth mount gave. The active node may ask.
func (s *Store) CountLogins(ctx context.Context, match func(namespace, path, role string) bool) (int, error) {
	s.logins.mu.Lock()
	defer s.logins.mu.Unlock()
	if s.logins.counts == nil {
		counts := map[login]int{}
		for entry, err := range s.scan(ctx, idPrefix) {
			if err != nil {
				return 0, err
			}
			e, err := decode("", entry.Value)
			if err != nil {
				return 0, err
			}
			if e.Mount != "" {
				counts[loginOf(e)]++
			}
		}
		s.logins.counts = counts
	}
	n := 0
	for l, count := range s.logins.counts {
		if match(l.namespace, l.path, l.role) {
			n += count
		}
	}
	return n, nil
}

// Activated forgets what was counted while another node was the active one. Call it when this one becomes that.
func (s *Store) Activated() { s.logins.forget() }
