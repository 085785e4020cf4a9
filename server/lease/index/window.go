package index

import (
	"container/heap"
	"time"
)

const (
	WindowLength = 10 * time.Minute
	windowMost   = 1 << 16 // entries held
)

// wake is a name of the index and when to look at it: usually its time.
type wake struct {
	at   int64
	name string
}

// Window holds what falls due next: every name of the index that is less than End, and has not been taken yet.
// Its owner's lock guards it.
type Window struct {
	wakes wakes
	held  map[string]bool
	End   string
}

// NewWindow returns a window that ends before every name.
func NewWindow() *Window { return &Window{held: map[string]bool{}} }

// Note takes a name that was committed. If the window is full, it ends there.
func (w *Window) Note(name string) (earliest bool) {
	if name >= w.End || w.held[name] {
		return false
	}
	if len(w.wakes) >= 2*windowMost {
		w.End = name
		return false
	}
	r, ok := Parse(name)
	if !ok {
		return false
	}
	w.Push(r.At, name)
	return w.wakes[0].name == name
}

// Push holds a name whatever its place, to be taken at a time: usually its own.
func (w *Window) Push(at int64, name string) {
	if !w.held[name] {
		w.held[name] = true
		heap.Push(&w.wakes, wake{at, name})
	}
}

// Take returns the next name that is due, and lets go of it.
func (w *Window) Take(now int64) (name string, ok bool) {
	if len(w.wakes) == 0 || w.wakes[0].at > now {
		return "", false
	}
	k := heap.Pop(&w.wakes).(wake)
	delete(w.held, k.name)
	return k.name, true
}

// Next returns when the next name falls due.
func (w *Window) Next() (at int64, ok bool) {
	if len(w.wakes) == 0 {
		return 0, false
	}
	return w.wakes[0].at, true
}

// Full reports whether nothing more should be read into the window.
func (w *Window) Full() bool { return len(w.wakes) >= windowMost }

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
