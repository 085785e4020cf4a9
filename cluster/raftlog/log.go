// Package raftlog is Raft's log and its stable store in one file, over raft-boltdb.
//
// It promises that an entry which was stored is there with what it said, or that the file is reported as damaged: every entry has a
// checksum, a header names the entries that there must be, and a file is read completely before bbolt opens it. It keeps what a
// node has applied from being replaced (Applied, Conflict), tells how long a write has been under way, and knows which node the file belongs to.
//
// Start reading at Log and Open, then check.go (verifying a closed file) and damage.go (an open one).
package raftlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
)

const (
	FileName = "raft.db"

	// headerIndex is the key of the log's own header. Raft never gets there.
	headerIndex = math.MaxUint64
	headerMagic = "COFFERLOG1"
	// journalHeaderMagic is of a header that names a journal. A version that knows no journal rejects it.
	journalHeaderMagic = "COFFERLOG2"

	deleteChunk    = 2048     // entries removed in one transaction, so that appends get their turn
	recentMaxBytes = 16 << 20 // newest entries kept in memory, for the senders to followers
	entryOverhead  = 64       // of an entry in the file, roughly
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Log is the raft.LogStore: raft-boltdb behind a journal (fold.go), with a checksum on every entry and a header that says which entries
// there must be, and whether there are more in the journal. The header is stored in the transaction of an append, and before anything is deleted: an
// entry it names is there, or the file is damaged. Entries it does not name are remains of an interrupted
// delete. The log has no holes: an append that would leave one (after a snapshot) drops what was before.
type Log struct {
	bolt *raftboltdb.BoltStore
	path string

	// covered returns up to which index the state machine holds everything durably; nil: all.
	Covered func() uint64
	// applied returns index and term of the last entry that the state machine has applied, conflict reports that a leader
	// replaces one; nil: no entry is known to be applied.
	Applied  func() (index, term uint64)
	Conflict func(error)
	// fault is called before each write, for tests; nil in production.
	Fault func() error

	failed   atomic.Pointer[error] // of the last write; nil: it was done
	appends  stopwatch
	votes    stopwatch // of the stable store
	folds    stopwatch
	deletes  stopwatch
	Syncs    atomic.Uint64 // of appends and votes
	SyncTime atomic.Int64

	// Folds of the journal, the time that they took, also those that failed, and the bytes of the entries that they moved.
	Folds, FoldBytes atomic.Uint64
	FoldTime         atomic.Int64

	// onDamage is called when the open file turns out to be damaged; it may be nil. damage ends its use.
	OnDamage func(error)
	damage   atomic.Pointer[storage.CorruptError]
	file     *os.File   // what bbolt has open, for its meta pages
	changeMu sync.Mutex // held while bbolt writes
	unsynced bool       // a write failed: the meta pages may not be on the disk as they are read. Belongs to changeMu
	closed   atomic.Bool

	foldMu  sync.Mutex // held while the header in raft.db changes; locked before writeMu
	writeMu sync.Mutex // held while an entry is appended: Raft appends and compacts at the same time

	half       int64         // of a journal
	foldEvery  time.Duration // 0: by its size only
	journal    *journal      // nil: entries go to raft.db. It changes with foldMu and writeMu held
	checked    bool          // OpenFitting has made the file of the journal or found it whole, and nothing was written to it since. Belongs to foldMu
	retry      time.Time     // when a journal that could not be made is tried again; zero: none failed. Belongs to foldMu
	foldFailed atomic.Pointer[error]
	wake, stop chan struct{}
	folding    sync.WaitGroup
	beginLoop  sync.Once
	identity   func() []byte // of the data directory, nil if it has none

	mu          sync.RWMutex
	first, last uint64 // of the entries there are; 0, 0: none
	folded      uint64 // the last entry that is in raft.db; 0: none
	bytes       int64  // of the entries first to last, close enough
	recent      []*raft.Log
	recentBytes int
}

func openBolt(path string) (*raftboltdb.BoltStore, error) {
	return raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltfile.Options(0), MsgpackUseNewTimeFormat: true})
}

