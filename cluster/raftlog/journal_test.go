package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/cluster/raftlog/sector"

	"github.com/coffer-project/coffer/storage"
)

// smallJournal opens a log that folds only when a half of its small journal is half full, or when it must.
func smallJournal(t testing.TB, path string) (*Log, *Stable) {
	t.Helper()
	l, s := mustOpenLogs(t, path)
	l.half, l.foldEvery = 16<<10, 0
	return l, s
}

// crashed copies the files as a process that ends leaves them.
func crashed(t testing.TB, l *Log) (path string, raftDB, journal []byte) {
	t.Helper()
	l.foldMu.Lock()
	defer l.foldMu.Unlock()
	dir := filepath.Dir(l.path)
	raftDB = used(t, l.path)
	journal, err := os.ReadFile(filepath.Join(dir, JournalName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	path = filepath.Join(logDir(t), FileName)
	restore(t, path, raftDB, journal)
	return path, raftDB, journal
}

func restore(t testing.TB, path string, raftDB, journal []byte) {
	t.Helper()
	if err := os.WriteFile(path, raftDB, 0o600); err != nil {
		t.Fatal(err)
	}
	if journal != nil {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), JournalName), journal, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// journaled is a log with entries 1 to 20, of which the last ones are in the journal only.
func journaled(t testing.TB, size int) (*Log, *Stable) {
	t.Helper()
	l, s := smallJournal(t, filepath.Join(logDir(t), FileName))
	l.half = 32 << 10 // not half full at the end
	for i := uint64(1); i <= 20; i++ {
		if i == 10 {
			if err := forget(l); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.StoreLogs(entries(i, i, 1, size)); err != nil {
			t.Fatal(err)
		}
	}
	if _, last := l.inBolt(); last != 9 {
		t.Fatalf("raft.db has entries up to %d, want 9", last)
	}
	return l, s
}

// TestJournalAgainstAModel does what Raft may do, and ends as a process does that is stopped, or killed.
func TestJournalAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			path := filepath.Join(logDir(t), FileName)
			l, s := smallJournal(t, path)
			model, term := []*raft.Log{}, uint64(1)
			next := func() uint64 {
				if len(model) == 0 {
					return 1
				}
				return model[len(model)-1].Index + 1
			}
			var refuse atomic.Bool
			fault := func() error {
				if refuse.Load() {
					return errors.New("no room")
				}
				return nil
			}
			l.Fault = fault
			for step := range 300 {
				n := rng.IntN(100)
				switch {
				case n < 70:
					size := rng.IntN(600)
					if rng.IntN(20) == 0 {
						size = rng.IntN(20 << 10)
					}
					added := entries(next(), next()+uint64(rng.IntN(4)), term, size)
					if err := l.StoreLogs(added); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					model = append(model, added...)
				case n < 76 && len(model) > 0: // a conflict
					keep := rng.IntN(len(model))
					if err := l.DeleteRange(model[keep].Index, next()-1); err != nil {
						t.Fatal(err)
					}
					if model, term = model[:keep], term+1; keep == 0 {
						model = nil
					}
				case n < 82 && len(model) > 0: // a compaction
					drop := rng.IntN(len(model))
					if err := l.DeleteRange(model[0].Index, model[drop].Index); err != nil {
						t.Fatal(err)
					}
					model = model[drop+1:]
				case n < 84: // behind a snapshot
					added := entries(next()+10, next()+11, term, 100)
					if err := l.StoreLogs(added); err != nil {
						t.Fatal(err)
					}
					if len(model) == 0 {
						model = added
						break
					}
					model = added
				case n < 88:
					refuse.Store(true)
					if err := l.StoreLogs(entries(next(), next(), term, 10)); err == nil {
						t.Fatal("stored without room")
					}
					refuse.Store(false)
				case n < 92:
					if err := s.SetUint64([]byte("CurrentTerm"), term); err != nil {
						t.Fatal(err)
					}
				case n < 96:
					if n%2 == 0 {
						l.Close()
					} else {
						path, _, _ = crashed(t, l)
						l.Close()
					}
					l, s = smallJournal(t, path)
					l.Fault = fault
				default:
					if err := forget(l); err != nil {
						t.Fatal(err)
					}
				}
				newest := len(model)
				if n < 70 && step < 299 { // after an append; all of them are read after everything else
					newest = min(newest, 20)
				}
				sameAsModel(t, step, l, model, newest)
			}
		})
	}
}

