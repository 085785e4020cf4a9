package health

import (
	"time"

	"github.com/coffer-project/coffer/storage"
)

// CurrentWithin is how old the state of a node may be: one that has not applied what the leader had this long ago is not
// current. It is longer than an election.
const CurrentWithin = 10 * time.Second

// Freshness tells how old the state of a node is. It remembers when the leader was known to have which entries; once the node
// has applied them, its state is not older than that moment. The clock is monotonic.
type Freshness struct {
	AsOf    time.Time // the state is not older; zero: nothing is known
	pending []moment  // oldest first; not applied yet
}

type moment struct {
	at    time.Time
	index storage.Index
}

// Note records that the leader had no more than the entries up to index at a moment.
func (f *Freshness) Note(at time.Time, index, applied storage.Index) {
	f.Settle(applied)
	for len(f.pending) > 0 && at.Sub(f.pending[0].at) > CurrentWithin {
		f.pending = f.pending[1:] // once applied, it would not make the node current
	}
	f.pending = append(f.pending, moment{at, index})
	f.Settle(applied)
}

// Settle takes note of what the node has applied.
func (f *Freshness) Settle(applied storage.Index) {
	for len(f.pending) > 0 && f.pending[0].index <= applied {
		f.AsOf, f.pending = f.pending[0].at, f.pending[1:]
	}
}
