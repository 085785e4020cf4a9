package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/storage"
)

// setKeysKey is where the keys are that all clusters of a replication set have in common: they replicate.
const setKeysKey storage.Key = "s/sys/set/keys"

// setKeys are those keys, 32 bytes each. Neither opens anything that is stored.
type setKeys struct {
	Format int    `json:"format"` // 1
	Batch  []byte `json:"batch"`  // batch tokens, which are valid everywhere
	State  []byte `json:"state"`  // state tokens, which any cluster can read
}

func (k *setKeys) put() storage.Put {
	k.Format = 1
	value, err := json.Marshal(k)
	if err != nil {
		panic(err) // bytes and a number
	}
	return storage.Put{Key: setKeysKey, Value: value}
}

func newSetKeys() *setKeys {
	k := &setKeys{Batch: make([]byte, 32), State: make([]byte, 32)}
	rand.Read(k.Batch) // never fails
	rand.Read(k.State)
	return k
}

// loadSetKeys reads the keys; storage.ErrNotFound.
func (s *Server) loadSetKeys(ctx context.Context) (*setKeys, error) {
	e, err := s.barrier.Get(ctx, setKeysKey)
	if err != nil {
		return nil, err
	}
	return parseSetKeys(e.Value)
}

func parseSetKeys(value []byte) (*setKeys, error) {
	k := new(setKeys)
	if err := json.Unmarshal(value, k); err != nil || k.Format != 1 || len(k.Batch) != 32 || len(k.State) != 32 {
		return nil, errors.New("the keys of the replication set have an unknown format")
	}
	return k, nil
}

// ensureSetKeys gives a data directory of an older version the keys it lacks: those that it has derived so far.
func (s *Server) ensureSetKeys(ctx context.Context) error {
	batch, err := s.barrier.DeriveKey("coffer batch token v1")
	if err != nil {
		return err
	}
	_, err = storage.Update(ctx, s.barrier, func(tx *storage.Txn) error {
		_, err := tx.Get(ctx, setKeysKey)
		if !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		k := newSetKeys()
		k.Batch = batch
		tx.Put(setKeysKey, k.put().Value)
		return nil
	})
	return err
}

// newBatchKey puts another key of batch tokens into the transaction: for a set that a cluster has left which knows the one
// before, and could make batch tokens with it that are good everywhere. All that there are end with it. The key of state
// tokens stays, which are good for nothing but to wait.
func newBatchKey(ctx context.Context, tx *storage.Txn) error {
	e, err := tx.Get(ctx, setKeysKey)
	if errors.Is(err, storage.ErrNotFound) {
		return nil // of an older version, or never arrived: there is none yet that others know
	}
	if err != nil {
		return err
	}
	k, err := parseSetKeys(e.Value)
	if err != nil {
		return err
	}
	k.Batch = newSetKeys().Batch
	tx.Put(setKeysKey, k.put().Value)
	return nil
}

// batchKey is the key of batch tokens.
func (s *Server) batchKey() ([]byte, error) {
	k, err := s.loadSetKeys(context.Background())
	if errors.Is(err, storage.ErrNotFound) && !s.secondary() {
		return s.barrier.DeriveKey("coffer batch token v1") // the entry is still to come, with the same key
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the keys of the replication set are not there yet: %w", storage.ErrUnavailable, err)
	}
	return k.Batch, nil
}
