package seal

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Stored is the seal as it is stored: what a change of it replaces.
type Stored struct {
	Config   Config
	Root     []byte // the wrapped root key
	Recovery []byte // the verifier of the recovery key; nil: there is none
}

// LoadStored reads it; storage.ErrNotFound: there is no seal.
func LoadStored(ctx context.Context, raw Getter) (s Stored, err error) {
	config, root, err := Load(ctx, raw)
	if err != nil {
		return s, err
	}
	s.Config, s.Root = config, bytes.Clone(root)
	e, err := raw.Get(ctx, RecoveryKey)
	if errors.Is(err, storage.ErrNotFound) {
		return s, nil
	}
	s.Recovery = bytes.Clone(e.Value)
	return s, err
}

func (s Stored) equal(o Stored) bool {
	created := s.Config.Created.Equal(o.Config.Created)
	s.Config.Created, o.Config.Created = time.Time{}, time.Time{} // == also compares how a time is kept
	return created && s.Config == o.Config && bytes.Equal(s.Root, o.Root) && bytes.Equal(s.Recovery, o.Recovery)
}

// ErrReplaced means that the seal in the state is not the one that was to be replaced.
var ErrReplaced = errors.New("the seal has been changed by others meanwhile")

// Replace writes a seal in place of the one that is given, with all that belongs to it: also a recovery key that was
// changed meanwhile must not come back.
func Replace(ctx context.Context, raw storage.Store, from Stored, change func(txn *storage.Txn) error) error {
	_, err := storage.Update(ctx, raw, func(txn *storage.Txn) error {
		now, err := LoadStored(ctx, txn)
		if err != nil {
			return err
		}
		if !now.equal(from) {
			return ErrReplaced
		}
		return change(txn)
	})
	return err
}

// WriteAll is a change that writes entries and deletes others.
func WriteAll(puts []storage.Put, deletes ...storage.Key) func(*storage.Txn) error {
	return func(txn *storage.Txn) error {
		for _, p := range puts {
			txn.Put(p.Key, p.Value)
		}
		for _, key := range deletes {
			txn.Delete(key)
		}
		return nil
	}
}
