// Package secondary is the secondary's side of replication: a Follower on the active node.
//
// It promises that every change it commits keeps data, cursor and units in agreement, and that a unit that is Whole is exact
// once the cursor has passed its Until. A Follower has neither goroutines nor clock nor network: package link moves its
// messages. Read replication/DESIGN.md, then Follower; apply.go is the stream, repair.go is what is compared and fetched.
package secondary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

const (
	lazyMS      = 10_000 // how long, and over how many indexes, the cursor may run ahead of what is stored
	lazyIndexes = 10_000 // while nothing is applied
	behindMS    = 5_000  // how far behind a secondary may be that is Streaming
	maxAsked    = 16     // questions for sums under way
	maxAttempts = 2      // repairs before a unit is quarantined
	dropKeys    = 256    // deleted in one step where copies are kept
)

// Options of New. All but SmallUnit and MaxAsk are required.
type Options struct {
	SetID, ClusterID string
	SmallUnit        int // a unit of fewer keys is compared by its whole list; default 1024
	MaxAsk           int // keys in one AskItems; default 512
	Handouts         Handouts
}

// Handouts is what was handed out of the units of a secondary.
type Handouts interface {
	// Ended reports whether a unit that left the scope may be deleted now, as all that was handed out of it has ended. It is
	// called again by each Next until that is so, and must not block.
	Ended(unit replication.Unit) bool
}

// Progress describes a follower. The counters are since New.
type Progress struct {
	State       replication.SecondaryState // never Disconnected: that is the caller's to know
	Cursor      storage.Position           // everything up to here is applied; it may be ahead of what is stored
	Head        storage.Position           // of the primary, as last heard
	Oldest      storage.Position           // what the primary keeps
	Addrs       []string                   // of the primary, as last heard; shared, not to be modified
	PrimaryID   string
	Lineage     storage.Lineage                        // shared, not to be modified
	TimeMS      int64                                  // of the last entry applied, on the primary's clock
	HeardMS     int64                                  // when the last Heartbeat came, on ours
	PrimaryMS   int64                                  // what it said about the primary's clock
	Exact       bool                                   // all units are exact at Cursor
	Entries     uint64                                 // applied
	Bytes       int64                                  // of batches
	Repair      *replication.Repair                    // running or last; nil: none since New
	Units       map[replication.Unit]replication.Phase // the caller's own
	Quarantined int
}

// Follower applies what a primary's Session sends, on the active node of a secondary. One serves all connections, one
// after the other: each begins with Hello. Not safe for concurrent use.
type Follower struct {
	r      replication.Replica
	layout replication.Layout
	o      Options

	// Of this connection.
	state     replication.State // as stored
	at        storage.Position  // everything up to here is applied; state.Cursor may be older while nothing is applied
	storedMS  int64             // when the cursor was stored last
	welcomed  bool
	open      map[replication.Unit]bool // units that are not Whole
	over      error                     // what Receive and Next return from now on
	adopted   map[replication.Unit]bool // units that are here without a state: of a primary that was demoted, or left over
	wanted    map[replication.Unit]bool // units that are being dropped, but are in scope again
	ready     map[replication.Unit]bool // units that are Adding, with everything fetched: they wait for the cursor
	job       *job                      // what is being fetched or compared
	asked     []ask                     // questions under way
	victims   []replication.KeyMod      // what is left to delete of a unit of which copies are kept
	victimsOf replication.Unit
	dropping  bool // there is something to drop, and Handouts allowed it when last asked
	collided  bool // this cluster's own history has an epoch with the number of one of its primary's
	exact     bool
	head      replication.Heartbeat
	mark      replication.Heartbeat // an earlier one that the position did not reach yet, or the last one
	final     bool
	credit    int64            // to be given back
	acked     *replication.Ack // the last one
	repaired  bool             // to be told
	primaryID string

	// Of all connections.
	heardMS int64
	timeMS  int64
	entries uint64
	bytes   int64
	repair  *replication.Repair
}

// New returns a follower that has not said Hello.
func New(r replication.Replica, layout replication.Layout, o Options) *Follower {
	if o.SmallUnit <= 0 {
		o.SmallUnit = 1024
	}
	if o.MaxAsk <= 0 {
		o.MaxAsk = 512
	}
	return &Follower{r: r, layout: layout, o: o, over: errNoHello}
}

