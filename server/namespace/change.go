package namespace

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
)

// Create makes a namespace at a path relative to the one with the id base. Of the path only the last segment may
// be new. If it is there already, metadata replaces its own unless nil. Errors for the caller are of KindInvalid
// and KindNotFound.
func (s *Store) Create(ctx context.Context, base, path string, metadata map[string]string) (*Namespace, error) {
	if err := checkMetadata(metadata); err != nil {
		return nil, err
	}
	t, parent, name, err := s.place(ctx, base, path)
	if err != nil {
		return nil, err
	}
	if sealPaths[name] {
		return nil, engines.Invalid("%q cannot be a namespace: clients use this path to seal one, and a namespace has no seal of its own", name)
	}
	if old := t.child(parent, name); old != nil && !old.Deleting {
		if metadata == nil {
			return old, nil
		}
		return s.edit(ctx, old.ID, func(r *record) error { r.Metadata = metadata; return nil })
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if parent.depth() >= maxDepth {
		return nil, engines.Invalid("namespaces can lie within each other %d deep, not more", maxDepth)
	}
	r := record{Format: 1, UUID: uuid.NewString(), Path: parent.Path + name + "/", Parent: parent.ID, Metadata: metadata, CreatedAt: time.Now().UTC()}
	err = s.add(ctx, &r, name)
	if errors.Is(err, errTaken) {
		return s.Create(ctx, base, path, metadata) // it was made meanwhile
	}
	if err != nil {
		return nil, err
	}
	s.opts.Logger.Info("namespace created", "namespace", r.Path, "id", r.ID)
	return s.ByID(ctx, r.ID)
}

var errTaken = errors.New("the name is taken")

// add writes a new namespace, one at a time.
func (s *Store) add(ctx context.Context, r *record, name string) error {
	s.creating.Lock()
	defer s.creating.Unlock()
	_, err := storage.Update(ctx, s.opts.Store, func(tx *storage.Txn) error { return s.create(ctx, tx, r, name) })
	return err
}

// create writes a new entry and everything the namespace begins with.
func (s *Store) create(ctx context.Context, tx *storage.Txn, r *record, name string) error {
	if err := s.Guard(ctx, tx, r.Parent); err != nil {
		return err
	}
	if e, err := tx.Get(ctx, nameKey(r.Parent, name)); err == nil {
		switch other, err := get(ctx, tx, string(e.Value)); {
		case err != nil:
			return err
		case other.Deleting:
			return engines.Invalid("namespace %q is being deleted: try again when it is gone", r.Path)
		}
		return errTaken
	} else if !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	for {
		r.ID = random(idLetters)
		if _, err := tx.Get(ctx, recordKey(r.ID)); errors.Is(err, storage.ErrNotFound) {
			break
		} else if err != nil {
			return err
		}
	}
	if s.opts.Contents != nil {
		if err := s.opts.Contents.Reserve(ctx, tx, r.Parent, name+"/"); err != nil {
			return err
		}
		for _, p := range s.opts.Contents.FirstPuts(r.ID) {
			tx.Put(p.Key, p.Value)
		}
	}
	tx.Put(nameKey(r.Parent, name), []byte(r.ID))
	tx.Put(recordKey(r.ID), r.value())
	if r.Parent == RootID {
		return nil
	}
	// Rewritten so that of this transaction and the parent's deletion only one succeeds.
	parent, err := get(ctx, tx, r.Parent)
	if err != nil {
		return err
	}
	tx.Put(recordKey(r.Parent), parent.value())
	return nil
}

// place splits a path relative to base into the namespace that it would lie in, with the tree that has that, and its name.
func (s *Store) place(ctx context.Context, base, path string) (t *tree, parent *Namespace, name string, err error) {
	t, n, err := s.from(ctx, base)
	if err != nil {
		return nil, nil, "", err
	}
	path = strings.Trim(path, "/")
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		above := t.find(n, path[:i])
		if above == nil || above.Deleting {
			return nil, nil, "", engines.Invalid("there is no namespace %q: create it first", n.Path+path[:i]+"/")
		}
		n, path = above, path[i+1:]
	}
	return t, n, path, nil
}