// Open opens the log and the stable store in path, after verifying all of it, and moves what is in the journal beside it to path. A
// damaged file is a *storage.CorruptError. create makes an empty one if there is none; without it, none is damage too.
func Open(path string, create bool) (*Log, *Stable, error) {
	return open(path, create, storage.FileIdentity{})
}

func open(path string, create bool, identity storage.FileIdentity) (*Log, *Stable, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if !create {
			return nil, nil, &storage.CorruptError{File: path, Detail: "the Raft log is missing, but the state machine has applied entries"}
		}
		if err := createLogs(path); err != nil {
			return nil, nil, fmt.Errorf("creating the Raft log: %w", err)
		}
	}
	if err := boltfile.Settle(path); err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", path, err)
	}
	found, err := checkLogs(path)
	if err == nil {
		err = belongs(path, found.stable, identity)
	}
	if err != nil {
		return nil, nil, err
	}
	found, _ = shrink(path, found)                               // without room for a copy it stays as it is
	if err := boltfile.SyncDir(filepath.Dir(path)); err != nil { // a process may have ended between a rename and that
		return nil, nil, fmt.Errorf("opening %s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", path, err)
	}
	bolt, err := (*raftboltdb.BoltStore)(nil), listFree(file, found)
	if err == nil {
		bolt, err = openBolt(path)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening %s: %w", path, err), file.Close())
	}
	l := &Log{bolt: bolt, file: file, path: path, first: found.first, last: found.last, folded: found.last, bytes: found.bytes,
		half: journalHalf, foldEvery: foldEvery, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	s := &Stable{logs: l, values: found.stable}
	l.identity = func() []byte {
		text, _ := s.Get(identityKey)
		return text
	}
	for _, r := range found.remains {
		if err := l.deleteChunks(r.from, r.to); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("tidying %s: %w", path, err), l.Close())
		}
	}
	if err := l.recover(found.journal, identity); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, s, nil
}

// listFree gives a large file a list of its free pages, for which bbolt would have to walk through it. A list that is there has not been checked.
func listFree(f *os.File, found logState) error {
	if found.used != nil && found.bytes >= listFrom {
		return boltfile.SetFree(f, found.used, found.used)
	}
	return boltfile.ForgetFree(f)
}

// createLogs makes the file complete before it gets its name.
func createLogs(path string) error {
	temporary := path + ".new"
	if err := os.RemoveAll(temporary); err != nil {
		return err
	}
	bolt, err := openBolt(temporary)
	if err != nil {
		return err
	}
	err = errors.Join(
		bolt.StoreLog(header(0, 0, journalRef{})),
		bolt.Set(stableKey, encodeStable(nil)),
		bolt.Close(),
	)
	if err != nil {
		return err
	}
	return boltfile.Rename(temporary, path)
}

// Close closes the file, once all writes have ended, with everything in it: the journal is of use after a crash only. A damaged file
// stays open, because bbolt may hold its locks for good.
func (l *Log) Close() error {
	err := l.endJournal()
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	if l.unsynced && l.damage.Load() == nil {
		err = errors.Join(err, boltfile.SyncMetas(l.file))
	}
	err = errors.Join(err, l.file.Close())
	if l.damage.Load() != nil {
		return err
	}
	return errors.Join(err, l.bolt.Close())
}

// stopwatch times writes of which at most one is under way.
type stopwatch struct{ since atomic.Pointer[time.Time] }

// time runs one write.
func (l *Log) time(w *stopwatch, write func() error) (err error) {
	begin := time.Now()
	w.since.Store(&begin)
	failed := &l.failed
	if w == &l.folds {
		failed = &l.foldFailed
	}
	defer func() {
		if err != nil {
			failed.Store(&err)
		} else if failed.Load() != nil {
			failed.Store(nil)
		}
		w.since.Store(nil)
		switch took := int64(time.Since(begin)); w {
		case &l.folds:
			l.Folds.Add(1)
			l.FoldTime.Add(took)
		case &l.appends, &l.votes:
			l.Syncs.Add(1)
			l.SyncTime.Add(took)
		}
	}()
	if l.Fault != nil {
		if err := l.Fault(); err != nil {
			return err
		}
	}
	return write()
}

