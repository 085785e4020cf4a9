package lease

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/queue"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
)

// dispatchLocked starts jobs as long as there are any and not too many run.
func (m *Manager) dispatchLocked(w *work) {
	for !w.closed && w.ctx.Err() == nil && w.running < maxJobs {
		j, ok := w.queue.Next()
		if !ok {
			return
		}
		w.running++
		w.wg.Go(func() {
			ok := m.do(w.ctx, w, j)
			m.mu.Lock()
			defer m.mu.Unlock()
			w.running--
			w.queue.Finished(j, ok)
			m.dispatchLocked(w)
		})
	}
}

// do reports whether the job went well.
func (m *Manager) do(ctx context.Context, w *work, j queue.Job) bool {
	switch {
	case j.Call != nil:
		return m.doCall(ctx, w, j.Call)
	case j.Mark != nil:
		return m.doMark(ctx, w, j)
	}
	return m.doRefill(ctx, w, j)
}

// doMark marks a batch of due leases, and hands them on.
func (m *Manager) doMark(ctx context.Context, w *work, j queue.Job) bool {
	marked, err := m.mark(ctx, j.Mark, whenDue)
	if err != nil {
		m.logTrouble(ctx, "marking expired leases", err)
	} else if _, _, ok := m.opts.Mounts.EngineOf(ctx, j.Lane.Mount); !ok && ctx.Err() == nil && len(marked) > 0 {
		m.log.Warn("the mount of leases is gone: they are removed", "mount", marked[0].MountPath, "leases", len(marked))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	left := make(map[string]bool, len(marked))
	for _, rec := range marked {
		left[rec.ID] = true
	}
	for _, r := range j.Mark {
		switch {
		case err != nil:
			m.laterLocked(w, r.ID, r.Name)
		case !left[r.ID]:
			w.queue.Done(r.ID)
		}
	}
	if err == nil {
		j.Lane.Marked(marked)
	}
	return err == nil
}

// laterLocked looks at a lease again in a moment, without having stored anything about it.
func (m *Manager) laterLocked(w *work, id, name string) {
	w.queue.Done(id)
	w.window.Push(m.clock.Now().Add(retryPause).UnixNano(), name)
	w.alert()
}

// doCall asks the engine of a marked lease. The claim on one that was revoked lasts until it is removed.
func (m *Manager) doCall(ctx context.Context, w *work, rec *record.Record) bool {
	if busy := m.claim(rec.ID); busy != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.laterLocked(w, rec.ID, rec.Name()) // the holder of the claim may fail
		return true
	}
	// Read again: the former holder of the claim may have revoked it, or may have failed.
	now, err := record.Get(ctx, m.store, rec.Namespace, rec.ID)
	switch {
	case errors.Is(err, storage.ErrNotFound), err == nil && now.IndexKey() != rec.IndexKey():
		m.release(rec.ID)
		m.mu.Lock()
		defer m.mu.Unlock()
		w.queue.Done(rec.ID)
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
		w.queue.Done(rec.ID)
	} else {
		m.laterLocked(w, rec.ID, rec.Name())
	}
	return false
}

// refillPages is how far one job reads, so that others have their turn.
const refillPages = 32

// doRefill reads what the lane had no room for.
func (m *Manager) doRefill(ctx context.Context, w *work, j queue.Job) bool {
	var found []index.Ref
	var rest string
	read, now := 0, m.clock.Now().UnixNano()
	for name, err := range m.names(ctx, index.ExpPrefix, before(j.Refill)) {
		if err != nil {
			m.logTrouble(ctx, "reading which leases are due", err)
			if rest = name; rest == "" {
				rest = j.Refill
			}
			pause(ctx, time.Second)
			break
		}
		r, ok := index.Parse(name)
		if ok && r.At > now {
			break
		}
		if read++; len(found) == queue.LaneMost || read > refillPages*namesPage {
			rest = name
			break
		}
		if ok && r.Mount == j.Lane.Mount {
			found = append(found, r)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range found {
		w.queue.Add(r)
	}
	if rest != "" {
		j.Lane.Missed(rest)
	}
	return true
}
