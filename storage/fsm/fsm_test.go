package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/coffer-project/coffer/proto/logpb"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

func open(t testing.TB, dir string) *fsm.FSM {
	t.Helper()
	f, err := fsm.Open(dir, fsm.Options{WholeBytes: -1}) // as if the state were large
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mustClose(t testing.TB, f *fsm.FSM) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// dump lists every entry with its version.
func dump(t testing.TB, f *fsm.FSM) string {
	t.Helper()
	entries, err := f.Scan(context.Background(), "", "", 0)
	if err != nil {
		t.Fatalf("Scan: %v", err)
	}
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s@%d=%x\n", e.Key, e.Version, e.Value)
	}
	return b.String()
}

func logEntry(t testing.TB, index uint64, batches ...storage.Batch) *raft.Log {
	t.Helper()
	data, err := fsm.EncodeCommand(1, batches)
	if err != nil {
		t.Fatalf("EncodeCommand: %v", err)
	}
	return &raft.Log{Type: raft.LogCommand, Index: index, Term: 1, Data: data}
}

// apply applies one entry and returns what each batch was answered.
func apply(t testing.TB, f *fsm.FSM, index uint64, batches ...storage.Batch) []error {
	t.Helper()
	switch res := f.Apply(logEntry(t, index, batches...)).(type) {
	case fsm.Result:
		if res.Index != storage.Index(index) || len(res.Errs) != len(batches) {
			t.Fatalf("Apply(%d) = %+v", index, res)
		}
		return res.Errs
	default:
		t.Fatalf("Apply(%d) = %v", index, res)
		return nil
	}
}

// puts makes a batch of puts from keys and values.
func puts(kv ...string) storage.Batch {
	var b storage.Batch
	for i := 0; i < len(kv); i += 2 {
		b.Puts = append(b.Puts, storage.Put{Key: storage.Key(kv[i]), Value: []byte(kv[i+1])})
	}
	return b
}

func reads(b storage.Batch, key string, version storage.Index) storage.Batch {
	b.Reads = append(b.Reads, storage.Read{Key: storage.Key(key), Version: version})
	return b
}

func deletes(b storage.Batch, keys ...string) storage.Batch {
	for _, k := range keys {
		b.Deletes = append(b.Deletes, storage.Key(k))
	}
	return b
}

