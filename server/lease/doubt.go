package lease

import (
	"context"
	"strings"
	"time"
)

// doubtPause is how long after a commit whose outcome is unknown one looks what came of it: by then it has happened,
// or it never will.
const doubtPause = 30 * time.Second

// doubts are about commits whose outcome is unknown while this node stays the active one, as when a client hangs up.
// The manager's lock guards them.
type doubts struct {
	settled time.Time // when the last of them is over
	recount time.Time // when to count all leases again; zero: no need
}

// doubt has Run look at what a commit may have written. To look at a name that is not there is of no harm.
func (m *Manager) doubt(steps []step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.work
	if w == nil {
		return
	}
	now := m.clock.now()
	soon := now.Add(doubtPause)
	for _, s := range steps {
		name, isExp := strings.CutPrefix(string(s.is), string(expPrefix))
		r, ok := parseName(name)
		if !isExp || !ok || r.at > soon.Add(windowLength).UnixNano() {
			continue // the window has not come that far, and finds what is there
		}
		w.window.push(wake{max(r.at, soon.UnixNano()), name})
	}
	w.doubts.settled = soon
	if w.doubts.recount.IsZero() {
		w.doubts.recount = soon
	}
	w.alert()
}

// settle counts all leases again, beside everything else, if it is time for that. If everything that is stored was
// replaced while this node stays the active one, as by a restore, the window is read again, too.
func (m *Manager) settle(ctx context.Context, w *work, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &w.doubts
	if m.replaced.Swap(false) {
		w.window = newWindow()
		d.settled, d.recount = now, now
	}
	if d.recount.IsZero() || now.Before(d.recount) || !m.counts.complete || m.again != nil {
		return
	}
	if d.recount = d.settled; !now.Before(d.settled) {
		d.recount = time.Time{}
	}
	c := newCounts()
	m.again = c
	w.wg.Go(func() { m.retry(ctx, "counting leases again", func() error { return m.countAll(ctx, c) }) })
}
