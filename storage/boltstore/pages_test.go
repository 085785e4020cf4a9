package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltpage"
	"github.com/coffer-project/coffer/storage/record"
)

// deepStore has branch pages in two levels, overflow pages, and free pages with older values of the same keys.
func deepStore(t *testing.T) (*Store, map[string][]byte) {
	t.Helper()
	s := openManual(t, Options{})
	want := map[string][]byte{}
	for round := range 3 {
		w, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		for i := round; i < 2400; i += 1 + round {
			key := fmt.Sprintf("s/area/%05d/%s", i*7, strings.Repeat("k", 60+i%5))
			rec := record.New(record.Header{Version: uint64(round + 1)}, fmt.Appendf(nil, "value %d of %d", round, i))
			if i%600 == 7 {
				rec = append(rec, make([]byte, 9000)...)
			}
			w.Put(key, rec)
			want[key] = rec
		}
		w.Commit(Position{Index: uint64(round + 1), Term: 1})
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	return s, want
}

// flip changes a bit of the open file.
func flip(t *testing.T, s *Store, bit int64) {
	t.Helper()
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, bit/8); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << (bit % 8)
	if _, err := f.WriteAt(b, bit/8); err != nil {
		t.Fatal(err)
	}
}

// wrong returns how an answer differs from what was written and is no error that names the file.
func wrong(s *Store, what string, got, want []byte, err error) string {
	var bad *storage.CorruptError
	switch {
	case err == nil && !bytes.Equal(got, want):
		return fmt.Sprintf("%s has %d bytes, want %d: not what was written", what, len(got), len(want))
	case err != nil && (!errors.As(err, &bad) || bad.File != s.path):
		return fmt.Sprintf("%s: %v, want a CorruptError that names the file", what, err)
	}
	return ""
}

