// Package primary is the primary's side of replication: a Session for each connected secondary, on the active node.
//
// It promises that what a Session sends is one ordered stream in which no answer is older than what was sent before it, and
// that nothing out of the secondary's scope is in it. A Session has neither goroutines nor clock nor network: package link
// moves its messages. Read replication/DESIGN.md, then Session and Next.
package primary

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

const (
	maxPending = 64   // asks that a secondary may have waiting
	maxKeys    = 8192 // in one AskItems
	maxFetches = 8    // of records, until a batch that would carry nothing is sent all the same

	moveMS  = 100    // how often a batch without entries moves the secondary's position
	holdMS  = 250    // how long the stream stands still at a time for the digests to catch up with it
	idleMS  = 60_000 // how long a secondary that is not exact may think before it is told that the primary was demoted
	deferMS = 5000   // how long a unit that came into scope may wait for the entry that made it
)

// Options of New. Zero values mean the defaults.
type Options struct {
	BatchBytes   int   // of one batch, about; default 1 MiB
	PageBytes    int   // of one answer, about; default four times BatchBytes
	WindowBytes  int64 // batches under way; default 16 MiB
	HeartbeatMS  int64 // default 1000
	CheckpointMS int64 // default 2000
}

func (o Options) withDefaults() Options {
	if o.BatchBytes <= 0 {
		o.BatchBytes = 1 << 20
	}
	if o.PageBytes <= 0 {
		o.PageBytes = 4 * o.BatchBytes
	}
	if o.WindowBytes <= 0 {
		o.WindowBytes = 16 << 20
	}
	if o.HeartbeatMS <= 0 {
		o.HeartbeatMS = 1000
	}
	if o.CheckpointMS <= 0 {
		o.CheckpointMS = 2000
	}
	return o
}

// Progress describes a session.
type Progress struct {
	ClusterID string           // of the secondary; "" before its Hello
	Sent      storage.Position // everything up to here was sent
	Acked     storage.Position // and everything up to here was applied
	AckedAtMS int64            // when that was heard of, on the primary's clock
	TimeMS    int64            // of the last entry applied, on the primary's clock
	InFlight  int64            // bytes of batches that were not acked
	Exact     bool             // as the secondary said last
	Repaired  int              // repairs that ended in this session
	Resumed   bool             // it went on where it was
	Diverged  bool
	Batches   uint64
	Entries   uint64
	Bytes     int64 // of batches and answers
	Answers   uint64
	MetEpoch  storage.EpochID // a later epoch than ours that the secondary knows; zero: none
}

// Session feeds one connected secondary, on the active node of a primary. Not safe for concurrent use, but for
// ScopeChanged.
//
// What it has sent is described by three things: at, the position that the secondary has after the last message; passed,
// which is ahead of it by entries that do not concern the secondary; and through, the index up to which records were
// fetched, with those that are not sent yet in fetched. Everything that it answers is of an index ≥ shared, the index of
// the last record fetched, so never older than what was sent before.
type Session struct {
	src    replication.Source
	layout replication.Layout
	o      Options

	set, cluster string
	lineage      storage.Lineage
	base         storage.Index // from which on the log is of the current epoch

	welcomed bool
	out      []replication.Message // to be sent before anything else
	over     error                 // what Next returns after that

	scopeChanged atomic.Bool
	scope        map[replication.Unit]bool // as the secondary knows it
	allowed      map[replication.Unit]bool // as the Source said last
	version      uint64
	outside      map[replication.Unit]bool // units of which something was held back
	deferIndex   storage.Index             // units that came into scope wait until the stream is here
	deferUntil   int64                     // or until then; 0: none waits
	reduced      bool                      // allowed may lack units of scope

	from     storage.Position // where the stream began
	at       storage.Position
	passed   storage.Position
	fetched  []replication.Entry
	through  storage.Index
	shared   storage.Index
	examined bool             // the scope was looked at for the first of fetched
	answered storage.Position // the latest that an answer was of

	asks       []replication.Message
	answerNext bool
	holdSince  int64 // when the digests were first found behind; 0: they are not
	cut        *checkpoint

	final   storage.Index
	demoted bool
	left    bool  // after the demotion, this cluster has begun to follow another one
	askedAt int64 // when the last question came

	heartbeatAt, checkpointAt, movedAt int64
	p                                  Progress
}

