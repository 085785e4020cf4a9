package wal

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	if o.Now == nil {
		o.Now = func() time.Time { return time.UnixMilli(0) } // record i is from second i
	}
	l, err := Open(dir, o)
	must(t, err)
	return l
}

// fill appends records with the indexes (from, to].
func fill(t testing.TB, l *Log, from, to storage.Index) (records []storage.Record) {
	t.Helper()
	for i := from + 1; i <= to; i++ {
		records = append(records, sample(i, 5))
		must(t, l.Append(records[len(records)-1]))
	}
	return records
}

func TestInactive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	l := mustOpen(t, dir, Options{CursorKey: "l/cursor"})
	if l.Active() || l.Keeps("s/a/b") {
		t.Error("a log without a directory is active")
	}
	must(t, l.Append(sample(1, 1)))
	must(t, l.Sync())
	must(t, l.Reset(5))
	must(t, l.End())
	if _, _, err := l.Since(0, 1); !errors.Is(err, ErrTruncated) {
		t.Errorf("Since = %v, want ErrTruncated", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("an inactive log made a directory")
	}
	must(t, l.Begin(7))
	for key, want := range map[string]bool{"s/a/b": true, "l/cursor": true, "l/cursor2": false, "l/token/x": false, "": false} {
		if got := l.Keeps(key); got != want {
			t.Errorf("Keeps(%q) = %t", key, got)
		}
	}
	if l.Base() != 7 || l.Head() != 7 {
		t.Errorf("begun at 7 it has (%d, %d]", l.Base(), l.Head())
	}
	must(t, l.Close())
	must(t, l.Close())
	if err := l.Append(sample(8, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Append to a closed log = %v", err)
	}
	l = mustOpen(t, dir, Options{})
	if !l.Active() || l.Base() != 7 || l.Head() != 7 {
		t.Errorf("opened again it is active: %t, and has (%d, %d]", l.Active(), l.Base(), l.Head())
	}
	if l.Keeps("") {
		t.Error("without a cursor key, it keeps the empty key")
	}
	fill(t, l, 7, 9)
	must(t, l.Reset(20))
	if l.Base() != 20 || l.Head() != 20 {
		t.Errorf("reset to 20 it has (%d, %d]", l.Base(), l.Head())
	}
	must(t, l.End())
	if entries, _ := os.ReadDir(dir); len(entries) > 0 || l.Active() {
		t.Errorf("after End there are %d files", len(entries))
	}
	must(t, l.Begin(3))
	fill(t, l, 3, 5)
	if l.Head() != 5 {
		t.Errorf("begun a second time, it ends at %d", l.Head())
	}
	must(t, l.Close())
}

// Without a mark, segments are garbage.
func TestNoMark(t *testing.T) {
	dir, _ := small(t)
	must(t, os.Remove(filepath.Join(dir, markName)))
	l := mustOpen(t, dir, Options{})
	if l.Active() {
		t.Error("it is active")
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("%d files are left", len(entries))
	}
}

func TestNewerFormat(t *testing.T) {
	dir, _ := small(t)
	b, err := os.ReadFile(filepath.Join(dir, markName))
	must(t, err)
	for slot := range 2 {
		reformat(b[slot*slotBytes:], len(markMagic))
	}
	must(t, os.WriteFile(filepath.Join(dir, markName), b, 0o600))
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrFormat) {
		t.Errorf("a newer mark: %v, want ErrFormat", err)
	}

	dir, _ = small(t)
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	must(t, err)
	slices.Sort(names)
	for _, name := range []string{names[len(names)-1], names[1]} {
		b, err := os.ReadFile(name)
		must(t, err)
		reformat(b, len(segmentMagic))
		must(t, os.WriteFile(name, b, 0o600))
		if _, err := Open(dir, Options{}); !errors.Is(err, ErrFormat) {
			t.Errorf("a newer segment %s: %v, want ErrFormat", filepath.Base(name), err)
		}
	}
}

