package raftlog

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
)

// Entries, header and votes have checksums, and the header says which entries there must be: so a damaged page of the open
// log is found by who reads what it had. Nothing in it is used after that.

// damaged ends the use of the file and returns the error for it.
func (l *Log) damaged(detail string) error {
	err := &storage.CorruptError{File: l.path, Detail: detail}
	if l.damage.CompareAndSwap(nil, err) && l.OnDamage != nil {
		go l.OnDamage(err)
	}
	return l.damage.Load()
}

// read runs what reads the file. A panic of bbolt, or a fault in its memory map, is damage.
func (l *Log) read(fn func() error) (err error) {
	if d := l.damage.Load(); d != nil {
		return d // bbolt may have panicked with its locks held
	}
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			err = l.damaged(fmt.Sprint("reading it failed: ", p))
		}
	}()
	return fn()
}

// change runs what writes to the file, unless bbolt would go back to an older meta page, now or after a loss of power.
func (l *Log) change(fn func() error) error {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	if err := l.checkMetas(); err != nil {
		return err
	}
	if l.unsynced {
		if err := boltfile.SyncMetas(l.file); err != nil {
			return err
		}
	}
	err := l.read(fn)
	l.unsynced = err != nil
	return err
}

// checkMetas checks the meta pages. changeMu is held.
func (l *Log) checkMetas() error {
	if l.file == nil {
		return nil
	}
	err := boltfile.CheckMetas(l.file)
	if err == nil {
		return nil
	}
	if bad, ok := errors.AsType[*storage.CorruptError](corrupt(l.path, err)); ok {
		return l.damaged(bad.Detail)
	}
	return err
}

// stored returns an entry as the file has it.
func (l *Log) stored(index uint64) (*raft.Log, error) {
	e := new(raft.Log)
	err := l.read(func() error {
		if err := l.bolt.GetLog(index, e); err != nil {
			return err
		}
		if err := unseal(e); err != nil {
			return err
		}
		if e.Index != index {
			return errors.New("it is another one")
		}
		return nil
	})
	return e, err
}

// scrubEntries is how many entries are read at a time.
const scrubEntries = 64

// Scrub reads every entry, the header, the votes and the meta pages of raft.db. What is in the journal is in memory, too, and soon there. Damage is a *storage.CorruptError, and ends
// the use of the file.
func (l *Log) Scrub(paused func(bytes int) error) error {
	if err := l.scrubRest(); err != nil {
		return err
	}
	next, last := l.inBolt()
	for next != 0 && next <= last {
		bytes := 0
		for end := min(last, next+scrubEntries-1); next <= end && bytes < 256<<10; next++ {
			e, err := l.stored(next)
			if err == nil {
				bytes += len(e.Data) + entryOverhead
			} else if err = l.entryError(next, err); !errors.Is(err, raft.ErrLogNotFound) {
				return err
			}
		}
		if err := paused(bytes); err != nil {
			return err
		}
	}
	return nil
}

// entryError turns the error of reading an entry that was there into that of the file.
func (l *Log) entryError(index uint64, err error) error {
	if ok, _ := l.has(index); !ok {
		return raft.ErrLogNotFound // compacted meanwhile
	}
	if errors.Is(err, os.ErrClosed) || l.closed.Load() {
		return err
	}
	if c, ok := errors.AsType[*storage.CorruptError](err); ok {
		return c
	}
	if _, again := l.stored(index); again == nil {
		return raft.ErrLogNotFound // replaced meanwhile
	}
	return l.damaged(fmt.Sprintf("entry %d: %v", index, err))
}

func (l *Log) scrubRest() error {
	l.changeMu.Lock()
	defer l.changeMu.Unlock()
	if l.closed.Load() {
		return nil
	}
	if err := l.checkMetas(); err != nil {
		return err
	}
	header, err := l.stored(headerIndex)
	if err == nil {
		_, _, _, err = parseHeader(header)
	}
	if err == nil {
		err = l.read(func() error {
			votes, err := l.bolt.Get(stableKey)
			if err == nil {
				_, err = decodeStable(votes)
			}
			return err
		})
	}
	if err == nil {
		return nil
	}
	if c, ok := errors.AsType[*storage.CorruptError](err); ok {
		return c
	}
	return l.damaged(fmt.Sprintf("the header or the votes: %v", err))
}

// ScrubBytes returns about how much Scrub reads.
func (l *Log) ScrubBytes() int64 {
	_, _, bytes := l.Size()
	return bytes
}
