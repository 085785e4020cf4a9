package replicated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/primaries"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/scopes"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// Promotion is what a promotion came to.
type Promotion struct {
	Epoch    uint32
	Position storage.Position // where this cluster's history leaves that of the former primary
	Heard    Heard
	// Lost are the safety checks that failed, in a promotion by force.
	Lost []string
	// Notes are what the operator has to know besides.
	Notes []string
}

// Heard is what a secondary knows of its primary.
type Heard struct {
	Position storage.Position // of the primary, when it was last heard; zero: this node has not heard it
	At       time.Time        // when that was; zero: this node has not heard it
	Equal    time.Time        // the last moment at which both sides were known to be equal; zero: never
	Final    bool             // it has said that it is none any more, and everything that it had is here
}

// Promote makes a secondary the primary of its set, in a new epoch. Without force it takes the former primary's final word:
// that it was demoted, at a position that is here. If that or another safety check is missing it answers a 503 that names
// what is, or, with force, goes on and returns what may be lost by that. Other secondaries need new tokens.
func (s *Store) Promote(ctx context.Context, addr string, force bool) (*Promotion, error) {
	if err := checkAddr("primary_cluster_addr", addr); err != nil {
		return nil, err
	}
	r, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	if err := promotable(&r); err != nil {
		return nil, err
	}
	up, err := traffic.ReadUpstream(ctx, s.store)
	if err != nil {
		return nil, err
	}
	out := &Promotion{Heard: s.heard()}
	seen, err := primaries.ReadMet(ctx, s.store)
	if err != nil {
		return nil, err
	}
	failed := s.unsafe(ctx, &r, &seen)
	confirmed := false
	if len(failed) == 0 && !r.Demoted {
		failed, confirmed = s.claim(ctx, &r, up, out)
	}
	if len(failed) > 0 && !force {
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "promotion is not safe now: " + strings.Join(failed, "; ") +
			". Try again when this has changed, or promote with force=true, which may lose data"}
	}
	out.Lost = failed
	if err := s.commitPromotion(ctx, out, addr, force, up, confirmed); err != nil {
		return nil, err
	}
	s.others.Wake()
	if force {
		s.log.Warn("a secondary was promoted by force", "position", out.Position.String(), "epoch", out.Epoch, "primary_position", out.Heard.Position.String(),
			"last_heard", TimeText(out.Heard.At), "last_equal", TimeText(out.Heard.Equal), "failed", failed)
	}
	return out, nil
}

// promotable reports why a cluster in this role cannot be promoted at all.
func promotable(r *roles.Role) error {
	switch {
	case r.Mode == roles.Primary:
		return engines.Invalid("this cluster is already the replication primary")
	case r.Mode != roles.Secondary:
		return notSecondary(r, "promoted")
	case r.Wiping:
		return errWiping
	}
	return nil
}

// claim asks a primary that has said its final word to let no other cluster be promoted on it. confirmed: it does, and needs
// not be told of the promotion.
func (s *Store) claim(ctx context.Context, r *roles.Role, up *traffic.Upstream, out *Promotion) (failed []string, confirmed bool) {
	if up == nil {
		return []string{"no primary is known"}, false
	}
	ctx, cancel := context.WithTimeout(ctx, scopes.AskTimeout)
	defer cancel()
	next := replication.OtherPrimary{EpochID: storage.EpochID{Number: r.Lineage.Epoch() + 1, ClusterID: r.ClusterID}, APIAddr: s.opts.Node.APIAddr()}
	reply, err := s.link.Announce(ctx, *up, replication.Announcement{SetID: r.SetID, OtherPrimary: next, Claim: true})
	if err != nil {
		s.log.Warn("the former primary was not asked whether another cluster was promoted", "err", err)
		out.Notes = append(out.Notes, "The former primary has said its final word, and could not be asked whether another cluster was promoted on it since. "+
			"This promotion is announced to it as soon as it can be reached.")
		return nil, false
	}
	if reply.Primary {
		return []string{fmt.Sprintf("the former primary takes writes again, in epoch %d: demote it first", reply.Number)}, false
	}
	for _, o := range reply.Others {
		if o.Number >= next.Number {
			failed = append(failed, "another cluster was promoted on the primary's final word, or is about to be: "+o.Describe())
		}
	}
	return failed, len(failed) == 0
}

// commitPromotion writes the new role, and with it whom to tell of it.
func (s *Store) commitPromotion(ctx context.Context, out *Promotion, addr string, force bool, up *traffic.Upstream, confirmed bool) error {
	r, err := s.Current(ctx)
	if err != nil {
		return err
	}
	// A demoted cluster keeps its secondaries: those that were not promoted themselves go on following it, and one that was
	// can tell it so.
	if !r.Demoted {
		if err := s.forgetSecondaries(ctx); err != nil {
			return err
		}
	}
	ca, err := enrol.NewCA(time.Now())
	if err != nil {
		return err
	}
	next, err := s.change(ctx, func(tx *storage.Txn, now *roles.Role) error {
		if err := promotable(now); err != nil {
			return err
		}
		if now.Demoted != r.Demoted {
			return &engines.Error{Kind: engines.KindUnavailable, Detail: "the role of this cluster has changed meanwhile: try again"}
		}
		met, err := primaries.ReadMet(ctx, tx)
		if err != nil {
			return err
		}
		if later := met.LaterThan(now); later != nil && !force {
			return &engines.Error{Kind: engines.KindUnavailable, Detail: "promotion is not safe now: " + wasPromoted(later)}
		}
		at, err := s.standing(ctx, tx, now)
		if err != nil {
			return err
		}
		out.Position = at
		epoch := now.Lineage.Epoch()
		for _, p := range met.Primaries {
			epoch = max(epoch, p.Number)
		}
		now.Lineage = branchOff(now.Lineage, now.ClusterID, at, epoch+1)
		if !now.Demoted {
			registry.PutCA(tx, ca)
		}
		now.Mode, now.Demoted, now.Addr, now.Since = roles.Primary, false, addr, time.Now().UTC()
		if up != nil && !confirmed {
			primaries.PutFormer(tx, up, now.Since)
		}
		forgetUpstream(tx)
		return nil
	})
	out.Epoch = next.Lineage.Epoch()
	return err
}