// Failure returns why the last write failed, nil if it did not.
func (l *Log) Failure() error {
	if err := cmp.Or(l.failed.Load(), l.foldFailed.Load()); err != nil {
		return *err
	}
	return nil
}

// StalledFor returns how long the longest write under way has been running, 0 if there is none.
func (l *Log) StalledFor() time.Duration {
	var longest time.Duration
	for _, w := range []*stopwatch{&l.appends, &l.votes, &l.folds, &l.deletes} {
		if since := w.since.Load(); since != nil {
			longest = max(longest, time.Since(*since))
		}
	}
	return longest
}

// IsMonotonic implements raft.MonotonicLogStore: Raft drops the whole log when a snapshot replaces the state.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.first, nil
}

// LastIndex implements raft.LogStore.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last, nil
}

// Size returns the first and the last entry, 0 if there is none, and about how many bytes they have.
func (l *Log) Size() (first, last uint64, bytes int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.first, l.last, l.bytes
}

// has reports whether the entry must be there, and returns it if it is in memory.
func (l *Log) has(index uint64) (bool, *raft.Log) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.last == 0 || index < l.first || index > l.last {
		return false, nil
	}
	if len(l.recent) > 0 && index >= l.recent[0].Index && index-l.recent[0].Index < uint64(len(l.recent)) {
		return true, l.recent[index-l.recent[0].Index]
	}
	return true, nil
}

// GetLog implements raft.LogStore. A damaged entry is a *storage.CorruptError.
func (l *Log) GetLog(index uint64, into *raft.Log) error {
	ok, recent := l.has(index)
	switch {
	case !ok:
		return raft.ErrLogNotFound
	case recent != nil:
		*into = *recent
		return nil
	}
	stored, err := l.stored(index)
	if err != nil {
		return l.entryError(index, err)
	}
	*into = *stored
	return nil
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. On error nothing counts as stored.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	begin, end := entries[0].Index, entries[len(entries)-1].Index
	if first, last, _ := l.Size(); last != 0 && begin > last+1 {
		if l.Covered != nil && l.Covered() < begin-1 {
			return fmt.Errorf("entry %d does not follow entry %d", begin, last)
		}
		if err := l.DeleteRange(first, last); err != nil {
			return err
		}
	}
	if err := l.mayStore(entries); err != nil {
		return err
	}
	sealed := sealAll(entries)
	if done, err := l.storeInJournal(entries, sealed); done || err != nil {
		return err
	}
	if err := l.settle(); err != nil {
		return err
	}
	defer l.settled()
	first, last, _ := l.Size()
	if last == 0 {
		first = begin
	}
	if err := l.write(append(sealed, l.header(min(first, begin), max(last, end)))); err != nil {
		return err
	}
	l.note(entries, max(last, end))
	l.beginJournal()
	return nil
}

// note keeps entries, and up to which one raft.db has them.
func (l *Log) note(entries []*raft.Log, folded uint64) {
	begin, end := entries[0].Index, entries[len(entries)-1].Index
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == 0 {
		l.first = begin
	}
	l.first, l.last, l.folded = min(l.first, begin), max(l.last, end), folded
	for _, e := range entries {
		l.bytes += int64(len(e.Data) + entryOverhead)
	}
	l.remember(entries)
}

// write stores entries and the header in raft.db. foldMu and writeMu are held, and everything is folded.
func (l *Log) write(sealed []*raft.Log) error {
	err := l.time(&l.appends, func() error { return l.change(func() error { return l.bolt.StoreLogs(sealed) }) })
	if err != nil && l.journal != nil {
		l.journal.suspect = true // raft.db may have it all the same: what follows in the journal would not fit
	}
	return err
}

