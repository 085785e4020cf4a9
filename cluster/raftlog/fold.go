package raftlog

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
)

// An append is one write and one sync in the journal. Folding moves entries to raft.db, in one transaction that also names the next
// generation, which frees their half. Everything else (deleting, appends that do not follow, those that have no room, and writes after
// one that failed) first folds all, and then goes to raft.db as if there were no journal.
const (
	foldEvery  = 2 * time.Second
	retryAfter = time.Minute // a journal that could not be made

	shrinkFrom = 64 << 20 // bytes from which on a raft.db is made smaller
	shrinkBy   = 4        // if it is so many times what is in it
	listFrom   = 16 << 20 // bytes of entries from which on a raft.db that is opened gets a list of its free pages
)

// header is what raft.db is to say beside the journal. foldMu is held, and everything is folded.
func (l *Log) header(first, last uint64) *raft.Log {
	if l.journal == nil {
		return header(first, last, journalRef{})
	}
	return header(first, last, journalRef{l.journal.id, l.journal.generation})
}

// inBolt returns the first and the last entry in raft.db.
func (l *Log) inBolt() (first, last uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.first, l.folded
}

// beginJournal lets the next appends go to a journal. foldMu and writeMu are held, and everything is in raft.db.
func (l *Log) beginJournal() {
	if l.journal != nil || l.closed.Load() || time.Now().Before(l.retry) {
		return
	}
	first, last, _ := l.Size()
	put := func(in journalRef) error { return l.write([]*raft.Log{header(first, last, in)}) }
	if !l.retry.IsZero() && put(journalRef{}) != nil { // raft.db may name the file that is now replaced
		return
	}
	path := filepath.Join(filepath.Dir(l.path), JournalName)
	var j *journal
	var err error
	checked := l.checked
	l.checked = false
	if !checked {
		if err = createJournal(path, l.half); err != nil {
			err = fmt.Errorf("creating %s: %w", path, err)
		}
	}
	if err == nil {
		j, err = beginJournal(path, l.half, l.identity())
	}
	if err == nil {
		if err = put(journalRef{j.id, j.generation}); err != nil {
			err = errors.Join(err, j.file.Close())
		}
	}
	if err != nil {
		l.retry = time.Now().Add(retryAfter)
		return
	}
	l.journal, l.retry = j, time.Time{}
	l.beginLoop.Do(func() { l.folding.Go(l.foldLoop) })
}

// endJournal moves everything to raft.db, which then names no journal. On error it does, and the next Open reads it.
func (l *Log) endJournal() error {
	if l.closed.Swap(true) {
		return nil
	}
	close(l.stop)
	l.folding.Wait()
	l.foldMu.Lock()
	none := l.journal == nil
	l.foldMu.Unlock()
	if none {
		return nil
	}
	if l.damage.Load() == nil && l.settle() == nil {
		first, last, _ := l.Size()
		_ = l.write([]*raft.Log{header(first, last, journalRef{})}) // the next Open reads the journal
		l.settled()
	}
	l.foldMu.Lock()
	defer l.foldMu.Unlock()
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	return l.leaveJournal()
}

// leaveJournal lets nothing more go to the journal, if there is one. foldMu and writeMu are held.
func (l *Log) leaveJournal() error {
	j := l.journal
	if l.journal = nil; j == nil {
		return nil
	}
	return j.file.Close()
}

// storeInJournal appends entries, if that is their place.
func (l *Log) storeInJournal(entries, sealed []*raft.Log) (done bool, err error) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	j := l.journal
	if d := l.damage.Load(); d != nil {
		return false, d
	}
	_, last, _ := l.Size()
	if j == nil || j.suspect || l.foldFailed.Load() != nil || last != 0 && entries[0].Index != last+1 || !j.frame(sealed) {
		return false, nil
	}
	if err := l.time(&l.appends, j.write); err != nil {
		return false, err
	}
	_, folded := l.inBolt()
	l.note(entries, folded)
	if j.at > j.half/2 {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true, nil
}

func (l *Log) foldLoop() {
	var tick <-chan time.Time
	if l.foldEvery > 0 {
		t := time.NewTicker(l.foldEvery)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-l.stop:
			return
		case <-tick:
		case <-l.wake:
		}
		l.foldMu.Lock()
		_ = l.fold() // Failure returns the error, and the next append tries again
		l.foldMu.Unlock()
	}
}

// batch is what one transaction moves.
type batch struct {
	entries     []*raft.Log
	first, last uint64
	to          journalRef
}

