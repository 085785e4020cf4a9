package token

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// tally counts the stored tokens of logins, for those who limit them. It reads all tokens when it is first asked and
// keeps count from then on, which only the active node can, because there every token is made and removed. A token
// that is made during that first reading may be counted twice.
type tally struct {
	mu     sync.Mutex
	counts map[login]int // nil until somebody asked
	anew   time.Time     // when to read all tokens again; zero: no need

	replaced atomic.Bool // all that is stored was replaced: as if nobody had asked yet
}

// doubtPause is how long after a write whose outcome is unknown, on a node that stays the active one, all tokens are
// to be counted again: by then it has happened, or it never will.
const doubtPause = 30 * time.Second

// doubt notes at what time a write of logins' tokens failed to tell whether it happened, if that is what err says.
func (t *tally) doubt(err error, now time.Time) {
	if !errors.Is(err, storage.ErrOutcomeUnknown) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.anew = now.Add(doubtPause)
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
	t.counts, t.anew = nil, time.Time{}
}

// CountLogins returns how many stored tokens came from the logins that match says: by namespace id, by path within
// that, and by the role that the auth mount gave. The active node may ask.
func (s *Store) CountLogins(ctx context.Context, match func(namespace, path, role string) bool) (int, error) {
	s.logins.mu.Lock()
	defer s.logins.mu.Unlock()
	if s.logins.replaced.Swap(false) {
		s.logins.counts = nil
	}
	if again := s.logins.anew; !again.IsZero() && !s.now().Before(again) {
		s.logins.counts, s.logins.anew = nil, time.Time{}
	}
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
