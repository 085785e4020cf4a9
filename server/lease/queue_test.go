package lease

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

func refOf(ns, mount string, at int64, id int) ref {
	r, ok := parseName(fmt.Sprintf("%020d,%s,%s,m%%2F,%d", at, ns, mount, id))
	if !ok {
		panic("bad name")
	}
	return r
}

// serve takes n jobs and finishes each before the next, with what mark would give back.
func serve(q *queue, n int, ok bool) (calls []string) {
	for range n {
		j, more := q.next()
		if !more {
			return calls
		}
		for _, r := range j.mark {
			j.lane.ready = append(j.lane.ready, &record{ID: r.id, Namespace: r.ns, Mount: r.mount})
		}
		if j.call != nil {
			calls = append(calls, j.call.Mount)
			q.done(j.call.ID)
		}
		q.finished(j, ok)
	}
	return calls
}

// TestQueueIsFair has one namespace with three mounts beside one with a single mount, all with much to do.
func TestQueueIsFair(t *testing.T) {
	q := newQueue()
	for i := range 100 {
		for m, mount := range []string{"a", "b", "c"} {
			q.add(refOf("one", mount, 1, 1000*m+i))
		}
		q.add(refOf("two", "z", 1, 9000+i))
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
	q := newQueue()
	for i := range laneMost + 10 {
		if !q.add(refOf("one", "a", int64(i), i)) {
			t.Fatalf("lease %d was refused", i)
		}
	}
	if q.add(refOf("one", "a", 5, 5)) {
		t.Error("a queued lease was taken again")
	}
	l := q.lanes["a"]
	if len(l.due) != laneMost || !strings.HasPrefix(l.overflow, fmt.Sprintf("%020d,", laneMost)) {
		t.Errorf("%d held, the rest from %q", len(l.due), l.overflow)
	}
	serve(q, 1, true) // mark
	var open []job
	for {
		j, ok := q.next()
		if !ok {
			break
		}
		open = append(open, j)
	}
	if len(open) != firstCalls {
		t.Errorf("%d calls at once, want %d", len(open), firstCalls)
	}
	for _, j := range open {
		q.finished(j, false)
	}
	if l.limit != 1 || l.calls != 0 {
		t.Errorf("after failures %d calls at once, %d open; want 1, 0", l.limit, l.calls)
	}
	serve(q, 40, true)
	if l.limit != laneCalls {
		t.Errorf("after successes %d calls at once, want %d", l.limit, laneCalls)
	}
}

// TestWindowAgainstModel pushes, notes and takes at random.
func TestWindowAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	w := newWindow()
	w.end = timeName(time.Unix(0, 500))
	model := map[string]int64{}
	for i := range 5000 {
		r := refOf("root", "a", rnd.Int64N(1000), i)
		if w.note(r.name); r.at < 500 {
			model[r.name] = r.at
		}
		w.note(r.name) // a second time makes no difference
		if i%3 > 0 {
			continue
		}
		now := rnd.Int64N(100)
		least := int64(1 << 60)
		for _, at := range model {
			least = min(least, at)
		}
		name, ok := w.take(now)
		if ok != (least <= now) || ok && model[name] != least {
			t.Fatalf("take(%d) = %q, %v; the earliest is %d", now, name, ok, least)
		}
		delete(model, name)
	}
	if len(w.wakes) != len(model) || len(w.held) != len(model) {
		t.Errorf("%d and %d held, want %d", len(w.wakes), len(w.held), len(model))
	}
}

func TestWindowIsBounded(t *testing.T) {
	w := newWindow()
	w.end = timeName(time.Unix(0, 1<<60))
	for i := range 2*windowMost + 100 {
		w.note(refOf("root", "a", int64(1000+i), i).name)
	}
	if len(w.wakes) != 2*windowMost {
		t.Errorf("%d held, want %d", len(w.wakes), 2*windowMost)
	}
	if first := refOf("root", "a", 1000+2*windowMost, 2*windowMost).name; w.end != first {
		t.Errorf("the window ends at %q, want the first that was not held, %q", w.end, first)
	}
}

func TestCountsAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c := newCounts()
		stored := map[storage.Key]bool{}
		key := func() storage.Key {
			prefix := expPrefix
			if rnd.IntN(4) == 0 {
				prefix = stuckPrefix
			}
			return prefix + storage.Key(refOf("root", "a", rnd.Int64N(40), rnd.IntN(3)).name)
		}
		for range 30 {
			stored[key()] = true
		}
		change := func() {
			k := key()
			if stored[k] {
				delete(stored, k)
				c.remove(k)
			} else {
				stored[k] = true
				c.add(k)
			}
		}
		for {
			for range rnd.IntN(4) {
				change()
			}
			page := []storage.Key{}
			for k := range stored {
				if k > c.cursor {
					page = append(page, k)
				}
			}
			slices.Sort(page)
			if len(page) == 0 {
				break
			}
			for _, k := range page[:min(3, len(page))] {
				c.scanned(k)
			}
		}
		c.complete = true
		for range 10 {
			change()
		}
		if c.total != len(stored) || c.byNS["root"] != len(stored) {
			t.Fatalf("counted %d, %v; want %d", c.total, c.byNS, len(stored))
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("00000000000000000001,root,u1,aws%2F,creds%2Fa%2Fx")
	f.Add("01799999999999999999,abc,3e1f,a%2C%25%2F,x.abc")
	f.Add("00000000000000000001,root,u1,,x")
	f.Add("-0000000000000000001,root,u1,a,x")
	f.Add("00000000000000000001,root,u1,a%2f,x")
	f.Fuzz(func(t *testing.T, name string) {
		r, ok := parseName(name)
		if !ok {
			return
		}
		rec := record{
			ID: r.id, Namespace: r.ns, Mount: r.mount, MountPath: r.mountPath, IndexedAt: time.Unix(0, r.at),
		}
		if got := rec.name(); got != name {
			t.Errorf("%q became %q", name, got)
		}
		if ns, id, ok := parseShort(r.ns + "," + escape(r.id)); !ok || ns != r.ns || id != r.id {
			t.Errorf("the short name of %q became %q, %q, %v", r.id, ns, id, ok)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add((&record{ID: "aws/creds/a/x", Namespace: "root", Mount: "u1", Internal: json.RawMessage(`{"a":1}`), IssuedAt: time.Unix(1, 0)}).encode())
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"internal":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, value []byte) {
		rec, err := decodeRecord(value)
		if err != nil {
			return
		}
		again, err := decodeRecord(rec.encode())
		if err != nil || again.ID != rec.ID || !again.ExpiresAt.Equal(rec.ExpiresAt) || again.State != rec.State {
			t.Errorf("%q became %+v, %v", value, again, err)
		}
	})
}
