package replicated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/storage"
)

// Promote makes a secondary the primary of its set, in a new epoch. If one of the safety checks fails it answers a 503 that
// names it, or, with force, goes on and returns what may be lost by that. Other secondaries need new tokens.
func (s *Store) Promote(ctx context.Context, addr string, force bool) (lost []string, err error) {
	if err := checkAddr("primary_cluster_addr", addr); err != nil {
		return nil, err
	}
	secondary := func(r *Role) error {
		switch {
		case r.Mode == Primary:
			return engines.Invalid("this cluster is already the replication primary")
		case r.Mode != Secondary:
			return notSecondary(r, "promoted")
		case r.Wiping:
			return errWiping
		}
		return nil
	}
	r, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	if err := secondary(&r); err != nil {
		return nil, err
	}
	failed := s.unsafe(ctx, &r)
	if len(failed) > 0 && !force {
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "promotion is not safe now: " + strings.Join(failed, "; ") +
			". Try again when this has changed, or promote with force=true, which may lose data"}
	}
	if err := s.forgetSecondaries(ctx); err != nil {
		return nil, err
	}
	ca, err := enrol.NewCA(s.opts.Now())
	if err != nil {
		return nil, err
	}
	var from storage.Position
	next, err := s.change(ctx, func(tx *storage.Txn, now *Role) error {
		if err := secondary(now); err != nil {
			return err
		}
		at, err := s.standing(ctx, tx, now)
		if err != nil {
			return err
		}
		from = at
		now.Lineage = branchOff(now.Lineage, now.ClusterID, at)
		now.Mode, now.Demoted, now.Addr, now.Since = Primary, false, addr, s.opts.Now().UTC()
		putCA(tx, ca)
		forgetUpstream(tx)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(failed) > 0 {
		s.log.Warn("a secondary was promoted by force", "from", from.String(), "epoch", next.Lineage.Epoch(), "failed", failed)
	}
	return failed, nil
}

// standing returns how far this secondary has come, and takes its cursor away in the same commit: nothing of the old
// primary is applied after it that the new history would not contain.
func (s *Store) standing(ctx context.Context, tx *storage.Txn, r *Role) (storage.Position, error) {
	// The cursor's entry comes first: if it moves before the commit, all this is done again.
	if _, err := tx.Get(ctx, cursorKey); err != nil && !errors.Is(err, storage.ErrNotFound) {
		return storage.Position{}, err
	}
	tx.Delete(cursorKey)
	if r.Demoted {
		return r.end(), nil
	}
	at, err := s.link.Cursor(ctx)
	if err != nil {
		return at, fmt.Errorf("reading the cursor: %w", err)
	}
	return at, nil
}

// branchOff returns the history that begins a new epoch where a secondary stands. It may have heard of epochs that it has
// nothing of: these are cut off with what came after at, but their numbers, and what was written in them, stay known. The
// new epoch's base is the index of the entry that holds it.
func branchOff(l storage.Lineage, clusterID string, at storage.Position) storage.Lineage {
	if at.IsZero() && len(l) > 0 {
		at.Epoch = l[0].Epoch
	}
	return append(slices.Clone(l), storage.Branch{Epoch: l.Epoch() + 1, ClusterID: clusterID, From: at})
}

// unsafe returns what speaks against promoting this secondary now, in words for people.
func (s *Store) unsafe(ctx context.Context, r *Role) []string {
	var failed []string
	fail := func(format string, args ...any) { failed = append(failed, fmt.Sprintf(format, args...)) }
	if !r.Demoted {
		s.unsafeLink(fail)
		switch units, err := s.link.Units(ctx); {
		case err != nil:
			fail("what is whole cannot be told (%v)", err)
		case len(units) == 0:
			fail("this cluster has never had a complete copy")
		default:
			if n := countFalse(units); n > 0 {
				fail("%d of %d parts of the copy are not complete", n, len(units))
			}
		}
	}
	switch f, err := s.given(ctx); {
	case err != nil:
		fail("the paths filter of this secondary cannot be read (%v)", err)
	case f != nil:
		fail("this secondary has a paths filter (mode %s): what it excludes is not here", f.Mode)
	}
	if err := s.opts.Health(); err != nil {
		fail("the disk of this node is not healthy (%v)", err)
	}
	return failed
}

// unsafeLink reports what the connection to the primary says against a promotion.
func (s *Store) unsafeLink(fail func(format string, args ...any)) {
	st := s.followStatus()
	if st.Connected != "" && !st.Final {
		fail("the primary is connected and not demoted: demote it first")
	}
	switch behind := st.Cursor.Before(st.Head); {
	case st.Head.IsZero():
		fail("this node has not heard from the primary since it became the active one: how far behind it is cannot be told")
	case behind && st.LagEntries > 0:
		fail("still catching up: the primary was last heard of at %s, this cluster is at %s (%d entries behind)", st.Head, st.Cursor, st.LagEntries)
	}
	if st.Repair != nil && st.Repair.Running {
		fail("a repair is running (%s)", st.Repair.Cause)
	}
}

func countFalse(m map[string]bool) int {
	n := 0
	for _, v := range m {
		if !v {
			n++
		}
	}
	return n
}
