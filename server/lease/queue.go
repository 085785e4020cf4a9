package lease

import "slices"

const (
	laneMost   = 4096 // due names that a lane holds; the rest is read again from the index
	laneCalls  = 16   // calls of one engine at a time, at most
	firstCalls = 4    // the same, to begin with
	markBatch  = 64   // leases marked in one log entry
)

// queue holds what is due, in a lane for each mount. Namespaces take turns, and within one its mounts. A lane that
// fails gets fewer calls at a time, down to one. The owner's lock guards it.
type queue struct {
	spaces []*space
	turn   int
	lanes  map[string]*lane // by mount
	queued map[string]bool  // lease ids in some lane, due, ready, or being worked on
}

// space is the lanes of one namespace.
type space struct {
	ns    string
	lanes []*lane
	turn  int
}

// lane is what one mount has due.
type lane struct {
	ns, mount string
	due       []ref     // to be marked, or looked at
	ready     []*record // marked, for the engine
	overflow  string    // a name from which on there may be more in the index; "" if there is not
	refilling bool
	marking   bool
	calls     int
	limit     int
}

func newQueue() *queue { return &queue{lanes: map[string]*lane{}, queued: map[string]bool{}} }

// add takes what is due. It reports false if the lease is in the queue already: look again later.
func (q *queue) add(r ref) bool {
	if q.queued[r.id] {
		return false
	}
	l := q.lane(r.ns, r.mount)
	if len(l.due) >= laneMost {
		l.missed(r.name)
		return true
	}
	q.queued[r.id] = true
	l.due = append(l.due, r)
	return true
}

// missed notes that there is more from name on.
func (l *lane) missed(name string) {
	if l.overflow == "" || name < l.overflow {
		l.overflow = name
	}
}

func (q *queue) lane(ns, mount string) *lane {
	if l := q.lanes[mount]; l != nil {
		return l
	}
	l := &lane{ns: ns, mount: mount, limit: firstCalls}
	q.lanes[mount] = l
	i := slices.IndexFunc(q.spaces, func(s *space) bool { return s.ns == ns })
	if i < 0 {
		i = len(q.spaces)
		q.spaces = append(q.spaces, &space{ns: ns})
	}
	q.spaces[i].lanes = append(q.spaces[i].lanes, l)
	return l
}

// job is one thing to do for a lane: one of mark, call and refill.
type job struct {
	lane   *lane
	mark   []ref
	call   *record
	refill string // from this name on
}

// next returns what to do next. The owner calls finished when it is done.
func (q *queue) next() (job, bool) {
	for i := range q.spaces {
		at := (q.turn + i) % len(q.spaces)
		if j, ok := q.spaces[at].next(); ok {
			q.turn = at + 1
			return j, true
		}
	}
	return job{}, false
}

func (s *space) next() (job, bool) {
	for i := range s.lanes {
		at := (s.turn + i) % len(s.lanes)
		if j, ok := s.lanes[at].next(); ok {
			s.turn = at + 1
			return j, true
		}
	}
	return job{}, false
}

func (l *lane) next() (job, bool) {
	switch {
	case len(l.ready) > 0 && l.calls < l.limit:
		l.calls++
		j := job{lane: l, call: l.ready[0]}
		l.ready[0] = nil
		l.ready = l.ready[1:]
		return j, true
	case len(l.due) > 0 && len(l.ready) == 0 && !l.marking:
		l.marking = true
		n := min(len(l.due), markBatch)
		j := job{lane: l, mark: l.due[:n:n]}
		l.due = l.due[n:]
		return j, true
	case l.overflow != "" && len(l.due) == 0 && !l.refilling:
		l.refilling = true
		j := job{lane: l, refill: l.overflow}
		l.overflow = ""
		return j, true
	}
	return job{}, false
}

// finished ends a job. For calls, ok says whether the engine did it.
func (q *queue) finished(j job, ok bool) {
	l := j.lane
	switch {
	case j.call != nil:
		l.calls--
		if ok {
			l.limit = min(l.limit+1, laneCalls)
		} else {
			l.limit = max(l.limit/2, 1)
		}
	case j.mark != nil:
		l.marking = false
	default:
		l.refilling = false
	}
	if len(l.due) == 0 && len(l.ready) == 0 && l.overflow == "" && !l.refilling && !l.marking && l.calls == 0 {
		q.drop(l)
	}
}

// drop forgets a lane with nothing to do.
func (q *queue) drop(l *lane) {
	delete(q.lanes, l.mount)
	i := slices.IndexFunc(q.spaces, func(s *space) bool { return s.ns == l.ns })
	s := q.spaces[i]
	s.lanes = slices.DeleteFunc(s.lanes, func(other *lane) bool { return other == l })
	if len(s.lanes) == 0 {
		q.spaces = slices.Delete(q.spaces, i, i+1)
	}
}

// done forgets a lease: it is gone, or waits elsewhere.
func (q *queue) done(id string) { delete(q.queued, id) }

// waiting returns how many leases are queued, and when the oldest of those that are not being worked on fell due.
func (q *queue) waiting() (n int, oldest int64) {
	for _, l := range q.lanes {
		if len(l.due) > 0 && (oldest == 0 || l.due[0].at < oldest) {
			oldest = l.due[0].at
		}
		for _, rec := range l.ready[:min(len(l.ready), 1)] {
			if at := rec.IndexedAt.UnixNano(); oldest == 0 || at < oldest {
				oldest = at
			}
		}
	}
	return len(q.queued), oldest
}
