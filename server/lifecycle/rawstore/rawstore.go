// Package rawstore is the store below the barrier: reads of the local state, commits through the running cluster. What a sealed
// node reads is the only thing that it has to begin with, so a commit of that waits until a majority can read it while sealed.
package rawstore

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// SealedPrefixes hold what a node reads while it is sealed. It reads its state file only: it cannot replay its log.
var SealedPrefixes = []storage.Key{"l/seal/", "l/barrier/"}

// durableTimeout is how long a change of what sealed nodes read waits for the disks of a majority. Then it is
// acknowledged all the same, because the log has it: keys that are in effect must reach those who hold them.
const durableTimeout = 5 * time.Second

// Cluster is what commits.
type Cluster interface {
	storage.Committer
	// AwaitDurable waits, on the leader, until what a sealed node reads has everything up to index on the disks of a majority.
	AwaitDurable(ctx context.Context, index storage.Index) error
}

// Store is the store below the barrier: reads of the local state, commits through the running cluster. A commit of what a
// sealed node reads is answered once a majority has it on disk in a form that a sealed node can read.
type Store struct {
	storage.Reader
	log     *slog.Logger
	cluster atomic.Pointer[Cluster]
}

// New returns a store that answers commits with storage.ErrSealed until a cluster runs. log may be nil.
func New(r storage.Reader, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{Reader: r, log: log}
}

// Commit implements storage.Committer.
func (s *Store) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	c := s.cluster.Load()
	if c == nil {
		return 0, storage.ErrSealed
	}
	index, err := (*c).Commit(ctx, b)
	if err == nil && b.Writes(SealedPrefixes...) {
		s.awaitDurable(ctx, *c, index)
	}
	return index, err
}

func (s *Store) awaitDurable(ctx context.Context, c Cluster, index storage.Index) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), durableTimeout)
	defer cancel()
	if err := c.AwaitDurable(ctx, index); err != nil {
		s.log.Warn("a change of the seal or of the key ring is committed, but a majority has not confirmed that it is in their state files: "+
			"keep the former keys until every node has been unsealed with the new ones", "index", index, "err", err)
	}
}

// Route has commits go through a cluster; nil: they fail with storage.ErrSealed.
func (s *Store) Route(c Cluster) {
	if c == nil {
		s.cluster.Store(nil)
		return
	}
	s.cluster.Store(&c)
}
