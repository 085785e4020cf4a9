// Package tally keeps count of the stored tokens by where they came from, for quotas. Start reading at Tally.
package tally

import (
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/server/token/record"

	"github.com/coffer-project/coffer/storage"
)

// Tally counts the stored tokens, but those with the root policy, for quotas. It reads all tokens when it is first asked and
// keeps count from then on, which only the active node can, because there every token is made and removed. A token
// that is made during that first reading may be counted twice.
type Tally struct {
	mu        sync.Mutex
	counts    map[origin]held // nil until they are asked for
	recountAt time.Time       // when to read all tokens again; zero: no need

	replaced atomic.Bool // all that is stored was replaced: as before the first count
}

// doubtPause is how long after a write whose outcome is unknown, on a node that stays the active one, all tokens are
// to be counted again: by then it has happened, or it never will.
const doubtPause = 30 * time.Second

// Doubt notes at what time a write of logins' tokens failed to tell whether it happened, if that is what err says.
func (t *Tally) Doubt(err error, now time.Time) {
	if !errors.Is(err, storage.ErrOutcomeUnknown) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recountAt = now.Add(doubtPause)
}

// origin is where a token came from.
type origin struct{ namespace, path, role string }

// held is what is stored: so many tokens, and so many bytes beside them.
type held struct {
	tokens int
	bytes  int64
}

func (h held) with(e *record.Entry, n int) held {
	return held{h.tokens + n, h.bytes + int64(n)*e.Bytes}
}

func originOf(e *record.Entry) origin { return origin{e.Namespace, e.Path, e.Role} }

// Add counts n more tokens like an entry, or fewer if n is negative.
func (t *Tally) Add(e *record.Entry, n int) {
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

// Replaced notes that all that is stored was replaced.
func (t *Tally) Replaced() { t.replaced.Store(true) }

// Forget has all tokens counted again.
func (t *Tally) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts, t.recountAt = nil, time.Time{}
}

// Count returns how many of the tokens match, and how many bytes are stored beside them. It reads all of them if they are to be
// counted again.
func (t *Tally) Count(now func() time.Time, all iter.Seq2[*record.Entry, error], match func(namespace, path, role string) bool) (tokens int, bytes int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.replaced.Swap(false) {
		t.counts = nil
	}
	if again := t.recountAt; !again.IsZero() && !now().Before(again) {
		t.counts, t.recountAt = nil, time.Time{}
	}
	if t.counts == nil {
		counts := map[origin]held{}
		for e, err := range all {
			if err != nil {
				return 0, 0, err
			}
			if from := originOf(e); !e.Root() {
				counts[from] = counts[from].with(e, 1)
			}
		}
		t.counts = counts
	}
	for from, h := range t.counts {
		if match(from.namespace, from.path, from.role) {
			tokens, bytes = tokens+h.tokens, bytes+h.bytes
		}
	}
	return tokens, bytes, nil
}
