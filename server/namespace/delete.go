package namespace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Progress is how far the deletion of a namespace has come.
type Progress struct {
	Namespace string `json:"namespace"` // path of the one being emptied: it, or one below it
	Step      string `json:"step"`
	Left      int    `json:"namespaces_left"` // with itself
	Failures  int    `json:"failures"`        // in a row
	LastError string `json:"last_error,omitempty"`
}

// jobs is the progress of every running deletion, by the id of the outermost namespace.
type jobs struct {
	mu     sync.Mutex
	byID   map[string]*Progress
	active sync.Mutex // one pass at a time
}

func (j *jobs) update(id string, change func(*Progress)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.byID == nil {
		j.byID = map[string]*Progress{}
	}
	if j.byID[id] == nil {
		j.byID[id] = &Progress{}
	}
	change(j.byID[id])
}

func (j *jobs) done(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.byID, id)
}

// Progress returns how far a deletion has come, if it runs on this node. Namespaces that go with an outer one
// have its progress.
func (s *Store) Progress(n *Namespace) (Progress, bool) {
	s.jobs.mu.Lock()
	defer s.jobs.mu.Unlock()
	for ; n != nil; n = n.parent {
		if p := s.jobs.byID[n.ID]; p != nil {
			return *p, true
		}
	}
	return Progress{}, false
}

// Delete takes a namespace out of reach and leaves the rest to Run. One with child namespaces is of KindInvalid. One
// that is being deleted already is fine.
func (s *Store) Delete(ctx context.Context, id string) error {
	n, err := s.ByID(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case n.parent == nil:
		return engines.Invalid("the root namespace cannot be deleted")
	case n.Deleting:
		s.signal()
		return nil
	}
	_, err = s.edit(ctx, id, func(r *record) error {
		t, now, err := s.from(ctx, id) // after the entry was read: a child that is created later rewrites the entry
		if err != nil {
			return err
		}
		children := t.children(now)
		switch {
		case r.Locked:
			return engines.Invalid("namespace %q is locked: unlock it before it is deleted", r.Path)
		case len(children) > 0:
			return engines.Invalid("unable to delete namespace containing child namespaces: delete %q first, and wait until it is gone", children[0].Path)
		}
		r.Deleting = true
		return nil
	})
	if err != nil {
		return err
	}
	s.opts.Logger.Info("namespace is being deleted", "namespace", n.Path, "id", n.ID)
	s.signal()
	return nil
}

func (s *Store) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Store) elsewhere() bool { return s.opts.Cluster != nil && s.opts.Cluster.Secondary() }

// RoleChanged tells that Cluster.Secondary may answer otherwise now.
func (s *Store) RoleChanged() { s.signal() }

// EnsureNames completes the index by which names are unique. It does not replicate: a cluster that was a secondary lacks
// it.
func (s *Store) EnsureNames(ctx context.Context) error {
	t, err := s.current(ctx)
	if err != nil {
		return err
	}
	for _, n := range t.byID.Values() {
		if n.parent == nil {
			continue
		}
		_, err := storage.Update(ctx, s.opts.Store, func(tx *storage.Txn) error {
			if _, err := tx.Get(ctx, recordKey(n.ID)); err != nil {
				return ignoreNotFound(err) // it has gone meanwhile
			}
			_, err := tx.Get(ctx, nameKey(n.stored.Parent, n.Name()))
			if errors.Is(err, storage.ErrNotFound) {
				tx.Put(nameKey(n.stored.Parent, n.Name()), []byte(n.ID))
				err = nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func ignoreNotFound(err error) error {
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	return err
}

// Run removes what deleted namespaces held, until ctx ends. The active node calls it. What fails is tried again,
// after a growing pause.
func (s *Store) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		err := s.Resume(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			timer.Stop()
		default:
			s.opts.Logger.Warn("deleting namespaces", "err", err)
			timer.Reset(backoff(failures))
			failures++
		}
	}
}

// backoff is 1 s, doubled with each failure up to about a minute, with some jitter.
func backoff(failures int) time.Duration {
	d := time.Second << min(failures, 6)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter, not a secret
}

// Resume removes what namespaces that are being deleted still hold, once. One that fails does not keep the others.
func (s *Store) Resume(ctx context.Context) error {
	if s.elsewhere() {
		return nil
	}
	s.jobs.active.Lock()
	defer s.jobs.active.Unlock()
	t, err := s.current(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range t.byID.Values() {
		if !n.stored.Deleting || n.parent != nil && n.parent.Deleting {
			continue
		}
		if err := s.remove(ctx, t, n); err != nil {
			s.jobs.update(n.ID, func(p *Progress) { p.Failures, p.LastError = p.Failures+1, clientText(err) })
			errs = append(errs, fmt.Errorf("namespace %s: %w", n.Path, err))
			continue
		}
		s.jobs.done(n.ID)
		s.opts.Logger.Info("namespace deleted", "namespace", n.Path, "id", n.ID)
	}
	return errors.Join(errs...)
}

// clientText is what a client may see of an error.
func clientText(err error) string {
	var e *engines.Error
	if errors.As(err, &e) && e.Kind != engines.KindInternal {
		return e.Detail
	}
	return "internal error: the log of the active node says more"
}

// longestWait is how long a deletion waits for running requests. Those that write end sooner, but a stream may go on
// for hours.
const longestWait = 2 * time.Minute

// remove empties a namespace and those below it, the innermost first.
func (s *Store) remove(ctx context.Context, t *tree, top *Namespace) error {
	if s.opts.Requests != nil {
		s.jobs.update(top.ID, func(p *Progress) { p.Namespace, p.Step = top.Path, "wait for running requests" })
		waiting, cancel := context.WithTimeout(ctx, longestWait)
		err := s.opts.Requests.Drain(waiting)
		cancel()
		if ctx.Err() != nil || err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return errors.Join(ctx.Err(), err)
		}
	}
	order := innermostFirst(nil, t, top)
	for i, n := range order {
		for _, step := range s.opts.Steps {
			s.jobs.update(top.ID, func(p *Progress) { p.Namespace, p.Step, p.Left = n.Path, step.Name, len(order)-i })
			if err := step.Do(ctx, n.ID); err != nil {
				return fmt.Errorf("%s: %w", step.Name, err)
			}
		}
		if err := s.removeEntry(ctx, n); err != nil {
			return fmt.Errorf("removing the entry: %w", err)
		}
		s.jobs.update(top.ID, func(p *Progress) { p.Failures, p.LastError = 0, "" })
	}
	return nil
}

func innermostFirst(order []*Namespace, t *tree, n *Namespace) []*Namespace {
	for _, child := range t.children(n) {
		order = innermostFirst(order, t, child)
	}
	return append(order, n)
}

// removeEntry removes what is left below sys for the namespace, then its entry and its name.
func (s *Store) removeEntry(ctx context.Context, n *Namespace) error {
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		if err := storage.DeletePrefix(ctx, s.opts.Store, storage.NewKey(class, "sys", n.ID+"/")); err != nil {
			return err
		}
	}
	_, err := s.opts.Store.Commit(ctx, storage.Batch{
		Deletes: []storage.Key{recordKey(n.ID), nameKey(n.stored.Parent, n.Name())},
	})
	return err
}