// Bits flip in the file while it is open. Every read has what was written, or says that the file is damaged.
func TestDamageWhileOpen(t *testing.T) {
	s, want := deepStore(t)
	keys := make([]string, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	pageOf := func(id uint64) page { return boltpage.MustParse(id, s.pages.raw(id)) }
	high := uint64(0)
	kinds := map[uint16][]uint64{}
	free := 0
	for id := uint64(2); id/32 < uint64(len(s.used)); id++ {
		if !s.used.Has(id) {
			free++
			continue
		}
		high = id
	}
	within := map[uint64][]string{} // keys by page
	var walk func(id uint64)
	walk = func(id uint64) {
		p := pageOf(id)
		kinds[p.Kind] = append(kinds[p.Kind], id)
		for i := range p.Count {
			_, key, _ := p.Branch(i)
			if p.Kind == boltpage.LeafPage {
				_, key, _, _ = p.Leaf(i)
			}
			if want[string(key)] != nil {
				within[id] = append(within[id], string(key))
			}
		}
		p.Below(walk)
	}
	walk(s.cur.base.root)
	if len(kinds[boltpage.BranchPage]) < 3 || free < 10 {
		t.Fatalf("%d branch pages and %d free ones: the file has too little in it", len(kinds[boltpage.BranchPage]), free)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var bits []int64
	for _, id := range kinds[boltpage.BranchPage] {
		for range 40 {
			bits = append(bits, int64(id)*pageSize*8+rng.Int64N(boltpage.HeaderBytes*8), int64(id)*pageSize*8+rng.Int64N(pageSize*8))
		}
	}
	for range 200 {
		bits = append(bits, 2*pageSize*8+rng.Int64N(int64(high-1)*pageSize*8))
	}
	noticed := 0
	for i, bit := range bits {
		flip(t, s, bit)
		what := func(key string) string { return fmt.Sprintf("bit %d of page %d: %s", bit, bit/8/pageSize, key) }
		// The keys of the page that was hit, if it is a leaf, and others.
		var ask []string
		for range 20 {
			ask = append(ask, keys[rng.IntN(len(keys))])
		}
		ask = append(ask, within[uint64(bit/8/pageSize)]...)
		for _, key := range ask {
			v, err := s.View()
			var got []byte
			if err == nil {
				got, err = v.Get(key)
				v.Close()
			}
			if text := wrong(s, what(key), got, want[key], err); text != "" {
				t.Fatal(text)
			}
		}
		v, err := s.View()
		if err == nil {
			from, found := keys[rng.IntN(len(keys))], 0
			err = v.Scan(context.Background(), from, "", func(key string, rec []byte) bool {
				if text := wrong(s, what(key), rec, want[key], nil); text != "" {
					t.Fatal(text)
				}
				found++
				return found < 200
			})
			v.Close()
		}
		if err != nil {
			noticed++
		}
		s.mu.Lock()
		s.damage = nil
		s.mu.Unlock()
		if i%3 == 0 { // it reads the whole file
			err := s.Scrub(func(int) error { return nil })
			if used := s.used.Has(uint64(bit / 8 / pageSize)); used != (err != nil) {
				t.Fatalf("bit %d of page %d, in use: %v: Scrub = %v", bit, bit/8/pageSize, used, err)
			}
		}
		flip(t, s, bit)
		s.mu.Lock()
		s.damage = nil
		s.mu.Unlock()
	}
	read := 0
	if err := s.Scrub(func(bytes int) error { read += bytes; return nil }); err != nil || read < (len(kinds[boltpage.LeafPage])+len(kinds[boltpage.BranchPage]))*pageSize {
		t.Errorf("Scrub of the whole file read %d bytes: %v", read, err)
	}
	flip(t, s, 16*8) // of a meta page
	if err := s.Scrub(func(int) error { return nil }); err == nil {
		t.Error("Scrub does not notice a damaged meta page")
	}
	flip(t, s, 16*8)
	s.mu.Lock()
	s.damage = nil
	s.mu.Unlock()
	if noticed < len(kinds[boltpage.BranchPage])*10 {
		t.Errorf("only %d of %d flips were noticed", noticed, len(bits))
	}
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	n := 0
	if err := v.Scan(context.Background(), "", "", func(key string, rec []byte) bool {
		n++
		return bytes.Equal(rec, want[key])
	}); err != nil || n != len(want) {
		t.Errorf("%d of %d records are right after all bits were flipped back: %v", n, len(want), err)
	}
}

// Leaves that are read often are read from copies, of which there are not more than the bound; damage below a copy is found
// by Scrub.
func TestLeafCopies(t *testing.T) {
	s := openManual(t, Options{})
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	value := func(i int) []byte {
		return record.New(record.Header{Version: 1}, bytes.Repeat([]byte{byte(i)}, pageSize/4)) // two in a leaf
	}
	for i := range 2*maxLeafCopies + 1000 {
		keys = append(keys, fmt.Sprintf("s/%05d", i))
		w.Put(keys[i], value(i))
	}
	w.Commit(Position{Index: 1, Term: 1})
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	read := func(i int) {
		t.Helper()
		v, err := s.View()
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if got, err := v.Get(keys[i]); err != nil || !bytes.Equal(got, value(i)) {
			t.Fatalf("%s: %v", keys[i], err)
		}
	}
	for range leafCopyChance {
		for i := 0; i < len(keys); i += 2 {
			read(i)
		}
	}
	copies := 0
	for _, chunk := range s.pages.sums {
		for i := range chunk.copies {
			if c := chunk.copies[i].Load(); c != nil && c.Kind == boltpage.LeafPage {
				copies++
			}
		}
	}
	if copies > maxLeafCopies || copies < maxLeafCopies/2 {
		t.Errorf("%d copies, want up to %d", copies, maxLeafCopies)
	}
	for range 50 * leafCopyChance { // until there is a copy, as good as certainly
		read(7)
	}
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	p := s.pages.page(v.base.top, false)
	for p.Kind == boltpage.BranchPage {
		_, id := p.ChildFor(keys[7])
		p = s.pages.page(id, false)
	}
	v.Close()
	bit := (int64(p.ID)*pageSize + pageSize/2) * 8
	flip(t, s, bit)
	read(7)
	if err := s.Scrub(func(int) error { return nil }); err == nil {
		t.Error("Scrub does not notice damage below a copy")
	}
	flip(t, s, bit)
}

// rotten is the disk below an open file, with a bit that has flipped, or a part that cannot be read.
type rotten struct {
	disk
	bit        int64
	unreadable bool
}

func (r *rotten) ReadAt(b []byte, off int64) (int, error) {
	n, err := r.disk.ReadAt(b, off)
	if at := r.bit/8 - off; at >= 0 && at < int64(n) {
		if r.unreadable {
			return 0, errors.New("input/output error")
		}
		b[at] ^= 1 << (r.bit % 8)
	}
	return n, err
}

// Scrub finds what the disk has lost below pages that are right in the system's cache.
func TestScrubReadsTheDisk(t *testing.T) {
	s, want := deepStore(t)
	var ids []uint64
	var walk func(id uint64)
	walk = func(id uint64) {
		ids = append(ids, id)
		p := boltpage.MustParse(id, s.pages.raw(id))
		p.Below(walk)
	}
	walk(s.cur.base.root)
	key := slices.Sorted(maps.Keys(want))[0]
	for i, id := range ids {
		bad := &rotten{bit: int64(id)*pageSize*8 + int64(i*97%(pageSize*8)), unreadable: i%5 == 4}
		s.disk = func() (_ disk, err error) {
			bad.disk, err = os.Open(s.path) // any reader will do
			return bad, err
		}
		err := s.Scrub(func(int) error { return nil })
		if c := (*storage.CorruptError)(nil); !errors.As(err, &c) {
			t.Fatalf("bit %d of page %d is wrong on the disk: Scrub = %v", bad.bit, id, err)
		}
		s.mu.Lock()
		s.damage = nil
		s.mu.Unlock()
	}
	s.disk = func() (disk, error) { return nil, errors.ErrUnsupported }
	if err := s.Scrub(func(int) error { return nil }); err != nil {
		t.Errorf("Scrub where the disk cannot be read past the cache: %v", err)
	}
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if got, err := v.Get(key); err != nil || !bytes.Equal(got, want[key]) {
		t.Error("a record is wrong", err)
	}
}

// A fold copies parts of pages that it changes or merges. If one of them is damaged, the fold says so: it must not write
// the damage under a new checksum. At the next start the file is whole, or it is rejected.
func TestFoldOnDamage(t *testing.T) {
	s, want := deepStore(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	end := len(content)
	for content[end-1] == 0 { // bbolt allocates far ahead
		end--
	}
	content = content[:(end/pageSize+1)*pageSize]
	rng := rand.New(rand.NewPCG(3, 4))
	noticed := 0
	for round := range 12 {
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, "", Options{FoldInterval: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		var used []int64
		for id := int64(0); id < int64(len(s.used))*32; id++ {
			if id < 2 || s.used.Has(uint64(id)) {
				used = append(used, id)
			}
		}
		now := map[string][]byte{}
		for k, rec := range want {
			now[k] = rec
		}
		w, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		for k := range want {
			switch {
			case rng.IntN(10) > round%10: // more and more stay as they are
				w.Delete(k)
				delete(now, k)
			case rng.IntN(50) == 0:
				now[k] = record.New(record.Header{Version: 9}, []byte("new"))
				w.Put(k, now[k])
			}
		}
		w.Commit(Position{Index: 9, Term: 2})
		flip(t, s, used[rng.IntN(len(used))]*pageSize*8+rng.Int64N(512*8))
		err = s.Flush()
		if err != nil {
			noticed++
			if text := wrong(s, "the fold", nil, nil, err); text != "" {
				t.Fatal(text)
			}
		}
		if v, err := s.View(); err == nil {
			for key := range want {
				got, err := v.Get(key)
				if text := wrong(s, "after the fold, "+key, got, now[key], err); text != "" {
					t.Fatal(text)
				}
			}
			v.Close()
		}
		if closing := s.Close(); s.Damage() == nil && closing != nil {
			t.Fatal(closing)
		}
		left, err := os.ReadFile(path) // Close leaves a damaged file open, and so locked
		if err != nil {
			t.Fatal(err)
		}
		path += ".copy"
		if err := os.WriteFile(path, left, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := Open(path, "", Options{})
		if err != nil {
			if bad := (*storage.CorruptError)(nil); !errors.As(err, &bad) {
				t.Fatal(err)
			}
			continue
		}
		v, err := again.View()
		if err != nil {
			t.Fatal(err)
		}
		expect := now
		if v.Position().Index != 9 {
			expect = want
		}
		for key := range want {
			got, err := v.Get(key)
			if text := wrong(s, "after the next start, "+key, got, expect[key], err); text != "" {
				t.Fatal(text)
			}
		}
		v.Close()
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if noticed < 6 {
		t.Errorf("only %d of 25 folds noticed damage", noticed)
	}
}

// All records of a leaf are deleted, and bbolt merges it with a neighbour that nothing else has read.
func TestFoldMergesDamage(t *testing.T) {
	s, _ := deepStore(t)
	var leaves []page
	var walk func(id uint64)
	walk = func(id uint64) {
		p := boltpage.MustParse(id, s.pages.raw(id))
		if p.Kind == boltpage.LeafPage && id != s.cur.base.root {
			leaves = append(leaves, p)
		}
		p.Below(walk)
	}
	walk(s.cur.base.root)
	at := len(leaves) / 2
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < leaves[at].Count; i++ {
		key, _ := leaves[at].Record(i)
		w.Delete(string(key))
	}
	w.Commit(Position{Index: 9, Term: 2})
	for _, i := range []int{at - 1, at + 1} {
		p := leaves[i]
		_, rec := p.Record(p.Count - 1)
		end := bytes.Index(p.B, rec) + len(rec) - 1
		flip(t, s, (int64(p.ID)*pageSize+int64(end))*8)
	}
	err = s.Flush()
	if bad := (*storage.CorruptError)(nil); !errors.As(err, &bad) {
		t.Errorf("Flush = %v, want a CorruptError", err)
	}
	if v, err := s.View(); err == nil {
		v.Close()
		t.Error("the store is read after a fold that met damage")
	}
}
