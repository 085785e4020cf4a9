package workqueue

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// job is one link to sync.
type job[K comparable] struct {
	key     K
	at      time.Time // not before
	since   time.Time // when it was, or will be, due first
	refresh bool      // read the destination even if the sync state is up to date
	waiting []chan<- struct{}
	index   int // in the heap; -1: running
	again   *job[K]
}

// Queue holds the links to sync, in one partition for each destination. A link that is queued twice is synced once; one that is
// queued while it is being synced is synced again. The store says which links are due, so nothing is lost with the queue.
type Queue[K comparable] struct {
	// Do syncs one link. It may queue it again.
	Do func(ctx context.Context, key K, refresh bool)
	// Partition returns the destination of a link.
	Partition func(key K) string
	// Concurrency is how many links of a destination may be synced at once.
	Concurrency func(dest string) int

	mu         sync.Mutex
	ctx        context.Context // while running, else nil
	partitions map[string]*partition[K]
	jobs       sync.WaitGroup
}

// partition holds the jobs of one destination.
type partition[K comparable] struct {
	jobs    map[K]*job[K] // queued and running ones
	waiting jobHeap[K]
	running int
	timer   *time.Timer // until the next one is due; nil: none
}

// Run runs jobs until ctx ends, then drops the others. It closes began when Push accepts jobs.
func (q *Queue[K]) Run(ctx context.Context, began chan<- struct{}) {
	q.mu.Lock()
	q.ctx, q.partitions = ctx, map[string]*partition[K]{}
	q.mu.Unlock()
	close(began)
	<-ctx.Done()
	q.mu.Lock()
	q.ctx = nil
	for _, l := range q.partitions {
		if l.timer != nil {
			l.timer.Stop()
		}
		for _, j := range l.jobs {
			if j.index >= 0 {
				j.finish()
			}
		}
	}
	q.partitions = nil
	q.mu.Unlock()
	q.jobs.Wait()
}

// Push queues a link for a time; a time in the past is now. If done is not nil, Push's job closes it when the link has been synced or
// was dropped.
func (q *Queue[K]) Push(key K, at time.Time, refresh bool, done chan<- struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil {
		if done != nil {
			close(done)
		}
		return
	}
	l := q.partitions[q.Partition(key)]
	if l == nil {
		l = &partition[K]{jobs: map[K]*job[K]{}}
		q.partitions[q.Partition(key)] = l
	}
	since := at
	if now := time.Now(); since.Before(now) {
		since = now
	}
	j := l.jobs[key]
	switch {
	case j == nil:
		j = &job[K]{key: key, at: at, since: since}
		l.jobs[key] = j
		heap.Push(&l.waiting, j)
	case j.index < 0: // it runs: once more afterwards
		if j.again == nil {
			j.again = &job[K]{key: key, at: at, since: since}
		}
		j = j.again
	}
	if at.Before(j.at) {
		j.at = at
		if j.index >= 0 && l.jobs[key] == j {
			heap.Fix(&l.waiting, j.index)
		}
	}
	if since.Before(j.since) {
		j.since = since
	}
	j.refresh = j.refresh || refresh
	if done != nil {
		j.waiting = append(j.waiting, done)
	}
	q.startLocked(q.Partition(key), l)
}

// takeLocked takes a job that is due from a partition, if it may run now; nil: none.
func (q *Queue[K]) takeLocked(l *partition[K], now time.Time, most int) *job[K] {
	if q.ctx.Err() != nil || len(l.waiting) == 0 || l.running >= max(most, 1) || l.waiting[0].at.After(now) {
		return nil
	}
	l.running++
	return heap.Pop(&l.waiting).(*job[K])
}

// startLocked starts the jobs that are due, and the timer for the next one.
func (q *Queue[K]) startLocked(dest string, l *partition[K]) {
	if q.ctx.Err() != nil {
		return // Run is about to drop it
	}
	now, most := time.Now(), q.Concurrency(dest)
	for {
		j := q.takeLocked(l, now, most)
		if j == nil {
			break
		}
		ctx := q.ctx
		q.jobs.Go(func() {
			for do := j; do != nil; do = q.next(l, do) { // on one stack, which has grown
				q.Do(ctx, do.key, do.refresh)
			}
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
	if l := q.partitions[dest]; q.ctx != nil && l != nil {
		q.startLocked(dest, l)
	}
}

// next ends a job, and returns the one that its goroutine does next, nil for none.
func (q *Queue[K]) next(l *partition[K], j *job[K]) *job[K] {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.finish()
	l.running--
	delete(l.jobs, j.key)
	again, dest := j.again, q.Partition(j.key)
	if q.ctx == nil {
		if again != nil {
			again.finish()
		}
		return nil
	}
	if again != nil {
		l.jobs[j.key] = again
		heap.Push(&l.waiting, again)
	}
	next := q.takeLocked(l, time.Now(), q.Concurrency(dest))
	q.startLocked(dest, l)
	if len(l.jobs) == 0 {
		delete(q.partitions, dest)
	}
	return next
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
	if l := q.partitions[q.Partition(key)]; l != nil {
		if j := l.jobs[key]; j != nil {
			return j.index >= 0 && !j.at.After(time.Now()), j.index < 0
		}
	}
	return false, false
}

// Load is what there is to do for a partition now.
type Load struct {
	Running int
	Since   time.Time // when the oldest of these jobs became due; zero: there is none
}

// Loads returns the loads of all partitions that have jobs. It calls count with each job that is due or running, with the lock held.
func (q *Queue[K]) Loads(count func(key K, running, refresh bool)) map[string]Load {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	loads := make(map[string]Load, len(q.partitions))
	for name, l := range q.partitions {
		load := Load{Running: l.running}
		for _, j := range l.jobs {
			running := j.index < 0
			if !running && j.at.After(now) {
				continue
			}
			if load.Since.IsZero() || j.since.Before(load.Since) {
				load.Since = j.since
			}
			count(j.key, running, j.refresh)
		}
		loads[name] = load
	}
	return loads
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