// sameAsModel wants the log to have the entries of the model, and reads so many of the newest.
func sameAsModel(t *testing.T, step int, l *Log, model []*raft.Log, newest int) {
	t.Helper()
	first, last, _ := l.Size()
	if len(model) == 0 {
		if first != 0 || last != 0 {
			t.Fatalf("step %d: the log has entries %d to %d, want none", step, first, last)
		}
		return
	}
	if first != model[0].Index || last != model[len(model)-1].Index {
		t.Fatalf("step %d: the log has entries %d to %d, want %d to %d", step, first, last, model[0].Index, model[len(model)-1].Index)
	}
	for _, want := range model[len(model)-newest:] {
		var e raft.Log
		if err := l.GetLog(want.Index, &e); err != nil || e.Index != want.Index || e.Term != want.Term || !bytes.Equal(e.Data, want.Data) || !e.AppendedAt.Equal(want.AppendedAt) {
			t.Fatalf("step %d: entry %d is %v of term %d, %v", step, want.Index, e.Index, e.Term, err)
		}
	}
}

// TestJournalTornAtTheEnd leaves out any of the sectors of the last record, which then was never acknowledged: it is dropped, or whole.
func TestJournalTornAtTheEnd(t *testing.T) {
	t.Parallel()
	l, _ := journaled(t, 600)
	before := l.journal.at
	_, _, was := crashed(t, l)
	if err := l.StoreLogs(entries(21, 22, 1, 700)); err != nil {
		t.Fatal(err)
	}
	path, raftDB, now := crashed(t, l)
	from := int(journalBlock + int64(l.journal.generation%2)*l.journal.half + before)
	sectors := int(l.journal.at-before) / sector.Bytes
	if sectors < 4 {
		t.Fatalf("the record has %d sectors", sectors)
	}
	for written := range 1 << sectors {
		torn := bytes.Clone(was)
		for i := range sectors {
			if written&(1<<i) != 0 {
				copy(torn[from+i*sector.Bytes:], now[from+i*sector.Bytes:from+(i+1)*sector.Bytes])
			}
		}
		restore(t, path, raftDB, torn)
		l, _, err := Open(path, false)
		if err != nil {
			t.Fatalf("sectors %b: %v", written, err)
		}
		want := uint64(20)
		if written == 1<<sectors-1 {
			want = 22
		}
		if _, last, _ := l.Size(); last != want {
			t.Errorf("sectors %b: the log ends at %d, want %d", written, last, want)
		}
		l.Close()
	}
}

