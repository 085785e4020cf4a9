package raftlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

func mustOpenLogs(t testing.TB, path string) (*Log, *Stable) {
	t.Helper()
	l, s, err := Open(path, true)
	if err != nil {
		t.Fatalf("openLogs: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l, s
}

// logDir is in memory where there is a file system for that: these tests are not about the disk.
func logDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "coffer-raftlog-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func entry(index, term uint64, size int) *raft.Log {
	data := make([]byte, min(size, 256), max(size, 256))
	for i := range data {
		data[i] = byte(index) + byte(i)
	}
	for len(data) < size { // it repeats, so it is made by copying, which the race detector looks at as a whole
		data = append(data, data[:min(len(data), size-len(data))]...)
	}
	return &raft.Log{Index: index, Term: term, Data: data, AppendedAt: time.Unix(1700000000, int64(index)).UTC()}
}

func entries(from, to, term uint64, size int) []*raft.Log {
	var out []*raft.Log
	for i := from; i <= to; i++ {
		out = append(out, entry(i, term, size))
	}
	return out
}

// forget lets everything be read from raft.db.
func forget(l *Log) error {
	if err := l.settle(); err != nil {
		return err
	}
	defer l.settled()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	return nil
}

// dump stands for everything Raft can learn from the file.
func dump(l *Log, s *Stable) (string, error) {
	first, last, _ := l.Size()
	if err := forget(l); err != nil {
		return "", err
	}
	sum := sha256.New()
	for i := first; i <= last && last > 0; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			return "", err
		}
		sum.Write(appendEntry(nil, &e))
	}
	return fmt.Sprintf("%d-%d %v %x", first, last, s.values, sum.Sum(nil)), nil
}

func TestLogsKeepWhatWasStored(t *testing.T) {
	path := filepath.Join(logDir(t), FileName)
	l, s := mustOpenLogs(t, path)
	want := entry(3, 2, 10)
	want.Extensions = []byte("extension")
	want.Type = raft.LogConfiguration
	steps := []error{
		l.StoreLogs(entries(1, 2, 1, 100)),
		l.StoreLog(want),
		s.SetUint64([]byte("CurrentTerm"), 7),
		s.Set([]byte("LastVoteCand"), []byte("somebody")),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	for _, reopen := range []bool{false, true} {
		if reopen {
			l.Close()
			l, s = mustOpenLogs(t, path)
		}
		var got raft.Log
		if err := l.GetLog(3, &got); err != nil || !got.AppendedAt.Equal(want.AppendedAt) {
			t.Fatalf("GetLog(3) = %v, %v", got, err)
		}
		got.AppendedAt = want.AppendedAt
		if !reflect.DeepEqual(&got, want) {
			t.Errorf("reopened %v: GetLog(3) = %+v, want %+v", reopen, got, want)
		}
		if err := l.GetLog(4, &got); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("GetLog(4) = %v, want ErrLogNotFound", err)
		}
		if term, err := s.GetUint64([]byte("CurrentTerm")); term != 7 || err != nil {
			t.Errorf("CurrentTerm = %d, %v", term, err)
		}
		if _, err := s.Get([]byte("never set")); err == nil || err.Error() != "not found" {
			t.Errorf("Get of an unset key = %v, Raft needs the text %q", err, "not found")
		}
	}
}

func TestLogsDeleteAtTheEnds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		from, to    uint64
		first, last uint64
		fails       bool
	}{
		{"prefix", 1, 2500, 2501, 3000, false},
		{"suffix", 500, 3000, 1, 499, false},
		{"all", 1, 3000, 0, 0, false},
		{"beyond both ends", 0, 9000, 0, 0, false},
		{"outside", 6000, 7000, 1, 3000, false},
		{"middle", 10, 20, 1, 3000, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(logDir(t), FileName)
			l, _ := mustOpenLogs(t, path)
			if err := l.StoreLogs(entries(1, 3000, 1, 8)); err != nil {
				t.Fatal(err)
			}
			if err := l.DeleteRange(tt.from, tt.to); (err != nil) != tt.fails {
				t.Fatalf("DeleteRange(%d, %d) = %v", tt.from, tt.to, err)
			}
			l.Close()
			l, _ = mustOpenLogs(t, path)
			if first, last, _ := l.Size(); first != tt.first || last != tt.last {
				t.Errorf("holds %d to %d, want %d to %d", first, last, tt.first, tt.last)
			}
		})
	}
}

