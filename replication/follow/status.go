package follow

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/secondary"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/storage"
)

// measures is what the status of a follower is made of.
type measures struct {
	progress  secondary.Progress
	connected string // address
	dialling  bool
	reason    string
	paused    string // why nothing is taken from the primary
	terminal  string
	final     bool // the stream ended with Final, and nothing came since
	lastHeard time.Time
	since     time.Time     // the cluster follows this primary since then
	equalAt   time.Time     // when everything that the primary had was here; zero: never yet
	mark      mark          // a heartbeat whose position is not reached yet, or the last one
	skew      time.Duration // our clock minus the primary's
	measured  bool          // skew is of this connection
	received  int64         // bytes, of copies, repairs and batches
	entries   Meter
	bytes     Meter
	head      Meter // of the primary
}

// mark is where the primary was, and when that was heard.
type mark struct {
	head  storage.Position
	heard time.Time
}

// reached takes note of how far the follower is: what the primary had at a mark is here once its position is.
func (st *measures) reached(at storage.Position) {
	if st.progress.State == replication.Backfill && st.equalAt.IsZero() { // the position says nothing before there is a first copy
		return
	}
	if !st.mark.heard.IsZero() && !at.Before(st.mark.head) && st.mark.heard.After(st.equalAt) {
		st.equalAt = st.mark.heard
	}
}

// equal returns the last moment, on this clock, at which the secondary is known to have had all that the primary had.
func (st *measures) equal() time.Time {
	at := st.equalAt
	if p := &st.progress; p.TimeMS != 0 && (p.State != replication.Backfill || !at.IsZero()) {
		if applied := time.UnixMilli(p.TimeMS).Add(st.skew); applied.After(at) {
			at = applied
		}
	}
	return at
}

const notePace = 200 * time.Millisecond

// note keeps what the machine says of itself for others, and tells who waits for the cursor.
func (f *Following) note(now time.Time) {
	f.o.Local.FollowerAt(f.machine.Position())
	if now.Sub(f.noted) < notePace {
		return
	}
	f.noted = now
	p := f.machine.Status()
	for unit := range f.drops {
		if p.Units[unit] != replication.Dropping {
			delete(f.drops, unit)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	if p.Head.IsZero() { // a new attempt to connect: what was heard last still counts
		p.Head, p.Exact = st.progress.Head, p.Exact || st.progress.Exact
	}
	st.progress = p
	st.reached(f.machine.Position())
	st.entries.Count(now, float64(p.Entries))
	st.received = f.received.Load()
	st.bytes.Count(now, float64(st.received))
	st.head.Count(now, float64(p.Head.Index))
}

func (f *Following) isFinal() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.final
}

func (f *Following) dialling() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs, f.shown = slices.Clone(f.up.Addrs), f.id
	f.status.dialling, f.status.measured = true, false
}

func (f *Following) connected(c *transport.Client, addr string) {
	f.mu.Lock()
	if f.status.terminal != "" || f.status.reason != "" {
		f.o.Logger.Info("following the primary", "address", addr)
	}
	f.conn, f.status.connected, f.status.dialling, f.status.reason, f.status.terminal = c, addr, false, "", ""
	f.status.lastHeard = time.Now()
	f.mu.Unlock()
	f.changed.Raise()
	f.noted = time.Time{}
}

// paused records why nothing is taken from the primary, and logs it when it begins and ends.
func (f *Following) paused(why string) {
	f.mu.Lock()
	before := f.status.paused
	f.status.paused = why
	if why != "" {
		f.status.lastHeard = time.Now()
	}
	f.mu.Unlock()
	switch {
	case why != "" && before == "":
		f.o.Logger.Warn("replication is paused: nothing is taken from the primary", "reason", why)
	case why == "" && before != "":
		f.o.Logger.Info("replication goes on")
	}
}

func (f *Following) lostConnection() {
	f.noted = time.Time{}
	f.note(time.Now())
	f.mu.Lock()
	f.conn, f.status.connected, f.status.paused = nil, "", ""
	f.mu.Unlock()
}

// disconnected keeps the reason, and says it once.
func (f *Following) disconnected(err error, terminal string) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	f.mu.Lock()
	if f.status.final {
		reason = "the primary was demoted, and everything that it had is here: promote this cluster, or give it another primary"
	}
	news := reason != f.status.reason
	f.status.dialling, f.status.reason, f.status.terminal = false, reason, terminal
	f.mu.Unlock()
	f.changed.Raise()
	switch {
	case news && terminal != "":
		f.o.Logger.Error("the primary cannot be followed until an operator acts", "state", terminal, "err", err)
	case news:
		f.o.Logger.Warn("not connected to the primary", "err", err)
	}
}