// remember keeps the newest entries, without holes and within recentMaxBytes: always the last one, and those that raft.db does not have.
func (l *Log) remember(entries []*raft.Log) {
	if n := len(l.recent); n > 0 && entries[0].Index != l.recent[n-1].Index+1 {
		l.forget()
	}
	for _, e := range entries {
		l.recent = append(l.recent, e)
		l.recentBytes += len(e.Data) + entryOverhead
	}
	drop := 0
	for l.recentBytes > recentMaxBytes && drop < len(l.recent)-1 && l.recent[drop].Index <= l.folded {
		l.recentBytes -= len(l.recent[drop].Data) + entryOverhead
		drop++
	}
	clear(l.recent[:drop])
	l.recent = l.recent[drop:]
}

func (l *Log) forget() { l.recent, l.recentBytes = nil, 0 }

// DeleteRange implements raft.LogStore. The range must be at one end of the log, or all of it.
func (l *Log) DeleteRange(from, to uint64) error {
	if first, last, _ := l.Size(); first < from && from <= last && last <= to {
		if err := l.mayDelete(from); err != nil {
			return err
		}
	}
	from, to, err := l.disown(from, to)
	if err != nil {
		return err
	}
	_ = l.deleteChunks(from, to) // Raft would ask for them again, and they are not in the log any more. The next Open tries again
	return nil
}

// Truncate deletes the entries from one on, also those that were applied: for tests of a log that lost its tail.
func (l *Log) Truncate(from uint64) error {
	from, to, err := l.disown(from, math.MaxUint64-1)
	if err != nil {
		return err
	}
	return l.deleteChunks(from, to)
}

// mayDelete reports, as an error, that the state machine has applied the entry at from, with which a tail of the log that is
// to be replaced begins. Raft never replaces what a majority has, so a voter has lost entries that it had acknowledged:
// this node, or those that elected a leader without them. This node's state is of no use to that leader's cluster.
func (l *Log) mayDelete(from uint64) error {
	if l.Applied == nil {
		return nil
	}
	applied, _ := l.Applied()
	if from > applied {
		return nil
	}
	return l.rejectLeader(from, applied)
}

// mayStore is mayDelete for entries that are to be appended: after a snapshot, or in a log that lost its tail, they may be
// the ones that were applied.
func (l *Log) mayStore(entries []*raft.Log) error {
	if l.Applied == nil {
		return nil
	}
	applied, term := l.Applied()
	if first := entries[0].Index; applied >= first && applied-first < uint64(len(entries)) && entries[applied-first].Term != term {
		return l.rejectLeader(applied, applied)
	}
	return nil
}

func (l *Log) rejectLeader(from, applied uint64) error {
	err := &storage.CorruptError{File: l.path, Detail: fmt.Sprintf(
		"the leader replaces entry %d, and this node has applied entries up to %d: a voter has lost acknowledged entries, perhaps because its directory was put back to an older copy",
		from, applied)}
	l.Conflict(err)
	return err
}

// disown takes a range out of the header. It returns what of it there was, from > to if nothing.
func (l *Log) disown(from, to uint64) (uint64, uint64, error) {
	if err := l.settle(); err != nil {
		return 0, 0, err
	}
	defer l.settled()
	first, last, bytes := l.Size()
	from, to = max(from, first), min(to, last)
	if last == 0 || from > to {
		return 1, 0, nil
	}
	newFirst, newLast := first, last
	switch {
	case from == first && to == last:
		newFirst, newLast = 0, 0
	case from == first:
		newFirst = to + 1
	case to == last:
		newLast = from - 1
	default:
		return 0, 0, fmt.Errorf("refusing to delete entries %d to %d from the middle of the log", from, to)
	}
	if err := l.write([]*raft.Log{l.header(newFirst, newLast)}); err != nil {
		return 0, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first, l.last, l.folded = newFirst, newLast, newLast
	l.bytes -= int64(float64(bytes) / float64(last-first+1) * float64(to-from+1))
	if to == last {
		l.forget()
		return from, to, nil
	}
	for len(l.recent) > 0 && l.recent[0].Index < newFirst {
		l.recentBytes -= len(l.recent[0].Data) + entryOverhead
		l.recent = l.recent[1:]
	}
	return from, to, nil
}

func (l *Log) deleteChunks(from, to uint64) error {
	for lo := from; lo <= to; lo += deleteChunk {
		err := l.time(&l.deletes, func() error {
			return l.change(func() error { return l.bolt.DeleteRange(lo, min(to, lo+deleteChunk-1)) })
		})
		if err != nil {
			return err
		}
		if lo > math.MaxUint64-deleteChunk {
			break
		}
	}
	return nil
}

// seal returns a copy of the entry that carries its checksum in front of its extensions.
func seal(e *raft.Log) *raft.Log {
	c := *e
	c.Extensions = append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(e.Extensions)), checksum(e, e.Extensions)), e.Extensions...)
	return &c
}