// An interrupted delete leaves entries that the header no longer names; a gap can only follow a snapshot.
func TestLogsForgetWhatTheHeaderDoesNotName(t *testing.T) {
	path := filepath.Join(logDir(t), FileName)
	l, _ := mustOpenLogs(t, path)
	if err := l.StoreLogs(entries(1, 50, 1, 8)); err != nil {
		t.Fatal(err)
	}
	l.Close()
	bolt, err := openBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(bolt.StoreLog(header(10, 40, journalRef{})), bolt.Close()); err != nil {
		t.Fatal(err)
	}
	l, s := mustOpenLogs(t, path)
	if first, last, _ := l.Size(); first != 10 || last != 40 {
		t.Fatalf("holds %d to %d, want 10 to 40", first, last)
	}
	if err := l.StoreLogs(entries(41, 41, 2, 8)); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLogs(entries(100, 101, 3, 8)); err != nil {
		t.Fatal(err)
	}
	if first, last, _ := l.Size(); first != 100 || last != 101 {
		t.Errorf("after a gap the log holds %d to %d, want 100 to 101", first, last)
	}
	want, err := dump(l, s)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	l, s = mustOpenLogs(t, path)
	if got, err := dump(l, s); got != want || err != nil {
		t.Errorf("reopened: %s, %v, want %s", got, err, want)
	}
}

