package token

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// tally counts the stored tokens, but those with the root policy, for quotas. It reads all tokens when it is first asked and
// keeps count from then on, which only the active node can, because there every token is made and removed. A token
// that is made during that first reading may be counted twice.
type tally struct {
	mu     sync.Mutex
	counts map[origin]held // nil until they are asked for
	anew   time.Time       // when to read all tokens again; zero: no need

	replaced atomic.Bool // all that is stored was replaced: as before the first count
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

// origin is where a token came from.
type origin struct{ namespace, path, role string }

// held is what is stored: so many tokens, and so many bytes beside them.
type held struct {
	tokens int
	bytes  int64
}

func (h held) with(e *Entry, n int) held { return held{h.tokens + n, h.bytes + int64(n)*e.Bytes} }

func originOf(e *Entry) origin { return origin{e.Namespace, e.Path, e.Role} }

func (t *tally) add(e *Entry, n int) {
	if e.Root() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		return
	}
	from := originOf(e)
	if t.counts[from] = t.counts[from].with(e, n); t.counts[from].tokens <= 0 {
		delete(t.counts, from)
	}
}

func (t *tally) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts, t.anew = nil, time.Time{}
}

// CountStored returns how many tokens that are stored match, and how many bytes are stored beside them, which are wrapped
// responses. match is asked about the namespace's id, the path within that of the request which made the token, and the role
// that the auth mount or the token role gave. Tokens with the root policy do not count. The active node may ask.
func (s *Store) CountStored(ctx context.Context, match func(namespace, path, role string) bool) (tokens int, bytes int64, err error) {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	if s.tally.replaced.Swap(false) {
		s.tally.counts = nil
	}
	if again := s.tally.anew; !again.IsZero() && !s.now().Before(again) {
		s.tally.counts, s.tally.anew = nil, time.Time{}
	}
	if s.tally.counts == nil {
		counts := map[origin]held{}
		for entry, err := range s.scan(ctx, idPrefix) {
			if err != nil {
				return 0, 0, err
			}
			e, err := decode("", entry.Value)
			if err != nil {
				return 0, 0, err
			}
			if from := originOf(e); !e.Root() {
				counts[from] = counts[from].with(e, 1)
			}
		}
		s.tally.counts = counts
	}
	for from, h := range s.tally.counts {
		if match(from.namespace, from.path, from.role) {
			tokens, bytes = tokens+h.tokens, bytes+h.bytes
		}
	}
	return tokens, bytes, nil
}

// Activated forgets what was counted while another node was the active one. Call it when this one becomes that.
func (s *Store) Activated() { s.tally.forget() }
