package boltstore

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/boltpage"
	"github.com/coffer-project/coffer/storage/lthash"
	"github.com/coffer-project/coffer/storage/record"
)

// Writer is one commit in the making. What it wrote becomes visible as a whole with Commit.
type Writer struct {
	s      *Store
	layers // what was there before, under what is written; the lower ones stay as they are while the writer is open
}

// Begin starts a commit. It blocks while the overlays are full because the disk cannot keep up, until there
// is room, or the store is closed or damaged. End it with Commit or Abort.
func (s *Store) Begin() (*Writer, error) {
	s.mu.Lock()
	for s.heldLocked() >= s.opts.CapBytes && !s.closed && s.damage == nil {
		s.room.Wait()
	}
	s.mu.Unlock()
	s.writeMu.Lock()
	view, err := s.View()
	if err != nil {
		s.writeMu.Unlock()
		return nil, err
	}
	view.active = s.work.tree
	return &Writer{s: s, layers: view.layers}, nil
}

// heldLocked returns the memory in overlays.
func (s *Store) heldLocked() int {
	if s.frozen == nil {
		return s.bytes
	}
	return s.bytes + s.frozen.bytes
}

// Pending returns about how many bytes are committed and not in the file yet.
func (s *Store) Pending() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.heldLocked())
}

// Position returns the position before this commit.
func (w *Writer) Position() Position { return w.s.workPos }

// Bytes returns how much memory the overlay holds, with what this writer added.
func (w *Writer) Bytes() int { return w.s.work.bytes }

// maxHeaders bounds the headers that are kept of a base.
const maxHeaders = 1 << 10

// Header returns the header of the record under key, or the zero one. It sees what the writer wrote. Most writes ask for the same few
// keys that none of them writes, so what the file has of a key is searched once.
func (w *Writer) Header(key string) (h record.Header, err error) {
	rec, written := w.overlaid(key)
	if !written {
		if h, known := w.base.headers[key]; known {
			return h, nil
		}
		if rec, err = w.stored(key, record.HeaderBytes+record.OriginBytes); err != nil {
			return h, err
		}
	}
	if rec != nil {
		if h, _, err = record.Parse(rec); err != nil {
			return h, w.s.damaged(err.Error())
		}
	}
	if !written {
		if len(w.base.headers) >= maxHeaders {
			clear(w.base.headers)
		}
		w.base.headers[key] = h
	}
	return h, nil
}

// Put stores rec under key, and keeps it; nil removes the key, which need not exist.
func (w *Writer) Put(key string, rec []byte) {
	work := &w.s.work
	old, replaced := work.tree.Set(key, rec)
	if replaced {
		work.bytes -= len(key) + len(old) + itemBytes
	}
	work.bytes += len(key) + len(rec) + itemBytes
}

// Delete removes key, which need not exist.
func (w *Writer) Delete(key string) { w.Put(key, nil) }

// Commit makes everything written visible, as of pos.
func (w *Writer) Commit(pos Position) {
	s := w.s
	s.workPos = pos
	published := s.work.tree.Copy()
	s.mu.Lock()
	s.cur.active, s.cur.pos, s.bytes = published, pos, s.work.bytes
	s.mu.Unlock()
	full := s.work.bytes >= s.opts.FoldBytes
	w.end()
	signal(s.dirty)
	if full {
		signal(s.full)
	}
}

// Abort forgets everything written.
func (w *Writer) Abort() {
	s := w.s
	s.mu.Lock()
	s.work = overlay{tree: s.cur.active.Copy(), bytes: s.bytes}
	s.mu.Unlock()
	w.end()
}

func (w *Writer) end() {
	w.s.writeMu.Unlock()
	w.base.close()
}

// Advance moves the position without changing data: pos.Index must follow only entries that wrote nothing.
// A pos at or before the current one is ignored, unless it is at the same index: then its configuration is
// taken over. Its Logged is not: see SetLogged.
func (s *Store) Advance(pos Position) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if pos.Index < s.workPos.Index {
		return
	}
	pos.Logged = s.workPos.Logged
	s.moveTo(pos)
}

// SetLogged changes that part of the position without changing data.
func (s *Store) SetLogged(logged uint64) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	pos := s.workPos
	pos.Logged = logged
	s.moveTo(pos)
}

