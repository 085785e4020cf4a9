package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// sampleStream returns a stream of n records and what was said about it.
func sampleStream(t testing.TB, n int) ([]byte, fsm.SnapshotInfo) {
	t.Helper()
	f := open(t, t.TempDir())
	f.Apply(&raft.Log{Type: raft.LogConfiguration, Index: 1, Term: 1, Data: raft.EncodeConfiguration(raft.Configuration{
		Servers: []raft.Server{{ID: "a", Address: "a:1"}},
	})})
	for i := range n {
		apply(t, f, uint64(i+2), puts(fmt.Sprintf("s/a/%04d", i), fmt.Sprint("value ", i)))
	}
	var stream bytes.Buffer
	info, err := f.WriteSnapshot(context.Background(), &stream)
	if err != nil {
		t.Fatalf("WriteSnapshot: %v", err)
	}
	return stream.Bytes(), info
}

func TestSnapshotInfo(t *testing.T) {
	for _, n := range []int{0, 1, 100, 3000} { // 3000 records are several blocks
		stream, info := sampleStream(t, n)
		want := fsm.SnapshotInfo{Index: storage.Index(n + 1), Term: 1, Entries: uint64(n), Bytes: int64(len(stream))}
		if info != want {
			t.Errorf("WriteSnapshot of %d records = %+v, want %+v", n, info, want)
		}
		got, _, err := fsm.VerifySnapshot(iotest.HalfReader(bytes.NewReader(stream)), "")
		if err != nil || got != want {
			t.Errorf("VerifySnapshot of %d records = %+v, %v, want %+v", n, got, err, want)
		}
	}
}

// The length is announced before anything is read, so records that end just on or beside the border of a
// block matter, and so do values longer than one.
func TestSnapshotBlockBorders(t *testing.T) {
	const base = 64<<10 - 4 - 5*8 - 8 - 5 - 10 // one record of this size fills the first block exactly
	for _, size := range []int{base - 1, base, base + 1, base + 64<<10, storage.MaxValueBytes} {
		f := open(t, t.TempDir())
		apply(t, f, 1, puts("s/a/k", string(make([]byte, size))))
		var stream bytes.Buffer
		info, err := f.WriteSnapshot(context.Background(), &stream)
		if err != nil || info.Bytes != int64(stream.Len()) {
			t.Errorf("value of %d bytes: announced %d bytes, wrote %d, %v", size, info.Bytes, stream.Len(), err)
		}
		if _, _, err := fsm.VerifySnapshot(&stream, ""); err != nil {
			t.Errorf("value of %d bytes: VerifySnapshot = %v", size, err)
		}
	}
}

func TestDamagedStreams(t *testing.T) {
	stream, _ := sampleStream(t, 20)
	check := func(what string, b []byte) {
		var bad *storage.CorruptError
		if _, _, err := fsm.VerifySnapshot(bytes.NewReader(b), ""); !errors.As(err, &bad) {
			t.Errorf("%s: VerifySnapshot = %v, want a CorruptError", what, err)
		}
	}
	for bit := 0; bit < len(stream)*8; bit += 3 {
		b := bytes.Clone(stream)
		b[bit/8] ^= 1 << (bit % 8)
		check(fmt.Sprintf("bit %d of byte %d", bit%8, bit/8), b)
	}
	for n := range stream {
		check(fmt.Sprintf("cut to %d bytes", n), stream[:n])
	}
	check("a byte too many", append(bytes.Clone(stream), 0))
	check("twice", append(bytes.Clone(stream), stream...))

	long, _ := sampleStream(t, 5000)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		bit := rng.IntN(len(long) * 8)
		long[bit/8] ^= 1 << (bit % 8)
		check(fmt.Sprintf("long: bit %d of byte %d", bit%8, bit/8), long)
		long[bit/8] ^= 1 << (bit % 8)
	}
	const blockBytes = 64<<10 + 8
	swapped := bytes.Clone(long)
	copy(swapped[16:], long[16+blockBytes:16+2*blockBytes])
	copy(swapped[16+blockBytes:], long[16:16+blockBytes])
	check("blocks swapped", swapped)
	check("block missing", append(bytes.Clone(long[:16+blockBytes]), long[16+2*blockBytes:]...))
}