// TestJournalDamage changes each sector of a journal in several ways. What was acknowledged is there, or the file is named.
func TestJournalDamage(t *testing.T) {
	t.Parallel()
	l, s := journaled(t, 300)
	// The other half has the generation that follows, as while a fold is under way.
	l.writeMu.Lock()
	l.beginFold()
	l.writeMu.Unlock()
	if err := l.StoreLogs(entries(21, 23, 1, 900)); err != nil {
		t.Fatal(err)
	}
	path, raftDB, whole := crashed(t, l)
	want, err := dump(l, s)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, journal []byte, mayLose bool) (found bool) {
		t.Helper()
		restore(t, path, raftDB, journal)
		l, s, err := Open(path, false)
		if err != nil {
			if c, ok := errors.AsType[*storage.CorruptError](err); !ok || filepath.Base(c.File) != JournalName {
				t.Fatalf("%s: %v, want a CorruptError that names the journal", what, err)
			}
			return true
		}
		defer l.Close()
		if got, err := dump(l, s); err != nil || got != want && !mayLose {
			t.Fatalf("%s was not found and changed what the log says (%v)", what, err)
		}
		return false
	}
	if check("nothing", whole, false) {
		t.Fatal("a whole journal is damaged")
	}
	found := 0
	rng := rand.New(rand.NewPCG(1, 3))
	for at := 0; at < len(whole); at += sector.Bytes {
		n := at + rng.IntN(sector.Bytes)
		flipped := bytes.Clone(whole)
		flipped[n] ^= 1 << rng.IntN(8)
		used := len(bytes.Trim(whole[at:at+sector.Bytes], "\x00")) > 0
		if check(fmt.Sprintf("a bit of byte %d", n), flipped, false) {
			found++
		} else if used && at >= journalBlock {
			t.Errorf("a bit of byte %d is not found", n)
		}
		if now, err := sector.Parse(whole[at : at+sector.Bytes]); err != nil || at < journalBlock || now.Generation < 2 {
			continue // empty, or stale
		}
		gone := bytes.Clone(whole)
		clear(gone[at : at+sector.Bytes])
		newest := lastRecord(whole, l.journal.half) // only that may never have been acknowledged
		if !check(fmt.Sprintf("sector at %d", at), gone, at >= newest[0] && at < newest[1]) && (at < newest[0] || at >= newest[1]) {
			t.Errorf("the sector at %d is gone, and that is not found", at)
		}
	}
	for n := 0; n < len(whole); n += 1000 {
		if !check(fmt.Sprintf("%d bytes", n), whole[:n], false) {
			t.Errorf("a journal of %d bytes is not found", n)
		}
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), JournalName)); err != nil {
		t.Fatal(err)
	}
	if !check("a missing journal", nil, false) {
		t.Error("a missing journal is not found")
	}
	t.Logf("%d flips found", found)
}

// lastRecord returns where the record that was written last begins and ends in a journal whose newest generation is 3.
func lastRecord(b []byte, half int64) (place [2]int) {
	base := int(journalBlock + half)
	for at := base; at < base+int(half); at += sector.Bytes {
		if s, err := sector.Parse(b[at : at+sector.Bytes]); err == nil && s.Generation == 3 {
			place = [2]int{base + int(s.Record)*sector.Bytes, at + sector.Bytes}
		}
	}
	return place
}

