package token

import (
	"context"
	"iter"

	"github.com/coffer-project/coffer/server/token/record"
)

// CountStored returns how many tokens that are stored match, and how many bytes are stored beside them, which are wrapped
// responses. match is asked about the namespace's id, the path within that of the request which made the token, and the role
// that the auth mount or the token role gave. Tokens with the root policy do not count. The active node may ask.
func (s *Store) CountStored(ctx context.Context, match func(namespace, path, role string) bool) (tokens int, bytes int64, err error) {
	return s.tally.Count(s.now, s.all(ctx), match)
}

// all yields the stored tokens, without their Keys.
func (s *Store) all(ctx context.Context) iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		for entry, err := range record.Scan(ctx, s.store, record.IDPrefix) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(record.Decode("", entry.Value)) {
				return
			}
		}
	}
}

// Activated forgets what was counted while another node was the active one. Call it when this one becomes that.
func (s *Store) Activated() { s.tally.Forget() }