// checkpoint is the roots at one index, for when exactly the entries up to it have been sent.
type checkpoint struct {
	at    storage.Index
	roots replication.Checkpoint
}

// New returns a session that waits for Hello.
func New(src replication.Source, layout replication.Layout, o Options) *Session {
	return &Session{src: src, layout: layout, o: o.withDefaults(), outside: map[replication.Unit]bool{}}
}

// ScopeChanged says that Source.Scope may answer differently from now on. Safe for concurrent use.
func (s *Session) ScopeChanged() { s.scopeChanged.Store(true) }

// Demoted says that nothing shared will be written after final. The session sends everything up to it, and answers what the
// secondary asks until it is exact there; then it sends Final.
func (s *Session) Demoted(final storage.Index) { s.demoted, s.final = true, final }

// Status describes the session.
func (s *Session) Status() Progress {
	p := s.p
	p.Sent = s.at
	return p
}

// Receive takes a message from the secondary. After an error the session is over.
func (s *Session) Receive(ctx context.Context, m replication.Message) error {
	if s.over != nil { // the last message is on its way; only its Ack matters
		if ack, ok := m.(replication.Ack); ok && s.welcomed {
			s.ack(ack)
		}
		return nil
	}
	if hello, ok := m.(replication.Hello); ok {
		if s.welcomed {
			return fmt.Errorf("a second hello: %w", replication.ErrProtocol)
		}
		return s.hello(ctx, hello)
	}
	if !s.welcomed {
		return fmt.Errorf("a %T before hello: %w", m, replication.ErrProtocol)
	}
	switch m := m.(type) {
	case replication.Ack:
		s.ack(m)
		return nil
	case replication.AskSums:
		if m.Group < replication.AllGroups || m.Group >= groups {
			return fmt.Errorf("asked for group %d: %w", m.Group, replication.ErrProtocol)
		}
	case replication.AskPage:
	case replication.AskItems:
		if err := s.checkKeys(m); err != nil {
			return err
		}
	default:
		return fmt.Errorf("a secondary sent a %T: %w", m, replication.ErrProtocol)
	}
	if len(s.asks) == maxPending {
		return fmt.Errorf("more than %d questions at once: %w", maxPending, replication.ErrProtocol)
	}
	s.asks, s.askedAt = append(s.asks, m), s.src.NowMS()
	return nil
}

// checkKeys refuses a question for keys of another unit, so that the check of the scope by unit is enough.
func (s *Session) checkKeys(m replication.AskItems) error {
	if len(m.Keys) == 0 || len(m.Keys) > maxKeys {
		return fmt.Errorf("asked for %d keys: %w", len(m.Keys), replication.ErrProtocol)
	}
	for _, key := range m.Keys {
		if unit, ok := s.layout.Unit(key); !ok || unit != m.Unit {
			return fmt.Errorf("asked for a key of another unit than %q: %w", m.Unit, replication.ErrProtocol)
		}
	}
	return nil
}

func (s *Session) ack(m replication.Ack) {
	s.p.Acked, s.p.AckedAtMS, s.p.TimeMS, s.p.Exact = m.Cursor, s.src.NowMS(), m.TimeMS, m.Exact
	s.p.InFlight = max(0, s.p.InFlight-max(0, m.Bytes))
	if m.Repaired {
		s.p.Repaired++
	}
}

