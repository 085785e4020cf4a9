package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/record"
)

// openManual opens a store that folds only when it is told to.
func openManual(t *testing.T, o Options) *Store {
	t.Helper()
	o.FoldInterval = time.Hour
	s, err := Open(filepath.Join(t.TempDir(), "state.db"), "", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// model is the naive form of a store.
type model map[string]string

func (m model) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", k, m[k])
	}
	return b.String()
}

func show(t *testing.T, v View) string {
	t.Helper()
	m := model{}
	last := ""
	if err := v.Scan(context.Background(), "", "", func(key string, rec []byte) bool {
		if key <= last {
			t.Errorf("key %q follows %q", key, last)
		}
		last = key
		_, value, err := record.Parse(rec)
		if err != nil {
			t.Errorf("record of %q: %v", key, err)
		}
		m[key] = string(value)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for key, value := range m { // one by one: the same
		rec, err := v.Get(key)
		if err != nil || !bytes.Equal(rec[record.HeaderBytes:], []byte(value)) {
			t.Errorf("Get(%q) = %q, %v, and a scan says %q", key, rec, err, value)
		}
	}
	return m.String()
}

// Any mix of commits, folds, folds that fail and reopening looks like a map, through every view that is open.
func TestLayersAgainstModel(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s := openManual(t, Options{})
		var full atomic.Bool
		s.fold = func(f *frozen) error {
			if full.Load() {
				return bolterrors.ErrMaxSizeReached
			}
			return s.write(f)
		}
		want := model{}
		type pinned struct {
			View
			want string
		}
		var views []pinned
		for step := range 200 {
			switch rng.IntN(8) {
			case 0:
				full.Store(rng.IntN(2) == 0)
				if err := s.Flush(); (err != nil) && !full.Load() {
					t.Fatalf("Flush: %v", err)
				}
			case 1:
				v, err := s.View()
				if err != nil {
					t.Fatal(err)
				}
				views = append(views, pinned{v, want.String()})
			case 2:
				if len(views) > 0 {
					i := rng.IntN(len(views))
					if got := show(t, views[i].View); got != views[i].want {
						t.Fatalf("seed %d step %d: a view changed to\n%s\nfrom\n%s", seed, step, got, views[i].want)
					}
					views[i].Close()
					views = slices.Delete(views, i, i+1)
				}
			case 3:
				w, err := s.Begin()
				if err != nil {
					t.Fatal(err)
				}
				w.Put(fmt.Sprintf("k%02d", rng.IntN(60)), record.New(record.Header{Version: 1}, []byte("aborted")))
				w.Delete(fmt.Sprintf("k%02d", rng.IntN(60)))
				w.Abort()
			default:
				w, err := s.Begin()
				if err != nil {
					t.Fatal(err)
				}
				for range rng.IntN(20) {
					key := fmt.Sprintf("k%02d", rng.IntN(60))
					if rng.IntN(3) == 0 {
						w.Delete(key)
						delete(want, key)
					} else {
						value := fmt.Sprint(seed, step, strings.Repeat("x", rng.IntN(300)))
						w.Put(key, record.New(record.Header{Version: uint64(step + 1)}, []byte(value)))
						want[key] = value
					}
				}
				w.Commit(Position{Index: uint64(step + 1), Term: 1})
			}
			v, err := s.View()
			if err != nil {
				t.Fatal(err)
			}
			if got := show(t, v); got != want.String() {
				t.Fatalf("seed %d step %d: state\n%s\nwant\n%s", seed, step, got, want)
			}
			v.Close()
		}
		for _, p := range views {
			p.Close()
		}
		full.Store(false)
		pos := s.Position()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Open(s.path, "", Options{}) // also checks the digest that the folds kept
		if err != nil {
			t.Fatal(err)
		}
		v, err := again.View()
		if err != nil {
			t.Fatal(err)
		}
		if got := show(t, v); got != want.String() || again.Position().Index != pos.Index {
			t.Fatalf("seed %d: reopened at %d with\n%s\nwant %d\n%s", seed, again.Position().Index, got, pos.Index, want)
		}
		v.Close()
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that is full: commits go on until the cap, then wait; nothing is lost, and all goes on when there
// is room again.
func TestFullDisk(t *testing.T) {
	s := openManual(t, Options{CapBytes: 256 << 10})
	var limit atomic.Int64
	limit.Store(1) // no transaction gets a page
	s.fold = func(f *frozen) error {
		s.db.MaxSize = int(limit.Load()) // bbolt's own refusal, in the middle of its commit
		return s.write(f)
	}
	value := make([]byte, 8<<10)
	rand.NewChaCha8([32]byte{}).Read(value)
	const commits = 100 // 800 KiB: far more than the cap
	results := make(chan error, 1)
	written := make(chan int, commits)
	go func() {
		for i := range commits {
			w, err := s.Begin()
			if err != nil {
				results <- err
				return
			}
			w.Put(fmt.Sprintf("key %03d", i), record.New(record.Header{Version: uint64(i + 1)}, value))
			w.Commit(Position{Index: uint64(i + 1), Term: 1})
			written <- i
		}
		results <- nil
	}()
	for range 20 { // these fit below the cap
		<-written
	}
	if err := s.Flush(); !errors.Is(err, bolterrors.ErrMaxSizeReached) {
		t.Fatalf("Flush on a full disk = %v, want %v", err, bolterrors.ErrMaxSizeReached)
	}
	if err := s.Health(); !errors.Is(err, bolterrors.ErrMaxSizeReached) {
		t.Errorf("Health = %v, want the reason", err)
	}
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := v.Get("key 000"); err != nil || !bytes.Equal(rec[record.HeaderBytes:], value) {
		t.Errorf("reading on a full disk: %v", err)
	}
	v.Close()
	if s.DurablePosition().Index != 0 {
		t.Errorf("durable position is %d though nothing could be written", s.DurablePosition().Index)
	}
	if len(written) >= commits-20 {
		t.Error("the cap did not hold back the writer")
	}

	limit.Store(1 << 40)
	if err := s.Flush(); err != nil {
		t.Fatalf("Flush with room again: %v", err)
	}
	flushUntilDone(t, s, results)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Health(); err != nil {
		t.Errorf("Health = %v after recovery", err)
	}
	if got := s.DurablePosition().Index; got != commits {
		t.Errorf("durable position is %d, want %d", got, commits)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(s.path, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := again.cur.base.state.Count; got != commits {
		t.Errorf("%d records, want %d", got, commits)
	}
}

// flushUntilDone folds again and again until the writer is through: the interval is an hour here.
func flushUntilDone(t *testing.T, s *Store, results <-chan error) {
	t.Helper()
	for {
		select {
		case err := <-results:
			if err != nil {
				t.Fatalf("the writer got %v", err)
			}
			return
		default:
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Close ends the wait of a writer at the cap.
func TestCloseWakesBlockedWriter(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(filepath.Join(dir, "state.db"), "", Options{CapBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		s.fold = func(*frozen) error { return bolterrors.ErrMaxSizeReached }
		commit(t, s, 1, "k", "v")
		blocked := make(chan error, 1)
		go func() {
			_, err := s.Begin()
			blocked <- err
		}()
		synctest.Wait()
		if len(blocked) > 0 {
			t.Fatalf("Begin did not wait: %v", <-blocked)
		}
		if err := s.Close(); !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			t.Errorf("Close = %v, want the reason why the rest is not in the file", err)
		}
		if err := <-blocked; !errors.Is(err, ErrClosed) {
			t.Errorf("Begin = %v, want %v", err, ErrClosed)
		}
		if _, err := s.View(); !errors.Is(err, ErrClosed) {
			t.Errorf("View = %v, want %v", err, ErrClosed)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add(record.New(record.Header{Version: 1}, []byte("value")))
	f.Add(record.New(record.Header{Version: 1 << 63}, nil))
	f.Add(record.New(record.Header{Version: 7, Origin: storage.Position{Epoch: 3, Index: 1 << 40}}, []byte("value")))
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}) // an origin of no epoch
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, rec []byte) {
		h, value, err := record.Parse(rec)
		if err != nil {
			return
		}
		if again := record.New(h, value); !bytes.Equal(again, rec) {
			t.Errorf("ParseRecord accepts %x and re-encodes it as %x", rec, again)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	f.Add((&state{}).encode())
	f.Add((&state{Position: Position{1, 2, 3, []byte("c"), 0}, Digest: record.Digest{Sum: 4, Count: 5, Bytes: 6}}).encode())
	f.Add((&state{Position: Position{1, 2, 3, []byte("c"), 7}, Digest: record.Digest{Sum: 4, Count: 5, Bytes: 6}}).encode())
	f.Add([]byte(stateMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := decodeState(b)
		if err != nil {
			return
		}
		if again := st.encode(); !bytes.Equal(again, b) {
			t.Errorf("decodeState accepts %x and re-encodes it as %x", b, again)
		}
	})
}
