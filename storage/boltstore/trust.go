package boltstore

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/lthash"
	"github.com/coffer-project/coffer/storage/pagesums"
	"github.com/coffer-project/coffer/storage/record"
	"github.com/coffer-project/coffer/storage/scrub"
)

// A large file is opened without a pass over all of it. The checksums of its pages stand beside it (package pagesums), as of a state that
// was saved at most a second of folds before the last one. Every page of that state is still there, because bbolt writes no page that
// a transaction can read, and the store keeps one open on it. So Open reads what has changed between the two states: pages that are gone
// must have their checksum, and the records of the new pages must account for the difference between the two digests.
//
// From then on each page is compared when it is read, as always. A pass in the background reads all of them once, adds the records up,
// and so knows the sum that members compare. Wherever the two files do not fit, everything is checked at once, as without checksums.

// check looks at a file that bbolt is to open, under its lock, and returns what it has found.
func (o *Options) check(f *os.File, path, name string) (*verifier, error) {
	if err := boltfile.Settle(path); err != nil {
		return nil, err
	}
	if o.Sums != "" {
		v := newVerifier(f)
		saved, err := v.trust(o)
		if err == nil {
			return v, boltfile.SetFree(f, v.seen.Has, saved.Has) // the saved state is still needed, if this start does not come far
		}
		if !errors.Is(err, os.ErrNotExist) {
			o.Logger.Warn("the checksums beside the state file do not fit it: all of it is checked before it is used", "err", err)
		}
	}
	stop := make(chan struct{}) // closed when the file has been checked, and so is in the cache as far as it can
	go boltfile.ReadAhead(path, stop)
	found, err := verifyFile(f, name)
	close(stop)
	if err != nil {
		return nil, err
	}
	if err = boltfile.ForgetFree(f); err != nil && !boltfile.Failed(err) { // the list has not been checked
		err = &storage.CorruptError{File: name, Detail: err.Error()}
	}
	return found, err
}

// trust takes the checksums from the file beside this one, and checks what has changed since they were saved. It returns the pages of the state
// that was saved.
func (v *verifier) trust(o *Options) (saved runs, err error) {
	m, err := v.open()
	if err != nil {
		return nil, err
	}
	if int64(m.HighWater)*v.pageSize <= o.WholeBytes {
		return nil, os.ErrNotExist // none are kept
	}
	saved = make(runs, len(v.seen))
	begin := func(s pagesums.State) error {
		if s.Tx > m.Tx || s.High > m.HighWater || s.Incarnation != o.Incarnation || s.Owner != o.Node {
			return fmt.Errorf("they are of transaction %d, with %d pages, of another file than this one of transaction %d", s.Tx, s.High, m.Tx)
		}
		return nil
	}
	was, err := pagesums.Read(o.Sums, begin, func(p pagesums.Page) {
		if saved[p.ID/32] &^= 1 << (p.ID % 32); p.Used {
			saved[p.ID/32] |= 1 << (p.ID % 32)
			v.pages.sum(p.ID).Store(p.Sum)
		}
	})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	kept := map[uint64]bool{} // pages of both states that the walk has come to
	keep := func(id uint64) bool {
		if !saved.Has(id) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		kept[id] = true
		return true
	}
	v.skip, v.compare, v.total = keep, keep, record.Digest{Sum: was.Sum, Count: was.Count, Bytes: was.Bytes}
	now, err := v.walk(m.Root)
	if err != nil {
		return nil, err
	}
	gone := newVerifier(v.f)
	gone.pageSize, gone.highWater, gone.pages, gone.seen = v.pageSize, v.highWater, v.pages, make(runs, len(v.seen))
	gone.compare, gone.skip = every, func(id uint64) bool { return kept[id] }
	if !kept[was.Root] {
		if _, err := gone.walk(was.Root); err != nil {
			return nil, err
		}
	}
	if v.total.Take(gone.total); v.total != now.Digest {
		return nil, damage("what has changed since they were saved is not what the state record says")
	}
	for i := range v.seen {
		v.seen[i] |= saved[i] &^ gone.seen[i]
	}
	v.looked.Add(gone.looked.Load())
	v.trusted = true
	return saved, nil
}