// hello decides where the stream begins.
func (s *Session) hello(ctx context.Context, h replication.Hello) error {
	s.set, s.cluster, s.lineage = s.src.Self()
	if len(s.lineage) == 0 {
		return errors.New("this cluster has no history: it is not a primary")
	}
	s.base = s.lineage[len(s.lineage)-1].Base
	s.p.ClusterID = h.ClusterID
	switch {
	case h.SetID != s.set:
		return s.reject(replication.Reject{Reason: "this cluster belongs to another replication set", Set: true}, replication.ErrOtherSet)
	case h.ClusterID == s.cluster:
		return s.reject(replication.Reject{Reason: "a cluster cannot follow itself"}, replication.ErrRejected)
	case h.ProtoMin > replication.ProtocolVersion || h.ProtoMax < replication.ProtocolVersion:
		return s.reject(replication.Reject{Reason: fmt.Sprintf("no common protocol version: this is version %d", replication.ProtocolVersion)}, replication.ErrRejected)
	case h.Lineage.Epoch() > s.lineage.Epoch():
		s.p.MetEpoch = h.Lineage.Last()
		return s.reject(replication.Reject{Reason: fmt.Sprintf("the secondary knows of epoch %d, and this primary is of epoch %d", h.Lineage.Epoch(), s.lineage.Epoch()), Fenced: true}, replication.ErrFenced)
	}
	s.scopeChanged.Store(false)
	units, version, err := s.src.Scope(ctx)
	if err != nil {
		return err
	}
	s.allowed, s.scope, s.version = units, maps.Clone(units), version
	if s.scope == nil {
		s.scope = map[replication.Unit]bool{}
	}
	maps.DeleteFunc(s.scope, func(_ replication.Unit, in bool) bool { return !in })

	w := replication.Welcome{SetID: s.set, ClusterID: s.cluster, Lineage: s.lineage, Scope: version, Units: sorted(s.scope), Proto: replication.ProtocolVersion}
	common, related := s.lineage.Common(h.Lineage)
	contained := related && s.lineage.Contains(h.Cursor) && !common.Before(h.Cursor)
	if contained {
		s.through, w.Resume, err = s.resume(ctx, h.Cursor)
		if err != nil {
			return err
		}
		w.Start = h.Cursor
	} else if !h.Cursor.IsZero() {
		w.Diverged, w.Common = true, common
	}
	if !w.Resume {
		s.through = s.src.Head()
		w.Start = s.own(s.through)
	}
	s.shared = s.through
	s.from, s.at, s.passed = w.Start, w.Start, w.Start
	s.p.Resumed, s.p.Diverged = w.Resume, w.Diverged
	s.welcomed = true
	s.askedAt = s.src.NowMS()
	s.checkpointAt = s.askedAt - s.o.CheckpointMS/2 // the first one soon
	s.out = append(s.out, w)
	return nil
}

func (s *Session) reject(m replication.Reject, err error) error {
	s.out, s.over = append(s.out, m), fmt.Errorf("%s: %w", m.Reason, err)
	return nil
}

// resume returns the index of the own log after which everything is that a secondary at the position lacks; false: it is
// not known, or not kept.
func (s *Session) resume(ctx context.Context, cursor storage.Position) (storage.Index, bool, error) {
	last := len(s.lineage) - 1
	i := slices.IndexFunc(s.lineage, func(b storage.Branch) bool { return b.Epoch == cursor.Epoch })
	oldest := s.src.Oldest()
	var at storage.Index
	switch {
	case i < 0:
		return 0, false, nil
	case i == last:
		at = cursor.Index // of this log
		if head := s.src.Head(); at > head {
			// Never take a secondary back to what an old leader, or one that has only begun, believes to be the present.
			return 0, false, fmt.Errorf("this node is at %d, and the secondary at %d already: %w", head, at, replication.ErrBuilding)
		}
	case cursor == s.lineage[last].From:
		if _, ok := s.src.Locate(ctx, cursor); !ok { // the cluster was not exact itself when its epoch began, or that is not known
			return 0, false, ctx.Err()
		}
		// The first of the epoch may be the entry at Base itself.
		at = max(s.base, 1) - 1
		if at < oldest {
			at = s.base
		}
	default:
		var ok bool
		if at, ok = s.src.Locate(ctx, cursor); !ok {
			return 0, false, ctx.Err()
		}
	}
	return at, at >= oldest && at <= s.src.Head(), nil
}

