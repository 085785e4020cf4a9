package lease

import (
	"context"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/tally"
)

// outcomePause is how long after a commit whose outcome is unknown Run looks what came of it: by then it has happened,
// or it never will.
const outcomePause = 30 * time.Second

// unknowns are the commits whose outcome is unknown while this node stays the active one, as when a client hangs up.
// The manager's lock guards them.
type unknowns struct {
	settled time.Time // when the last of them is over
	recount time.Time // when to count all leases again; zero: no need
}

// noteUnknown has Run look at what a commit may have written. To look at a name that is not there is of no harm.
func (m *Manager) noteUnknown(steps []step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.work
	if w == nil {
		return
	}
	now := m.clock.Now()
	soon := now.Add(outcomePause)
	for _, s := range steps {
		name, isExp := strings.CutPrefix(string(s.is), string(index.ExpPrefix))
		r, ok := index.Parse(name)
		if !isExp || !ok || r.At > soon.Add(index.WindowLength).UnixNano() {
			continue // the window has not come that far, and finds what is there
		}
		w.window.Push(max(r.At, soon.UnixNano()), name)
	}
	w.unknown.settled = soon
	if w.unknown.recount.IsZero() {
		w.unknown.recount = soon
	}
	w.alert()
}

// recount counts all leases again, beside everything else, if it is time for that. If everything that is stored was
// replaced while this node stays the active one, as by a restore, the window is read again, too.
func (m *Manager) recount(ctx context.Context, w *work, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &w.unknown
	if m.replaced.Swap(false) {
		w.window = index.NewWindow()
		d.settled, d.recount = now, now
	}
	if d.recount.IsZero() || now.Before(d.recount) || !m.counts.Finished() || m.again != nil {
		return
	}
	if d.recount = d.settled; !now.Before(d.settled) {
		d.recount = time.Time{}
	}
	c := tally.New()
	m.again = c
	w.wg.Go(func() { m.retry(ctx, "counting leases again", func() error { return m.countAll(ctx, c) }) })
}