func every(uint64) bool { return true }

// KeepSums has the checksums of pages written to a file beside this one from now on, so that the next Open can use them.
func (s *Store) KeepSums(path string) {
	s.sums.Begin(path, s.opts.Logger)
	signal(s.dirty)
}

// DropSums removes that file: this one is not the one beside it any more.
func (s *Store) DropSums() { s.sums.Drop() }

// saveSums writes the checksums if that is due, or now is true. Only the flusher calls it, and Close.
func (s *Store) saveSums(now bool) {
	s.mu.Lock()
	b := s.cur.base
	s.mu.Unlock()
	if b == s.saved || int64(b.high)*int64(b.pages.size) <= s.opts.WholeBytes {
		return
	}
	saved, failed := s.sums.Save(now, pagesums.Source{
		State: pagesums.State{
			Tx: b.txid, Root: b.root, High: b.high, Sum: b.state.Sum, Count: b.state.Count, Bytes: b.state.Bytes,
			Incarnation: s.opts.Incarnation, Owner: s.opts.Node,
		},
		Page: func(id uint64) pagesums.Page {
			if !s.used.Has(id) {
				return pagesums.Page{ID: id}
			}
			return pagesums.Page{ID: id, Used: true, Sum: b.pages.sum(id).Load()}
		},
		Trusted: func() bool { return s.Damage() == nil },
	})
	if (saved || failed) && s.saved != nil {
		s.saved.close()
		s.saved = nil
	}
	if saved {
		b.refs.Add(1)
		s.saved = b
	}
}

// pass is the one over all records that Open has not made.
type pass struct {
	total, read atomic.Int64 // bytes
	wanted      atomic.Bool  // a reader waits for its end: no pauses
	done        chan struct{}
	err         error      // why it ended early; valid then
	sum         lthash.Sum // of the records that the file was opened with; valid then
}

// wait returns the sum of all records that the file was opened with.
func (p *pass) wait() (lthash.Sum, error) {
	p.wanted.Store(true)
	<-p.done
	return p.sum, p.err
}

// Unverified returns how much of the file has not been read since it was opened, in bytes, and how much was to be read. It is 0 once the whole file
// is known to be right.
func (s *Store) Unverified() (left, total int64) {
	select {
	case <-s.pass.done:
		return 0, s.pass.total.Load()
	default:
		return max(1, s.pass.total.Load()-s.pass.read.Load()), s.pass.total.Load()
	}
}

// beginPass has a goroutine read what Open has not, if anything. It ends with the store.
func (s *Store) beginPass(found *verifier) {
	s.pass.done = make(chan struct{})
	if !found.trusted {
		s.pass.sum = found.sum
		close(s.pass.done)
		return
	}
	base := s.cur.base
	base.refs.Add(1)
	s.pass.total.Store(int64(base.high) * int64(base.pages.size))
	go func() {
		defer base.close()
		defer close(s.pass.done)
		s.pass.sum, s.pass.err = s.runPass(base)
	}()
}

// runPass reads every page of a state, and adds its records up.
func (s *Store) runPass(b *base) (sum lthash.Sum, err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	v := newVerifier(s.file)
	v.pageSize, v.highWater, v.pages, v.seen = int64(b.pages.size), b.high, b.pages, make(runs, b.high/32+1)
	v.compare = every
	v.alone = func() bool { return !s.pass.wanted.Load() }
	begin := time.Now()
	p := scrub.Pacer{Began: begin}
	v.pace = func(bytes int) error {
		s.pass.read.Add(int64(bytes))
		select {
		case <-s.stop:
			return ErrClosed
		default:
		}
		if v.alone() {
			p.Pause(s.stop)
		}
		return nil
	}
	if err = v.addUp(b.root); err != nil && !errors.Is(err, ErrClosed) {
		err = s.damaged(err.Error())
	}
	if err != nil {
		return v.sum, err
	}
	s.opts.Logger.Info("the whole state file has been read and is right", "records", b.state.Count, "after", time.Since(begin))
	return v.sum, nil
}
