package fsm

import (
	"fmt"

	"github.com/coffer-project/coffer/proto/logpb"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
)

// Log keeps, beside the state, what entries did to some keys (storage/wal is one). The FSM calls it in the order of the
// Raft log, from one goroutine at a time, but for Sync. It may be turned on and off, between two entries: while it is off, Keeps
// answers false and the rest does nothing.
//
// The FSM promises that the log has, from the index at which it was begun or reset on, every change that is durable in the
// state, also after a crash: it appends before it publishes, syncs before it folds, and after a crash appends again what
// Raft replays. So the log may be ahead of what readers of the FSM see, never behind.
type Log interface {
	// Active reports whether it is on.
	Active() bool
	// Keeps reports whether changes of the key belong in the log.
	Keeps(key string) bool
	// Append adds a record, unless its index is not after Head. It keeps the slices. An error stops the replica.
	Append(r storage.Record) error
	// Sync makes what was appended durable. While it fails, so do the folds of the state.
	Sync() error
	// Reset forgets everything and goes on after base, durably.
	Reset(base storage.Index) error
	// Head returns the index of the last record, or after how far the log was begun or reset if there is none; 0 while
	// it is off.
	Head() storage.Index
}

// BeginLog calls begin between two entries. Nothing is applied, and the state not replaced, until it returns: a log that
// is turned on in it has everything after applied. begin must not wait for the FSM, and BeginLog not be called from a
// subscriber of OnChange. It returns the error of begin, or why the
// file cannot take note of it.
func (f *FSM) BeginLog(begin func(applied storage.Index) error) error {
	f.applying.Lock()
	defer f.applying.Unlock()
	if err := f.Err(); err != nil {
		return err
	}
	if err := begin(f.AppliedIndex()); err != nil || f.records == nil {
		return err
	}
	s := f.store.Load()
	s.SetLogged(uint64(f.records.Head()))
	if err := s.Flush(); err != nil { // a program that does not know of the log would leave a gap in it
		return fmt.Errorf("noting that the log of changes begins: %w", err)
	}
	return nil
}

// checkLog looks, when the state has been opened, whether the log still has all that it had when the state was last made
// durable. One that lost its end would otherwise go on with an undetected gap.
func (f *FSM) checkLog(s *boltstore.Store) error {
	pos := s.Position()
	if f.records == nil || uint64(f.records.Head()) >= pos.Logged {
		return nil
	}
	f.log.Warn("the log of changes lost its end and starts over: secondaries will compare and repair",
		"index", pos.Index, "head", f.records.Head(), "expected", pos.Logged)
	return f.resetLog(s)
}

// resetLog has the log go on from the state in s.
func (f *FSM) resetLog(s *boltstore.Store) error {
	if f.records == nil {
		return nil
	}
	if err := f.records.Reset(storage.Index(s.Position().Index)); err != nil {
		return fmt.Errorf("starting the log of changes over: %w", err)
	}
	s.SetLogged(uint64(f.records.Head()))
	return nil
}

// appendRecords makes the records part of the log and notes in pos how far it is.
func (f *FSM) appendRecords(records []storage.Record, pos *boltstore.Position) error {
	if f.records == nil {
		if pos.Logged != 0 {
			pos.Logged = pos.Index // further than the log will be: opening both finds the gap
		}
		return nil
	}
	for _, r := range records {
		if err := f.records.Append(r); err != nil {
			return fmt.Errorf("logging the changes of entry %d: %w", r.Index, err)
		}
	}
	pos.Logged = uint64(f.records.Head())
	return nil
}

// priors has, while one entry is applied, the positions that the keys which the log keeps had before it.
type priors struct {
	log  Log // nil: none
	held map[string]storage.Position
}

// look notes the positions of the keys that are about to be written, each the first time that the entry touches it.
func (p *priors) look(w *boltstore.Writer, op *logpb.Op) error {
	if p.log == nil {
		return nil
	}
	for _, key := range keysOf(op)[len(op.Reads):] {
		if _, ok := p.held[key]; ok || !p.log.Keeps(key) {
			continue
		}
		h, err := w.Header(key)
		if err != nil {
			return err
		}
		if p.held == nil {
			p.held = map[string]storage.Position{}
		}
		p.held[key] = h.Mod()
	}
	return nil
}

// ops returns what happened to the kept keys among those touched, of which each is there once.
func (p *priors) ops(touched []storage.Entry) []storage.RecordOp {
	if len(p.held) == 0 {
		return nil
	}
	ops := make([]storage.RecordOp, 0, len(p.held))
	for _, e := range touched {
		prior, kept := p.held[string(e.Key)]
		switch {
		case !kept:
		case e.Version != 0:
			ops = append(ops, storage.RecordOp{Key: e.Key, Value: e.Value, Origin: e.Origin, Prior: prior})
		default: // also of a key that was not there: see RecordOp
			ops = append(ops, storage.RecordOp{Key: e.Key, Deleted: true, Prior: prior})
		}
	}
	return ops
}
