package adoption

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/plan"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// The actions on a name that is in conflict.
const (
	Adopt = "adopt"
	Skip  = "skip"
)

// Scope chooses names that are in conflict at a destination.
type Scope struct {
	Dest   *state.Destination
	Mount  string   // UUID; "": all mounts
	Secret string   // name of the secret, or what names begin with
	Exact  bool     // Secret is a name
	Names  []string // at the destination; none: all
	Equal  bool     // only those that have the desired value already
	// MayRead reports whether the caller may read a secret.
	MayRead func(a *state.Association, m *engines.Mounted, secret string) bool
}

// candidate is a link with names that are in conflict.
type candidate struct {
	cursor string
	a      *state.Association
	m      *engines.Mounted
	l      *state.Link
	names  []string // folded
}

// candidates returns the links of a scope that come after a cursor, in the order of cursors.
func (s *Adopter) candidates(ctx context.Context, c *Scope, after string, r *Report) (all []candidate, err error) {
	mounts := map[string]*engines.Mounted{}
	var failed error
	err = s.EachLink(ctx, c.Dest, func(a *state.Association, l *state.Link) {
		at := candidate{cursor: a.ID + "/" + l.Secret, a: a, l: l}
		chosen := l.Secret == c.Secret || !c.Exact && strings.HasPrefix(l.Secret, c.Secret)
		if failed != nil || !chosen || c.Mount != "" && a.MountUUID != c.Mount || a.IsEnding() || at.cursor <= after {
			return
		}
		if at.names = s.conflicts(c, l); len(at.names) == 0 && l.Status != state.Conflict && l.Status != state.Pending {
			return
		}
		m, known := mounts[a.MountUUID]
		if !known {
			m, failed = s.Host.MountOf(ctx, a.MountUUID)
			mounts[a.MountUUID] = m
		}
		if at.m = m; failed != nil || m == nil {
			return
		}
		if !c.MayRead(a, m, l.Secret) {
			if after == "" { // on the first page
				r.Hidden++
			}
			return
		}
		all = append(all, at)
	})
	if err == nil {
		err = failed
	}
	return all, err
}

// conflicts returns the names of a link, folded, that are in conflict with names of other clients. Names of other associations cannot be
// adopted.
func (s *Adopter) conflicts(c *Scope, l *state.Link) (names []string) {
	for i := range l.Items {
		it := &l.Items[i]
		if name := s.fold(c, it.Name); it.Status == state.Conflict && it.Code != state.CodeNameTaken && s.chosen(c, name) {
			names = append(names, name)
		}
	}
	return names
}

func (s *Adopter) fold(c *Scope, name string) string {
	return state.Fold(s.Pool.Types[c.Dest.Type].Rules, name)
}

func (s *Adopter) chosen(c *Scope, folded string) bool {
	return len(c.Names) == 0 || slices.ContainsFunc(c.Names, func(name string) bool { return s.fold(c, name) == folded })
}

// addSkipped reports the names of a link that cannot be adopted.
func (s *Adopter) addSkipped(c *Scope, at *candidate, r *Report) {
	skip := func(key, name, reason string) {
		r.add(Entry{Mount: at.m.Path, Secret: at.l.Secret, Key: key, Name: name, Action: Skip, Reason: reason})
	}
	if at.l.Status == state.Pending && len(at.l.Items) == 0 && len(c.Names) == 0 {
		skip("", "", "was not synced yet: try again when it was")
	}
	for i := range at.l.Items {
		if it := &at.l.Items[i]; it.Status == state.Conflict && it.Code == state.CodeNameTaken && s.chosen(c, s.fold(c, it.Name)) {
			skip(it.Key, it.Name, it.Cause)
		}
	}
}

// Plan reads names of a scope at the destination, from a cursor on, and says which would be adopted. Nothing is changed.
func (s *Adopter) Plan(ctx context.Context, c *Scope, after string) (*Report, error) {
	r := new(Report)
	all, err := s.candidates(ctx, c, after, r)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(pageTime)
	for i, at := range all {
		if i > 0 && (time.Now().After(until) || len(r.Entries) >= maxListed) {
			r.Next = all[i-1].cursor
			break
		}
		s.addSkipped(c, &at, r)
		if len(at.names) == 0 {
			continue
		}
		l := *at.l
		request(&l, c.Equal, at.names)
		planned, err := s.PlanSecret(ctx, c.Dest, at.a, at.m, l.Secret, &l)
		if err != nil {
			return nil, err
		}
		for _, p := range planned {
			e := Entry{Mount: at.m.Path, Secret: l.Secret, Key: p.Key, Name: p.Name, Action: Skip, Reason: p.Reason}
			switch {
			case p.Action == plan.Reject:
			case !slices.Contains(at.names, s.fold(c, p.Name)):
				continue
			case p.Action == plan.Adopt && c.Equal:
				e.Action, e.Reason = Adopt, "has the same value already"
			case p.Action == plan.Adopt:
				e.Action, e.Reason = Adopt, "its value is overwritten"
			case p.Action != plan.Conflict:
				e.Reason = "is not in conflict any more"
			}
			r.add(e)
		}
	}
	return r, nil
}

// request puts the request to adopt names into a link.
func request(l *state.Link, equal bool, names []string) {
	to := &l.Adopt
	if equal {
		to = &l.AdoptEqual
	}
	*to = append(slices.Clone(*to), names...)
	slices.Sort(*to)
	*to = slices.Compact(*to)
}

// Request stores the request to adopt the names of a scope, and returns the links that are to be synced for it. A node that becomes
// active finds them, too.
func (s *Adopter) Request(ctx context.Context, c *Scope) (r *Report, links []state.LinkID, err error) {
	r = new(Report)
	all, err := s.candidates(ctx, c, "", r)
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		s.addSkipped(c, &all[i], r)
	}
	const atOnce = 32 // records that are as large as they may be fit into one batch
	for some := range slices.Chunk(all, atOnce) {
		var found []Entry
		var changed []state.LinkID
		_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
			found, changed = nil, nil
			for _, at := range some {
				id := at.a.LinkID(at.l.Secret)
				key := state.LinkKey(id.NS, id.Destination, id.Association, id.Secret)
				var now state.Link
				there, err := engines.GetRecord(ctx, tx, key, &now)
				if err != nil {
					return err
				}
				names := s.conflicts(c, &now)
				if !there || len(names) == 0 {
					continue
				}
				request(&now, c.Equal, names)
				now.Attempts, now.NextRetry = 0, time.Now() // a full scan finds it, too
				if err := engines.PutRecord(tx, key, &now); err != nil {
					return err
				}
				changed = append(changed, id)
				for _, it := range now.Items {
					if slices.Contains(names, s.fold(c, it.Name)) {
						found = append(found, Entry{Mount: at.m.Path, Secret: now.Secret, Key: it.Key, Name: it.Name, Action: Adopt, Reason: "is queued"})
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
		for _, e := range found {
			r.add(e)
		}
		links = append(links, changed...)
	}
	r.Entries = r.Entries[:min(len(r.Entries), maxListed)]
	return r, links, nil
}
