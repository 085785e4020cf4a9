package secretsync

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// jobKey names a link: one secret of an association.
type jobKey struct{ NS, Destination, Association, Secret string }

// job is a link that is to be synced.
type job struct {
	key     jobKey
	at      time.Time // not before
	refresh bool      // look at the destination even if nothing seems to have changed
	waiting []chan<- struct{}
	index   int // in the heap; -1: running
	again   *job
}

// queue holds what is to be done, by destination: one that is slow keeps nobody else waiting. A link that is queued twice is
// done once, one that is queued while it is done is done again. What is queued is only what the store says anyhow, so that
// nothing of it is lost with the queue.
type queue struct {
	// do syncs one link. It may queue it again.
	do func(ctx context.Context, key jobKey, refresh bool)
	// width is how many links of a destination may be synced at once.
	width func(dest string) int

	mu    sync.Mutex
	ctx   context.Context // while running, else nil
	lanes map[string]*lane
	work  sync.WaitGroup
}

// lane are the jobs of one destination.
type lane struct {
	jobs    map[jobKey]*job // queued and running ones
	waiting jobHeap
	running int
	timer   *time.Timer // until the next one is due; nil: none
}

// run carries out jobs until ctx ends, and forgets the others then. It closes began when it takes jobs.
func (q *queue) run(ctx context.Context, began chan<- struct{}) {
	q.mu.Lock()
	q.ctx, q.lanes = ctx, map[string]*lane{}
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
	q.work.Wait()
}

// push queues a link for a time; a time in the past is now. If done is not nil it is closed when the link has been synced, or
// will not be.
func (q *queue) push(key jobKey, at time.Time, refresh bool, done chan<- struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx == nil {
		if done != nil {
			close(done)
		}
		return
	}
	l := q.lanes[key.Destination]
	if l == nil {
		l = &lane{jobs: map[jobKey]*job{}}
		q.lanes[key.Destination] = l
	}
	j := l.jobs[key]
	switch {
	case j == nil:
		j = &job{key: key, at: at}
		l.jobs[key] = j
		heap.Push(&l.waiting, j)
	case j.index < 0: // it runs: once more afterwards
		if j.again == nil {
			j.again = &job{key: key, at: at}
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
	q.start(key.Destination, l)
}

// start begins what is due, and sees to what will be. It needs the lock.
func (q *queue) start(dest string, l *lane) {
	if q.ctx.Err() != nil {
		return // run is about to forget it
	}
	now := time.Now()
	for len(l.waiting) > 0 && l.running < max(q.width(dest), 1) && !l.waiting[0].at.After(now) {
		j := heap.Pop(&l.waiting).(*job)
		l.running++
		ctx := q.ctx
		q.work.Go(func() {
			q.do(ctx, j.key, j.refresh)
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

func (q *queue) wake(dest string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lanes[dest]; q.ctx != nil && l != nil {
		q.start(dest, l)
	}
}

func (q *queue) done(l *lane, j *job) {
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
	q.start(j.key.Destination, l)
	if len(l.jobs) == 0 {
		delete(q.lanes, j.key.Destination)
	}
}

func (j *job) finish() {
	for _, done := range j.waiting {
		close(done)
	}
	j.waiting = nil
}

// state reports whether a link is queued for now or running.
func (q *queue) state(key jobKey) (queued, running bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lanes[key.Destination]; l != nil {
		if j := l.jobs[key]; j != nil {
			return j.index >= 0 && !j.at.After(time.Now()), j.index < 0
		}
	}
	return false, false
}

// counts returns how many jobs are due, and how many run.
func (q *queue) counts() (due, running int) {
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
type jobHeap []*job

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h jobHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }

// Push implements heap.Interface.
func (h *jobHeap) Push(x any) { j := x.(*job); j.index = len(*h); *h = append(*h, j) }

// Pop implements heap.Interface.
func (h *jobHeap) Pop() any {
	old := *h
	j := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	j.index = -1
	return j
}
