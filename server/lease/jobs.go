package lease

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// dispatchLocked starts jobs as long as there are any and not too many run.
func (m *Manager) dispatchLocked(w *work) {
	for !w.closed && w.ctx.Err() == nil && w.running < maxJobs {
		j, ok := w.queue.next()
		if !ok {
			return
		}
		w.running++
		w.wg.Go(func() {
			ok := m.do(w.ctx, w, j)
			m.mu.Lock()
			defer m.mu.Unlock()
			w.running--
			w.queue.finished(j, ok)
			m.dispatchLocked(w)
		})
	}
}

// do reports whether the job went well.
func (m *Manager) do(ctx context.Context, w *work, j job) bool {
	switch {
	case j.call != nil:
		return m.doCall(ctx, w, j.call)
	case j.mark != nil:
		return m.doMark(ctx, w, j)
	}
	return m.doRefill(ctx, w, j)
}

// doMark marks a batch of due leases, and hands them on.
func (m *Manager) doMark(ctx context.Context, w *work, j job) bool {
	marked, err := m.mark(ctx, j.mark, whenDue)
	if err != nil {
		m.logTrouble(ctx, "marking expired leases", err)
	} else if _, _, ok := m.opts.Mount(ctx, j.lane.mount); !ok && ctx.Err() == nil && len(marked) > 0 {
		m.log.Warn("the mount of leases is gone: they are removed", "mount", marked[0].MountPath, "leases", len(marked))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	left := make(map[string]bool, len(marked))
	for _, rec := range marked {
		left[rec.ID] = true
	}
	for _, r := range j.mark {
		switch {
		case err != nil:
			m.laterLocked(w, r.id, r.name)
		case !left[r.id]:
			w.queue.done(r.id)
		}
	}
	if err == nil {
		j.lane.ready = append(j.lane.ready, marked...)
	}
	return err == nil
}

// laterLocked looks at a lease again in a moment, without having stored anything about it.
func (m *Manager) laterLocked(w *work, id, name string) {
	w.queue.done(id)
	w.window.push(wake{m.clock.now().Add(retryPause).UnixNano(), name})
	w.alert()
}

// doCall asks the engine of a marked lease. The claim on one that was revoked lasts until it is removed.
func (m *Manager) doCall(ctx context.Context, w *work, rec *record) bool {
	if busy := m.claim(rec.ID); busy != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.laterLocked(w, rec.ID, rec.name()) // the holder of the claim may fail
		return true
	}
	// Read again: the former holder of the claim may have revoked it, or may have failed.
	now, err := get(ctx, m.store, rec.Namespace, rec.ID)
	switch {
	case errors.Is(err, storage.ErrNotFound), err == nil && now.indexKey() != rec.indexKey():
		m.release(rec.ID)
		m.mu.Lock()
		defer m.mu.Unlock()
		w.queue.done(rec.ID)
		return true
	case err == nil:
		rec = now
		err = m.attempt(ctx, rec)
	}
	if err == nil {
		m.revoked.Add(1)
		select {
		case w.gone <- rec:
			return true
		case <-ctx.Done(): // it is marked: the next active node asks the engine again
			err = ctx.Err()
		}
	}
	stored := m.postpone(ctx, rec, err)
	m.release(rec.ID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if stored == nil {
		w.queue.done(rec.ID)
	} else {
		m.laterLocked(w, rec.ID, rec.name())
	}
	return false
}

// refillPages is how far one job reads, so that others have their turn.
const refillPages = 32

// doRefill reads what the lane had no room for.
func (m *Manager) doRefill(ctx context.Context, w *work, j job) bool {
	var found []ref
	var rest string
	read, now := 0, m.clock.now().UnixNano()
	for name, err := range m.names(ctx, expPrefix, before(j.refill)) {
		if err != nil {
			m.logTrouble(ctx, "reading which leases are due", err)
			if rest = name; rest == "" {
				rest = j.refill
			}
			pause(ctx, time.Second)
			break
		}
		r, ok := parseName(name)
		if ok && r.at > now {
			break
		}
		if read++; len(found) == laneMost || read > refillPages*namesPage {
			rest = name
			break
		}
		if ok && r.mount == j.lane.mount {
			found = append(found, r)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range found {
		w.queue.add(r)
	}
	if rest != "" {
		j.lane.missed(rest)
	}
	return true
}
