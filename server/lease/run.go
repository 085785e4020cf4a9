package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coffer-project/coffer/server/lease/clock"
	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/queue"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/server/lease/tally"
	"github.com/coffer-project/coffer/storage"
	"golang.org/x/time/rate"
)

const (
	maxJobs     = 128 // at a time
	maxTick     = 10 * time.Second
	brakeTick   = 100 * time.Millisecond
	retryPause  = 5 * time.Second
	deleteBatch = 512 // leases removed in one log entry
)

// work is what Run holds. The manager's lock guards all but what never changes.
type work struct {
	ctx  context.Context     // of Run
	wake chan struct{}       // capacity 1, level-triggered: something may be due; never closed
	gone chan *record.Record // revoked, to be removed; never closed. Buffered so that removals gather
	wg   sync.WaitGroup

	window  *index.Window
	queue   *queue.Queue
	running int
	closed  bool // no more jobs
	brake   *rate.Limiter
	unknown unknowns
	tidying bool

	ticks  clock.Ticks // of Run's goroutine only
	stored time.Time   // the same
}

// alert wakes Run.
func (w *work) alert() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run revokes what falls due until ctx ends. The active node runs it, once at a time.
func (m *Manager) Run(ctx context.Context) {
	w := &work{
		ctx: ctx, wake: make(chan struct{}, 1), gone: make(chan *record.Record, 2*deleteBatch),
		window: index.NewWindow(), queue: queue.New(),
	}
	defer m.finishRun(w)
	if !m.retry(ctx, "preparing the leases", func() error { return m.begin(ctx, w) }) {
		return
	}
	w.wg.Go(func() { m.removeRevoked(ctx, w) })
	first := m.counts // only Run replaces them, and what it starts
	w.wg.Go(func() { m.retry(ctx, "counting leases", func() error { return m.countAll(ctx, first) }) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.wake:
		}
		timer.Reset(m.tick(ctx, w))
	}
}

// retry calls do until it succeeds or ctx ends, and reports which.
func (m *Manager) retry(ctx context.Context, what string, do func() error) bool {
	for {
		err := do()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			m.log.Warn(what, "err", err)
		}
		if !pause(ctx, retryPause) {
			return false
		}
	}
}

// pause reports whether ctx lasted longer than d.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// begin looks at the clock, and then lets Register and the others tell what they do.
func (m *Manager) begin(ctx context.Context, w *work) error {
	last, err := m.loadClock(ctx)
	if err != nil {
		return err
	}
	wall := m.clock.Wall()
	w.ticks.Jumped(wall)
	w.stored = wall
	if gap := wall.Sub(last); !last.IsZero() && gap > maxGap {
		if err := m.checkJump(ctx, w, gap); err != nil {
			return err
		}
	}
	m.counting.Lock()
	defer m.counting.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts, m.again = tally.New(), nil
	m.work = w
	return nil
}

// finishRun waits for everything that Run has begun.
func (m *Manager) finishRun(w *work) {
	m.stop(w)
	w.wg.Wait()
	for len(w.gone) > 0 {
		m.forget(w, w.gather(<-w.gone))
	}
}

// stop makes an end of w: no job begins after it.
func (m *Manager) stop(w *work) {
	m.counting.Lock()
	defer m.counting.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	w.closed = true
	if m.work == w {
		m.work = nil
		m.counts, m.again = tally.New(), nil
	}
}

// tick does what is to be done now, and returns how long to wait.
func (m *Manager) tick(ctx context.Context, w *work) time.Duration {
	wall := m.clock.Wall()
	if jump := w.ticks.Jumped(wall); jump > maxJump && !m.braking() {
		if err := m.checkJump(ctx, w, jump); err != nil {
			m.logTrouble(ctx, "checking the clock", err)
			w.ticks.Again(jump)
			return retryPause
		}
	}
	m.keepTime(ctx, w, wall)
	for {
		now := m.clock.Now()
		m.recount(ctx, w, now)
		m.enqueue(w, now)
		more, err := m.slide(ctx, w, now)
		if err != nil {
			m.logTrouble(ctx, "reading which leases fall due", err)
			return retryPause
		}
		if !more {
			m.enqueue(w, now)
			return m.rest(w, now)
		}
	}
}

