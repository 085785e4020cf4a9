package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/storage"
)

// Sync returns once everything that was appended before it was called is durable, or is durably known to be missing, so
// that a state which has it may become durable. If there is nothing to do, it costs nothing. An error means that
// neither could be made sure: such a state must not become durable. Append may go on meanwhile.
func (l *Log) Sync() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	return l.sync()
}

// work is what one Sync does.
type work struct {
	files   []open // to sync: the full ones, which are closed then, and the last
	full    int    // how many of them are full
	mark    synced
	writes  uint64
	renamed bool
}

// sync is Sync for callers that hold syncMu.
func (l *Log) sync() error {
	for create := true; ; create = false {
		w, ok := l.beginSync(create)
		if !ok {
			return nil
		}
		if err := l.syncFiles(w); err != nil {
			// What a failed sync leaves on disk is not known, and trying again does not tell. The next round finds
			// no file, so it has nothing to sync and cannot fail here.
			l.mu.Lock()
			l.loseLocked(err)
			l.mu.Unlock()
			continue
		}
		if err := l.saveMark(w.mark); err != nil {
			return err
		}
		l.checked = w.mark.last
		l.mu.Lock()
		l.synced = max(l.synced, w.writes)
		if l.marks == nil {
			l.writes++ // the next Sync tries again
		}
		l.mu.Unlock()
		if w.full > 0 {
			l.trim()
		}
		return nil
	}
}

// beginSync collects what is to be done. If the log is in memory only, it first tries to begin a segment.
func (l *Log) beginSync(create bool) (w work, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.active.Load() || l.writes == l.synced && l.out != nil {
		return w, false
	}
	if l.out == nil && create {
		if err := l.createLocked(l.head, l.headMS, 0); err != nil {
			l.log.Debug("the log of changes is in memory only", "err", err)
		}
	}
	if l.writes == l.synced {
		return w, false
	}
	w = work{files: l.full, full: len(l.full), writes: l.writes, renamed: l.renamed}
	w.mark = synced{id: l.id, first: l.next, last: l.next, index: l.head}
	if l.out != nil {
		s := l.lastLocked()
		w.files = append(w.files, open{s.number, l.out})
		w.mark.first, w.mark.last, w.mark.offset = l.segments[0].number, s.number, uint64(s.end)
	}
	l.full, l.renamed = nil, false
	return w, true
}

func (l *Log) syncFiles(w work) error {
	var failed error
	for i, o := range w.files {
		if err := o.file.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
			failed = errors.Join(failed, err)
		}
		if i < w.full {
			o.file.Close() //nolint:errcheck // it is synced
		}
	}
	if failed != nil || !w.renamed {
		return failed
	}
	if err := l.syncDir(l.dir); err != nil && len(w.files) > 0 {
		return err
	}
	return nil
}

// Begin starts the log over, empty and complete from base on, and durably so. After an error it is inactive.
func (l *Log) Begin(base storage.Index) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.begin(base); err != nil {
		return errors.Join(fmt.Errorf("beginning the log of changes: %w", err), l.end())
	}
	return nil
}

// Reset is Begin if the log is active, and nothing else: a state of that index came from elsewhere. Call it before that
// state is durable, so that a crash never leaves a log that lacks what the state has.
func (l *Log) Reset(base storage.Index) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if !l.active.Load() {
		return nil
	}
	if err := l.begin(base); err != nil {
		return errors.Join(fmt.Errorf("resetting the log of changes: %w", err), l.end())
	}
	return nil
}

func (l *Log) begin(base storage.Index) error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	if err := l.syncDir(filepath.Dir(l.dir)); err != nil {
		return err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return os.ErrClosed
	}
	if l.id == 0 {
		l.id = newID()
	}
	old := l.forgetFilesLocked()
	l.head, l.headMS = base, l.opts.Now().UnixMilli()
	l.memory.restart(base, l.headMS)
	l.next = max(l.next, 1)
	l.active.Store(true)
	l.wakeLocked()
	l.mu.Unlock()
	err := l.sync()
	l.remove(old) // not earlier: after a crash, the mark before still names them
	if err != nil {
		return err
	}
	if l.marks == nil {
		return errors.New("its mark could not be written")
	}
	return nil
}

// End turns the log off and removes everything. Without a log this does nothing.
func (l *Log) End() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	return l.end()
}

func (l *Log) end() error {
	l.mu.Lock()
	l.active.Store(false)
	l.wakeLocked()
	l.mu.Unlock()
	if _, err := os.Stat(l.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	// Without a mark the rest is garbage, whatever happens next.
	if err := l.removeMark(); err != nil {
		return fmt.Errorf("ending the log of changes: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropFilesLocked()
	l.id, l.head, l.headMS = 0, 0, 0
	l.memory.restart(0, 0)
	clear(l.pins)
	return nil
}

// newID returns an id that no other log has.
func newID() uint64 {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return max(1, binary.BigEndian.Uint64(b[:]))
}
