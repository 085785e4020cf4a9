package boltstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/record"
)

// trusting has checksums beside the file, however small it is, and folds on demand only.
func trusting(dir string) Options {
	return Options{FoldInterval: 1 << 40, Sums: filepath.Join(dir, "sums"), WholeBytes: -1, Incarnation: 7, Node: 9}
}

func openIn(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(filepath.Join(dir, "state.db"), "", trusting(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// changes puts and deletes records at random, and folds them. It changes want likewise.
func changes(t *testing.T, s *Store, want map[string][]byte, n, keys int, rng *rand.Rand) {
	t.Helper()
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	index := w.Position().Index + 1
	edit(want, index, n, keys, rng, w.Put)
	w.Commit(Position{Index: index, Term: 1})
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
}

// edit changes want at random, and puts each change; nil is a deletion.
func edit(want map[string][]byte, index uint64, n, keys int, rng *rand.Rand, put func(key string, rec []byte)) {
	for range n {
		key := fmt.Sprintf("s/area/%06d/%s", rng.IntN(keys), strings.Repeat("k", 40))
		if rng.IntN(4) == 0 {
			put(key, nil)
			delete(want, key)
			continue
		}
		want[key] = record.New(record.Header{Version: index}, bytes.Repeat([]byte{byte(index)}, 1+rng.IntN(200)))
		if rng.IntN(100) == 0 {
			want[key] = append(want[key], make([]byte, 9000)...)
		}
		put(key, want[key])
	}
}

// holds compares everything that a store has.
func holds(t *testing.T, s *Store, want map[string][]byte) {
	t.Helper()
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	found := 0
	if err := v.Scan(context.Background(), "", "", func(key string, rec []byte) bool {
		if !bytes.Equal(rec, want[key]) {
			t.Fatalf("%s has %d bytes, want %d: not what was written", key, len(rec), len(want[key]))
		}
		found++
		return true
	}); err != nil || found != len(want) {
		t.Fatalf("%d records, want %d: %v", found, len(want), err)
	}
	checkSum(t, v)
}

// copyDir is what a crash leaves: the files as they are while the store is open.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func trusted(s *Store) bool { return s.pass.total.Load() > 0 }

// A store is stopped, or killed, again and again between folds, with the checksums as of any of them. It always opens without reading
// everything, has what was folded, and goes on.
func TestTrustAfterCrashes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	dir, want := t.TempDir(), map[string][]byte{}
	s := openIn(t, dir)
	changes(t, s, want, 1500, 1000, rng)
	s.saveNow(t)
	for round := range 30 {
		for range rng.IntN(4) {
			changes(t, s, want, 1+rng.IntN(60), 1000, rng)
			if rng.IntN(3) == 0 {
				s.saveNow(t)
			}
		}
		if rng.IntN(4) == 0 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			if err := s.Flush(); err != nil { // the flusher is done with what it does first
				t.Fatal(err)
			}
			dir = copyDir(t, dir)
			if err := s.Discard(); err != nil {
				t.Fatal(err)
			}
		}
		s = openIn(t, dir)
		if !trusted(s) {
			t.Fatalf("round %d: the whole file was read", round)
		}
		holds(t, s, want)
		if left, _ := s.Unverified(); left != 0 {
			t.Fatalf("%d bytes are left after all records were added up", left)
		}
	}
}

// saveNow saves the checksums as if that were due. The flusher is idle.
func (s *Store) saveNow(t *testing.T) {
	t.Helper()
	s.saveSums(true)
	if s.saved != s.cur.base {
		t.Fatal("the checksums were not saved")
	}
}

// killed is where the process works that TestTrustAfterKill starts.
var killed = os.Getenv("COFFER_TEST_KILLED")

// step changes the same things for the same index.
func step(want map[string][]byte, index uint64, put func(key string, rec []byte)) {
	edit(want, index, 60, 1500, rand.New(rand.NewPCG(11, index)), put)
}

// fold makes the next step durable.
func fold(t *testing.T, s *Store, want map[string][]byte) uint64 {
	t.Helper()
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	index := w.Position().Index + 1
	step(want, index, w.Put)
	w.Commit(Position{Index: index, Term: 1})
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	return index
}

// A process is killed with SIGKILL again and again, while it folds and saves checksums. Each time the file opens by its checksums, and has
// exactly what was acknowledged, or a fold more.
func TestTrustAfterKill(t *testing.T) {
	if killed != "" {
		s := openIn(t, killed)
		for {
			index := fold(t, s, map[string][]byte{})
			fmt.Println("folded", index)
			if index%3 == 0 {
				s.saveNow(t)
			}
		}
	}
	rng := rand.New(rand.NewPCG(12, 13))
	dir, want, index := t.TempDir(), map[string][]byte{}, uint64(0)
	s := openIn(t, dir)
	for range 40 {
		index = fold(t, s, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTrustAfterKill$")
		cmd.Env = append(os.Environ(), "COFFER_TEST_KILLED="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, acked := bufio.NewScanner(out), index
		for range rng.IntN(25) {
			if !lines.Scan() {
				break
			}
			if _, err := fmt.Sscanf(lines.Text(), "folded %d", &acked); err != nil {
				t.Errorf("the process wrote %q", lines.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it wrote before it ended
			_, _ = fmt.Sscanf(lines.Text(), "folded %d", &acked)
		}
		_ = cmd.Wait()
		copied := openIn(t, copyDir(t, dir)) // with folds that the process has not acknowledged
		last := copied.DurablePosition().Index
		if last < acked || last > acked+1 {
			t.Fatalf("entry %d was acknowledged, the file is at %d", acked, last)
		}
		if !trusted(copied) {
			t.Fatal("the whole file was read")
		}
		for ; index < last; index++ {
			step(want, index+1, func(string, []byte) {})
		}
		holds(t, copied, want)
	}
}

// However many records there are, opening the file reads the same few pages; after a crash those that have changed as well.
func TestTrustReadsFewPages(t *testing.T) {
	var read []int64
	for _, records := range []int{2_000, 15_000} {
		rng := rand.New(rand.NewPCG(3, 4))
		dir, want := t.TempDir(), map[string][]byte{}
		s := openIn(t, dir)
		changes(t, s, want, records, records, rng)
		s.saveNow(t)
		changes(t, s, want, 10, records, rng)
		killed := copyDir(t, dir)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{dir, killed, killed} { // a start that came no further than to the check changes nothing for the next one
			o := trusting(dir)
			o.setDefaults()
			f, err := os.OpenFile(filepath.Join(dir, "state.db"), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			v, err := o.check(f, f.Name(), f.Name())
			if err != nil || !v.trusted {
				t.Fatalf("%d records: not trusted: %v", records, err)
			}
			read = append(read, v.looked.Load())
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const changed = 2 * 5 * 10 // ten records in leaves of their own, with branches, before and after, and spread by merges
	if max(read[0], read[3]) > 3 || max(read[1], read[2], read[4], read[5]) > changed {
		t.Errorf("pages read of small files: %d, and %d after a crash; of large ones: %d, and %d", read[0], read[1:3], read[3], read[4:])
	}
}

// Damage in a page that no read has asked for is found by the pass, and by a read that comes first. The next opening checks everything.
func TestTrustFindsDamage(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	dir, want := t.TempDir(), map[string][]byte{}
	s := openIn(t, dir)
	changes(t, s, want, 1500, 1000, rng)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var used []int64
	for id := int64(2); id < int64(len(s.used))*32; id++ {
		if s.used.Has(uint64(id)) {
			used = append(used, id)
		}
	}
	keys := slices.Sorted(maps.Keys(want))
	refused, later, harmless := 0, 0, 0
	for round := range 30 {
		bad := copyDir(t, dir)
		path := filepath.Join(bad, "state.db")
		flip(t, &Store{path: path}, used[rng.IntN(len(used))]*pageSize*8+rng.Int64N(pageSize*8))
		found := make(chan error, 1)
		o := trusting(bad)
		o.OnDamage = func(err error) { found <- err }
		s, err := Open(path, "", o)
		if err != nil { // the page of the buckets, which is read at once
			if c := (*storage.CorruptError)(nil); !errors.As(err, &c) {
				t.Fatal(err)
			}
			refused++
			continue
		}
		if !trusted(s) { // in that page, but where it has nothing
			holds(t, s, want)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			refused++
			continue
		}
		if round%2 == 0 {
			for _, key := range keys {
				v, err := s.View()
				var got []byte
				if err == nil {
					got, err = v.Get(key)
					v.Close()
				}
				if text := wrong(s, key, got, want[key], err); text != "" {
					t.Fatal(text)
				}
			}
		}
		if _, err := s.pass.wait(); err == nil {
			t.Fatal("the pass does not notice damage")
		}
		if c := (*storage.CorruptError)(nil); !errors.As(<-found, &c) || c.File != path {
			t.Fatalf("it is reported as %v", c)
		}
		later++
		_ = s.Close()
		if _, err := os.Stat(o.Sums); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the checksums are still there: %v", err)
		}
		again := copyDir(t, bad)                                                               // Close leaves a damaged file open, and so locked
		if s, err := Open(filepath.Join(again, "state.db"), "", trusting(again)); err == nil { // the bit is where no record is
			if trusted(s) {
				t.Fatal("the damaged file was opened again without a check")
			}
			holds(t, s, want)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			harmless++
		}
	}
	if later < 15 || harmless > later/2 {
		t.Errorf("%d files were refused, damage was found in %d, in %d it was harmless: the file has too little in it", refused, later, harmless)
	}
}

// What is wrong with the checksums, or fits another file, is not used: everything is checked.
func TestTrustRejectsOtherSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	dir, want := t.TempDir(), map[string][]byte{}
	s := openIn(t, dir)
	changes(t, s, want, 1000, 700, rng)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	older := copyDir(t, dir)
	s = openIn(t, dir)
	for range 20 {
		changes(t, s, want, 100, 700, rng)
		s.saveNow(t)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "sums"))
	if err != nil {
		t.Fatal(err)
	}
	replace := func(b []byte) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, "sums"), b, 0o600) }
	}
	for name, change := range map[string]func(dir string) error{
		"none":        func(dir string) error { return os.Remove(filepath.Join(dir, "sums")) },
		"empty":       replace(nil),
		"cut":         replace(sums[:200]),
		"a flip":      replace(append([]byte{sums[0] ^ 1}, sums[1:]...)),
		"another bit": replace(append(append(bytes.Clone(sums[:100]), sums[100]^4), sums[101:]...)),
		"older": func(to string) error {
			b, err := os.ReadFile(filepath.Join(older, "sums"))
			return errors.Join(err, os.WriteFile(filepath.Join(to, "sums"), b, 0o600))
		},
		"newer": func(to string) error {
			b, err := os.ReadFile(filepath.Join(older, "state.db"))
			return errors.Join(err, os.WriteFile(filepath.Join(to, "state.db"), b, 0o600))
		},
		"written without": func(dir string) error {
			s, err := Open(filepath.Join(dir, "state.db"), "", Options{FoldInterval: 1 << 40})
			if err != nil {
				return err
			}
			for range 20 {
				changes(t, s, maps.Clone(want), 100, 700, rng)
			}
			return s.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := copyDir(t, dir)
			if err := change(to); err != nil {
				t.Fatal(err)
			}
			s := openIn(t, to)
			if trusted(s) {
				t.Fatal("they were used")
			}
			v, err := s.View()
			if err != nil {
				t.Fatal(err)
			}
			checkSum(t, v)
			v.Close()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s = openIn(t, to); !trusted(s) {
				t.Error("the new ones are not used")
			}
		})
	}
}

