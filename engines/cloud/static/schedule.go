package static

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/storage"
)

const (
	// AtOnce and PerTurn bound the static roles that are rotated side by side, and in one call of Work. When all are due,
	// because the clock has jumped or the cluster was down, they spread over the turns, the longest due first.
	AtOnce  = 4
	PerTurn = 40
	// maxChanged bounds the names that a node that does not rotate remembers as changed.
	maxChanged = 4096
)

// schedule is when static roles are due, in memory: the truth is in their records. The zero value knows nothing yet.
type schedule struct {
	mu      sync.Mutex
	started bool            // anything may have changed until it is
	changed map[string]bool // static roles to read again

	// Of the one Work that runs.
	due  map[string]dueAt
	last time.Time // the turn before
}

// dueAt is when a static role is due, as its record says.
type dueAt struct{ at, said time.Time }

// Changed says which records have changed, as engines.Invalidator does.
func (roles *Roles) Changed(_ storage.Class, keys []storage.Key, reset bool) {
	s := &roles.schedule
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return
	}
	for _, k := range keys {
		if name, ok := strings.CutPrefix(string(k), string(Prefix)); ok {
			s.changed[name] = true
		}
	}
	if reset || len(s.changed) > maxChanged {
		s.started, s.changed = false, nil
	}
}

// take returns the names to read again, all if there is no telling which.
func (s *schedule) take() (all bool, names map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, names = !s.started, s.changed
	s.started, s.changed = true, map[string]bool{}
	return all, names
}

// forget makes the next turn read everything.
func (s *schedule) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.changed = false, nil
}

// refresh reads what has changed since the turn before.
func (s *schedule) refresh(ctx context.Context, m engines.Mount, now time.Time) (err error) {
	if now.Before(s.last.Add(-time.Minute)) {
		s.forget() // the clock went back: nothing must wait for more than its period
	}
	s.last = now
	all, names := s.take()
	defer func() {
		if err != nil {
			s.forget()
		}
	}()
	if all {
		return s.load(ctx, m, now)
	}
	for name := range names {
		r, err := Get(ctx, m.Storage, name)
		if err != nil {
			return err
		}
		s.plan(name, r, now)
	}
	return nil
}

// plan notes when a static role is due. A time that is further away than a period was set by a clock that was wrong.
func (s *schedule) plan(name string, r *Role, now time.Time) {
	if r == nil {
		delete(s.due, name)
		return
	}
	due := dueAt{at: r.due(), said: r.due()}
	if latest := now.Add(r.Period); due.at.After(latest) {
		due.at = latest
	}
	s.due[name] = due
}

// load reads all static roles.
func (s *schedule) load(ctx context.Context, m engines.Mount, now time.Time) error {
	const page = 500
	s.due = map[string]dueAt{}
	for after := ""; ; {
		names, err := m.Storage.List(ctx, Prefix, after, page)
		if err != nil {
			return err
		}
		for _, name := range names {
			r, err := Get(ctx, m.Storage, name)
			if err != nil {
				return err
			}
			s.plan(name, r, now)
		}
		if len(names) < page {
			return nil
		}
		after = names[len(names)-1]
	}
}

// ready returns the static roles that are due, the longest due first.
func (s *schedule) ready(now time.Time) []string {
	var names []string
	for name, due := range s.due {
		if !now.Before(due.at) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if c := s.due[a].at.Compare(s.due[b].at); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return names[:min(len(names), PerTurn)]
}

func (roles *Roles) rotateDue(ctx context.Context, m engines.Mount) error {
	s := &roles.schedule
	now := accesskey.Now()
	if err := s.refresh(ctx, m, now); err != nil {
		return err
	}
	var (
		under sync.WaitGroup
		mu    sync.Mutex
		errs  []error // of the store
		stop  bool    // the provider has enough
	)
	slots := make(chan struct{}, AtOnce) // one for each rotation that runs
	for _, name := range s.ready(now) {
		slots <- struct{}{}
		mu.Lock()
		enough := stop || len(errs) > 0
		mu.Unlock()
		if enough || ctx.Err() != nil {
			break
		}
		said := s.due[name].said
		under.Go(func() {
			defer func() { <-slots }()
			throttled := false
			err := failure.Safely(roles.log, func() (err error) {
				throttled, err = roles.rotateOnTime(ctx, m, name, said)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			stop = stop || throttled
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	under.Wait()
	return errors.Join(errs...)
}

// rotateOnTime rotates one static role. Errors of the provider are stored in the record and logged; the errors of the
// store are returned, and whether the provider has too much to do.
func (roles *Roles) rotateOnTime(ctx context.Context, m engines.Mount, name string, due time.Time) (throttled bool, err error) {
	_, err = roles.Rotate(ctx, m, name, &due)
	if err == nil || ctx.Err() != nil || errors.Is(err, accesskey.ErrOvertaken) {
		return false, nil
	}
	if failure.OfStore(err) {
		return false, err
	}
	roles.log.Warn("a static role's key is not rotated: the one it has stays, and it is tried again", "role", name, "err", failure.RecordText(err))
	return aws.KindOf(err) == aws.Throttled, nil
}
