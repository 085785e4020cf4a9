package work

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// job is something that is to be done.
type job[K comparable] struct {
	key     K
	at      time.Time // not before
	refresh bool      // look at the destination even if nothing seems to have changed
	waiting []chan<- struct{}
	index   int // in the heap; -1: running
	again   *job[K]
}

// Queue holds what is to be done, by destination: one that is slow keeps nobody else waiting. A link that is queued twice is
// done once, one that is queued while it is done is done again. What is queued is only what the store says anyhow, so that
// nothing of it is lost with the queue.
type Queue[K comparable] struct {
	// Do syncs one link. It may queue it again.
	Do func(ctx context.Context, key K, refresh bool)
	// Lane is the destination of a link.
	Lane func(key K) string
	// Width is how many links of a destination may be synced at once.
	Width func(dest string) int

	mu    sync.Mutex
	ctx   context.Context // while running, else nil
	lanes map[string]*lane[K]
	jobs  sync.WaitGroup
}

// lane are the jobs of one destination.
type lane[K comparable] struct {
	jobs    map[K]*job[K] // queued and running ones
	waiting jobHeap[K]
	running int
	timer   *time.Timer // until the next one is due; nil: none
}

// Run carries out jobs until ctx ends, and forgets the others then. It closes began when it takes jobs.
func (q *Queue[K]) Run(ctx context.Context, began chan<- struct{}) {
	q.mu.Lock()
	q.ctx, q.lanes = ctx, map[string]*lane[K]{}
	q.mu.Unlock()
	close(began)
	<-ctx.Done()
	q.mu.Lock()
	q.ctx = nil
	for _, l := range q.lanes {
		if l.timer != nil {
			l.timer.Stop()
		}
		for _, j := range l.jobs {
			if j.index >= 0 {
				j.finish()
			}
		}
	}
	q.lanes = nil
	q.mu.Unlock()
	q.jobs.Wait()
}

// Push queues a link for a time; a time in the past is now. If done is not nil it is closed when the link has been synced, or
// will not be.
func (q *Queue[K]) Push(key K, at time.Time, refresh bool, done chan<- struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil {
		if done != nil {
			close(done)
		}
		return
	}
	l := q.lanes[q.Lane(key)]
	if l == nil {
		l = &lane[K]{jobs: map[K]*job[K]{}}
		q.lanes[q.Lane(key)] = l
	}
	j := l.jobs[key]
	switch {
	case j == nil:
		j = &job[K]{key: key, at: at}
		l.jobs[key] = j
		heap.Push(&l.waiting, j)
	case j.index < 0: // it runs: once more afterwards
		if j.again == nil {
			j.again = &job[K]{key: key, at: at}
		}
		j = j.again
	}
	if at.Before(j.at) {
		j.at = at
		if j.index >= 0 && l.jobs[key] == j {
			heap.Fix(&l.waiting, j.index)
		}
	}
	j.refresh = j.refresh || refresh
	if done != nil {
		j.waiting = append(j.waiting, done)
	}
	q.start(q.Lane(key), l)
}

// start begins what is due, and sees to what will be. It needs the lock.
func (q *Queue[K]) start(dest string, l *lane[K]) {
	if q.ctx.Err() != nil {
		return // Run is about to forget it
	}
	now := time.Now()
	for len(l.waiting) > 0 && l.running < max(q.Width(dest), 1) && !l.waiting[0].at.After(now) {
		j := heap.Pop(&l.waiting).(*job[K])
		l.running++
		ctx := q.ctx
		q.jobs.Go(func() {
			q.Do(ctx, j.key, j.refresh)
			q.done(l, j)
		})
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if len(l.waiting) > 0 && l.waiting[0].at.After(now) {
		l.timer = time.AfterFunc(l.waiting[0].at.Sub(now), func() { q.wake(dest) })
	}
}

func (q *Queue[K]) wake(dest string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lanes[dest]; q.ctx != nil && l != nil {
		q.start(dest, l)
	}
}

func (q *Queue[K]) done(l *lane[K], j *job[K]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.finish()
	l.running--
	delete(l.jobs, j.key)
	again := j.again
	if q.ctx == nil {
		if again != nil {
			again.finish()
		}
		return
	}
	if again != nil {
		l.jobs[j.key] = again
		heap.Push(&l.waiting, again)
	}
	q.start(q.Lane(j.key), l)
	if len(l.jobs) == 0 {
		delete(q.lanes, q.Lane(j.key))
	}
}

func (j *job[K]) finish() {
	for _, done := range j.waiting {
		close(done)
	}
	j.waiting = nil
}

// State reports whether a link is queued for now or running.
func (q *Queue[K]) State(key K) (queued, running bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lanes[q.Lane(key)]; l != nil {
		if j := l.jobs[key]; j != nil {
			return j.index >= 0 && !j.at.After(time.Now()), j.index < 0
		}
	}
	return false, false
}

// Counts returns how many jobs are due, and how many run.
func (q *Queue[K]) Counts() (due, running int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, l := range q.lanes {
		running += l.running
		for _, j := range l.waiting {
			if !j.at.After(now) {
				due++
			}
		}
	}
	return due, running
}

// jobHeap is ordered by time.
type jobHeap[K comparable] []*job[K]

func (h jobHeap[K]) Len() int           { return len(h) }
func (h jobHeap[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h jobHeap[K]) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }

// Push implements heap.Interface.
func (h *jobHeap[K]) Push(x any) { j := x.(*job[K]); j.index = len(*h); *h = append(*h, j) }

// Pop implements heap.Interface.
func (h *jobHeap[K]) Pop() any {
	old := *h
	j := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	j.index = -1
	return j
}
