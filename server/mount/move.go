package mount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
)

// What becomes of a move.
const (
	InProgress = "in-progress"
	Success    = "success"
	Failure    = "failure"
)

// keepMigration is how long the outcome of a move can be asked for.
const keepMigration = 24 * time.Hour

// Migration is the stored record of a move.
type Migration struct {
	Format    int       `json:"format"` // 1
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"` // id of the one it was asked for in
	Source    string    `json:"source"`    // full paths, with those of the namespaces
	Target    string    `json:"target"`
	Status    string    `json:"status"`
	Reason    string    `json:"reason,omitempty"` // of a failure, for people
	ChangedAt time.Time `json:"changed_at"`
}

func migrationKey(id string) storage.Key {
	return storage.NewKey(storage.Local, "sys", "root/remount/"+id)
}

func (m *Migration) put() storage.Put {
	value, err := json.Marshal(m)
	if err != nil {
		panic(err) // texts and a time
	}
	return storage.Put{Key: migrationKey(m.ID), Value: value}
}

func decodeMigration(e storage.Entry) (*Migration, error) {
	var m Migration
	if err := json.Unmarshal(e.Value, &m); err != nil || m.Format != 1 {
		return nil, fmt.Errorf("decoding %s: unknown format", e.Key)
	}
	return &m, nil
}

// Migration returns what became of a move that was asked for in the namespace, or storage.ErrNotFound.
func (t *Table) Migration(ctx context.Context, namespace, id string) (*Migration, error) {
	e, err := t.opts.Store.Get(ctx, migrationKey(id))
	if err != nil {
		return nil, err
	}
	m, err := decodeMigration(e)
	if err != nil {
		return nil, err
	}
	if m.Namespace != namespace {
		return nil, storage.ErrNotFound
	}
	return m, nil
}

// Move begins to move the mount at one place to another, perhaps in another namespace, and returns the id of the
// migration, which Run carries out. From now on the mount takes no requests and no other mount gets the target. asked
// is the id of the namespace that it is asked for in. Both paths must be clean (CleanPath).
func (t *Table) Move(ctx context.Context, asked, fromNS, fromPath, toNS, toPath string) (id string, err error) {
	t.changing.Lock()
	defer t.changing.Unlock()
	id = uuid.NewString()
	target := &Target{Migration: id, Namespace: toNS, Path: toPath}
	migration := &Migration{
		Format: 1, ID: id, Namespace: asked, Source: t.fullPath(fromNS, fromPath), Target: t.fullPath(toNS, toPath),
		Status: InProgress, ChangedAt: time.Now().UTC(),
	}
	_, err = t.change(ctx, fromNS, fromPath, func(tx *storage.Txn, e *Entry) error {
		if e.Builtin() {
			return engines.Invalid("cannot move %q: it is part of the server", e.Path)
		}
		if fromNS != toNS {
			if err := t.claim(ctx, tx, fromNS, id); err != nil {
				return err
			}
		}
		if err := t.claim(ctx, tx, toNS, id); err != nil {
			return err
		}
		if err := t.mayMove(ctx, e, target); err != nil {
			return err
		}
		e.Moving = target
		p := migration.put()
		tx.Put(p.Key, p.Value)
		return nil
	})
	if err != nil {
		return "", err
	}
	t.signal()
	return id, nil
}

func (t *Table) fullPath(namespace, path string) string {
	if t.opts.Namespaces == nil {
		return path
	}
	return t.opts.Namespaces.Path(namespace) + path
}

// mayMove reports whether the mount could be at the target.
func (t *Table) mayMove(ctx context.Context, e *Entry, to *Target) error {
	there := *e
	there.Namespace, there.Path = to.Namespace, to.Path
	switch {
	case there.Namespace == e.Namespace && there.Path == e.Path:
		return engines.Invalid("the mount is at %s already: name another path", e.Path)
	case there.IsAuth() != e.IsAuth():
		return engines.Invalid("an auth method stays below %q, and a secrets engine outside of it", AuthPrefix)
	}
	return t.free(ctx, &there)
}

// finishMove ends what the mount handed out at its old place and puts its entry to the new one. A refusal ends the
// move, with the mount where it was; after anything else it can be tried again.
func (t *Table) finishMove(ctx context.Context, id string) error {
	m, err := t.ByUUID(ctx, id)
	if err != nil || m == nil || m.Moving == nil || m.Deleting {
		return err
	}
	if err := m.gates.shutRequests(ctx); err != nil {
		return err
	}
	if t.opts.Dependents != nil {
		if err := t.opts.Dependents.MoveMount(ctx, m, *m.Moving); err != nil {
			if passing(err) {
				return fmt.Errorf("ending what mount %s handed out: %w", m.Path, err)
			}
			return t.settle(ctx, m, err)
		}
	}
	if err = t.settle(ctx, m, nil); err != nil && !passing(err) {
		err = t.settle(ctx, m, err)
	}
	return err
}

