package pagesums

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// model is a file whose pages change.
type model struct {
	state State
	pages map[uint64]uint32 // in use
}

func (m *model) source() Source {
	return Source{
		State: m.state,
		Page: func(id uint64) Page {
			sum, used := m.pages[id]
			return Page{ID: id, Used: used, Sum: sum}
		},
		Trusted: func() bool { return true },
	}
}

// change has some pages be written, and others be free.
func (m *model) change(k *Keeper, rng *rand.Rand) {
	m.state.Tx++
	m.state.High += uint64(rng.IntN(5))
	m.state.Root = rng.Uint64N(m.state.High)
	for range 20 {
		id := 2 + rng.Uint64N(m.state.High-2)
		if rng.IntN(3) == 0 {
			delete(m.pages, id)
		} else {
			m.pages[id] = rng.Uint32()
		}
		k.Changed(id, 1)
	}
}

func read(path string) (State, map[uint64]uint32, error) {
	pages := map[uint64]uint32{}
	s, err := Read(path, func(State) error { return nil }, func(p Page) {
		if delete(pages, p.ID); p.Used {
			pages[p.ID] = p.Sum
		}
	})
	return s, pages, err
}

// Whatever is saved is read again, and a file that ends anywhere gives the newest state that is whole.
func TestReadAfterSaves(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "sums")
	var k Keeper
	k.Begin(path, slog.New(slog.DiscardHandler))
	m := &model{state: State{High: 100, Sum: 1, Count: 2, Bytes: 3, Incarnation: 4, Owner: 5}, pages: map[uint64]uint32{}}
	type saved struct {
		size  int64
		state State
		pages map[uint64]uint32
	}
	var all []saved
	for range 30 {
		m.change(&k, rng)
		if ok, failed := k.Save(true, m.source()); !ok || failed {
			t.Fatal("it was not saved")
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, saved{info.Size(), m.state, maps.Clone(m.pages)})
		if s, pages, err := read(path); err != nil || s != m.state || !maps.Equal(pages, m.pages) {
			t.Fatalf("%+v and %d pages were read, want %+v and %d: %v", s, len(pages), m.state, len(m.pages), err)
		}
	}
	if ok, _ := k.Save(false, m.source()); ok {
		t.Error("it is saved again at once")
	}
	k.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for size := 0; size < len(whole); size += 1 + rng.IntN(60) {
		for at+1 < len(all) && all[at+1].size <= int64(size) {
			at++
		}
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		s, pages, err := read(path)
		switch {
		case at < 0 && err == nil:
			t.Fatalf("%d bytes, less than the first record, were read", size)
		case at >= 0 && (err != nil || s != all[at].state || !maps.Equal(pages, all[at].pages)):
			t.Fatalf("%d bytes: %+v, want %+v: %v", size, s, all[at].state, err)
		}
	}
	for range 100 { // a flipped bit in a record makes it, and what follows, go
		at := rng.IntN(len(whole))
		bad := append([]byte(nil), whole...)
		bad[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, pages, err := read(path)
		for i := range all {
			if err == nil && s.Tx == all[i].state.Tx && (all[i].size > int64(at) || s != all[i].state || !maps.Equal(pages, all[i].pages)) {
				t.Fatalf("byte %d: state %d was read, which is damaged", at, s.Tx)
			}
		}
	}
}

// A long file is written again as a whole, one that is dropped or cannot be written is gone, and a state that is not trusted is not saved.
func TestKeeper(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	dir := t.TempDir()
	path := filepath.Join(dir, "sums")
	var k Keeper
	k.Begin(path, slog.New(slog.DiscardHandler))
	m := &model{state: State{High: 40_000}, pages: map[uint64]uint32{}}
	grown, again, before := 0, 0, int64(0)
	for range 60 {
		for range 500 {
			m.change(&k, rng)
		}
		if ok, _ := k.Save(false, m.source()); !ok && len(k.changed) >= saveAtOnce {
			t.Fatal("many pages have changed, and it was not saved")
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case info.Size() > before:
			grown++
		case info.Size() < before:
			again++
		}
		before = info.Size()
	}
	if grown == 0 || again == 0 {
		t.Errorf("the file grew %d times, and was written again %d times", grown, again)
	}
	distrusted := m.source()
	distrusted.Trusted = func() bool { return false }
	if ok, failed := k.Save(true, distrusted); ok || failed {
		t.Error("a state that is not trusted was saved")
	}
	k.Drop()
	if ok, _ := k.Save(true, m.source()); ok {
		t.Error("it was saved after it was dropped")
	}
	if _, _, err := read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Drop: %v", err)
	}
	k.Begin(filepath.Join(dir, "missing", "sums"), slog.New(slog.DiscardHandler))
	if ok, failed := k.Save(true, m.source()); ok || !failed {
		t.Error("a directory that is missing takes checksums")
	}
}

func FuzzRead(f *testing.F) {
	m := &model{state: State{High: 9}, pages: map[uint64]uint32{2: 1, 3: 2, 7: 3}}
	ids := func(yield func(uint64) bool) {
		for id := uint64(0); id < 9 && yield(id); id++ {
		}
	}
	for _, kind := range []string{recordAll, recordChanges} {
		b, err := encode(kind, m.state, pagesOf(ids, m.source(), false))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "sums")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		high := uint64(0)
		_, _ = Read(path, func(s State) error { high = s.High; return nil }, func(p Page) {
			if p.ID >= high {
				t.Errorf("page %d of %d", p.ID, high)
			}
		})
	})
}
