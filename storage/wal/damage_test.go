package wal

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// unsynced leaves out what a test of damage does not need.
type unsynced struct{ file }

func (unsynced) Sync() error { return nil }

func openUnsynced(name string, flag int) (file, error) {
	f, err := openFile(name, flag)
	return unsynced{f}, err
}

// small makes a closed log of a few segments.
func small(t testing.TB) (dir string, records []storage.Record) {
	t.Helper()
	dir = t.TempDir()
	l := mustOpen(t, dir, Options{SegmentBytes: 260, open: openUnsynced})
	must(t, l.Begin(10))
	for i := range storage.Index(9) {
		r := sample(12+2*i, 1)
		records = append(records, r)
		must(t, l.Append(r))
	}
	must(t, l.Close())
	if len(l.segments) < 3 {
		t.Fatalf("%d segments, want some more", len(l.segments))
	}
	return dir, records
}

// checkDamaged opens a log that had all records durable and was damaged. What it has must be right, and up to the end.
func checkDamaged(t *testing.T, dir string, records []storage.Record) {
	t.Helper()
	l := mustOpen(t, dir, Options{MemoryBytes: 1, open: openUnsynced})
	defer l.Close() //nolint:errcheck // of no interest here
	if !l.Active() {
		return
	}
	last := records[len(records)-1].Index
	if l.Head() != last {
		t.Fatalf("Head() = %d and not %d: a hole", l.Head(), last)
	}
	for rounds := 0; !checkReads(t, l, records); rounds++ {
		if rounds > 10 {
			t.Fatal("damage is found again and again")
		}
	}
	if l.Head() != last {
		t.Fatalf("Head() = %d after reading: a hole", l.Head())
	}
	next := sample(last+1, 1)
	must(t, l.Append(next))
	got, through, err := l.Since(last, 1<<20)
	if err != nil || through != last+1 || !sameRecords(got, []storage.Record{next}) {
		t.Fatalf("after damage, Since(%d) = %d records through %d, %v", last, len(got), through, err)
	}
}

// thorough makes the tests that try everything try all of it: it takes a minute.
var thorough = os.Getenv("COFFER_WAL_SEEDS") != ""

func TestEveryFlippedBit(t *testing.T) {
	dir, records := small(t)
	checkDamaged(t, copyDir(t, dir), records)
	for name := range newDisk(dir).present() {
		good, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		work := copyDir(t, dir)
		for at := range good {
			if name == markName && at%slotBytes > 80 {
				continue // not part of a slot
			}
			for bit := range 8 {
				if !thorough && (bit+5*at)%16 != 0 {
					continue
				}
				bad := append([]byte(nil), good...)
				bad[at] ^= 1 << bit
				restore(t, dir, work)
				must(t, os.WriteFile(filepath.Join(work, name), bad, 0o600))
				checkDamaged(t, work, records)
				if t.Failed() {
					t.Fatalf("%s, byte %d, bit %d", name, at, bit)
				}
			}
		}
	}
}

// After a Reset, the older slot of the mark describes a log that is gone.
func TestDamagedMarkAfterReset(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{open: openUnsynced})
	must(t, l.Begin(0))
	fill(t, l, 0, 10)
	must(t, l.Sync())
	must(t, l.Reset(100))
	must(t, l.Close())
	good, err := os.ReadFile(filepath.Join(dir, markName))
	must(t, err)
	for at := range good {
		if at%slotBytes > 80 {
			continue
		}
		work := copyDir(t, dir)
		bad := append([]byte(nil), good...)
		bad[at] ^= 1
		for _, b := range [][]byte{bad, good[:at]} {
			must(t, os.WriteFile(filepath.Join(work, markName), b, 0o600))
			if l := mustOpen(t, work, Options{open: openUnsynced}); l.Active() && l.Base() != 100 {
				t.Fatalf("byte %d: the log is active and complete from %d on", at, l.Base())
			}
			restore(t, dir, work)
		}
	}
}

func restore(t testing.TB, from, to string) {
	t.Helper()
	must(t, os.RemoveAll(to))
	must(t, os.CopyFS(to, os.DirFS(from)))
}

// Files that are cut, missing, or come from another time.
func TestDamagedFiles(t *testing.T) {
	dir, records := small(t)
	other, _ := small(t)
	for name := range newDisk(dir).present() {
		path := func(dir string) string { return filepath.Join(dir, name) }
		good, err := os.ReadFile(path(dir))
		must(t, err)
		work := copyDir(t, dir)
		for n := range min(len(good), 1000) {
			if !thorough && n%4 != 0 {
				continue
			}
			restore(t, dir, work)
			must(t, os.WriteFile(path(work), good[:n], 0o600))
			checkDamaged(t, work, records)
		}
		restore(t, dir, work)
		must(t, os.Remove(path(work)))
		checkDamaged(t, work, records)
		if foreign, err := os.ReadFile(path(other)); err == nil {
			restore(t, dir, work)
			must(t, os.WriteFile(path(work), foreign, 0o600))
			checkDamaged(t, work, records)
		}
		restore(t, dir, work)
		must(t, os.WriteFile(path(work), make([]byte, len(good)), 0o600))
		checkDamaged(t, work, records)
	}
}

// What was not synced may be cut anywhere: everything before the cut is there, and appending goes on.
func TestCutBehindTheMark(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{open: openUnsynced})
	must(t, l.Begin(0))
	var records []storage.Record
	var ends []int64
	for i := range storage.Index(8) {
		records = append(records, sample(i+1, 3))
		must(t, l.Append(records[i]))
		ends = append(ends, l.Bytes())
		if i == 3 {
			must(t, l.Sync())
		}
	}
	name := segmentName(1)
	whole, err := os.ReadFile(filepath.Join(dir, name))
	must(t, err)
	for cut := ends[3]; cut <= ends[7]; cut++ {
		if !thorough && cut%4 != 0 && cut != ends[7] {
			continue
		}
		for _, garbage := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00\x00", "garbage and more garbage"} {
			t.Run(fmt.Sprintf("%d+%d", cut, len(garbage)), func(t *testing.T) {
				work := copyDir(t, dir)
				must(t, os.WriteFile(filepath.Join(work, name), append(whole[:cut:cut], garbage...), 0o600))
				l := mustOpen(t, work, Options{open: openUnsynced, MemoryBytes: 1})
				want := storage.Index(4)
				for want < 8 && ends[want] <= cut {
					want++
				}
				if l.Head() != want || l.Base() != 0 {
					t.Fatalf("it has (%d, %d], want (0, %d]", l.Base(), l.Head(), want)
				}
				for _, r := range records[2:] { // also some that are there
					must(t, l.Append(r))
				}
				must(t, l.Close())
				l = mustOpen(t, work, Options{open: openUnsynced, MemoryBytes: 1})
				if l.Head() != 8 || !checkReads(t, l, records) {
					t.Fatalf("after appending again it has (%d, %d]", l.Base(), l.Head())
				}
			})
		}
	}
}
