package server

import (
	"context"
	"sync"
)

// background owns the goroutines that run only while this node is the active one.
type background struct {
	mu   sync.Mutex
	ctx  context.Context // while active; else nil or ended
	work *sync.WaitGroup // of ctx
}

// run runs all of them, and what Start adds meanwhile, until ctx has ended and they have returned.
func (b *background) run(ctx context.Context, all ...func(context.Context)) {
	var work sync.WaitGroup
	for _, one := range all {
		work.Go(func() { one(ctx) })
	}
	b.mu.Lock()
	b.ctx, b.work = ctx, &work
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock()
	b.ctx, b.work = nil, nil // from here on Start adds nothing
	b.mu.Unlock()
	work.Wait()
}

// Start runs work until this node is no longer the active one. On another node work is called at once, with a context
// that has ended.
func (b *background) Start(work func(context.Context)) {
	b.mu.Lock()
	if b.ctx != nil {
		ctx := b.ctx
		b.work.Go(func() { work(ctx) })
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	ended, end := context.WithCancel(context.Background())
	end()
	work(ended)
}
