// Package setkeys holds the keys that all clusters of a replication set have in common: the one that batch tokens are made with, and
// the one of state tokens. They are one entry of shared data, which replicates like any other.
package setkeys

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/storage"
)

// Entry is where the keys are.
const Entry storage.Key = "s/sys/set/keys"

// keys are 32 bytes each. Neither opens anything that is stored.
type keys struct {
	Format int    `json:"format"` // 1
	Batch  []byte `json:"batch"`  // batch tokens, which are valid everywhere
	State  []byte `json:"state"`  // state tokens, which any cluster can read
}

func (k *keys) put() storage.Put {
	k.Format = 1
	value, err := json.Marshal(k)
	if err != nil {
		panic(err) // bytes and a number
	}
	return storage.Put{Key: Entry, Value: value}
}

func newKeys() *keys {
	k := &keys{Batch: make([]byte, 32), State: make([]byte, 32)}
	rand.Read(k.Batch) // never fails
	rand.Read(k.State)
	return k
}

// FirstPut gives a new cluster its keys.
func FirstPut() storage.Put { return newKeys().put() }

// Store reads the keys of this cluster's set.
type Store struct {
	Barrier lifecycle.Barrier
	Cluster Cluster
}

// Cluster is this cluster in replication.
type Cluster interface{ Secondary() bool }

// load reads the keys; storage.ErrNotFound.
func (s *Store) load(ctx context.Context) (*keys, error) {
	e, err := s.Barrier.Get(ctx, Entry)
	if err != nil {
		return nil, err
	}
	return parse(e.Value)
}

func parse(value []byte) (*keys, error) {
	k := new(keys)
	if err := json.Unmarshal(value, k); err != nil || k.Format != 1 || len(k.Batch) != 32 || len(k.State) != 32 {
		return nil, errors.New("the keys of the replication set have an unknown format")
	}
	return k, nil
}

// Ensure gives a data directory of an older version the keys it lacks: those that it has derived so far.
func (s *Store) Ensure(ctx context.Context) error {
	batch, err := s.Barrier.DeriveKey("coffer batch token v1")
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, s.Barrier, func(tx *storage.Txn) error {
		_, err := tx.Get(ctx, Entry)
		if !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		k := newKeys()
		k.Batch = batch
		tx.Put(Entry, k.put().Value)
		return nil
	})
	return err
}

// RenewBatch puts another key of batch tokens into the transaction: for a set that a cluster has left which knows the one
// before, and could make batch tokens with it that are good everywhere. All that there are end with it. The key of state
// tokens stays, which are good for nothing but to wait.
func RenewBatch(ctx context.Context, tx *storage.Txn) error {
	e, err := tx.Get(ctx, Entry)
	if errors.Is(err, storage.ErrNotFound) {
		return nil // of an older version, or never arrived: there is none yet that others know
	}
	if err != nil {
		return err
	}
	k, err := parse(e.Value)
	if err != nil {
		return err
	}
	k.Batch = newKeys().Batch
	tx.Put(Entry, k.put().Value)
	return nil
}

// Batch returns the key of batch tokens.
func (s *Store) Batch() ([]byte, error) {
	k, err := s.load(context.Background())
	if errors.Is(err, storage.ErrNotFound) && !s.Cluster.Secondary() {
		return s.Barrier.DeriveKey("coffer batch token v1") // the entry is still to come, with the same key
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the keys of the replication set are not there yet: %w", storage.ErrUnavailable, err)
	}
	return k.Batch, nil
}

// State returns the key of state tokens.
func (s *Store) State() ([]byte, error) {
	k, err := s.load(context.Background())
	if err != nil {
		return nil, err
	}
	return k.State, nil
}
