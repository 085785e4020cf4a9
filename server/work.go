package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/fence"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// work calls the mounts that are engines.Workers, for as long as this node is the active one. A mount that takes long does
// not keep the others waiting.
func (s *Server) work(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	var busy sync.Map // by mount uuid
	tick := time.NewTicker(engines.WorkInterval)
	defer tick.Stop()
	for {
		mounts, err := s.mounts.Everywhere(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("no mount can do its work", "err", err)
		}
		for _, m := range mounts {
			worker, ok := m.Engine.(engines.Worker)
			if !ok || m.Deleting {
				continue
			}
			if _, at := busy.LoadOrStore(m.UUID, true); at {
				continue
			}
			under.Go(func() {
				defer busy.Delete(m.UUID)
				if err := s.workOf(ctx, m, worker); err != nil {
					s.log.Warn("a mount cannot do its work", "mount", m.Path, "namespace", m.Namespace, "err", err)
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// workOf has one mount do its work, until that is done or the mount is to be disabled or moved, which waits for it.
func (s *Server) workOf(ctx context.Context, m *mount.Mounted, w engines.Worker) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("the work of a mount panicked", "mount", m.Path, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			err = errors.New("panic")
		}
	}()
	ctx, release, err := m.HoldWhile(ctx)
	if err != nil {
		return nil //nolint:nilerr // it is being disabled or moved
	}
	defer release()
	role := s.replicated.Role()
	err = w.Work(fence.InLife(ctx, role), m.Mount, m.Local || !s.Secondary())
	if ctx.Err() != nil {
		return nil //nolint:nilerr // what was broken off is not an error
	}
	if errors.Is(err, storage.ErrPrimaryOnly) || errors.Is(err, storage.ErrReadOnly) {
		return nil // the role has just changed: others do it now
	}
	return err
}