var errNoHello = errors.New("the follower is not connected")

// Hello forgets the connection before, loads the state, and returns what to open the stream with. ErrBuilding: call again
// later.
func (f *Follower) Hello(ctx context.Context) (replication.Hello, error) {
	kept := *f
	*f = Follower{
		r: kept.r, layout: kept.layout, o: kept.o, over: errNoHello,
		heardMS: kept.heardMS, timeMS: kept.timeMS, entries: kept.entries, bytes: kept.bytes, repair: kept.repair,
		open: map[replication.Unit]bool{}, wanted: map[replication.Unit]bool{}, ready: map[replication.Unit]bool{}, storedMS: kept.r.NowMS(),
	}
	state, err := f.r.Load(ctx)
	if err != nil {
		return replication.Hello{}, fmt.Errorf("loading the state: %w", err)
	}
	if state.Units == nil {
		state.Units = map[replication.Unit]replication.UnitState{}
	}
	if len(state.Units) == 0 {
		roots, ok := f.r.Digests(ctx)
		if !ok {
			return replication.Hello{}, replication.ErrBuilding
		}
		f.adopted = map[replication.Unit]bool{}
		for unit, root := range roots {
			if root.Count > 0 {
				f.adopted[unit] = true
			}
		}
	}
	f.state, f.at, f.over = state, state.Cursor, nil
	for unit, st := range state.Units {
		f.note(unit)
		f.collided = f.collided || st.List
	}
	return replication.Hello{
		SetID: f.o.SetID, ClusterID: f.o.ClusterID, Cursor: state.Cursor, Lineage: state.Lineage,
		ProtoMin: replication.ProtocolVersion, ProtoMax: replication.ProtocolVersion,
	}, nil
}

// Receive takes a message from the primary, and commits what follows from it. After an error the connection is over:
// ErrFenced, ErrOtherSet and ErrRejected are the primary's answer, after others a new one may help.
func (f *Follower) Receive(ctx context.Context, m replication.Message) error {
	if f.over != nil {
		return f.over
	}
	if err := f.receive(ctx, m); err != nil {
		f.over = err
	}
	return f.over
}

func (f *Follower) receive(ctx context.Context, m replication.Message) error {
	switch m := m.(type) {
	case replication.Reject:
		return rejection(m)
	case replication.Welcome:
		if f.welcomed {
			return fmt.Errorf("a second welcome: %w", replication.ErrProtocol)
		}
		return f.welcome(ctx, m)
	}
	if !f.welcomed || f.final {
		return fmt.Errorf("a %T outside of the stream: %w", m, replication.ErrProtocol)
	}
	switch m := m.(type) {
	case replication.Scope:
		return f.rescope(ctx, m)
	case replication.Batch:
		return f.batch(ctx, m)
	case replication.Heartbeat:
		f.head, f.heardMS = m, f.r.NowMS()
		if !f.at.Before(f.mark.Head) {
			f.mark = m
		}
		return nil
	case replication.Checkpoint:
		return f.checkpoint(ctx, m)
	case replication.Sums, replication.Page, replication.Items, replication.Gone:
		return f.answer(ctx, m)
	case replication.Final:
		return f.finish(ctx, m)
	}
	return fmt.Errorf("a primary sent a %T: %w", m, replication.ErrProtocol)
}

func rejection(m replication.Reject) error {
	switch {
	case m.Fenced:
		return fmt.Errorf("%s: %w", m.Reason, replication.ErrFenced)
	case m.Set:
		return fmt.Errorf("%s: %w", m.Reason, replication.ErrOtherSet)
	default:
		return fmt.Errorf("%s: %w", m.Reason, replication.ErrRejected)
	}
}

// finish stores the exact end of the stream: another cluster may be promoted at it.
func (f *Follower) finish(ctx context.Context, m replication.Final) error {
	if m.At != f.at {
		return fmt.Errorf("the stream ends at %s, and this is at %s: %w", m.At, f.at, replication.ErrProtocol)
	}
	if err := f.commit(ctx, replication.Change{}); err != nil {
		return err
	}
	f.final, f.job, f.asked = true, nil, nil
	return nil
}