// passing reports whether trying again may help, here or on the next active node. Anything else ends a move: the
// mount must not stay out of reach.
func passing(err error) bool {
	for _, sentinel := range []error{
		storage.ErrUnavailable, storage.ErrReadOnly, storage.ErrSealed, storage.ErrOutcomeUnknown, storage.ErrConflict,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// settle ends a move in one transaction: at the target, or with a reason at the old place.
func (t *Table) settle(ctx context.Context, m *Mounted, reason error) error {
	log, outcome := t.opts.Logger.Info, "mount moved"
	if reason != nil {
		log, outcome = t.opts.Logger.Warn, "mount not moved"
	}
	_, err := storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		e, err := read(ctx, tx, m.key())
		if err != nil {
			return err
		}
		if e.Moving == nil || e.Moving.Migration != m.Moving.Migration || e.Deleting {
			return storage.ErrNotFound
		}
		if reason == nil {
			if err := t.relocate(ctx, tx, e); err != nil {
				return err
			}
		}
		e.Moving = nil
		tx.Put(e.key(), e.put().Value)
		return record(ctx, tx, m.Moving.Migration, reason)
	})
	if errors.Is(err, storage.ErrNotFound) {
		return nil // another node did it, or the mount is being disabled
	}
	if err == nil {
		log(outcome, "mount", m.Mount.Namespace+m.Path, "to", t.fullPath(m.Moving.Namespace, m.Moving.Path), "err", reason)
		_, err = t.current(ctx) // opens the gates
	}
	return err
}

// relocate takes the entry from where it is and gives it its new place.
func (t *Table) relocate(ctx context.Context, tx *storage.Txn, e *Entry) error {
	to := e.Moving
	if e.Namespace != to.Namespace {
		if err := t.claim(ctx, tx, e.Namespace, to.Migration); err != nil {
			return err
		}
	}
	if err := t.claim(ctx, tx, to.Namespace, to.Migration); err != nil {
		return err
	}
	if err := t.mayMove(ctx, e, to); err != nil {
		return err
	}
	tx.Delete(e.key())
	e.Namespace, e.Path = to.Namespace, to.Path
	return nil
}

// record writes the outcome of a migration.
func record(ctx context.Context, tx *storage.Txn, id string, reason error) error {
	e, err := tx.Get(ctx, migrationKey(id))
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	m, err := decodeMigration(e)
	if err != nil {
		return err
	}
	m.Status, m.ChangedAt = Success, time.Now().UTC()
	if reason != nil {
		m.Status, m.Reason = Failure, "internal error: the log of the active node says more"
	}
	var refusal *engines.Error
	if errors.As(reason, &refusal) && refusal.Kind != engines.KindInternal {
		m.Reason = refusal.Detail
	}
	p := m.put()
	tx.Put(p.Key, p.Value)
	return nil
}

// sweepMigrations removes the records that are older than a day, and ends those whose mount was disabled.
func (t *Table) sweepMigrations(ctx context.Context) error {
	entries, err := t.opts.Store.Scan(ctx, migrationKey(""), "", 0)
	if err != nil {
		return err
	}
	var old storage.Batch
	for _, e := range entries {
		m, err := decodeMigration(e)
		if err != nil {
			return err
		}
		switch {
		case m.Status == InProgress:
			err = t.endOrphan(ctx, m.ID)
		case time.Since(m.ChangedAt) > keepMigration:
			old.Deletes = append(old.Deletes, e.Key)
		}
		if err != nil {
			return err
		}
	}
	if old.Empty() {
		return nil
	}
	_, err = t.opts.Store.Commit(ctx, old)
	return err
}

var errGone = engines.Invalid("the mount was disabled meanwhile")

// endOrphan records the failure of a migration that no mount is on any more.
func (t *Table) endOrphan(ctx context.Context, id string) error {
	_, err := storage.Update(ctx, t.opts.Store, func(tx *storage.Txn) error {
		e, err := tx.Get(ctx, migrationKey(id))
		if err != nil {
			return err
		}
		m, err := decodeMigration(e)
		if err != nil || m.Status != InProgress {
			return err
		}
		r, err := t.current(ctx)
		if err != nil {
			return err
		}
		for _, m := range r.moving {
			if m.Moving.Migration == id {
				return nil
			}
		}
		return record(ctx, tx, id, errGone)
	})
	return err
}