// moveTo changes the position while writeMu is held.
func (s *Store) moveTo(pos Position) {
	s.workPos = pos
	s.mu.Lock()
	s.cur.pos = pos
	s.mu.Unlock()
	signal(s.dirty)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// frozen is an overlay that gets no more changes and is on its way into the file.
type frozen struct {
	overlay
	pos Position
	sum lthash.Sum // base.sum when it is in the file; set by write
}

// Flush makes everything committed so far durable before it returns.
func (s *Store) Flush() error {
	answer := make(chan error, 1)
	select {
	case s.flushReq <- answer:
		return <-answer
	case <-s.stopped:
		return ErrClosed
	}
}

// flusher is the only goroutine that writes to the file, from Open until Close.
func (s *Store) flusher() {
	defer close(s.stopped)
	s.saveSums(false)
	var retry time.Duration // 0 unless the last fold failed
	for {
		var timer <-chan time.Time
		if retry > 0 {
			timer = time.After(retry)
		}
		var err error
		select {
		case <-s.stop:
			return
		case answer := <-s.flushReq:
			err = s.flush()
			answer <- err
		case <-timer:
			err = s.flush()
		case <-s.dirty:
			if retry > 0 {
				continue // the timer decides
			}
			if s.linger() {
				err = s.flush()
			}
		}
		retry = s.backoff(err, retry)
	}
}

// linger waits for the interval to pass, so that one fold takes many commits. It reports false if something
// else is to be done first; dirty is then set again.
func (s *Store) linger() bool {
	timer := time.NewTimer(s.opts.FoldInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.full:
	case answer := <-s.flushReq:
		answer <- s.flush()
		signal(s.dirty)
		return false
	case <-s.stop:
		return false
	}
	return true
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 5 * time.Second
)

func (s *Store) backoff(err error, last time.Duration) time.Duration {
	if err == nil || s.Damage() != nil {
		return 0
	}
	if last == 0 {
		s.opts.Logger.Warn("the state cannot be made durable, retrying", "err", err)
	}
	return min(max(2*last, minRetry), maxRetry)
}

// flush folds what failed before, if anything, then what has been committed since.
func (s *Store) flush() error {
	for {
		s.saveSums(s.reused) // also before the first fold: it may write pages of the state that the last process saved
		if err := s.foldFrozen(); err != nil {
			return err
		}
		if more, err := s.freeze(); err != nil || !more {
			return err
		}
	}
}

// freeze hands the writer's overlay over, unless one is still waiting. It reports whether there is
// something to fold.
func (s *Store) freeze() (bool, error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.damage != nil:
		return false, s.damage
	case s.frozen != nil:
		return true, nil
	case s.work.tree.Len() == 0 && samePosition(s.workPos, s.cur.base.state.Position):
		return false, nil
	}
	s.frozen = &frozen{overlay: s.work, pos: s.workPos}
	s.work = newOverlay()
	s.cur.folding, s.cur.active, s.bytes = s.frozen.tree, s.work.tree.Copy(), 0
	return true, nil
}

func samePosition(a, b Position) bool {
	return a.Index == b.Index && a.Term == b.Term && a.ConfigIndex == b.ConfigIndex && a.Logged == b.Logged && string(a.Config) == string(b.Config)
}

// foldFrozen writes the frozen overlay, if there is one, and switches readers to the new file state. When
// it fails everything stays as it was, and the same overlay is folded again later: that rewrites every page
// of the failed transaction, so a page which a failed sync dropped from the cache is not missed.
func (s *Store) foldFrozen() error {
	s.mu.Lock()
	f, damage, old := s.frozen, s.damage, s.cur.base
	s.mu.Unlock()
	if f == nil || damage != nil {
		return damage
	}
	err := s.opts.BeforeFold()
	if err == nil {
		err = s.fold(f)
	}
	var next *base
	if err == nil {
		next, err = s.openBase(old)
	}
	s.mu.Lock()
	s.foldErr = err
	if err != nil {
		s.mu.Unlock()
		return err
	}
	next.sum = f.sum
	s.cur.base, s.cur.folding, s.frozen = next, nil, nil
	s.room.Broadcast()
	s.mu.Unlock()
	old.close()
	return nil
}

// write is one synced transaction: the records, the digest they add up to, and the position.
func (s *Store) write(f *frozen) (err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	s.mu.Lock()
	now := s.cur.base // nothing else replaces it
	s.mu.Unlock()
	m, err := s.pages.newestMeta()
	if err != nil {
		panic(err)
	}
	if m.Tx > now.txid { // bbolt has done all of it but for the last sync, and goes on from it
		s.reused = true
		return boltfile.SyncMetas(s.file)
	}
	if s.reused = s.reused && s.open.Load() > 1; s.reused {
		return errors.New("a sync has failed: nothing is written until what was there before is not read any more")
	}
	tx, err := s.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit: does nothing
	data, meta := tx.Bucket(boltpage.DataBucket), tx.Bucket(boltpage.MetaBucket)
	st := now.state
	f.sum = now.sum
	var failed error
	f.tree.Scan(func(name string, rec []byte) bool {
		key, old := []byte(name), now.get(name)
		if old != nil {
			st.Remove(key, old)
			f.sum.Remove(key, old)
		}
		if rec == nil {
			failed = data.Delete(key)
		} else {
			st.Add(key, rec)
			f.sum.Add(key, rec)
			failed = data.Put(key, rec)
		}
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	st.Position = f.pos
	if err := meta.Put(stateKey, st.encode()); err != nil {
		return err
	}
	return tx.Commit()
}
