package fsm

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/proto/logpb"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/record"
)

// applyBytes is how much ApplyBatch writes into the overlay before it publishes, so that one long batch
// cannot pass the overlay's cap by much.
const applyBytes = 1 << 20

// Result is what ApplyBatch answers for one command: the future's Response on the leader. An entry that was
// not applied is answered with an error instead, one that was applied before with nil.
type Result struct {
	Index storage.Index // the entry's index, the Version of everything it wrote
	Errs  []error       // one for each batch, in order: nil or storage.ErrConflict
}

// Apply implements raft.FSM.
func (f *FSM) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. For each entry it answers a Result, nil (a configuration, or an
// entry applied before), or an error (the replica has stopped, see Err). It blocks while the file cannot keep
// up. It never skips an entry: after one that it cannot apply, it applies nothing more.
func (f *FSM) ApplyBatch(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	for done := 0; done < len(logs); {
		n, err := f.applySome(logs[done:], answers[done:])
		if done += n; err != nil {
			f.fail(err)
			for i := done; i < len(logs); i++ {
				answers[i] = err
			}
			break
		}
	}
	return answers
}

// applySome applies as many entries as go into one commit and returns how many. On error these n were
// applied and the next one was not.
func (f *FSM) applySome(logs []*raft.Log, answers []any) (n int, err error) {
	f.applying.Lock()
	defer f.applying.Unlock()
	if err := f.Err(); err != nil {
		return 0, err
	}
	w, err := f.store.Load().Begin()
	if err != nil {
		if why := f.Err(); why != nil { // closed while it waited
			err = why
		}
		return 0, err
	}
	pos, start := w.Position(), w.Bytes()
	var changes []storage.Change
	var records []storage.Record
	marked := false // by the last entry applied
	for n < len(logs) && err == nil && !marked && w.Bytes()-start < applyBytes {
		l := logs[n]
		if l.Index == pos.Index && l.Term != pos.Term {
			err = fmt.Errorf("log entry %d is of term %d, but the one that was applied of term %d", l.Index, l.Term, pos.Term)
			f.Distrust(&storage.CorruptError{File: f.path(), Detail: err.Error()})
			break
		}
		if l.Index <= pos.Index {
			n++
			continue
		}
		var ch storage.Change
		var rec storage.Record
		if ch, rec, answers[n], marked, err = f.applyLog(w, l, &pos); err != nil {
			err = fmt.Errorf("applying log entry %d: %w", l.Index, err)
			break
		}
		if len(ch.Entries) > 0 {
			changes = append(changes, ch)
		}
		if len(rec.Ops) > 0 {
			records = append(records, rec)
		}
		n++
	}
	if _, torn := errors.AsType[*tornError](err); torn {
		w.Abort()
		return 0, err
	}
	if failed := f.appendRecords(records, &pos); failed != nil {
		w.Abort()
		return 0, failed
	}
	w.Commit(pos)
	if marked {
		f.mark(pos.Index)
	}
	f.feed.Announce(changes...)
	f.setApplied(pos)
	return n, err
}

// tornError means that an entry failed halfway, because the file could not be read.
type tornError struct{ err error }

func (e *tornError) Error() string { return e.err.Error() }
func (e *tornError) Unwrap() error { return e.err }

func (f *FSM) applyLog(w *boltstore.Writer, l *raft.Log, pos *boltstore.Position) (ch storage.Change, rec storage.Record, answer any, marked bool, err error) {
	switch l.Type {
	case raft.LogConfiguration:
		pos.ConfigIndex, pos.Config = l.Index, bytes.Clone(l.Data)
	case raft.LogCommand:
		cmd, err := decodeCommand(l.Data)
		if err != nil {
			return ch, rec, nil, false, err
		}
		if p := cmd.Checkpoint; p != nil {
			if marked = p.Index == 0; !marked {
				f.learn(p)
			}
		}
		var before priors
		if f.records != nil && f.records.Active() {
			before.log = f.records
		}
		touched, res, err := applyCommand(w, cmd, storage.Index(l.Index), &before)
		if err != nil {
			return ch, rec, nil, false, &tornError{err}
		}
		ch, answer = storage.Change{Index: res.Index, Entries: touched}, res
		rec = storage.Record{Index: res.Index, TimeMS: cmd.TimeMs, Ops: before.ops(touched)}
	default:
		return ch, rec, nil, false, fmt.Errorf("it is of the unknown kind %v", l.Type)
	}
	pos.Index, pos.Term = l.Index, l.Term
	return ch, rec, answer, marked, nil
}

// applyCommand returns the last state of each key that it wrote. Version 0 is a deletion.
func applyCommand(w *boltstore.Writer, cmd *logpb.Command, index storage.Index, before *priors) (touched []storage.Entry, res Result, err error) {
	res = Result{Index: index, Errs: make([]error, len(cmd.Ops))}
	wrote := 0
	for i, op := range cmd.Ops {
		ok, err := holds(w, op.Reads)
		if err != nil {
			return nil, res, err
		}
		if !ok {
			res.Errs[i] = storage.ErrConflict
			continue
		}
		if err := before.look(w, op); err != nil {
			return nil, res, err
		}
		for _, p := range op.Puts {
			origin := storage.Position{Epoch: p.OriginEpoch, Index: storage.Index(p.OriginIndex)}
			rec := record.New(record.Header{Version: uint64(index), Origin: origin}, p.Value)
			w.Put(p.Key, rec)
			value := rec[len(rec)-len(p.Value) : len(rec) : len(rec)]
			touched = append(touched, storage.Entry{Key: storage.Key(p.Key), Value: value, Version: index, Origin: origin})
		}
		for _, k := range op.Deletes {
			w.Delete(k)
			touched = append(touched, storage.Entry{Key: storage.Key(k)})
		}
		wrote++
	}
	if wrote > 1 {
		touched = lastOfEach(touched)
	}
	return touched, res, nil
}

// lastOfEach keeps the last state of each key: ops of one entry may touch the same one.
func lastOfEach(touched []storage.Entry) []storage.Entry {
	last := make(map[storage.Key]int, len(touched))
	for i, e := range touched {
		last[e.Key] = i
	}
	kept := touched[:0]
	for i, e := range touched {
		if last[e.Key] == i {
			kept = append(kept, e)
		}
	}
	return kept
}

// holds reports whether every precondition is met.
func holds(w *boltstore.Writer, reads []*logpb.Read) (bool, error) {
	for _, r := range reads {
		h, err := w.Header(r.Key)
		if err != nil {
			return false, err
		}
		if h.Version != r.Version {
			return false, nil
		}
	}
	return true, nil
}