// TestJournalOfAnotherLog: neither a journal from elsewhere nor a raft.db from an earlier time is accepted.
func TestJournalOfAnotherLog(t *testing.T) {
	t.Parallel()
	a, b := storage.NewFileIdentity("a"), storage.NewFileIdentity("b")
	l, s := journaled(t, 100)
	other, otherS := smallJournal(t, filepath.Join(logDir(t), FileName))
	s.mark(a)
	otherS.mark(b)
	if err := other.StoreLogs(entries(1, 30, 1, 100)); err != nil {
		t.Fatal(err)
	}
	path, raftDB, journal := crashed(t, l)
	_, _, foreign := crashed(t, other)
	restore(t, path, raftDB, foreign)
	_, _, err := OpenFitting(filepath.Dir(path), 1, 1, a)
	if f, ok := errors.AsType[*storage.ForeignError](err); !ok || f.Is.Node != "b" || f.Want.Node != "a" || filepath.Base(f.File) != JournalName {
		t.Errorf("with the journal of another node: %v", err)
	}
	generation := func() uint64 {
		l.writeMu.Lock()
		defer l.writeMu.Unlock()
		return l.journal.inBolt
	}
	for i := uint64(21); generation() < 6; i++ {
		if err := l.StoreLogs(entries(i, i, 1, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	_, _, later := crashed(t, l)
	restore(t, path, raftDB, later)
	if _, _, err = Open(path, false); err == nil || !strings.Contains(err.Error(), "from an earlier time") && !strings.Contains(err.Error(), "lost") {
		t.Errorf("with an older raft.db: %v", err)
	}
	laterPath, laterDB, _ := crashed(t, l)
	restore(t, laterPath, laterDB, journal)
	if _, _, err = Open(laterPath, false); err == nil || !strings.Contains(err.Error(), "from an earlier time") {
		t.Errorf("with an older journal: %v", err)
	}
	restore(t, path, raftDB, journal)
	again, _, err := OpenFitting(filepath.Dir(path), 1, 1, a)
	if err != nil {
		t.Fatalf("with its own files: %v", err)
	}
	if _, last, _ := again.Size(); last != 20 {
		t.Errorf("the log ends at %d, want 20", last)
	}
	again.Close()
}

// TestFormerVersionsRejectAJournal: after a crash the header is one that they do not know, after a stop it is as they wrote it.
func TestFormerVersionsRejectAJournal(t *testing.T) {
	t.Parallel()
	l, _ := journaled(t, 100)
	magic := func() string {
		t.Helper()
		e := new(raft.Log)
		bolt, err := openBolt(first(crashed(t, l)))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(bolt.GetLog(headerIndex, e), bolt.Close()); err != nil {
			t.Fatal(err)
		}
		return string(e.Data[:len(headerMagic)])
	}
	if got := magic(); got != journalHeaderMagic {
		t.Errorf("the header of an open log is %s", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := magic(); got != headerMagic {
		t.Errorf("the header of a closed log is %s", got)
	}
}

func first(path string, _, _ []byte) string { return path }

// TestFailedWriteIsNotBuiltUpon: what a write that failed left in the journal is never taken for an entry once others followed it.
func TestFailedWriteIsNotBuiltUpon(t *testing.T) {
	t.Parallel()
	l, _ := journaled(t, 100)
	l.writeMu.Lock()
	lost := []*raft.Log{seal(entry(21, 1, 100))}
	if !l.journal.frame(lost) {
		t.Fatal("no room")
	}
	if err := l.journal.write(); err != nil {
		t.Fatal(err)
	}
	l.journal.suspect = true // it is there, and the sync said that it failed
	l.writeMu.Unlock()
	for i := uint64(21); i < 25; i++ {
		if err := l.StoreLogs(entries(i, i, 2, 90)); err != nil {
			t.Fatal(err)
		}
	}
	if l.journal == nil || l.journal.suspect {
		t.Error("the journal is not used again")
	}
	path, _, _ := crashed(t, l)
	again, _ := mustOpenLogs(t, path)
	for i := uint64(21); i < 25; i++ {
		var e raft.Log
		if err := again.GetLog(i, &e); err != nil || e.Term != 2 || len(e.Data) != 90 {
			t.Errorf("entry %d: term %d, %v", i, e.Term, err)
		}
	}
}

// TestFailedWriteOfRaftDB: what a write of raft.db that failed has left there, an entry or a header, is not built upon by the journal either.
func TestFailedWriteOfRaftDB(t *testing.T) {
	t.Parallel()
	lands := func(l *Log, sealed ...*raft.Log) func() error {
		return func() error {
			return errors.Join(l.bolt.StoreLogs(sealed), errors.New("its sync failed"))
		}
	}
	for name, write := range map[string]func(*Log) error{
		"an append": func(l *Log) error {
			l.Fault = lands(l, seal(entry(21, 1, 40<<10)), l.header(1, 21))
			return l.StoreLogs(entries(21, 21, 1, 40<<10)) // more than has room in the journal
		},
		"a delete": func(l *Log) error {
			l.Fault = lands(l, l.header(1, 15))
			return l.DeleteRange(16, 20)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := journaled(t, 100)
			if err := forget(l); err != nil { // so that the write that fails is the only one
				t.Fatal(err)
			}
			if err := write(l); err == nil {
				t.Fatal("the write did not fail")
			}
			l.Fault = nil
			want := append(entries(1, 20, 1, 100), entries(21, 22, 2, 90)...)
			for _, e := range want[20:] {
				if err := l.StoreLog(e); err != nil {
					t.Fatal(err)
				}
			}
			path, _, _ := crashed(t, l)
			again, _ := mustOpenLogs(t, path)
			sameAsModel(t, 0, again, want, len(want))
			if l.journal == nil || l.journal.at == 0 {
				t.Error("the journal is not used again")
			}
		})
	}
}

// TestTruncationThatIsNotFinished: once the header does not name entries any more they are gone, also when there is no room to delete them. Raft
// would not look for them again.
func TestTruncationThatIsNotFinished(t *testing.T) {
	t.Parallel()
	l, _ := journaled(t, 100)
	writes := 0
	l.Fault = func() error {
		if writes++; writes > 2 { // what is in the journal moves, and the header changes
			return errors.New("no room")
		}
		return nil
	}
	if err := l.DeleteRange(6, 20); err != nil || writes < 3 {
		t.Fatalf("after %d writes: %v", writes, err)
	}
	if l.Failure() == nil {
		t.Error("Failure does not say so")
	}
	l.Fault = nil
	want := append(entries(1, 5, 1, 100), entries(6, 8, 2, 100)...)
	if err := l.StoreLogs(want[5:]); err != nil {
		t.Fatal(err)
	}
	sameAsModel(t, 0, l, want, len(want))
	path, _, _ := crashed(t, l)
	again, _ := mustOpenLogs(t, path)
	sameAsModel(t, 1, again, want, len(want))
}

// TestStaleDamage: a bit that flips where the journal has nothing any more does not keep a node from starting after the next crash.
func TestStaleDamage(t *testing.T) {
	t.Parallel()
	l, _ := journaled(t, 300)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(l.path), JournalName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-sector.Bytes/2] ^= 1 // empty
	b[journalBlock+100] ^= 1      // stale
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l, _ = smallJournal(t, l.path)
	l.half = 32 << 10
	for i := uint64(21); i < 24; i++ {
		if err := l.StoreLogs(entries(i, i, 1, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if _, last := l.inBolt(); last != 21 {
		t.Fatalf("raft.db has entries up to %d, want 21", last)
	}
	after, _, _ := crashed(t, l)
	again, _ := mustOpenLogs(t, after)
	sameAsModel(t, 0, again, append(entries(1, 20, 1, 300), entries(21, 23, 1, 100)...), 23)
}

// TestOneSync counts the writes of raft.db and of the journal.
func TestOneSync(t *testing.T) {
	l, _ := mustOpenLogs(t, filepath.Join(logDir(t), FileName))
	l.foldEvery = 0
	if err := l.StoreLogs(entries(1, 1, 1, 100)); err != nil {
		t.Fatal(err)
	}
	before := transaction(t, l)
	syncs := l.Syncs.Load()
	for i := uint64(2); i < 102; i++ {
		if err := l.StoreLogs(entries(i, i, 1, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if after := transaction(t, l); !bytes.Equal(after, before) || l.Syncs.Load() != syncs+100 {
		t.Errorf("raft.db was written for appends, or there were %d syncs for 100 of them", l.Syncs.Load()-syncs)
	}
	if err := forget(l); err != nil {
		t.Fatal(err)
	}
	if l.Folds.Load() != 1 || l.FoldTime.Load() <= 0 || l.FoldBytes.Load() != 100*(1000+entryOverhead) || l.Syncs.Load() != syncs+100 {
		t.Errorf("%d folds of %d bytes in %d ns and %d syncs are counted for 100 entries of 1000 bytes",
			l.Folds.Load(), l.FoldBytes.Load(), l.FoldTime.Load(), l.Syncs.Load()-syncs)
	}
}

// transaction returns bbolt's meta pages.
func transaction(t *testing.T, l *Log) []byte {
	t.Helper()
	b := make([]byte, 8192)
	if _, err := l.file.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLogShrinks opens a file that once had much more.
func TestLogShrinks(t *testing.T) {
	path := filepath.Join(logDir(t), FileName)
	l, _ := mustOpenLogs(t, path)
	if err := errors.Join(l.StoreLogs(entries(1, 60, 1, 1<<20)), l.DeleteRange(1, 59), l.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil || before.Size() < shrinkFrom {
		t.Fatalf("the file has %d bytes, %v", before.Size(), err)
	}
	l, _ = mustOpenLogs(t, path)
	after, err := os.Stat(path)
	if err != nil || after.Size() > before.Size()/4 {
		t.Errorf("the file has %d bytes, and before it had %d; %v", after.Size(), before.Size(), err)
	}
	var e raft.Log
	if err := l.GetLog(60, &e); err != nil || len(e.Data) != 1<<20 {
		t.Errorf("its entry: %v", err)
	}
}

// TestLargeLogListsItsFreePages opens a large file again and again, which takes the free pages from a list: bbolt finds nothing wrong
// with the file, it does not grow, and nothing is lost.
func TestLargeLogListsItsFreePages(t *testing.T) {
	path := filepath.Join(logDir(t), FileName)
	l, s := mustOpenLogs(t, path)
	const of = 64 << 10
	if err := errors.Join(l.StoreLogs(entries(1, 600, 1, of)), l.DeleteRange(1, 200), l.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := checkLogs(path); err != nil {
		t.Fatal(err)
	}
	for last := uint64(600); last < 760; last += 40 {
		l, s = mustOpenLogs(t, path)
		if first, to, size := l.Size(); first != 201 || to != last || size < listFrom {
			t.Fatalf("it has entries %d to %d, %d bytes", first, to, size)
		}
		if err := errors.Join(l.StoreLogs(entries(last+1, last+40, 1, of)), s.SetUint64([]byte("CurrentTerm"), last)); err != nil {
			t.Fatal(err)
		}
		want, err := dump(l, s)
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		l, s = mustOpenLogs(t, path)
		if got, err := dump(l, s); err != nil || got != want {
			t.Fatalf("reopened it has %s, want %s; %v", got, want, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		isWhole(t, path)
	}
	if after, err := os.Stat(path); err != nil || after.Size() > before.Size()+1<<20 {
		t.Errorf("the file has grown from %d to %d bytes, though entries were deleted; %v", before.Size(), after.Size(), err)
	}
}

// isWhole has bbolt look for whatever it finds wrong with a file.
func isWhole(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error {
		var found error
		for err := range tx.Check() {
			found = errors.Join(found, err)
		}
		return found
	}); err != nil {
		t.Fatal(err)
	}
}

func FuzzJournal(f *testing.F) {
	l, _ := journaled(f, 100)
	_, _, b := crashed(f, l)
	ref := journalRef{l.journal.id, l.journal.inBolt}
	f.Add(uint32(journalBlock), []byte{1})
	f.Add(uint32(journalBlock+16<<10), make([]byte, 600))
	f.Fuzz(func(_ *testing.T, at uint32, patch []byte) {
		damaged := bytes.Clone(b)
		copy(damaged[int(at)%len(damaged):], patch)
		readHalves(damaged[journalBlock:], ref) // must not panic
		decodeEntries(patch)
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, count := range []uint64{1, 64} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			l, _ := mustOpenLogs(b, filepath.Join(b.TempDir(), FileName))
			all := entries(1, uint64(b.N)*count+1, 1, 1024)
			if err := l.StoreLogs(all[:1]); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(count) * 1024)
			b.ResetTimer()
			for i := range uint64(b.N) {
				if err := l.StoreLogs(all[1+i*count : 1+(i+1)*count]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