// A file that has room for more than it uses is no larger for that: no checksums are kept of it, so none that are left from another setting are used.
func TestTrustGoesByPagesInUse(t *testing.T) {
	dir, want := t.TempDir(), map[string][]byte{}
	s := openIn(t, dir)
	changes(t, s, want, 1000, 700, rand.New(rand.NewPCG(17, 18)))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "state.db"))
	o := trusting(dir)
	if o.WholeBytes = int64(s.cur.base.high) * pageSize; err != nil || info.Size() <= o.WholeBytes {
		t.Fatalf("the file has %d bytes, %d of them in use: %v", info.Size(), o.WholeBytes, err)
	}
	if s, err = Open(filepath.Join(dir, "state.db"), "", o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if trusted(s) {
		t.Error("checksums that are not kept are used")
	}
	holds(t, s, want)
}

// While the pass reads, what is folded goes on, and the sum is that of all records. Closing ends it early.
func TestTrustWhileWriting(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	dir, want := t.TempDir(), map[string][]byte{}
	s := openIn(t, dir)
	changes(t, s, want, 6_000, 3_000, rng)
	for round := range 4 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openIn(t, dir)
		for range 10 {
			changes(t, s, want, 200, 3_000, rng)
		}
		if round%2 == 0 {
			var readers sync.WaitGroup
			for range 2 {
				readers.Go(func() { holds(t, s, want) })
			}
			readers.Wait()
		}
	}
	holds(t, s, want)
}