// find returns the namespace at a path relative to the one with the id base, also one that is being deleted. The
// error is of KindNotFound, without a text.
func (s *Store) find(ctx context.Context, base, path string) (*Namespace, error) {
	_, n, err := s.findIn(ctx, base, path)
	return n, err
}

// findIn is find, with the tree that the namespace is in.
func (s *Store) findIn(ctx context.Context, base, path string) (*tree, *Namespace, error) {
	t, n, err := s.from(ctx, base)
	if err != nil {
		return nil, nil, err
	}
	if n = t.find(n, strings.Trim(path, "/")); n == nil {
		return nil, nil, engines.NotFound("")
	}
	return t, n, nil
}

// edit rewrites an entry in one transaction. One that is being deleted cannot be changed.
func (s *Store) edit(ctx context.Context, id string, change func(*record) error) (*Namespace, error) {
	if id == RootID {
		return nil, engines.Invalid("the root namespace cannot be changed")
	}
	_, err := storage.Update(ctx, s.opts.Store, func(tx *storage.Txn) error {
		if err := s.Guard(ctx, tx, id); err != nil {
			return err
		}
		r, err := get(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := change(&r); err != nil {
			return err
		}
		tx.Put(recordKey(id), r.value())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.ByID(ctx, id)
}

// Merge changes metadata: a nil removes a key, everything that is not named stays. With clear, what was there goes
// first.
func (s *Store) Merge(ctx context.Context, id string, clear bool, changes map[string]*string) (*Namespace, error) {
	return s.edit(ctx, id, func(r *record) error {
		metadata := maps.Clone(r.Metadata)
		if metadata == nil || clear {
			metadata = map[string]string{}
		}
		for k, v := range changes {
			if v == nil {
				delete(metadata, k)
			} else {
				metadata[k] = *v
			}
		}
		r.Metadata = metadata
		return checkMetadata(metadata)
	})
}

// Lock closes a namespace and all below it, and returns the key that opens it again, which is not kept.
func (s *Store) Lock(ctx context.Context, id string) (engines.Sensitive, error) {
	if id == RootID {
		return "", engines.Invalid("the root namespace cannot be locked: name one below it")
	}
	key := random(unlockKeyBytes)
	n, err := s.edit(ctx, id, func(r *record) error {
		if r.Locked {
			return engines.Invalid("namespace %q is locked already", r.Path)
		}
		hash := sha256.Sum256([]byte(key))
		r.Locked, r.UnlockHash = true, hash[:]
		return nil
	})
	if err != nil {
		return "", err
	}
	s.opts.Logger.Warn("the API of a namespace was locked", "namespace", n.Path)
	return engines.Sensitive(key), nil
}

// Unlock opens a namespace that Lock closed. Without the key only force opens it.
func (s *Store) Unlock(ctx context.Context, id string, key engines.Sensitive, force bool) error {
	if id == RootID {
		return engines.Invalid("the root namespace is never locked: name one below it")
	}
	n, err := s.edit(ctx, id, func(r *record) error {
		hash := sha256.Sum256([]byte(key.Reveal()))
		switch {
		case !r.Locked:
			return engines.Invalid("namespace %q is not locked", r.Path)
		case key == "" && !force:
			return engines.Invalid("field \"unlock_key\" is required: it was answered when the namespace was locked")
		case key != "" && subtle.ConstantTimeCompare(hash[:], r.UnlockHash) != 1:
			return engines.Invalid("field \"unlock_key\" is not the key of namespace %q", r.Path)
		}
		r.Locked, r.UnlockHash = false, nil
		return nil
	})
	if err != nil {
		return err
	}
	s.opts.Logger.Warn("the API of a namespace was unlocked", "namespace", n.Path)
	return nil
}