// Next returns what to send now, nil if nothing: then the caller calls again at once if Busy, else after a message or after
// 100 ms. It also does a slice of local work. ErrFinal: the primary was demoted, and everything it had is applied.
func (f *Follower) Next(ctx context.Context) (replication.Message, error) {
	if f.over != nil {
		return nil, f.over
	}
	if !f.welcomed {
		return nil, nil
	}
	m, err := f.next(ctx)
	if err != nil {
		f.over = err
	}
	return m, err
}

func (f *Follower) next(ctx context.Context) (replication.Message, error) {
	if err := f.drop(ctx); err != nil {
		return nil, err
	}
	if m := f.ack(); m != nil {
		return m, nil
	}
	if f.final {
		return nil, replication.ErrFinal
	}
	return f.ask(ctx)
}

// Busy reports whether Next has local work left.
func (f *Follower) Busy() bool { return f.over == nil && f.dropping }

// Position returns the position up to which everything is applied. It may be ahead of what is stored.
func (f *Follower) Position() storage.Position { return f.at }

// ack returns an Ack if there is news.
func (f *Follower) ack() replication.Message {
	m := replication.Ack{Cursor: f.at, Bytes: f.credit, TimeMS: f.timeMS, Exact: f.isExact(), Repaired: f.repaired}
	if f.acked != nil && m.Bytes == 0 && !m.Repaired && m.Cursor == f.acked.Cursor && m.Exact == f.acked.Exact {
		return nil
	}
	f.credit, f.repaired, f.acked = 0, false, &m
	return m
}

// commit stores a change together with the cursor, and remembers what was stored. After an error nothing is certain any
// more, and the connection must end.
func (f *Follower) commit(ctx context.Context, c replication.Change) error {
	at := f.at
	c.Cursor, c.TimeMS = &at, f.timeMS
	err := f.saveConflicts(ctx, &c)
	if err == nil {
		err = f.r.Commit(ctx, c)
	}
	if err != nil {
		f.at = f.state.Cursor // the rest must not be taken for applied
		return fmt.Errorf("applying up to %s: %w", at, err)
	}
	f.state.Cursor, f.storedMS = at, f.r.NowMS()
	if c.Lineage != nil {
		f.state.Lineage = c.Lineage
	}
	if c.Diverged != nil {
		f.state.Diverged = *c.Diverged
	}
	if c.Scope != nil {
		f.state.Scope = *c.Scope
	}
	for unit, st := range c.Units {
		if st == nil {
			delete(f.state.Units, unit)
		} else {
			f.state.Units[unit] = *st
		}
		f.note(unit)
	}
	if len(c.Units) > 0 {
		f.exact = false // to be determined again
	}
	f.isExact()
	return nil
}

// note keeps open right for a unit.
func (f *Follower) note(unit replication.Unit) {
	if st, held := f.state.Units[unit]; held && st.Phase != replication.Whole {
		f.open[unit] = true
	} else {
		delete(f.open, unit)
	}
}

// saveConflicts adds copies of what the change replaces or deletes and only this cluster had written.
func (f *Follower) saveConflicts(ctx context.Context, c *replication.Change) error {
	if f.state.Diverged.IsZero() {
		return nil
	}
	lost := func(theirs replication.Item) error {
		mine, err := f.r.Get(ctx, theirs.Key)
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		}
		if err == nil && (mine.Mod != theirs.Mod || !bytes.Equal(mine.Value, theirs.Value)) && f.onlyHere(mine.Mod) {
			c.Lost = append(c.Lost, replication.Conflict{Item: mine, Theirs: theirs.Mod})
		}
		return err
	}
	for _, item := range c.Puts {
		if err := lost(item); err != nil {
			return err
		}
	}
	for _, key := range c.Deletes {
		if err := lost(replication.Item{Key: key}); err != nil {
			return err
		}
	}
	return nil
}

// onlyHere reports whether a position is behind the point where the primary's history left that of this cluster, and not
// of the primary. If both have an epoch of one number, it may say so of what came from the primary, too.
func (f *Follower) onlyHere(p storage.Position) bool {
	d := f.state.Diverged
	return !d.IsZero() && d.Before(p) && (f.collided || !f.state.Lineage.Contains(p))
}

// isExact reports whether all units are exact at the position.
func (f *Follower) isExact() bool {
	if f.exact {
		return true
	}
	if !f.welcomed {
		return false
	}
	for _, st := range f.state.Units {
		switch st.Phase {
		case replication.Dropping:
		case replication.Whole:
			if f.at.Before(st.Until) {
				return false
			}
		default:
			return false
		}
	}
	f.exact = true
	return true
}