// sealAll returns sealed copies, with room for the header.
func sealAll(entries []*raft.Log) []*raft.Log {
	sealed := make([]*raft.Log, 0, len(entries)+1)
	for _, e := range entries {
		sealed = append(sealed, seal(e))
	}
	return sealed
}

// unseal verifies and removes the checksum.
func unseal(e *raft.Log) error {
	if len(e.Extensions) < 4 {
		return errors.New("it has no checksum")
	}
	sum, rest := binary.BigEndian.Uint32(e.Extensions), e.Extensions[4:]
	if sum != checksum(e, rest) {
		return errors.New("wrong checksum")
	}
	if e.Extensions = rest; len(rest) == 0 {
		e.Extensions = nil
	}
	return nil
}

// appendHead appends index, term, type and time.
func appendHead(b []byte, e *raft.Log) []byte {
	var at int64
	if !e.AppendedAt.IsZero() {
		at = e.AppendedAt.UnixNano()
	}
	b = binary.BigEndian.AppendUint64(b, e.Index)
	b = binary.BigEndian.AppendUint64(b, e.Term)
	b = append(b, byte(e.Type))
	return binary.BigEndian.AppendUint64(b, uint64(at))
}

func checksum(e *raft.Log, extensions []byte) uint32 {
	head := appendHead(make([]byte, 0, 64), e)
	head = binary.BigEndian.AppendUint64(head, uint64(len(e.Data)))
	sum := crc32.Update(0, castagnoli, head)
	sum = crc32.Update(sum, castagnoli, e.Data)
	return crc32.Update(sum, castagnoli, extensions)
}

// header is the pseudo-entry that says which entries there are in raft.db, and which journal has more.
func header(first, last uint64, in journalRef) *raft.Log {
	magic := headerMagic
	if in.id != 0 {
		magic = journalHeaderMagic
	}
	data := []byte(magic)
	data = binary.BigEndian.AppendUint64(data, first)
	data = binary.BigEndian.AppendUint64(data, last)
	if in.id != 0 {
		data = binary.BigEndian.AppendUint64(data, in.id)
		data = binary.BigEndian.AppendUint64(data, in.generation)
	}
	return seal(&raft.Log{Index: headerIndex, Data: data})
}

func parseHeader(e *raft.Log) (first, last uint64, in journalRef, err error) {
	const magic = len(headerMagic)
	switch {
	case len(e.Data) == magic+16 && string(e.Data[:magic]) == headerMagic:
	case len(e.Data) == magic+32 && string(e.Data[:magic]) == journalHeaderMagic:
		in = journalRef{binary.BigEndian.Uint64(e.Data[magic+16:]), binary.BigEndian.Uint64(e.Data[magic+24:])}
	default:
		return 0, 0, in, errors.New("the header is not of this format")
	}
	first, last = binary.BigEndian.Uint64(e.Data[magic:]), binary.BigEndian.Uint64(e.Data[magic+8:])
	if first > last || first == 0 && last != 0 {
		return 0, 0, in, errors.New("the header makes no sense")
	}
	return first, last, in, nil
}
