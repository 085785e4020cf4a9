package replication

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/storage"
)

// following is what the status of a follower is made of.
type following struct {
	progress  FollowerProgress
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
	entries   meter
	bytes     meter
	head      meter // of the primary
}

// mark is where the primary was, and when that was heard.
type mark struct {
	head  storage.Position
	heard time.Time
}

// reached takes note of how far the follower is: what the primary had at a mark is here once its position is.
func (st *following) reached(at storage.Position) {
	if st.progress.State == Backfill && st.equalAt.IsZero() { // the position says nothing before there is a first copy
		return
	}
	if !st.mark.heard.IsZero() && !at.Before(st.mark.head) && st.mark.heard.After(st.equalAt) {
		st.equalAt = st.mark.heard
	}
}

// equal returns the last moment, on this clock, at which the secondary is known to have had all that the primary had.
func (st *following) equal() time.Time {
	at := st.equalAt
	if p := &st.progress; p.TimeMS != 0 && (p.State != Backfill || !at.IsZero()) {
		if applied := time.UnixMilli(p.TimeMS).Add(st.skew); applied.After(at) {
			at = applied
		}
	}
	return at
}

// FollowStatus is how a secondary is doing.
type FollowStatus struct {
	State      SecondaryState
	Reason     string // why it is not connected, for people
	Paused     string // why nothing is taken from the primary at the moment, "" if it is
	Terminal   string // "", "revoked", "fenced", "rejected": needs an operator
	Cursor     storage.Position
	Head       storage.Position // of the primary, as last heard
	LagEntries uint64
	LagBytes   int64
	LagSeconds float64
	EntriesIn  uint64  // since the node became active
	BytesIn    int64   // likewise; what copies and repairs have fetched is part of it
	RateIn     float64 // entries each second, lately
	BytesRate  float64 // bytes each second, lately
	ETASeconds float64 // until it has caught up; negative: it does not
	Connected  string  // address
	Final      bool    // the primary has said that it is none any more, and everything that it had is here
	LastHeard  time.Time
	EqualAt    time.Time // the last moment at which everything that the primary had was here; zero: not known
	ClockSkew  time.Duration
	Repair     *Repair
	Exact      bool
	Units      map[string]string // unit: phase
	KeysDone   int64             // of a backfill
	KeysTotal  int64
	CanKeepUp  bool
}

const notePace = 200 * time.Millisecond

// note keeps what the machine says of itself for others, and tells who waits for the cursor.
func (f *follow) note(now time.Time) {
	f.l.progress.follower(f.machine.at)
	if now.Sub(f.noted) < notePace {
		return
	}
	f.noted = now
	p := f.machine.Status()
	for unit := range f.drops {
		if p.Units[unit] != Dropping {
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
	st.reached(f.machine.at)
	st.entries.count(now, float64(p.Entries))
	st.received = f.received.Load()
	st.bytes.count(now, float64(st.received))
	st.head.count(now, float64(p.Head.Index))
}

func (f *follow) isFinal() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.final
}

func (f *follow) dialling() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs, f.shown = slices.Clone(f.up.Addrs), f.id
	f.status.dialling, f.status.measured = true, false
}

func (f *follow) connected(c *client, addr string) {
	f.mu.Lock()
	if f.status.terminal != "" || f.status.reason != "" {
		f.l.log.Info("following the primary", "address", addr)
	}
	f.conn, f.status.connected, f.status.dialling, f.status.reason, f.status.terminal = c, addr, false, "", ""
	f.status.lastHeard = time.Now()
	f.mu.Unlock()
	f.changed.raise()
	f.noted = time.Time{}
}

// paused records why nothing is taken from the primary, and logs it when it begins and ends.
func (f *follow) paused(why string) {
	f.mu.Lock()
	before := f.status.paused
	f.status.paused = why
	if why != "" {
		f.status.lastHeard = time.Now()
	}
	f.mu.Unlock()
	switch {
	case why != "" && before == "":
		f.l.log.Warn("replication is paused: nothing is taken from the primary", "reason", why)
	case why == "" && before != "":
		f.l.log.Info("replication goes on")
	}
}