func wasPromoted(o *replication.OtherPrimary) string {
	return "another cluster of the set was promoted, or is about to be: " + o.Describe()
}

// standing returns how far this secondary has come, and takes its cursor away in the same commit: nothing of the old
// primary is applied after it that the new history would not contain.
func (s *Store) standing(ctx context.Context, tx *storage.Txn, r *roles.Role) (storage.Position, error) {
	// The cursor's entry comes first: if it moves before the commit, all this is done again.
	if _, err := tx.Get(ctx, cursorKey); err != nil && !errors.Is(err, storage.ErrNotFound) {
		return storage.Position{}, err
	}
	tx.Delete(cursorKey)
	if r.Demoted {
		return r.End(), nil
	}
	at, err := s.link.Cursor(ctx)
	if err != nil {
		return at, fmt.Errorf("reading the cursor: %w", err)
	}
	return at, nil
}

// branchOff returns the history that begins an epoch where a secondary stands. It may have heard of epochs that it has
// nothing of: these are cut off with what came after at, but their numbers, and what was written in them, stay known. The
// new epoch's base is the index of the entry that holds it.
func branchOff(l storage.Lineage, clusterID string, at storage.Position, epoch uint32) storage.Lineage {
	if at.IsZero() && len(l) > 0 {
		at.Epoch = l[0].Epoch
	}
	return append(slices.Clone(l), storage.Branch{Epoch: epoch, ClusterID: clusterID, From: at})
}

// unsafe returns what speaks against promoting this secondary now, in words for people.
func (s *Store) unsafe(ctx context.Context, r *roles.Role, met *primaries.Met) []string {
	var failed []string
	fail := func(format string, args ...any) { failed = append(failed, fmt.Sprintf(format, args...)) }
	if later := met.LaterThan(r); later != nil {
		fail("%s", wasPromoted(later))
	}
	if r.Demoted {
		s.unsafeBack(ctx, fail)
	} else {
		s.unsafeLink(fail)
		switch units, err := s.link.Units(ctx); {
		case err != nil:
			fail("what is whole cannot be told (%v)", err)
		case len(units) == 0:
			fail("this cluster has never had a complete copy")
		default:
			if n := CountFalse(units); n > 0 {
				fail("%d of %d parts of the copy are not complete", n, len(units))
			}
		}
	}
	switch f, err := s.Given(ctx); {
	case err != nil:
		fail("the paths filter of this secondary cannot be read (%v)", err)
	case f != nil:
		fail("this secondary has a paths filter (mode %s): what it excludes is not here", f.Mode)
	}
	if err := s.opts.Node.Health(); err != nil {
		fail("the disk of this node is not healthy (%v)", err)
	}
	return failed
}

// unsafeBack reports what speaks against making a demoted cluster the primary again: it has given its final word away.
func (s *Store) unsafeBack(ctx context.Context, fail func(format string, args ...any)) {
	list, err := s.registry.List(ctx)
	if err != nil {
		fail("which secondaries there are cannot be told (%v)", err)
		return
	}
	var ids []string
	for _, p := range list {
		if p.State == registry.Active {
			ids = append(ids, strconv.Quote(p.ID))
		}
	}
	if len(ids) > 0 {
		fail("this cluster was demoted, and of its secondaries (%s) one may have been promoted on that since", strings.Join(ids, ", "))
	}
}

// unsafeLink reports what the connection to the primary says against a promotion: anything but its final word does.
func (s *Store) unsafeLink(fail func(format string, args ...any)) {
	st := s.FollowStatus()
	switch {
	case st.Final:
	case st.Connected != "" && !s.Silent(&st):
		fail("the primary is connected and not demoted: demote it first")
	case st.LastHeard.IsZero():
		fail("this node has not heard from the primary since it became the active one, and the primary has not said its final word: "+
			"what it has acknowledged and this cluster lacks cannot be told%s", equalText(&st))
	default:
		fail("the primary cannot be reached and has not said its final word: it was last heard at %s, at position %s, and this cluster is at %s; "+
			"what it has acknowledged since then is not here", TimeText(st.LastHeard), st.Head, st.Cursor)
	}
	if st.Cursor.Before(st.Head) && st.LagEntries > 0 {
		fail("still catching up: the primary was last heard of at %s, this cluster is at %s (%d entries behind)", st.Head, st.Cursor, st.LagEntries)
	}
	if st.Repair != nil && st.Repair.Running {
		fail("a repair is running (%s)", st.Repair.Cause)
	}
}

func equalText(st *traffic.FollowStatus) string {
	if st.EqualAt.IsZero() {
		return ""
	}
	return "; both were equal at " + TimeText(st.EqualAt)
}

// heard returns what this node knows of the primary.
func (s *Store) heard() Heard {
	st := s.FollowStatus()
	return Heard{Position: st.Head, At: st.LastHeard, Equal: st.EqualAt, Final: st.Final}
}

// CountFalse returns how many of the values are false.
func CountFalse(m map[string]bool) int {
	n := 0
	for _, v := range m {
		if !v {
			n++
		}
	}
	return n
}