// Repair compares everything with the primary.
func (f *Follower) Repair(ctx context.Context, cause string) error {
	if f.over != nil || !f.welcomed || f.final {
		return errNoHello
	}
	c := replication.Change{Units: map[replication.Unit]*replication.UnitState{}}
	for unit, st := range f.state.Units {
		switch st.Phase {
		case replication.Whole, replication.Checking, replication.Quarantined:
			c.Units[unit] = &replication.UnitState{Phase: replication.Checking, List: st.List}
		case replication.Adding:
			c.Units[unit] = &replication.UnitState{Phase: replication.Adding, List: st.List}
		}
	}
	f.begin(cause, len(c.Units))
	f.restart(func(replication.Unit) bool { return true })
	clear(f.ready)
	if err := f.commit(ctx, c); err != nil {
		f.over = err
		return err
	}
	return nil
}

// begin counts units to compare or fetch, in the repair that is running or in a new one.
func (f *Follower) begin(cause string, units int) {
	if units == 0 {
		return
	}
	if f.repair == nil || !f.repair.Running {
		f.repair = &replication.Repair{Cause: cause, StartedAt: time.UnixMilli(f.r.NowMS()), Running: true, Estimated: f.estimated()}
	}
	f.repair.UnitsAll += units
}

// end closes the repair if nothing is left to compare or fetch.
func (f *Follower) end() {
	if f.repair == nil || !f.repair.Running {
		return
	}
	for unit := range f.open {
		if phase := f.state.Units[unit].Phase; phase == replication.Adding || phase == replication.Checking {
			return
		}
	}
	f.repair.Running = false
	f.repair.Seconds = f.seconds()
	f.repaired = true
}

func (f *Follower) seconds() float64 {
	return float64(f.r.NowMS()-f.repair.StartedAt.UnixMilli()) / 1000
}

func (f *Follower) estimated() int64 {
	if f.repair == nil {
		return 0
	}
	return f.repair.Estimated
}

// Status describes the follower.
func (f *Follower) Status() Progress {
	p := Progress{
		State: replication.Connecting, Cursor: f.at, Head: f.head.Head, Oldest: f.head.Oldest, Addrs: f.head.Addrs, PrimaryID: f.primaryID,
		Lineage: f.state.Lineage, TimeMS: f.timeMS, HeardMS: f.heardMS, PrimaryMS: f.head.NowMS, Exact: f.isExact(),
		Entries: f.entries, Bytes: f.bytes, Units: make(map[replication.Unit]replication.Phase, len(f.state.Units)),
	}
	phases := map[replication.Phase]int{}
	for unit, st := range f.state.Units {
		p.Units[unit] = st.Phase
		phases[st.Phase]++
	}
	p.Quarantined = phases[replication.Quarantined]
	if f.repair != nil {
		repair := *f.repair
		if repair.Running {
			repair.Seconds = f.seconds()
		}
		p.Repair = &repair
	}
	switch {
	case !f.welcomed || f.over != nil:
	case phases[replication.Checking]+phases[replication.Quarantined] > 0:
		p.State = replication.Repairing
	case phases[replication.Adding] > 0:
		p.State = replication.Backfill
	case !p.Exact || f.behind():
		p.State = replication.CatchingUp
	default:
		p.State = replication.Streaming
	}
	return p
}

// behind reports whether what the primary had a while ago has not arrived yet.
func (f *Follower) behind() bool {
	return f.at.Before(f.mark.Head) && f.head.NowMS-f.mark.NowMS > behindMS
}

// rank orders units: what others need to be seen at all comes first.
func rank(unit replication.Unit) int {
	switch {
	case unit == "global":
		return 0
	case strings.HasPrefix(string(unit), "ns/"):
		return 1
	default:
		return 2
	}
}

// unfinished returns the units that are not Whole, in the order of work.
func (f *Follower) unfinished() []replication.Unit {
	byRank := [3][]replication.Unit{}
	for _, unit := range slices.Sorted(maps.Keys(f.open)) {
		byRank[rank(unit)] = append(byRank[rank(unit)], unit)
	}
	return slices.Concat(byRank[0], byRank[1], byRank[2])
}