func TestBatchesOfOneCommand(t *testing.T) {
	conflict := storage.ErrConflict
	tests := []struct {
		name    string
		batches []storage.Batch
		errs    []error
		want    string // the state afterwards; before it was s/a/k@1=31
	}{
		{"each one on its own", []storage.Batch{
			reads(puts("s/a/k", "2"), "s/a/k", 99), puts("s/a/l", "3"),
		}, []error{conflict, nil}, "s/a/k@1=31\ns/a/l@2=33\n"},
		{"all or nothing", []storage.Batch{
			reads(reads(deletes(puts("s/a/l", "2"), "s/a/k"), "s/a/k", 1), "s/a/m", 1),
		}, []error{conflict}, "s/a/k@1=31\n"},
		{"a later one sees the earlier ones", []storage.Batch{
			puts("s/a/k", "2"), reads(puts("s/a/k", "3"), "s/a/k", 1),
		}, []error{nil, conflict}, "s/a/k@2=32\n"},
		{"a later one holds at this very entry's version", []storage.Batch{
			puts("s/a/k", "2"), reads(puts("s/a/k", "3"), "s/a/k", 2),
		}, []error{nil, nil}, "s/a/k@2=33\n"},
		{"two creators", []storage.Batch{
			reads(puts("s/a/l", "1"), "s/a/l", 0), reads(puts("s/a/l", "2"), "s/a/l", 0),
		}, []error{nil, conflict}, "s/a/k@1=31\ns/a/l@2=31\n"},
		{"deleted before", []storage.Batch{
			deletes(storage.Batch{}, "s/a/k"), reads(puts("s/a/k", "4"), "s/a/k", 1), reads(puts("s/a/k", "5"), "s/a/k", 0),
		}, []error{nil, conflict, nil}, "s/a/k@2=35\n"},
		{"what a failed one wrote is not seen", []storage.Batch{
			reads(puts("s/a/l", "1"), "s/a/k", 7), reads(puts("s/a/l", "2"), "s/a/l", 0),
		}, []error{conflict, nil}, "s/a/k@1=31\ns/a/l@2=32\n"},
		{"only checked", []storage.Batch{
			reads(storage.Batch{}, "s/a/k", 1), reads(storage.Batch{}, "s/a/k", 2),
		}, []error{nil, conflict}, "s/a/k@1=31\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := open(t, t.TempDir())
			apply(t, f, 1, puts("s/a/k", "1"))
			if errs := apply(t, f, 2, tt.batches...); !slices.Equal(errs, tt.errs) {
				t.Errorf("Apply = %v, want %v", errs, tt.errs)
			}
			if got := dump(t, f); got != tt.want {
				t.Errorf("state:\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// A command that needs nothing new is one that an older program understands.
func TestOldestFormatOfACommand(t *testing.T) {
	plain := puts("s/a/k", "1")
	copied := puts("s/a/k", "1")
	copied.Puts[0].Origin = storage.Position{Epoch: 1, Index: 1}
	for _, tt := range []struct {
		name    string
		batches []storage.Batch
		want    uint32
	}{
		{"no origin", []storage.Batch{plain, deletes(reads(plain, "s/a/l", 0), "s/a/m")}, 1},
		{"no batch", nil, 1},
		{"one origin among others", []storage.Batch{plain, copied}, 2},
	} {
		data, err := fsm.EncodeCommand(1, tt.batches)
		if err != nil {
			t.Fatal(err)
		}
		var c logpb.Command
		if err := proto.Unmarshal(data, &c); err != nil || c.Format != tt.want {
			t.Errorf("%s: format %d, %v, want %d", tt.name, c.Format, err, tt.want)
		}
	}
}

func TestOneChangePerEntry(t *testing.T) {
	f := open(t, t.TempDir())
	var got []storage.Change
	stop := f.OnChange(func(ch storage.Change) { got = append(got, ch) })
	apply(t, f, 1,
		puts("s/a/k", "1", "s/a/l", "1"),
		reads(puts("s/a/m", "never"), "s/a/k", 9),
		deletes(puts("s/a/k", "2"), "s/a/l"),
		puts("s/a/n", "1"))
	apply(t, f, 2, reads(puts("s/a/k", "never"), "s/a/k", 9))
	f.Apply(&raft.Log{Type: raft.LogConfiguration, Index: 3, Term: 1, Data: raft.EncodeConfiguration(raft.Configuration{})})
	stop()
	apply(t, f, 4, puts("s/a/k", "5"))
	want := []storage.Change{{
		Index: 1,
		Entries: []storage.Entry{
			{Key: "s/a/k", Value: []byte("2"), Version: 1},
			{Key: "s/a/l"},
			{Key: "s/a/n", Value: []byte("1"), Version: 1},
		},
		Areas: []string{"a"},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("changes %+v, want %+v", got, want)
	}
}

func TestChangesComeBeforeTheIndex(t *testing.T) {
	f := open(t, t.TempDir())
	var last storage.Index
	f.OnChange(func(ch storage.Change) {
		if applied := f.AppliedIndex(); applied >= ch.Index {
			t.Errorf("the change at %d is announced when %d is applied", ch.Index, applied)
		}
		if ch.Index <= last {
			t.Errorf("the change at %d follows the one at %d", ch.Index, last)
		}
		last = ch.Index
	})
	var logs []*raft.Log
	for i := range uint64(300) {
		logs = append(logs, logEntry(t, 2*i+1, puts("s/a/k", strings.Repeat("v", 9000)))) // several commits
	}
	seen := make(chan storage.Index)
	go func() {
		if err := f.WaitApplied(context.Background(), 599); err != nil {
			t.Error(err)
		}
		seen <- last
	}()
	f.ApplyBatch(logs)
	if got := <-seen; got != 599 {
		t.Errorf("a waiter for 599 woke up when the last change was %d", got)
	}
}

func TestAppliedEntriesAreSkipped(t *testing.T) {
	f := open(t, t.TempDir())
	apply(t, f, 7, puts("s/a/k", "1"))
	for _, i := range []uint64{1, 6, 7} {
		if got := f.Apply(logEntry(t, i, puts("s/a/k", "again"))); got != nil {
			t.Errorf("Apply(%d) = %v, want nil", i, got)
		}
	}
	if got, want := dump(t, f), "s/a/k@7=31\n"; got != want {
		t.Errorf("state %s, want %s", got, want)
	}
}

func TestUnknownCommandStopsTheReplica(t *testing.T) {
	known := logEntry(t, 2, puts("s/a/k", "2")).Data
	command := func(change func(*logpb.Command)) []byte {
		var c logpb.Command
		if err := proto.Unmarshal(known, &c); err != nil {
			t.Fatal(err)
		}
		change(&c)
		b, err := proto.Marshal(&c)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	unknownField := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	tests := []struct {
		name string
		log  raft.Log
	}{
		{"no command", raft.Log{Data: []byte("\xff\xff")}},
		{"no format", raft.Log{Data: nil}},
		{"newer format", raft.Log{Data: command(func(c *logpb.Command) { c.Format = 4 })}},
		{"format too old for what it says", raft.Log{Data: command(func(c *logpb.Command) { c.Ops[0].Puts[0].OriginEpoch, c.Ops[0].Puts[0].OriginIndex = 1, 1 })}},
		{"incomplete origin", raft.Log{Data: command(func(c *logpb.Command) { c.Format, c.Ops[0].Puts[0].OriginIndex = 2, 1 })}},
		{"newer field", raft.Log{Data: append(bytes.Clone(known), unknownField...)}},
		{"newer field in an op", raft.Log{Data: command(func(c *logpb.Command) { c.Ops[0].ProtoReflect().SetUnknown(unknownField) })}},
		{"newer field in a put", raft.Log{Data: command(func(c *logpb.Command) { c.Ops[0].Puts[0].ProtoReflect().SetUnknown(unknownField) })}},
		{"empty key", raft.Log{Data: command(func(c *logpb.Command) { c.Ops[0].Puts[0].Key = "" })}},
		{"unknown kind", raft.Log{Type: raft.LogBarrier, Data: known}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			f := open(t, dir)
			tt.log.Index, tt.log.Term = 2, 1
			batch := []*raft.Log{logEntry(t, 1, puts("s/a/k", "1")), &tt.log, logEntry(t, 3, puts("s/a/k", "3"))}
			waited := make(chan error)
			go func() { waited <- f.WaitApplied(context.Background(), 3) }()
			answers := f.ApplyBatch(batch)
			if _, ok := answers[0].(fsm.Result); !ok {
				t.Errorf("the entry before was answered %v", answers[0])
			}
			for _, a := range append(answers[1:], f.Apply(logEntry(t, 4, puts("s/a/k", "4")))) {
				if err, ok := a.(error); !ok || err == nil {
					t.Errorf("the entry or one after it was answered %v, want an error", a)
				}
			}
			if err := <-waited; err == nil {
				t.Error("WaitApplied beyond the entry = nil, want an error")
			}
			if f.Err() == nil || f.Health() == nil {
				t.Errorf("Err = %v, Health = %v, want the reason", f.Err(), f.Health())
			}
			if _, err := f.Snapshot(); err == nil {
				t.Error("a stopped replica lets Raft compact the log")
			}
			for range 2 { // also after a restart it is at entry 1, and stays there
				if got, want := dump(t, f), "s/a/k@1=31\n"; got != want || f.AppliedIndex() != 1 {
					t.Errorf("state %s at %d, want %s at 1", got, f.AppliedIndex(), want)
				}
				mustClose(t, f)
				f = open(t, dir)
				f.Apply(&tt.log)
			}
		})
	}
}

func TestWaitApplied(t *testing.T) {
	f := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.WaitApplied(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitApplied with an ended context = %v", err)
	}
	waited := make(chan error)
	for range 3 {
		go func() { waited <- f.WaitApplied(context.Background(), 2) }()
	}
	apply(t, f, 1, puts("s/a/k", "1"))
	apply(t, f, 2, puts("s/a/k", "2"))
	for range 3 {
		if err := <-waited; err != nil {
			t.Errorf("WaitApplied(2) = %v", err)
		}
	}
	go func() { waited <- f.WaitApplied(context.Background(), 3) }()
	mustClose(t, f)
	if err := <-waited; !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("WaitApplied on a closed FSM = %v, want %v", err, storage.ErrUnavailable)
	}
}

func TestClosed(t *testing.T) {
	f := open(t, t.TempDir())
	apply(t, f, 1, puts("s/a/k", "1"))
	mustClose(t, f)
	if err := f.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
	if _, err := f.Get(context.Background(), "s/a/k"); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Get = %v, want %v", err, storage.ErrUnavailable)
	}
	if err, _ := f.Apply(logEntry(t, 2, puts("s/a/k", "2"))).(error); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Apply = %v, want %v", err, storage.ErrUnavailable)
	}
}

func TestOpenDamaged(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	apply(t, f, 1, puts("s/a/k", "1"))
	mustClose(t, f)
	name := filepath.Join(dir, "fsm.db")
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(content, []byte("s/a/k"))
	content[at] ^= 1
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = fsm.Open(dir, fsm.Options{})
	var bad *storage.CorruptError
	if !errors.As(err, &bad) || bad.File != name {
		t.Fatalf("Open = %v, want a CorruptError that names %s", err, name)
	}
	for _, name := range []string{"raft.db", "fsm.sums"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	aside, err := fsm.Quarantine(dir, "corrupt-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, moved := range []string{"fsm.db", "fsm.sums", "raft.db", "wal"} {
		if _, err := os.Stat(filepath.Join(aside, moved)); err != nil {
			t.Errorf("it was not moved aside: %v", err)
		}
	}
	if f := open(t, dir); f.AppliedIndex() != 0 || dump(t, f) != "" {
		t.Error("the state is not empty after the damaged one was moved aside")
	}
	if _, err := fsm.Quarantine(dir, "corrupt-1"); err == nil {
		t.Error("a second Quarantine of the same name mixes its files with the first one's")
	}
}

func TestEncodeCommandRefuses(t *testing.T) {
	tests := []struct {
		name  string
		batch storage.Batch
	}{
		{"empty key", puts("", "v")},
		{"long key", puts(strings.Repeat("k", storage.MaxKeyBytes+1), "v")},
		{"long value", puts("s/a/k", strings.Repeat("v", storage.MaxValueBytes+65))},
		{"key that is not UTF-8", puts("s/a/\xff", "v")},
		{"empty key read", reads(storage.Batch{}, "", 1)},
		{"empty key deleted", deletes(storage.Batch{}, "")},
	}
	for _, tt := range tests {
		if _, err := fsm.EncodeCommand(0, []storage.Batch{puts("s/a/fine", "v"), tt.batch}); err == nil {
			t.Errorf("%s: EncodeCommand accepted it", tt.name)
		}
	}
}

func command(index uint64, data []byte) *raft.Log {
	return &raft.Log{Type: raft.LogCommand, Index: index, Term: 1, Data: data}
}