func TestRetention(t *testing.T) {
	now := time.UnixMilli(0)
	o := Options{SegmentBytes: 2000, MaxBytes: 20000, MemoryBytes: 1, MaxAge: time.Hour, Now: func() time.Time { return now }, open: openUnsynced}
	dir := t.TempDir()
	l := mustOpen(t, dir, o)
	must(t, l.Begin(0))
	records := fill(t, l, 0, 100)
	l.Trim()
	if l.Base() != 0 {
		t.Fatal("something young was removed")
	}
	must(t, l.Sync())
	now = time.UnixMilli(60_000).Add(time.Hour) // records are a second apart
	l.Pin("slow", 40)
	l.Pin("fast", 90)
	l.Trim()
	if b := l.Base(); b == 0 || b > 40 || l.Lost("slow") {
		t.Errorf("with something pinned at 40, the log begins at %d", b)
	}
	if _, _, err := l.Since(40, 1); err != nil {
		t.Errorf("what is pinned: %v", err)
	}
	l.Pin("slow", 95)
	l.Trim()
	if b := l.Base(); b <= 40 || b > 60 {
		t.Errorf("with what is older than a minute to remove, the log begins at %d", b)
	}
	if got, want := l.Oldest(), time.UnixMilli(int64(l.Base())*1000); !got.Equal(want) {
		t.Errorf("Oldest() = %v, want %v", got, want)
	}
	now = time.UnixMilli(0)
	records = append(records, fill(t, l, 100, 200)...)
	l.Pin("slow", l.Base())
	for i := storage.Index(200); i < 700; i += 50 {
		records = append(records, fill(t, l, i, i+50)...)
		must(t, l.Sync())
	}
	if !l.Lost("slow") || l.Lost("nobody") {
		t.Errorf("Lost = %t and %t", l.Lost("slow"), l.Lost("nobody"))
	}
	if n := l.Bytes(); n > o.MaxBytes || n < o.MaxBytes/2 {
		t.Errorf("with a limit of %d, there are %d bytes", o.MaxBytes, n)
	}
	l.Unpin("slow")
	if l.Lost("slow") {
		t.Error("what is not pinned cannot be lost")
	}
	checkReads(t, l, records)
	base, bytes := l.Base(), l.Bytes()
	must(t, l.Close())
	l = mustOpen(t, dir, o)
	if l.Base() != base || l.Head() != 700 || l.Bytes() != bytes || !checkReads(t, l, records) {
		t.Errorf("opened again it has (%d, %d], want (%d, 700]", l.Base(), l.Head(), base)
	}
}

// A limit does not remove what the last mark names: Open would find nothing of the log.
func TestTrimBeforeSync(t *testing.T) {
	dir := t.TempDir()
	o := Options{SegmentBytes: 400, MaxBytes: 2000, MemoryBytes: 1, open: openUnsynced}
	l := mustOpen(t, dir, o)
	must(t, l.Begin(0))
	fill(t, l, 0, 100)
	l.Trim()
	if l.Base() != 0 {
		t.Errorf("before the first Sync, the log begins at %d", l.Base())
	}
	if after := mustOpen(t, copyDir(t, dir), o); after.Base() != 0 || after.Head() != 100 {
		t.Errorf("after a crash it has (%d, %d]", after.Base(), after.Head())
	}
	must(t, l.Sync())
	if n := l.Bytes(); n > o.MaxBytes {
		t.Errorf("after Sync there are %d bytes", n)
	}
}

// A crash within Reset leaves the old log or the new one, and none that looks damaged.
func TestCrashWithinReset(t *testing.T) {
	for crashIn, crashed := 1, ""; crashIn == 1 || crashed != ""; crashIn++ {
		dir := t.TempDir()
		d := newDisk(dir)
		l := mustOpen(t, dir, Options{SegmentBytes: 400, open: d.open})
		must(t, l.Begin(0))
		fill(t, l, 0, 100)
		must(t, l.Sync())
		crashed = ""
		d.crashIn, d.onCrash = crashIn, func() { crashed = copyDir(t, dir) }
		must(t, l.Reset(200))
		if crashed == "" {
			return
		}
		var text bytes.Buffer
		after := mustOpen(t, crashed, Options{open: openUnsynced, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		if old, fresh := after.Base() == 0 && after.Head() == 100, after.Base() == 200 && after.Head() == 200; !old && !fresh || text.Len() > 0 {
			t.Errorf("before effect %d of Reset: the log has (%d, %d], and says %q", crashIn, after.Base(), after.Head(), text.String())
		}
	}
}

// With the disk full or failing, the log goes on in memory, and on disk when it can, without ever pretending.
func TestFailingDisk(t *testing.T) {
	faults := map[string]func(d *disk, err error){
		"write":  func(d *disk, err error) { d.writeErr, d.createErr = err, err },
		"sync":   func(d *disk, err error) { d.syncErr = err },
		"create": func(d *disk, err error) { d.createErr = err },
		"dir":    func(d *disk, err error) { d.dirErr = err },
	}
	for name, set := range faults {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t.TempDir())
			o := Options{SegmentBytes: 1000, open: d.open}
			l := mustOpen(t, d.dir, o)
			must(t, l.Begin(0))
			records := fill(t, l, 0, 50)
			must(t, l.Sync())
			set(d, syscall.ENOSPC)
			records = append(records, fill(t, l, 50, 100)...)
			if err := l.Sync(); err != nil {
				t.Fatalf("Sync = %v, want nil: it is known what is durable", err)
			}
			records = append(records, fill(t, l, 100, 110)...)
			if l.Base() != 0 || !checkReads(t, l, records) {
				t.Error("what is in memory was not served")
			}
			// A crash now: whatever is there must not have a hole.
			for seed := range uint64(20) {
				dir := t.TempDir()
				d.image(dir, rand.New(rand.NewPCG(seed, 0)))
				after := mustOpen(t, dir, Options{})
				if after.Active() && after.Head() < 100 {
					t.Errorf("after a crash the log ends at %d, and a state of 100 was durable", after.Head())
				}
				checkReads(t, after, records)
			}
			set(d, nil)
			must(t, l.Sync())
			records = append(records, fill(t, l, 110, 150)...)
			must(t, l.Close())
			l = mustOpen(t, d.dir, o)
			if !l.Active() || l.Head() != 150 || l.Base() > 110 || !checkReads(t, l, records) {
				t.Errorf("after the disk recovered it has (%d, %d]", l.Base(), l.Head())
			}
		})
	}
}

