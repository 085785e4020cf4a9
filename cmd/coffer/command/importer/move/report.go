package move

import (
	"cmp"
	"slices"
	"sync"
)

// What is done about a thing, or would be.
const (
	Create    = "create"
	Update    = "update"    // the source has changed since an earlier import
	Overwrite = "overwrite" // as the user asked for
	Unchanged = "unchanged"
	Conflict  = "conflict" // the destination has another one, which stays
	Skip      = "skip"     // it cannot be imported
	Failed    = "failed"
	Different = "different" // found by a comparison
	Missing   = "missing"   // at the destination
	Gone      = "gone"      // from the source, and still at the destination
	Delete    = "delete"    // gone, and as the user asked for
)

// Action is one thing with what is done about it.
type Action struct {
	Action    string `json:"action"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Reason    string `json:"reason,omitempty"`
}

// Report collects actions. Safe for concurrent use.
type Report struct {
	mu     sync.Mutex
	list   []Action
	totals map[string]map[string]int // by kind and action
}

// Add adds an action. Secrets with nothing to say about them are only counted.
func (r *Report) Add(a Action) {
	r.Count(a.Kind, a.Action, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, a)
}

// Count counts n things without listing them.
func (r *Report) Count(kind, action string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.totals == nil {
		r.totals = map[string]map[string]int{}
	}
	if r.totals[kind] == nil {
		r.totals[kind] = map[string]int{}
	}
	r.totals[kind][action] += n
}

// Of returns how many things of all kinds an action was recorded for.
func (r *Report) Of(actions ...string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, kind := range r.totals {
		for _, a := range actions {
			n += kind[a]
		}
	}
	return n
}

// Actions returns the listed actions, sorted by kind, namespace and name.
func (r *Report) Actions() []Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.list)
	slices.SortStableFunc(out, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Totals returns the numbers by kind and action.
func (r *Report) Totals() map[string]map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]map[string]int{}
	for kind, actions := range r.totals {
		out[kind] = map[string]int{}
		for a, n := range actions {
			out[kind][a] = n
		}
	}
	return out
}
