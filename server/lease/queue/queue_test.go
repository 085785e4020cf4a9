package queue

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
)

func refTo(ns, mount string, at int64, id int) index.Ref {
	r, ok := index.Parse(fmt.Sprintf("%020d,%s,%s,m%%2F,%d", at, ns, mount, id))
	if !ok {
		panic("bad name")
	}
	return r
}

// serve takes n jobs and finishes each before the next, with what mark would give back.
func serve(q *Queue, n int, ok bool) (calls []string) {
	for range n {
		j, more := q.Next()
		if !more {
			return calls
		}
		for _, r := range j.Mark {
			j.Lane.ready = append(j.Lane.ready, &record.Record{ID: r.ID, Namespace: r.Namespace, Mount: r.Mount})
		}
		if j.Call != nil {
			calls = append(calls, j.Call.Mount)
			q.Done(j.Call.ID)
		}
		q.Finished(j, ok)
	}
	return calls
}

// TestQueueIsFair has one namespace with three mounts beside one with a single mount, all with much to do.
func TestQueueIsFair(t *testing.T) {
	q := New()
	for i := range 100 {
		for m, mount := range []string{"a", "b", "c"} {
			q.Add(refTo("one", mount, 1, 1000*m+i))
		}
		q.Add(refTo("two", "z", 1, 9000+i))
	}
	count := map[string]int{}
	for _, m := range serve(q, 124, true) {
		count[m]++
	}
	if count["z"] < 55 || count["a"] < 18 || count["b"] < 18 || count["c"] < 18 {
		t.Errorf("calls %v, want half for z and the rest for a, b and c in equal parts", count)
	}
	serve(q, 1000, true)
	if len(q.lanes) != 0 || len(q.spaces) != 0 || len(q.queued) != 0 {
		t.Errorf("%d lanes, %d namespaces, %d leases left in an empty queue", len(q.lanes), len(q.spaces), len(q.queued))
	}
}

func TestQueueLimits(t *testing.T) {
	q := New()
	for i := range LaneMost + 10 {
		if !q.Add(refTo("one", "a", int64(i), i)) {
			t.Fatalf("lease %d was refused", i)
		}
	}
	if q.Add(refTo("one", "a", 5, 5)) {
		t.Error("a queued lease was taken again")
	}
	l := q.lanes["a"]
	if len(l.due) != LaneMost || !strings.HasPrefix(l.overflow, fmt.Sprintf("%020d,", LaneMost)) {
		t.Errorf("%d held, the rest from %q", len(l.due), l.overflow)
	}
	serve(q, 1, true) // mark
	var open []Job
	for {
		j, ok := q.Next()
		if !ok {
			break
		}
		open = append(open, j)
	}
	if len(open) != firstCalls {
		t.Errorf("%d calls at once, want %d", len(open), firstCalls)
	}
	for _, j := range open {
		q.Finished(j, false)
	}
	if l.limit != 1 || l.calls != 0 {
		t.Errorf("after failures %d calls at once, %d open; want 1, 0", l.limit, l.calls)
	}
	serve(q, 40, true)
	if l.limit != laneCalls {
		t.Errorf("after successes %d calls at once, want %d", l.limit, laneCalls)
	}
}
