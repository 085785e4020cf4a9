package workqueue

import (
	"context"
	"sync"
	"time"
)

// Gatherer has links that are synced at the same time commit at the same time, so that their commits share entries of the log: one entry
// costs as much as several links. Few links wait for no others. The zero value is ready.
type Gatherer struct {
	mu      sync.Mutex
	running int
	commit  chan struct{} // closed when those that wait commit; nil: none waits
}

const (
	// gatherTime is how long a commit waits for others, and fewLinks the number of links up to which it does not.
	gatherTime = 10 * time.Millisecond
	fewLinks   = 4
)

// Begin counts a link until end is called.
func (g *Gatherer) Begin() (end func()) {
	g.add(1)
	return func() { g.add(-1) }
}

func (g *Gatherer) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running += n
}

// Wait returns when it is time to commit, or ctx has ended.
func (g *Gatherer) Wait(ctx context.Context) {
	select {
	case <-g.next():
	case <-ctx.Done():
	}
}

func (g *Gatherer) next() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	commit := g.commit
	switch {
	case commit != nil:
		return commit
	case g.running <= fewLinks:
		commit = make(chan struct{})
		close(commit)
		return commit
	}
	commit = make(chan struct{})
	g.commit = commit
	time.AfterFunc(gatherTime, func() {
		g.mu.Lock()
		g.commit = nil
		g.mu.Unlock()
		close(commit)
	})
	return commit
}