// measure compares the clocks. Of several differences the smallest has the least of the network in it.
func (f *Following) measure(heard time.Time, h replication.Heartbeat) {
	skew := heard.Sub(time.UnixMilli(h.NowMS)).Round(time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	st.lastHeard, st.final = heard, false
	st.reached(f.machine.Position())
	if !f.machine.Position().Before(st.mark.head) { // else the next one that is reached would never come
		st.mark = mark{h.Head, heard}
		st.reached(f.machine.Position())
	}
	if !st.measured || skew.Abs() < st.skew.Abs() {
		st.skew, st.measured = skew, true
	}
}

// Status describes the following.
func (f *Following) Status() replication.FollowStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.status.describe(time.Now())
	if p := f.status.progress; out.KeysTotal > 0 {
		out.KeysDone = int64(f.o.Trees.Count(func(unit replication.Unit) bool { return p.Units[unit] != "" }))
		out.KeysTotal = max(out.KeysTotal, out.KeysDone)
	}
	return out
}

func (st *measures) describe(now time.Time) replication.FollowStatus {
	p := &st.progress
	out := replication.FollowStatus{
		State: p.State, Reason: st.reason, Paused: st.paused, Terminal: st.terminal, Cursor: p.Cursor, Head: p.Head, EntriesIn: p.Entries, BytesIn: st.received,
		RateIn: st.entries.Rate, BytesRate: st.bytes.Rate, Connected: st.connected, Final: st.final, LastHeard: st.lastHeard, EqualAt: st.equal(), ClockSkew: st.skew, Repair: p.Repair, Exact: p.Exact,
		Units: make(map[string]string, len(p.Units)), CanKeepUp: true,
	}
	switch {
	case st.connected != "":
	case st.dialling:
		out.State = replication.Connecting
	default:
		out.State = replication.Disconnected
	}
	for unit, phase := range p.Units {
		out.Units[string(unit)] = string(phase)
	}
	if p.Repair != nil && p.Repair.Running {
		out.KeysTotal = p.Repair.Estimated
	}
	st.lag(&out, now)
	// What is applied was heard, too: records that came after the last heartbeat.
	if !out.Head.IsZero() && out.Head.Before(out.Cursor) {
		out.Head = out.Cursor
	}
	if !out.LastHeard.IsZero() && out.EqualAt.After(out.LastHeard) {
		out.LastHeard = out.EqualAt
	}
	return out
}

// lag says how far the secondary is behind, in three units, and for how long. Without a word of the primary it grows.
func (st *measures) lag(out *replication.FollowStatus, now time.Time) {
	p := &st.progress
	behind := p.Cursor.Before(p.Head)
	equal := st.equal()
	if equal.IsZero() {
		equal = st.since
	}
	out.LagSeconds = LagSince(now, equal, st.lastHeard, st.connected != "" && st.paused == "" && st.measured && !behind && !st.equalAt.IsZero())
	if !behind {
		return
	}
	if p.Cursor.Epoch == p.Head.Epoch {
		out.LagEntries = uint64(p.Head.Index - p.Cursor.Index)
	}
	if p.Entries > 0 {
		out.LagBytes = int64(float64(out.LagEntries) * float64(p.Bytes) / float64(p.Entries))
	}
	gain := st.entries.Rate - st.head.Rate
	switch {
	case out.LagSeconds < 5: // it is about to be there
		out.ETASeconds = min(out.LagSeconds, 1)
	case gain <= 0:
		out.ETASeconds, out.CanKeepUp = -1, false
	default:
		out.ETASeconds = math.Ceil(float64(out.LagEntries) / gain)
	}
}

// Repair makes the follower compare everything with its primary, as soon as it is connected.
func (f *Following) Repair(cause string) {
	select {
	case f.repairs <- cause:
	default: // one is waiting already
	}
}

// Do calls do with a connection to the primary. again is closed when there may be another one; nil if there will be none soon.
func (f *Following) Do(ctx context.Context, do func(context.Context, *transport.Client) error) (again <-chan struct{}, err error) {
	again = f.changed.Wait()
	f.mu.Lock()
	conn, terminal, reason, final, addrs, id := f.conn, f.status.terminal, f.status.reason, f.status.final, f.addrs, f.shown
	f.mu.Unlock()
	switch {
	case conn != nil:
		return again, transport.Unary(ctx, func(ctx context.Context) error { return do(ctx, conn) })
	case terminal != "":
		return nil, fmt.Errorf("%w: the primary cannot be followed: %s", storage.ErrUnavailable, reason)
	case final: // there are no streams any more, but answers
		return nil, transport.AnyOf(ctx, addrs, id, do)
	}
	return again, fmt.Errorf("%w: the primary cannot be reached", storage.ErrUnavailable)
}