func (f *follow) lostConnection() {
	f.noted = time.Time{}
	f.note(time.Now())
	f.mu.Lock()
	f.conn, f.status.connected, f.status.paused = nil, "", ""
	f.mu.Unlock()
}

// disconnected keeps the reason, and says it once.
func (f *follow) disconnected(err error, terminal string) {
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
	f.changed.raise()
	switch {
	case news && terminal != "":
		f.l.log.Error("the primary cannot be followed until an operator acts", "state", terminal, "err", err)
	case news:
		f.l.log.Warn("not connected to the primary", "err", err)
	}
}

// measure compares the clocks. Of several differences the smallest has the least of the network in it.
func (f *follow) measure(heard time.Time, h Heartbeat) {
	skew := heard.Sub(time.UnixMilli(h.NowMS)).Round(time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	st.lastHeard, st.final = heard, false
	st.reached(f.machine.at)
	if !f.machine.at.Before(st.mark.head) { // else the next one that is reached would never come
		st.mark = mark{h.Head, heard}
		st.reached(f.machine.at)
	}
	if !st.measured || skew.Abs() < st.skew.Abs() {
		st.skew, st.measured = skew, true
	}
}

// storedStatus is that of a node that follows no primary, or not yet: what the cursor tells.
func (l *Link) storedStatus() FollowStatus {
	out := FollowStatus{State: Disconnected}
	if c, version, err := readCursor(context.Background(), l.o.Store); err == nil && version != 0 {
		if out.Cursor = c.Cursor; c.TimeMS != 0 {
			out.EqualAt = time.UnixMilli(c.TimeMS)
			out.LagSeconds = lagSince(time.Now(), out.EqualAt, time.Time{}, false)
		}
	}
	return out
}

// FollowStatus describes this node's following. If it follows no primary that is what is stored: how far it is, and since when.
func (l *Link) FollowStatus() FollowStatus {
	l.mu.Lock()
	f, a := l.follow, l.active
	l.mu.Unlock()
	if f == nil {
		return l.storedStatus()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.status.describe(time.Now())
	if p := f.status.progress; a != nil && out.KeysTotal > 0 {
		out.KeysDone = int64(a.trees.count(func(unit Unit) bool { return p.Units[unit] != "" }))
		out.KeysTotal = max(out.KeysTotal, out.KeysDone)
	}
	return out
}

func (st *following) describe(now time.Time) FollowStatus {
	p := &st.progress
	out := FollowStatus{
		State: p.State, Reason: st.reason, Paused: st.paused, Terminal: st.terminal, Cursor: p.Cursor, Head: p.Head, EntriesIn: p.Entries, BytesIn: st.received,
		RateIn: st.entries.rate, BytesRate: st.bytes.rate, Connected: st.connected, Final: st.final, LastHeard: st.lastHeard, EqualAt: st.equal(), ClockSkew: st.skew, Repair: p.Repair, Exact: p.Exact,
		Units: make(map[string]string, len(p.Units)), CanKeepUp: true,
	}
	switch {
	case st.connected != "":
	case st.dialling:
		out.State = Connecting
	default:
		out.State = Disconnected
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

// freshFor is how old the last sign of life of the other side may be while what it said then holds.
const freshFor = 3 * time.Second

// lagSince returns how long ago both sides were known to be equal, 0 if they are now.
func lagSince(now, equal, heard time.Time, equalNow bool) float64 {
	if equalNow && now.Sub(heard) <= freshFor || equal.IsZero() {
		return 0
	}
	return max(0, now.Sub(equal).Seconds())
}

// lag says how far the secondary is behind, in three units, and for how long. Without a word of the primary it grows.
func (st *following) lag(out *FollowStatus, now time.Time) {
	p := &st.progress
	behind := p.Cursor.Before(p.Head)
	equal := st.equal()
	if equal.IsZero() {
		equal = st.since
	}
	out.LagSeconds = lagSince(now, equal, st.lastHeard, st.connected != "" && st.paused == "" && st.measured && !behind && !st.equalAt.IsZero())
	if !behind {
		return
	}
	if p.Cursor.Epoch == p.Head.Epoch {
		out.LagEntries = uint64(p.Head.Index - p.Cursor.Index)
	}
	if p.Entries > 0 {
		out.LagBytes = int64(float64(out.LagEntries) * float64(p.Bytes) / float64(p.Entries))
	}
	gain := st.entries.rate - st.head.rate
	switch {
	case out.LagSeconds < 5: // it is about to be there
		out.ETASeconds = min(out.LagSeconds, 1)
	case gain <= 0:
		out.ETASeconds, out.CanKeepUp = -1, false
	default:
		out.ETASeconds = math.Ceil(float64(out.LagEntries) / gain)
	}
}

// Root returns a digest of all shared data that replicates to or from here, in hexadecimal; "" while it is being built.
func (l *Link) Root() string {
	a := l.here()
	if a == nil {
		return ""
	}
	sum, ok := a.trees.whole()
	if !ok {
		return ""
	}
	b := binary.BigEndian.AppendUint64(nil, sum.A)
	b = binary.BigEndian.AppendUint64(b, sum.B)
	return hex.EncodeToString(binary.BigEndian.AppendUint64(b, sum.Count))
}

// Repair makes the follower compare everything with its primary, as soon as it is connected.
func (l *Link) Repair(cause string) error {
	l.mu.Lock()
	f := l.follow
	l.mu.Unlock()
	if f == nil {
		return errors.New("this node follows no primary")
	}
	select {
	case f.repairs <- cause:
	default: // one is waiting already
	}
	return nil
}

// patience is how long a Call waits for a connection to the primary.
const patience = 5 * time.Second

// Call has something done by the primary that this cluster follows; the answer's position is to be waited for with
// AwaitCursor. storage.ErrUnavailable: nothing was done; storage.ErrOutcomeUnknown: it may have been, or may be later;
// *Refusal: the primary's answer.
func (l *Link) Call(ctx context.Context, kind string, payload []byte) (answer []byte, at storage.Position, err error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var reply *pb.CallReply
		again, err := l.upstream(ctx, func(ctx context.Context, c *client) error {
			var err error
			reply, err = c.Call(ctx, &pb.CallRequest{Kind: kind, Payload: payload})
			return err
		})
		if err == nil {
			var d decoder
			return reply.GetAnswer(), d.position(reply.GetAt()), d.err
		}
		if again == nil || !errors.Is(err, storage.ErrUnavailable) {
			return nil, storage.Position{}, err
		}
		select {
		case <-again:
		case <-time.After(l.o.timing.tick):
		case <-waiting.Done():
			return nil, storage.Position{}, err
		}
	}
}

// upstream calls do with a connection to the primary. again is closed when there may be another one; nil if there will be
// none soon.
func (l *Link) upstream(ctx context.Context, do func(context.Context, *client) error) (again <-chan struct{}, err error) {
	l.mu.Lock()
	f := l.follow
	l.mu.Unlock()
	if f == nil {
		return nil, fmt.Errorf("%w: this node follows no primary", storage.ErrUnavailable)
	}
	again = f.changed.wait()
	f.mu.Lock()
	conn, terminal, reason, final, addrs, id := f.conn, f.status.terminal, f.status.reason, f.status.final, f.addrs, f.shown
	f.mu.Unlock()
	switch {
	case conn != nil:
		return again, unary(ctx, func(ctx context.Context) error { return do(ctx, conn) })
	case terminal != "":
		return nil, fmt.Errorf("%w: the primary cannot be followed: %s", storage.ErrUnavailable, reason)
	case final: // there are no streams any more, but answers
		return nil, anyOf(ctx, addrs, id, do)
	}
	return again, fmt.Errorf("%w: the primary cannot be reached", storage.ErrUnavailable)
}