func TestFailingMark(t *testing.T) {
	d := newDisk(t.TempDir())
	l := mustOpen(t, d.dir, Options{open: d.open})
	must(t, l.Begin(0))
	records := fill(t, l, 0, 10)
	d.markErr = syscall.EIO
	must(t, l.Sync())
	if after := mustOpen(t, copyDir(t, d.dir), Options{}); after.Active() {
		t.Error("the mark could not be written, and after a crash the log is active")
	}
	d.dirErr = syscall.EIO
	fill(t, l, 10, 11)
	if err := l.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Sync = %v, want an error: nothing is known to be durable", err)
	}
	d.markErr, d.dirErr = nil, nil
	must(t, l.Sync())
	after := mustOpen(t, copyDir(t, d.dir), Options{})
	if after.Head() != 11 || after.Base() != 0 || !checkReads(t, after, append(records, sample(11, 5))) {
		t.Errorf("after the disk recovered it has (%d, %d]", after.Base(), after.Head())
	}
	d.markErr, d.dirErr = syscall.EIO, syscall.EIO
	if err := l.Reset(20); !errors.Is(err, syscall.EIO) {
		t.Errorf("Reset = %v, want an error", err)
	}
	if l.Active() {
		t.Error("Reset failed, and the log is active")
	}
}

func TestWait(t *testing.T) {
	l := mustOpen(t, t.TempDir(), Options{open: openUnsynced})
	must(t, l.Begin(0))
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() { must(t, l.Wait(t.Context(), 2)) })
	}
	fill(t, l, 0, 3)
	waiting.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Wait(ended, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v, want Canceled", err)
	}
	waiting.Go(func() { must(t, l.Wait(t.Context(), 3)) })
	must(t, l.End())
	waiting.Wait()
	must(t, l.Close())
}

// Readers follow a writer from memory and from files, while segments come and go.
func TestConcurrent(t *testing.T) {
	const last = 2000
	l := mustOpen(t, t.TempDir(), Options{SegmentBytes: 20_000, MaxBytes: 150_000, MemoryBytes: 4000, open: openUnsynced})
	must(t, l.Begin(0))
	var group sync.WaitGroup
	for reader := range 3 {
		group.Go(func() {
			after := storage.Index(0)
			for after < last {
				must(t, l.Wait(t.Context(), after))
				records, through, err := l.Since(after, 1+5000*reader)
				if errors.Is(err, ErrTruncated) {
					after = l.Base()
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				var want []storage.Record
				for i := after + 1; i <= through; i++ {
					want = append(want, sample(i, 5))
				}
				if !sameRecords(records, want) {
					t.Errorf("Since(%d) is wrong", after)
					return
				}
				after = through
			}
		})
	}
	group.Go(func() {
		for l.Head() < last {
			must(t, l.Sync())
			l.Trim()
			next := storage.Index(0)
			for r, err := range l.Backward() {
				if errors.Is(err, ErrTruncated) {
					break
				}
				must(t, err)
				if next != 0 && r.Index != next {
					t.Errorf("backward: %d, want %d", r.Index, next)
				}
				next = r.Index - 1
			}
		}
	})
	fill(t, l, 0, last)
	group.Wait()
	must(t, l.Close())
}
