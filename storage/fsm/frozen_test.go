package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

func freeze(t testing.TB, f *fsm.FSM) *fsm.Frozen {
	t.Helper()
	z, err := f.Freeze(context.Background())
	if err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	t.Cleanup(z.Close)
	return z
}

// walked lists what Walk gives, with positions; limit 0 is all.
func walked(t testing.TB, z *fsm.Frozen, prefix, after storage.Key, limit int) string {
	t.Helper()
	var b strings.Builder
	n := 0
	err := z.Walk(context.Background(), prefix, after, func(key storage.Key, mod storage.Position, value []byte) bool {
		fmt.Fprintf(&b, "%s@%s=%s ", key, mod, value)
		n++
		return n != limit
	})
	if err != nil {
		t.Errorf("Walk(%q, %q): %v", prefix, after, err)
	}
	return strings.TrimSpace(b.String())
}

func TestFrozenWalk(t *testing.T) {
	f := open(t, t.TempDir())
	apply(t, f, 1, puts("l/a/1", "l", "s/a/1", "a", "s/a/2", "b"))
	mustFold(t, f)
	copied := puts("s/a/3", "c", "s/b/1", "d")
	copied.Puts[0].Origin = storage.Position{Epoch: 4, Index: 77}
	apply(t, f, 2, deletes(copied, "s/a/2"))
	z := freeze(t, f)
	tests := []struct {
		prefix, after storage.Key
		limit         int
		want          string
	}{
		{"", "", 0, "l/a/1@0:1=l s/a/1@0:1=a s/a/3@4:77=c s/b/1@0:2=d"},
		{"s/", "", 0, "s/a/1@0:1=a s/a/3@4:77=c s/b/1@0:2=d"},
		{"s/", "", 2, "s/a/1@0:1=a s/a/3@4:77=c"},
		{"s/a/", "", 0, "s/a/1@0:1=a s/a/3@4:77=c"},
		{"s/a/", "s/a/1", 0, "s/a/3@4:77=c"},
		{"s/a/", "s/a/2", 0, "s/a/3@4:77=c"},
		{"s/a/", "s/a/3", 0, ""},
		{"s/a/", "s/b/", 0, ""},
		{"s/a/", "l/", 1, "s/a/1@0:1=a"},
		{"s/c/", "", 0, ""},
	}
	for _, tt := range tests {
		if got := walked(t, z, tt.prefix, tt.after, tt.limit); got != tt.want {
			t.Errorf("Walk(%q, %q), %d at most = %s, want %s", tt.prefix, tt.after, tt.limit, got, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := z.Walk(ctx, "", "", func(storage.Key, storage.Position, []byte) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("Walk with an ended context = %v", err)
	}
	if _, err := f.Freeze(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Freeze with an ended context = %v", err)
	}
}

func mustFold(t testing.TB, f *fsm.FSM) {
	t.Helper()
	if _, err := f.WriteSnapshot(context.Background(), io.Discard); err != nil {
		t.Fatal(err)
	}
}

// What was frozen stays as it was while entries are applied, folded, and the whole state is replaced.
func TestFrozenStays(t *testing.T) {
	stream, info := sampleStream(t, 50)
	f := open(t, t.TempDir())
	type frozen struct {
		*fsm.Frozen
		want string
		get  error // of s/a/even
	}
	var all []frozen
	keep := func() {
		z := freeze(t, f)
		_, err := f.Get(t.Context(), "s/a/even")
		all = append(all, frozen{z, walked(t, z, "", "", 0), err})
		if z.Index() != f.AppliedIndex() {
			t.Errorf("frozen at %d when %d was applied", z.Index(), f.AppliedIndex())
		}
	}
	keep()
	for i := range uint64(12) {
		b := puts("s/a/k", fmt.Sprint(i), fmt.Sprintf("s/a/%d", i), "v")
		if i%2 == 0 {
			b = deletes(b, "s/a/even")
		} else {
			b = puts("s/a/even", fmt.Sprint(i))
		}
		apply(t, f, i+1, b)
		keep()
		if i%3 == 0 {
			mustFold(t, f)
			keep()
		}
	}
	if err := f.Restore(io.NopCloser(bytes.NewReader(stream))); err != nil {
		t.Fatal(err)
	}
	keep()
	if last := all[len(all)-1]; last.Index() != info.Index {
		t.Errorf("frozen at %d after a snapshot of %d was installed", last.Index(), info.Index)
	}
	for _, z := range all {
		if got := walked(t, z.Frozen, "", "", 0); got != z.want {
			t.Errorf("frozen at %d it was\n%s\nand later\n%s", z.Index(), z.want, got)
		}
		e, err := z.Get("s/a/even")
		if !errors.Is(err, z.get) || err == nil && !strings.Contains(z.want, "s/a/even@0:"+fmt.Sprint(e.Version)+"="+string(e.Value)) {
			t.Errorf("frozen at %d: Get = %+v, %v, want %v and what is in\n%s", z.Index(), e, err, z.get, z.want)
		}
		z.Close()
		z.Close()
	}
	mustClose(t, f)
	if _, err := f.Freeze(t.Context()); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("Freeze of a closed FSM = %v, want ErrUnavailable", err)
	}
}

// A walk ends when the FSM is closed, which waits for what is frozen.
func TestCloseEndsWalks(t *testing.T) {
	f := open(t, t.TempDir())
	for i := range uint64(3) {
		var b storage.Batch
		for j := range 1000 {
			b.Puts = append(b.Puts, storage.Put{Key: storage.Key(fmt.Sprintf("s/a/%d/%d", i, j))})
		}
		apply(t, f, i+1, b)
	}
	z := freeze(t, f)
	var closing sync.WaitGroup
	n := 0
	err := z.Walk(t.Context(), "", "", func(storage.Key, storage.Position, []byte) bool {
		if n++; n == 1 {
			closing.Go(func() { mustClose(t, f) })
			_ = f.WaitApplied(context.Background(), 1<<60) // until it is closed
		}
		return true
	})
	if !errors.Is(err, storage.ErrUnavailable) || n == 3000 {
		t.Errorf("Walk = %v after %d keys, want ErrUnavailable before the last one", err, n)
	}
	z.Close()
	closing.Wait()
}

// One op is one key of 100,000 with 200 bytes, half of them in memory only.
func BenchmarkFrozenWalk(b *testing.B) {
	const keys = 100_000
	f := open(b, b.TempDir())
	for i := range keys / 1000 {
		var batch storage.Batch
		for j := range 1000 {
			key := storage.Key(fmt.Sprintf("s/0a1b2c3d/data/%08d", (i*1000+j)*7919%keys))
			batch.Puts = append(batch.Puts, storage.Put{Key: key, Value: make([]byte, 200)})
		}
		data, err := fsm.EncodeCommand(0, []storage.Batch{batch})
		if err != nil {
			b.Fatal(err)
		}
		f.ApplyBatch([]*raft.Log{command(uint64(i+1), data)})
		if i == keys/2000 {
			mustFold(b, f)
		}
	}
	z := freeze(b, f)
	b.ResetTimer()
	b.ReportAllocs()
	for n := 0; n < b.N; {
		err := z.Walk(context.Background(), "s/", "", func(storage.Key, storage.Position, []byte) bool {
			n++
			return n < b.N
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
