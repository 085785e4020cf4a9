package mount

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Disable takes the mount out of the routes at once, then ends what it handed out and deletes its data and its
// entry, also if ctx ends meanwhile. One that was interrupted goes on. Disabling a path with no mount is not an
// error, as clients of the family expect.
func (t *Table) Disable(ctx context.Context, namespace, path string) error {
	if err := t.markDeleting(ctx, namespace, path); err != nil {
		return err
	}
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	err = t.finish(context.WithoutCancel(ctx), slices.DeleteFunc(r.under(namespace, path), func(m *Mounted) bool {
		return !m.Deleting || m.Path != path
	}))
	if err != nil {
		t.signal()
	}
	return err
}

func (t *Table) markDeleting(ctx context.Context, namespace, path string) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	for _, m := range r.moving {
		if m.Namespace == namespace && m.Path == path {
			return engines.Invalid("cannot disable %q: it is being moved", path)
		}
	}
	m := r.at(namespace, path)
	switch {
	case m == nil:
		return nil
	case m.Builtin():
		return engines.Invalid("cannot disable %q: it is part of the server", path)
	}
	_, err = t.change(ctx, namespace, path, func(_ *storage.Txn, e *Entry) error { e.Deleting = true; return nil })
	return err
}

// dropBatch is the number of mounts that DropNamespace takes at a time.
const dropBatch = 256

// DropNamespace disables every mount of a namespace, those of the server too. It can be repeated after an
// interruption.
func (t *Table) DropNamespace(ctx context.Context, namespace string) error {
	if namespace == rootNS {
		return errors.New("the mounts of the root namespace cannot be dropped")
	}
	for {
		r, err := t.current(ctx)
		if err != nil {
			return err
		}
		mounts := r.under(namespace, "")
		// The server's own go last: ending what others handed out may need them.
		slices.SortStableFunc(mounts, func(a, b *Mounted) int { return compare(a.Builtin(), b.Builtin()) })
		if len(mounts) == 0 {
			return nil
		}
		if err := allKnown(mounts); err != nil {
			return err
		}
		mounts = mounts[:min(len(mounts), dropBatch)]
		if err := t.rewrite(ctx, mounts, func(e *Entry) error { e.Deleting, e.Moving = true, nil; return nil }); err != nil {
			return err
		}
		if err := t.finish(ctx, mounts); err != nil {
			return err
		}
	}
}

// compare orders false before true.
func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// rewrite changes the entries that are still there in one transaction, which goes through the log in any case.
func (t *Table) rewrite(ctx context.Context, mounts []*Mounted, change func(*Entry) error) error {
	_, err := storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		for _, m := range mounts {
			e, err := read(ctx, tx, m.key())
			if errors.Is(err, storage.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if err := change(e); err != nil {
				return err
			}
			tx.Put(e.key(), e.put().Value)
		}
		return nil
	})
	return err
}

// Leave shuts a mount that this cluster is about to lose, and takes back what it has handed out: no client gets anything of it
// after that. A mount that is not there is fine.
func (t *Table) Leave(ctx context.Context, uuid string) error {
	m, err := t.ByUUID(ctx, uuid)
	if err != nil || m == nil {
		return err
	}
	m.gates.left.Store(true)
	return t.end(ctx, m)
}

// end takes back what a mount has handed out in this cluster, while another one disables it.
func (t *Table) end(ctx context.Context, m *Mounted) error {
	if err := m.gates.shutRequests(ctx); err != nil || t.opts.Dependents == nil {
		return err
	}
	return t.opts.Dependents.DisableMount(ctx, m)
}

// finish removes what is left of mounts that are being disabled. It can be repeated after an interruption, and
// done twice at once.
func (t *Table) finish(ctx context.Context, mounts []*Mounted) error {
	if err := allKnown(mounts); err != nil || len(mounts) == 0 {
		return err
	}
	for _, m := range mounts {
		if err := m.gates.shutRequests(ctx); err != nil {
			return err
		}
		if t.opts.Dependents == nil {
			continue
		}
		if err := t.opts.Dependents.DisableMount(ctx, m); err != nil {
			return fmt.Errorf("ending what mount %s handed out: %w", m.Path, err)
		}
	}
	for _, m := range mounts {
		if err := m.gates.commits.Close(ctx); err != nil {
			return err
		}
	}
	// Behind this one in the log there is no write of theirs any more, see gates.
	err := t.rewrite(ctx, mounts, func(e *Entry) error {
		if !e.Deleting {
			return fmt.Errorf("mount %s is not being disabled any more", e.Path) // a snapshot brought it back
		}
		return nil
	})
	if err != nil {
		return err
	}
	var b storage.Batch
	for _, m := range mounts {
		for _, class := range []storage.Class{storage.Shared, storage.Local} {
			if err := storage.DeletePrefix(ctx, t.opts.Store, storage.NewKey(class, m.UUID, "")); err != nil {
				return fmt.Errorf("deleting the data of mount %s: %w", m.Path, err)
			}
		}
		b.Deletes = append(b.Deletes, m.key())
	}
	if _, err := t.opts.Store.Commit(ctx, b); err != nil {
		return err
	}
	for _, m := range mounts {
		t.opts.Logger.Info("mount disabled", "mount", m.Mount.Namespace+m.Path, "type", m.Type, "accessor", m.Accessor)
	}
	return nil
}

// Resume finishes what interrupted disables and moves left, once. One that fails does not keep the others. Those of
// mounts that only a newer version knows wait for it.
func (t *Table) Resume(ctx context.Context) error {
	r, err := t.current(ctx)
	if err != nil {
		return err
	}
	var errs []error
	elsewhere := t.elsewhere()
	for _, m := range r.byUUID.Values() {
		switch {
		case !m.Deleting || m.known() != nil:
		case elsewhere && m.class() == storage.Shared:
			errs = append(errs, t.end(ctx, m))
		default:
			errs = append(errs, t.finish(ctx, []*Mounted{m}))
		}
	}
	for _, m := range r.moving {
		if m.known() == nil && !(elsewhere && m.class() == storage.Shared) {
			errs = append(errs, t.finishMove(ctx, m.UUID))
		}
	}
	return errors.Join(append(errs, t.sweepMigrations(ctx))...)
}

func (t *Table) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run finishes what was interrupted, carries out moves, and tries again what failed, until ctx ends. The active
// node calls it.
func (t *Table) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
		err := t.Resume(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			timer.Stop()
		default:
			t.opts.Logger.Warn("finishing disables and moves", "err", err)
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
