package lease

import (
	"container/heap"
	"time"
)

const (
	windowLength = 10 * time.Minute
	windowMost   = 1 << 16 // entries held
)

// wake is a name of the index and when to look at it: usually its time.
type wake struct {
	at   int64
	name string
}

// window holds what falls due next: every name of the index that is less than end, and has not been taken yet.
// Its owner's lock guards it.
type window struct {
	wakes wakes
	held  map[string]bool
	end   string
}

func newWindow() *window { return &window{held: map[string]bool{}} }

// note takes a name that was committed. If the window is full, it ends there.
func (w *window) note(name string) (earliest bool) {
	if name >= w.end || w.held[name] {
		return false
	}
	if len(w.wakes) >= 2*windowMost {
		w.end = name
		return false
	}
	r, ok := parseName(name)
	if !ok {
		return false
	}
	w.push(wake{r.at, name})
	return w.wakes[0].name == name
}

// push holds a name whatever its place.
func (w *window) push(k wake) {
	if !w.held[k.name] {
		w.held[k.name] = true
		heap.Push(&w.wakes, k)
	}
}

// take returns the next name that is due, and lets go of it.
func (w *window) take(now int64) (name string, ok bool) {
	if len(w.wakes) == 0 || w.wakes[0].at > now {
		return "", false
	}
	k := heap.Pop(&w.wakes).(wake)
	delete(w.held, k.name)
	return k.name, true
}

// next returns when the next name falls due.
func (w *window) next() (at int64, ok bool) {
	if len(w.wakes) == 0 {
		return 0, false
	}
	return w.wakes[0].at, true
}

// wakes is a heap by time.
type wakes []wake

func (h wakes) Len() int           { return len(h) }
func (h wakes) Less(i, j int) bool { return h[i].at < h[j].at }
func (h wakes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *wakes) Push(x any)        { *h = append(*h, x.(wake)) }
func (h *wakes) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = wake{}
	*h = old[:len(old)-1]
	return last
}
