// Package queue decides whose lease is revoked next: what is due waits in a lane for each mount, and none keeps the others waiting.
//
// It promises that namespaces take turns, and within one its mounts, and that an engine that fails is asked less often. It does
// nothing itself: package lease does the jobs. Start reading at Queue.
package queue

import (
	"slices"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
)

const (
	LaneMost   = 4096 // due names that a lane holds; the rest is read again from the index
	laneCalls  = 16   // calls of one engine at a time, at most
	firstCalls = 4    // the same, to begin with
	MarkBatch  = 64   // leases marked in one log entry
)

// Queue holds what is due, in a lane for each mount. Namespaces take turns, and within one its mounts. A lane that
// fails gets fewer calls at a time, down to one. The owner's lock guards it.
type Queue struct {
	spaces []*space
	turn   int
	lanes  map[string]*Lane // by mount
	queued map[string]bool  // lease ids in some lane, due, ready, or being worked on
}

// space is the lanes of one namespace.
type space struct {
	ns    string
	lanes []*Lane
	turn  int
}

// Lane is what one mount has due.
type Lane struct {
	ns, Mount string
	due       []index.Ref      // to be marked, or looked at
	ready     []*record.Record // marked, for the engine
	overflow  string           // a name from which on there may be more in the index; "" if there is not
	refilling bool
	marking   bool
	calls     int
	limit     int
}

// New returns an empty queue.
func New() *Queue { return &Queue{lanes: map[string]*Lane{}, queued: map[string]bool{}} }

// Add takes what is due. It reports false if the lease is in the queue already: look again later.
func (q *Queue) Add(r index.Ref) bool {
	if q.queued[r.ID] {
		return false
	}
	l := q.lane(r.Namespace, r.Mount)
	if len(l.due) >= LaneMost {
		l.Missed(r.Name)
		return true
	}
	q.queued[r.ID] = true
	l.due = append(l.due, r)
	return true
}

// Marked takes leases that were marked, for the engine.
func (l *Lane) Marked(recs []*record.Record) { l.ready = append(l.ready, recs...) }

// Missed notes that there is more from name on.
func (l *Lane) Missed(name string) {
	if l.overflow == "" || name < l.overflow {
		l.overflow = name
	}
}

func (q *Queue) lane(ns, mount string) *Lane {
	if l := q.lanes[mount]; l != nil {
		return l
	}
	l := &Lane{ns: ns, Mount: mount, limit: firstCalls}
	q.lanes[mount] = l
	i := slices.IndexFunc(q.spaces, func(s *space) bool { return s.ns == ns })
	if i < 0 {
		i = len(q.spaces)
		q.spaces = append(q.spaces, &space{ns: ns})
	}
	q.spaces[i].lanes = append(q.spaces[i].lanes, l)
	return l
}

// Job is one thing to do for a lane: one of mark, call and refill.
type Job struct {
	Lane   *Lane
	Mark   []index.Ref
	Call   *record.Record
	Refill string // from this name on
}

// Next returns what to do next. The owner calls finished when it is done.
func (q *Queue) Next() (Job, bool) {
	for i := range q.spaces {
		at := (q.turn + i) % len(q.spaces)
		if j, ok := q.spaces[at].next(); ok {
			q.turn = at + 1
			return j, true
		}
	}
	return Job{}, false
}

func (s *space) next() (Job, bool) {
	for i := range s.lanes {
		at := (s.turn + i) % len(s.lanes)
		if j, ok := s.lanes[at].next(); ok {
			s.turn = at + 1
			return j, true
		}
	}
	return Job{}, false
}

func (l *Lane) next() (Job, bool) {
	switch {
	case len(l.ready) > 0 && l.calls < l.limit:
		l.calls++
		j := Job{Lane: l, Call: l.ready[0]}
		l.ready[0] = nil
		l.ready = l.ready[1:]
		return j, true
	case len(l.due) > 0 && len(l.ready) == 0 && !l.marking:
		l.marking = true
		n := min(len(l.due), MarkBatch)
		j := Job{Lane: l, Mark: l.due[:n:n]}
		l.due = l.due[n:]
		return j, true
	case l.overflow != "" && len(l.due) == 0 && !l.refilling:
		l.refilling = true
		j := Job{Lane: l, Refill: l.overflow}
		l.overflow = ""
		return j, true
	}
	return Job{}, false
}

// Finished ends a job. For calls, ok says whether the engine did it.
func (q *Queue) Finished(j Job, ok bool) {
	l := j.Lane
	switch {
	case j.Call != nil:
		l.calls--
		if ok {
			l.limit = min(l.limit+1, laneCalls)
		} else {
			l.limit = max(l.limit/2, 1)
		}
	case j.Mark != nil:
		l.marking = false
	default:
		l.refilling = false
	}
	if len(l.due) == 0 && len(l.ready) == 0 && l.overflow == "" && !l.refilling && !l.marking && l.calls == 0 {
		q.drop(l)
	}
}

// drop forgets a lane with nothing to do.
func (q *Queue) drop(l *Lane) {
	delete(q.lanes, l.Mount)
	i := slices.IndexFunc(q.spaces, func(s *space) bool { return s.ns == l.ns })
	s := q.spaces[i]
	s.lanes = slices.DeleteFunc(s.lanes, func(other *Lane) bool { return other == l })
	if len(s.lanes) == 0 {
		q.spaces = slices.Delete(q.spaces, i, i+1)
	}
}

// Done forgets a lease: it is gone, or waits elsewhere.
func (q *Queue) Done(id string) { delete(q.queued, id) }

// Waiting returns how many leases are queued, and when the oldest of those that are not being worked on fell due.
func (q *Queue) Waiting() (n int, oldest int64) {
	for _, l := range q.lanes {
		if len(l.due) > 0 && (oldest == 0 || l.due[0].At < oldest) {
			oldest = l.due[0].At
		}
		for _, rec := range l.ready[:min(len(l.ready), 1)] {
			if at := rec.IndexedAt.UnixNano(); oldest == 0 || at < oldest {
				oldest = at
			}
		}
	}
	return len(q.queued), oldest
}