// own returns the position of an index of the own log, of the current epoch.
func (s *Session) own(index storage.Index) storage.Position {
	return storage.Position{Epoch: s.lineage.Epoch(), Index: index}
}

// index returns where in the own log an entry is, as far as its position tells: entries of earlier epochs are before
// all of this one.
func (s *Session) index(e replication.Entry) storage.Index {
	if e.At.Epoch == s.lineage.Epoch() {
		return e.At.Index
	}
	return 0
}

// Next returns what to send now, nil if nothing: then the caller waits for a message, for a change of the log or the scope,
// or for 100 ms, and calls again. An error ends the session: ErrFinal once the secondary has acked Final, ErrFenced,
// ErrOtherSet or ErrRejected after a Reject was returned, ErrRevoked, or one of the Source.
func (s *Session) Next(ctx context.Context) (replication.Message, error) {
	if len(s.out) > 0 {
		m := s.out[0]
		s.out = s.out[1:]
		return m, nil
	}
	if s.over != nil {
		if errors.Is(s.over, replication.ErrFinal) && s.p.Acked.Before(s.at) {
			return nil, nil
		}
		return nil, s.over
	}
	if !s.welcomed {
		return nil, nil
	}
	now := s.src.NowMS()
	for _, step := range []func(context.Context, int64) (replication.Message, error){s.rescope, s.heartbeat, s.work, s.end} {
		if m, err := step(ctx, now); m != nil || err != nil {
			return m, err
		}
	}
	return nil, nil
}

// same returns an error if the cluster has begun another epoch: who follows must hear of it in a new Welcome.
func (s *Session) same() error {
	if _, _, lineage := s.src.Self(); lineage.Epoch() != s.lineage.Epoch() {
		return fmt.Errorf("epoch %d has ended, this cluster is in epoch %d", s.lineage.Epoch(), lineage.Epoch())
	}
	return nil
}

// complete reports whether the cluster was demoted and everything that it wrote as a primary was sent.
func (s *Session) complete() bool {
	return s.demoted && len(s.fetched) == 0 && s.through >= s.final && !s.at.Before(s.own(s.final))
}

// work alternates between answers and the stream.
func (s *Session) work(ctx context.Context, now int64) (replication.Message, error) {
	steps := []func(context.Context, int64) (replication.Message, error){s.checkpoint, s.batch, s.answer}
	if s.answerNext {
		steps = []func(context.Context, int64) (replication.Message, error){s.answer, s.checkpoint, s.batch}
	}
	for _, step := range steps {
		m, err := step(ctx, now)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		switch m.(type) {
		case replication.Batch, replication.Scope, replication.Checkpoint:
			s.answerNext = true
		default:
			s.answerNext = false
		}
		return m, nil
	}
	return nil, nil
}

func (s *Session) heartbeat(_ context.Context, now int64) (replication.Message, error) {
	if s.heartbeatAt != 0 && now-s.heartbeatAt < s.o.HeartbeatMS {
		return nil, nil
	}
	s.heartbeatAt = now
	if err := s.same(); err != nil {
		return nil, err
	}
	return replication.Heartbeat{Head: s.own(s.src.Head()), Through: s.at, Oldest: s.own(s.src.Oldest()), NowMS: now, Addrs: s.src.Addrs()}, nil
}

// end sends Final once everything was sent and the secondary is exact, or has nothing to ask for long: it may be promoted
// at this place.
func (s *Session) end(_ context.Context, now int64) (replication.Message, error) {
	if !s.complete() {
		return nil, nil
	}
	exact := s.p.Exact && !s.p.Acked.Before(s.at)
	if idle := now - max(s.askedAt, s.movedAt); !exact && !s.left && idle < idleMS {
		return nil, nil
	}
	s.over = replication.ErrFinal
	return replication.Final{At: s.at}, nil
}

func sorted(units map[replication.Unit]bool) []replication.Unit {
	return slices.Sorted(maps.Keys(units))
}