// Raft compacts on a goroutine of its own while it appends.
func TestLogsAppendWhileCompacting(t *testing.T) {
	path := filepath.Join(logDir(t), FileName)
	l, s := mustOpenLogs(t, path)
	if err := l.StoreLogs(entries(1, 50, 1, 8)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for i := uint64(1); i <= 40 && err == nil; i++ {
			err = l.DeleteRange(i, i)
		}
		done <- err
	}()
	for i := uint64(51); i <= 120; i++ {
		if err := l.StoreLogs(entries(i, i, 1, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if first, last, _ := l.Size(); first != 41 || last != 120 {
		t.Errorf("holds %d to %d, want 41 to 120", first, last)
	}
	want, err := dump(l, s)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	l, s = mustOpenLogs(t, path)
	if got, err := dump(l, s); got != want || err != nil {
		t.Errorf("reopened: %v, and it holds something else: %v", err, got != want)
	}
}

func TestLogsMissingFile(t *testing.T) {
	path := filepath.Join(logDir(t), FileName)
	_, _, err := Open(path, false)
	if c, ok := errors.AsType[*storage.CorruptError](err); !ok || c.File != path {
		t.Errorf("openLogs without a file = %v, want a CorruptError naming it", err)
	}
}

// matrixFile makes a file with several levels of pages, overflow pages, free pages and both buckets.
func matrixFile(t *testing.T) (path string, content []byte, want string) {
	path = filepath.Join(logDir(t), FileName)
	l, s := mustOpenLogs(t, path)
	steps := []error{s.SetUint64([]byte("CurrentTerm"), 3)}
	for i := uint64(1); i < 200; i += 10 {
		steps = append(steps, l.StoreLogs(entries(i, i+9, 1, 60)))
	}
	steps = append(steps,
		l.StoreLogs(entries(201, 202, 2, 9000)),
		l.DeleteRange(1, 60),
		l.StoreLogs(entries(203, 210, 2, 100)),
		s.Set([]byte("LastVoteCand"), []byte("node-b")),
		l.StoreLogs(entries(211, 212, 3, 40)),
	)
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	want, err := dump(l, s)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return path, used(t, path), want
}

// used reads a file without its end that was never used, which is nearly all of it: bbolt makes files longer by 16 MiB at a time.
func used(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const high = 16 + 40 // where a meta page has the number of pages up to which the file is used
	metas := make([]byte, 2*4096)
	if _, err := f.ReadAt(metas, 0); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 4096*max(binary.NativeEndian.Uint64(metas[high:]), binary.NativeEndian.Uint64(metas[4096+high:])))
	if _, err := f.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return content
}

// mustDetect opens a damaged copy: either the damage is found and the file named, or nothing was lost.
func mustDetect(t *testing.T, path string, damaged []byte, want, what string, write bool) (found bool) {
	t.Helper()
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	l, s, err := Open(path, false)
	if err != nil {
		if c, ok := errors.AsType[*storage.CorruptError](err); !ok || c.File != path {
			t.Fatalf("%s: %v, want a CorruptError naming %s", what, err, path)
		}
		return true
	}
	defer l.Close()
	if got, err := dump(l, s); err != nil || got != want {
		t.Fatalf("%s was not found and changed what the log says (%v)", what, err)
	}
	if !write {
		return false
	}
	// It must also still be good after a write and another opening.
	first, last, _ := l.Size()
	if err := l.StoreLogs(entries(last+1, last+3, 4, 5000)); err != nil {
		t.Fatalf("%s: storing: %v", what, err)
	}
	l.Close()
	state, err := checkLogs(path)
	if err != nil || state.first != first || state.last != last+3 {
		t.Fatalf("%s was not found, and after a write the file is bad: %v", what, err)
	}
	return false
}

func TestLogsDetectEveryFlippedBit(t *testing.T) {
	t.Parallel()
	path, content, want := matrixFile(t)
	random := rand.New(rand.NewPCG(1, 2))
	var positions []int
	for page := 0; page < len(content); page += 4096 { // the metas, and the headers and first elements of all pages
		for i := range 80 {
			if page < 2*4096 || random.IntN(20) == 0 {
				positions = append(positions, page+i)
			}
		}
	}
	for range 60 {
		positions = append(positions, random.IntN(len(content)))
	}
	found := 0
	damaged := make([]byte, len(content))
	for i, at := range positions {
		copy(damaged, content)
		bit := byte(1) << random.IntN(8)
		damaged[at] ^= bit
		if mustDetect(t, path, damaged, want, fmt.Sprintf("bit %#x of byte %d (page %d)", bit, at, at/4096), i%40 == 0) {
			found++
		}
	}
	if found == 0 || found == len(positions) {
		t.Errorf("%d of %d flips were found: the test does not test", found, len(positions))
	}
	t.Logf("%d of %d flips found", found, len(positions))
}

func TestLogsDetectTruncation(t *testing.T) {
	path, content, want := matrixFile(t)
	found := 0
	for n := 0; n < len(content); n += 4000 {
		if mustDetect(t, path, content[:n], want, fmt.Sprintf("truncation to %d of %d bytes", n, len(content)), true) {
			found++
		}
	}
	if found == 0 {
		t.Error("no truncation was found")
	}
}

func FuzzCheckLogs(f *testing.F) {
	path := filepath.Join(logDir(f), FileName)
	if err := createLogs(path); err != nil {
		f.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte{})
	f.Add(uint32(4096), []byte{1, 2, 3})
	f.Add(uint32(3*4096), []byte{0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		damaged := append([]byte(nil), content...)
		copy(damaged[int(at)%len(damaged):], patch)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		checkLogs(path) // must not panic
	})
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte{0x80})
	f.Add([]byte{0x86, 0xa5, 'I', 'n', 'd', 'e', 'x', 1})
	f.Fuzz(func(t *testing.T, value []byte) {
		if e := new(raft.Log); decodeEntry(value, e) == nil && checksum(e, e.Extensions) != checksum(unsealed(t, seal(e)), e.Extensions) {
			t.Errorf("%+v does not survive a round trip", e)
		}
	})
}

func unsealed(t *testing.T, e *raft.Log) *raft.Log {
	if err := unseal(e); err != nil {
		t.Fatal(err)
	}
	return e
}

func FuzzDecodeStable(f *testing.F) {
	f.Add(encodeStable(nil))
	f.Add(encodeStable(map[string][]byte{"CurrentTerm": {0, 0, 0, 0, 0, 0, 0, 1}, "LastVoteCand": []byte("a")}))
	f.Fuzz(func(t *testing.T, record []byte) {
		values, err := decodeStable(record)
		if err != nil {
			return
		}
		again, err := decodeStable(encodeStable(values))
		if err != nil || !reflect.DeepEqual(again, values) {
			t.Errorf("%q does not survive a round trip: %v, %v", values, again, err)
		}
	})
}

// BenchmarkCheckLogs reads a log of 400 MB, as a start does.
func BenchmarkCheckLogs(b *testing.B) {
	path := filepath.Join(b.TempDir(), FileName)
	l, _, err := Open(path, true)
	if err != nil {
		b.Fatal(err)
	}
	const entries, together = 10_000, 20
	data := bytes.Repeat([]byte("an entry for many writes"), 40_000/24)
	for i := uint64(1); i <= entries; i += together {
		var batch []*raft.Log
		for j := i; j < i+together; j++ {
			batch = append(batch, &raft.Log{Index: j, Term: 1, Data: data, AppendedAt: time.Now()})
		}
		if err := l.StoreLogs(batch); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(entries * int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := checkLogs(path); err != nil {
			b.Fatal(err)
		}
	}
}
