package fsm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

func open(t testing.TB, dir string) *fsm.FSM {
	t.Helper()
	f, err := fsm.Open(dir, fsm.Options{})
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

var _ = errors.Is