// What is received in pieces and damaged replaces nothing and leaves nothing behind.
func TestReceivingDamagedSnapshots(t *testing.T) {
	stream, _ := sampleStream(t, 3000)
	dir := t.TempDir()
	f := open(t, dir)
	apply(t, f, 5000, puts("s/a/mine", "1"))
	want := dump(t, f)
	damaged := bytes.Clone(stream)
	damaged[len(damaged)-40] ^= 1
	tests := []struct {
		name  string
		index uint64
		bytes []byte
	}{
		{"nothing", 6000, nil},
		{"beginning", 6000, stream[:len(stream)/2]},
		{"damaged near its end", 6000, damaged},
		{"newer than its place in the log", 2000, stream},
	}
	for _, tt := range tests {
		sink, err := f.SnapshotStore().Create(1, tt.index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, copyErr := io.Copy(sink, bytes.NewReader(tt.bytes))
		if copyErr != nil {
			sink.Cancel()
		}
		if err := sink.Close(); copyErr == nil && err == nil {
			t.Errorf("%s: it was accepted", tt.name)
		}
	}
	sink, err := f.SnapshotStore().Create(1, 6000, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write(stream[:1000]); err != nil {
		t.Fatal(err)
	}
	if err := sink.Cancel(); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	// Received whole, but never restored: the next one takes its place, and Close removes that.
	for range 2 {
		sink, err := f.SnapshotStore().Create(1, 6000, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(sink, bytes.NewReader(stream)); err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := dump(t, f); got != want {
		t.Errorf("the state changed to\n%s\nfrom\n%s", got, want)
	}
	mustClose(t, f)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 2 { // with the checksums
		t.Errorf("left behind: %v, %v", names, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fsm-install-1.tmp"), stream, 0o600); err != nil {
		t.Fatal(err)
	}
	f = open(t, dir)
	if names, err := filepath.Glob(filepath.Join(dir, "*.tmp")); err != nil || len(names) != 0 {
		t.Errorf("Open left an interrupted install: %v, %v", names, err)
	}
	if got := dump(t, f); got != want {
		t.Errorf("the state changed to\n%s\nfrom\n%s", got, want)
	}
}

// Readers that are under way during an install keep what they began with.
func TestInstallUnderReaders(t *testing.T) {
	stream, _ := sampleStream(t, 3000)
	f := open(t, t.TempDir())
	apply(t, f, 1, puts("s/a/mine", string(make([]byte, 200<<10))))
	_, old, err := f.SnapshotStore().Open(mustList(t, f)[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	half := make([]byte, 1000)
	if _, err := io.ReadFull(old, half); err != nil {
		t.Fatal(err)
	}
	if err := f.Restore(io.NopCloser(bytes.NewReader(stream))); err != nil {
		t.Fatalf("Restore: %v", err)
	}
	if e, err := f.Get(context.Background(), "s/a/0001"); err != nil || string(e.Value) != "value 1" {
		t.Errorf("Get after the install = %v, %v", e, err)
	}
	if _, err := f.Get(context.Background(), "s/a/mine"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("an entry of the old state survived: %v", err)
	}
	rest, err := io.ReadAll(old)
	if err != nil {
		t.Fatal(err)
	}
	if info, _, err := fsm.VerifySnapshot(bytes.NewReader(append(half, rest...)), ""); err != nil || info.Index != 1 || info.Entries != 1 {
		t.Errorf("the stream that was under way = %+v, %v", info, err)
	}
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	apply(t, f, 4000, puts("s/a/more", "1"))
}

func mustList(t *testing.T, f *fsm.FSM) []*raft.SnapshotMeta {
	t.Helper()
	if _, err := f.WriteSnapshot(context.Background(), io.Discard); err != nil { // folds
		t.Fatal(err)
	}
	metas, err := f.SnapshotStore().List()
	if err != nil || len(metas) != 1 {
		t.Fatalf("List = %v, %v", metas, err)
	}
	return metas
}

func FuzzSnapshotStream(f *testing.F) {
	for _, n := range []int{0, 1, 5} {
		stream, _ := sampleStream(f, n)
		f.Add(stream)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		info, _, err := fsm.VerifySnapshot(bytes.NewReader(stream), "")
		if err != nil {
			return
		}
		to := open(t, t.TempDir())
		if err := to.Restore(io.NopCloser(bytes.NewReader(stream))); err != nil {
			t.Fatalf("verified, but Restore fails: %v", err)
		}
		var again bytes.Buffer
		got, err := to.WriteSnapshot(context.Background(), &again)
		if err != nil || got != info || !bytes.Equal(again.Bytes(), stream) {
			t.Errorf("an accepted stream is not written again: %+v and %+v, %v", got, info, err)
		}
	})
}

// The checksum of a block stops a damaged install at once, not after gigabytes.
func TestDamageIsNoticedEarly(t *testing.T) {
	stream, _ := sampleStream(t, 5000)
	stream[bytes.Index(stream, []byte("value 1"))] ^= 1 // no rule but the checksum forbids it
	r := bytes.NewReader(stream)
	if _, _, err := fsm.VerifySnapshot(r, ""); err == nil {
		t.Fatal("a damaged stream was accepted")
	}
	if read := len(stream) - r.Len(); read > 80<<10 {
		t.Errorf("read %d of %d bytes though the first block was damaged", read, len(stream))
	}
}

// Once Raft's snapshot is closed, Raft removes log entries: all of them must be in the file by then, also
// when no time has passed in which the file would have been written anyway.
func TestSnapshotIsDurable(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, err := fsm.Open(dir, fsm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		apply(t, f, 10, puts("s/a/k", "1"))
		if metas, err := f.SnapshotStore().List(); err != nil || len(metas) != 0 {
			t.Fatalf("List before anything is durable = %v, %v", metas, err)
		}
		snap, err := f.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		members := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a:1"}}}
		sink, err := f.SnapshotStore().Create(1, 12, 3, members, 9, nil) // 11 and 12 are Raft's own
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(snap.Persist(sink), sink.Close()); err != nil {
			t.Fatal(err)
		}
		metas, err := f.SnapshotStore().List()
		if err != nil || len(metas) != 1 {
			t.Fatalf("List = %v, %v", metas, err)
		}
		m := metas[0]
		if m.Index != 12 || m.Term != 3 || m.ConfigurationIndex != 9 || !reflect.DeepEqual(m.Configuration, members) {
			t.Errorf("the durable state is %+v, want index 12 of term 3 with the configuration of 9", m)
		}
		if f.AppliedIndex() != 12 || f.LastTerm() != 3 {
			t.Errorf("applied index %d of term %d, want 12 of 3", f.AppliedIndex(), f.LastTerm())
		}
		mustClose(t, f)
	})
}

// A state that replaces another has checksums of its own beside it: the next start takes those, and none of the former file.
func TestInstalledStateIsTrusted(t *testing.T) {
	stream, _ := sampleStream(t, 300)
	dir := t.TempDir()
	f := open(t, dir)
	for i := uint64(1); i < 20; i++ {
		apply(t, f, i, puts(fmt.Sprintf("s/a/%d", i), strings.Repeat("former", 500)))
	}
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Restore(io.NopCloser(bytes.NewReader(stream))); err != nil {
		t.Fatal(err)
	}
	want := dump(t, f)
	mustClose(t, f)
	f = open(t, dir)
	if _, total := f.Unverified(); total == 0 {
		t.Error("the whole file was read at the start")
	}
	if got := dump(t, f); got != want {
		t.Error("the state is another after the start")
	}
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}