func (m *Manager) logTrouble(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		m.log.Warn(what, "err", err)
	}
}

// keepTime makes sure that the clock does not go back behind wall, unless there are doubts about it.
func (m *Manager) keepTime(ctx context.Context, w *work, wall time.Time) {
	if m.braking() {
		return
	}
	m.clock.Raise(wall)
	if wall.Sub(w.stored) < clockInterval || m.empty() {
		return
	}
	if err := m.storeClock(ctx, wall); err != nil {
		m.logTrouble(ctx, "storing the time", err)
		return
	}
	w.stored = wall
}

func (m *Manager) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts.All() == 0
}

// enqueue moves what is due into the queue, and starts jobs.
func (m *Manager) enqueue(w *work, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w.brake == nil || w.brake.Allow() {
		name, ok := w.window.Take(now.UnixNano())
		if !ok {
			break
		}
		if r, ok := index.Parse(name); ok && !w.queue.Add(r) {
			w.window.Push(now.Add(time.Second).UnixNano(), name)
		}
	}
	m.dispatchLocked(w)
}

// slide reads on in the index, by one page, if the window comes to an end.
func (m *Manager) slide(ctx context.Context, w *work, now time.Time) (more bool, err error) {
	m.mu.Lock()
	from, horizon := w.window.End, index.TimeName(now.Add(index.WindowLength))
	if w.window.Full() || from > index.TimeName(now.Add(index.WindowLength/2)) {
		m.mu.Unlock()
		return false, nil
	}
	w.window.End = horizon // from now on the window hears of what is committed
	m.mu.Unlock()

	names, err := m.store.List(ctx, index.ExpPrefix, before(from), namesPage)

	m.mu.Lock()
	defer m.mu.Unlock()
	end := horizon
	for _, name := range names {
		r, ok := index.Parse(name)
		if ok && name < horizon {
			w.window.Push(r.At, name)
		}
	}
	if err != nil {
		end = from
	} else if len(names) == namesPage && names[len(names)-1] < horizon {
		end, more = names[len(names)-1]+"\x00", true
	}
	w.window.End = min(w.window.End, end) // it may have become full meanwhile
	return more && !w.window.Full(), err
}

// before returns a text that is less than name, with hardly any name between them.
func before(name string) string { return name[:max(len(name)-1, 0)] }

// rest returns how long there is nothing to do, and takes the brake off when everything due has been taken.
func (m *Manager) rest(w *work, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, ok := w.window.Next()
	due := ok && next <= now.UnixNano()
	switch {
	case w.brake != nil && (due || w.window.End < index.TimeName(now)):
		return brakeTick
	case w.brake != nil:
		w.brake = nil
		m.log.Info("the leases that expired at once have been taken: the brake is off")
	}
	if !ok {
		return maxTick
	}
	return min(max(time.Duration(next-now.UnixNano()), time.Millisecond), maxTick)
}

// removeRevoked removes what was revoked, as many as have gathered at a time.
func (m *Manager) removeRevoked(ctx context.Context, w *work) {
	for {
		select {
		case <-ctx.Done():
			return
		case rec := <-w.gone:
			batch := w.gather(rec)
			m.retry(ctx, "removing revoked leases", func() error { return m.removeBatch(ctx, batch) })
			m.forget(w, batch)
		}
	}
}

// gather returns what has gathered, with rec.
func (w *work) gather(rec *record.Record) []*record.Record {
	batch := []*record.Record{rec}
	for len(batch) < deleteBatch {
		select {
		case rec := <-w.gone:
			batch = append(batch, rec)
		default:
			return batch
		}
	}
	return batch
}

// forget lets go of leases that were removed, or that are left to the next active node.
func (m *Manager) forget(w *work, batch []*record.Record) {
	for _, rec := range batch {
		m.release(rec.ID)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rec := range batch {
		w.queue.Done(rec.ID)
	}
}

// removeBatch removes leases once each; what is too large for one batch, in halves.
func (m *Manager) removeBatch(ctx context.Context, batch []*record.Record) error {
	err := m.remove(ctx, batch...)
	if errors.Is(err, storage.ErrTooLarge) && len(batch) > 1 {
		return errors.Join(m.removeBatch(ctx, batch[:len(batch)/2]), m.removeBatch(ctx, batch[len(batch)/2:]))
	}
	return err
}
