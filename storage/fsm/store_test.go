package fsm_test

import (
	"context"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/storagetest"
)

// store commits by applying entries directly, in the place of Raft.
type store struct {
	*fsm.FSM
	mu sync.Mutex
}

func (s *store) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := b.Validate(64); err != nil {
		return 0, err
	}
	data, err := fsm.EncodeCommand(0, []storage.Batch{b})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	index := uint64(s.AppliedIndex()) + 1
	switch res := s.Apply(&raft.Log{Type: raft.LogCommand, Index: index, Term: 1, Data: data}).(type) {
	case fsm.Result:
		if res.Errs[0] != nil {
			return 0, res.Errs[0]
		}
		return res.Index, nil
	case error:
		return 0, res
	}
	panic("an entry was applied twice")
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, func(t testing.TB) storage.Store { return &store{FSM: open(t, t.TempDir())} })
}

func TestFeedConformance(t *testing.T) {
	storagetest.RunFeed(t, func(t testing.TB) storagetest.FeedStore { return &store{FSM: open(t, t.TempDir())} })
}