// fold moves the entries of a generation to raft.db while others are appended. foldMu is held.
func (l *Log) fold() error {
	l.writeMu.Lock()
	b, ok := l.beginFold()
	l.writeMu.Unlock()
	if !ok {
		return nil
	}
	if err := l.storeBatch(b); err != nil {
		return err
	}
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.endFold(b)
	return nil
}

// settle locks foldMu and writeMu and moves everything to raft.db. On error they are not locked; else settled unlocks them. A journal in which
// there may be something that is not in the log is left: with the next write, raft.db does not name it any more.
func (l *Log) settle() error {
	l.foldMu.Lock()
	err := l.fold() // most of it while others are appended
	l.writeMu.Lock()
	for err == nil {
		b, ok := l.beginFold()
		if !ok {
			if l.journal != nil && l.journal.suspect {
				_ = l.leaveJournal() // all of it is in raft.db
			}
			return nil
		}
		if err = l.storeBatch(b); err == nil {
			l.endFold(b)
		}
	}
	l.settled()
	return err
}

func (l *Log) settled() {
	l.writeMu.Unlock()
	l.foldMu.Unlock()
}

// beginFold chooses what to move, and begins the next generation unless one before is still to be moved. foldMu and writeMu are held.
func (l *Log) beginFold() (b batch, ok bool) {
	j := l.journal
	l.mu.RLock()
	defer l.mu.RUnlock()
	if j == nil || l.folded == l.last {
		return b, false
	}
	if j.inBolt == j.generation {
		j.end = l.last
		j.generation++
		j.at = 0
	}
	from, _ := slices.BinarySearchFunc(l.recent, l.folded+1, compareIndex)
	to, _ := slices.BinarySearchFunc(l.recent, j.end+1, compareIndex)
	return batch{slices.Clone(l.recent[from:max(from, to)]), l.first, j.end, journalRef{j.id, j.generation}}, true
}

func compareIndex(e *raft.Log, index uint64) int { return cmp.Compare(e.Index, index) }

func (l *Log) storeBatch(b batch) error {
	sealed := append(sealAll(b.entries), header(b.first, b.last, b.to))
	return l.time(&l.folds, func() error { return l.change(func() error { return l.bolt.StoreLogs(sealed) }) })
}

// endFold notes what was moved. foldMu and writeMu are held.
func (l *Log) endFold(b batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.journal.inBolt = b.to.generation
	l.folded = b.last
	for _, e := range b.entries {
		l.FoldBytes.Add(uint64(len(e.Data) + entryOverhead))
	}
}

// recover moves what a journal has to raft.db, which then names none.
func (l *Log) recover(in journalRef, identity storage.FileIdentity) error {
	if in.id == 0 {
		return nil
	}
	first, last, _ := l.Size()
	entries, err := readJournal(filepath.Join(filepath.Dir(l.path), JournalName), in, last, identity)
	if err != nil {
		return err
	}
	if n := len(entries); n > 0 {
		first, last = cmp.Or(first, entries[0].Index), entries[n-1].Index
	}
	if err := l.write(append(sealAll(entries), header(first, last, journalRef{}))); err != nil {
		return err
	}
	if len(entries) > 0 {
		l.note(entries, last)
	}
	return nil
}

// shrink makes a file smaller that has much more room than its entries need, by writing them to another one: bbolt never does. It returns
// what the file holds then.
func shrink(path string, found logState) (logState, error) {
	info, err := os.Stat(path)
	if err != nil || info.Size() < shrinkFrom || info.Size() < shrinkBy*found.bytes {
		return found, err
	}
	temporary := path + ".new"
	if err := os.RemoveAll(temporary); err != nil {
		return found, err
	}
	reading := boltfile.Options(0)
	reading.ReadOnly = true // or a list of free pages would be read that has not been checked
	from, err := bbolt.Open(path, 0o600, reading)
	if err != nil {
		return found, err
	}
	to, err := bbolt.Open(temporary, 0o600, boltfile.Options(0))
	if err != nil {
		return found, errors.Join(err, from.Close())
	}
	err = errors.Join(bbolt.Compact(to, from, 16<<20), to.Close(), from.Close())
	var copied logState
	if err == nil {
		copied, err = checkLogs(temporary)
	}
	if err == nil {
		found.used = nil // which of both files has the name is not known if that fails
		err = boltfile.Rename(temporary, path)
	}
	if err != nil {
		os.Remove(temporary) //nolint:errcheck // the next attempt does
		return found, err
	}
	return copied, nil
}
