package workqueue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// link is what tests queue.
type link struct{ NS, Destination, Association, Secret string }

// done is what a queue has done.
type done struct {
	mu   sync.Mutex
	jobs []string
}

func (d *done) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs = append(d.jobs, fmt.Sprintf(format, args...))
}

func (d *done) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.jobs)
}

// startQueue runs a queue until the test ends.
func startQueue(t *testing.T, width int, do func(ctx context.Context, key link, refresh bool)) (q *Queue[link], stop func()) {
	t.Helper()
	q = &Queue[link]{Do: do, Partition: func(l link) string { return l.Destination }, Concurrency: func(string) int { return width }}
	ctx, cancel := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); q.Run(ctx, began) }()
	<-began
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return q, stop
}

func key(dest, secret string) link { return link{"root", dest, "a", secret} }

func TestQueueDoesOnceWhatIsQueuedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d done
		q, _ := startQueue(t, 1, func(_ context.Context, key link, refresh bool) {
			d.add("%s %v", key.Secret, refresh)
		})
		in := func(wait time.Duration) time.Time { return time.Now().Add(wait) }
		q.Push(key("d", "one"), in(time.Second), false, nil)
		q.Push(key("d", "one"), in(time.Minute), true, nil)
		q.Push(key("d", "two"), in(2*time.Second), false, nil)
		q.Push(key("d", "two"), in(time.Hour), false, nil)
		q.Push(key("d", "two"), in(500*time.Millisecond), false, nil)
		if got := d.all(); got != nil {
			t.Fatalf("did %v before the time", got)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := d.all(); !slices.Equal(got, []string{"two false", "one true"}) {
			t.Errorf("did %v", got)
		}
		if loads := q.Loads(func(link, bool, bool) {}); len(loads) != 0 || len(q.partitions) != 0 {
			t.Errorf("%v, %d partitions when all is done", loads, len(q.partitions))
		}
	})
}

func TestQueueDoesAgainWhatIsQueuedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d done
		q, _ := startQueue(t, 4, func(_ context.Context, _ link, refresh bool) {
			d.add("begin %v", refresh)
			time.Sleep(time.Second)
			d.add("end")
		})
		first, second := make(chan struct{}), make(chan struct{})
		q.Push(key("d", "one"), time.Time{}, false, first)
		synctest.Wait()
		if _, running := q.State(key("d", "one")); !running {
			t.Error("it does not run")
		}
		for range 3 {
			q.Push(key("d", "one"), time.Time{}, false, nil)
		}
		q.Push(key("d", "one"), time.Time{}, true, second)
		<-first
		if got := d.all(); len(got) < 2 || got[1] != "end" {
			t.Errorf("told after %v", got)
		}
		<-second
		if got := d.all(); !slices.Equal(got, []string{"begin false", "end", "begin true", "end"}) {
			t.Errorf("did %v", got)
		}
	})
}

func TestQueueOfOneDestinationDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d done
		q, _ := startQueue(t, 2, func(ctx context.Context, key link, _ bool) {
			if key.Destination == "slow" {
				<-ctx.Done()
				return
			}
			d.add("%s", key.Secret)
		})
		for i := range 50 {
			q.Push(key("slow", fmt.Sprint(i)), time.Time{}, false, nil)
		}
		q.Push(key("quick", "one"), time.Time{}, false, nil)
		synctest.Wait()
		if got := d.all(); !slices.Equal(got, []string{"one"}) {
			t.Errorf("the quick destination did %v", got)
		}
		due := 0
		loads := q.Loads(func(_ link, running, _ bool) {
			if !running {
				due++
			}
		})
		if l := loads["slow"]; due != 48 || l.Running != 2 {
			t.Errorf("%d due, %d running, want 48 and 2", due, l.Running)
		}
	})
}

func TestQueueEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d done
		q, stop := startQueue(t, 1, func(ctx context.Context, key link, _ bool) {
			d.add("%s", key.Secret)
			<-ctx.Done()
		})
		var told []chan struct{}
		for i := range 3 {
			told = append(told, make(chan struct{}))
			q.Push(key("d", fmt.Sprint(i)), time.Now().Add(time.Duration(i)), false, told[i])
		}
		again := make(chan struct{})
		time.Sleep(time.Second)
		synctest.Wait()
		q.Push(key("d", "0"), time.Time{}, false, again)
		stop()
		for _, ch := range append(told, again) {
			<-ch // the waiting caller is released, whether or not the job ran
		}
		if got := d.all(); !slices.Equal(got, []string{"0"}) {
			t.Errorf("did %v", got)
		}
		late := make(chan struct{})
		q.Push(key("d", "late"), time.Time{}, false, late)
		<-late
		time.Sleep(time.Hour) // no timer is left that would do anything
		if got := d.all(); len(got) != 1 {
			t.Errorf("did %v after its end", got)
		}
	})
}

// TestQueueDoesAllOfMany also runs it again after its end, as a node that becomes the active one again does.
func TestQueueDoesAllOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		most, now, n := 0, 0, 0
		do := func(context.Context, link, bool) {
			mu.Lock()
			n++
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
		}
		q, stop := startQueue(t, 3, do)
		push := func() {
			for i := range 500 {
				q.Push(key("d", fmt.Sprint(i)), time.Now().Add(time.Duration(i%7)*time.Second), false, nil)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		push()
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		began, ended := make(chan struct{}), make(chan struct{})
		go func() { defer close(ended); q.Run(ctx, began) }()
		<-began
		push()
		cancel()
		<-ended
		if n != 1000 || most != 3 {
			t.Errorf("did %d of 1000, %d at once of 3", n, most)
		}
	})
}
