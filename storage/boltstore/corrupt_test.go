package boltstore_test

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/record"
)

var everyBit = flag.Bool("everybit", false, "let TestDamage flip every bit of its file, which takes minutes")

// dump is everything that a file can be asked for: position, records by scanning, and each one by its key.
func dump(s *boltstore.Store, keys []string) (string, error) {
	v, err := s.View()
	if err != nil {
		return "", err
	}
	defer v.Close()
	b := fmt.Appendf(nil, "%+v %+v\n", v.Position(), v.Digest())
	add := func(key string, rec []byte) { // thousands of times, for which fmt is slow
		b = append(hex.AppendEncode(append(strconv.AppendQuote(b, key), '='), rec), '\n')
	}
	err = v.Scan(context.Background(), "", "", func(key string, rec []byte) bool {
		add(key, rec)
		return true
	})
	for _, k := range keys {
		rec, gerr := v.Get(k)
		err = errors.Join(err, gerr)
		add(k, rec)
	}
	return string(b), err
}

// writeSample makes a small file with what a real one has: branch pages, overflow pages, free pages, an
// older meta page that would give other answers. It returns the keys to ask for, some of which are absent.
func writeSample(t *testing.T, path string) []string {
	s := open(t, path)
	var keys []string
	for round := range 3 {
		w := begin(t, s)
		for i := range 60 {
			key := fmt.Sprintf("s/area/%02d/%s", i, strings.Repeat("k", i%7*9))
			if round == 0 {
				keys = append(keys, key, key+"x", key[:8])
			}
			w.Put(key, record.New(record.Header{Version: uint64(round + 1)}, []byte(strings.Repeat(string(rune('a'+round)), 40+i))))
		}
		w.Put("s/area/big", record.New(record.Header{Version: uint64(round + 1)}, make([]byte, 9000)))
		w.Put("s/area/copied", record.New(record.Header{Version: uint64(round + 1), Origin: storage.Position{Epoch: 2, Index: 9}}, []byte("v")))
		w.Delete(fmt.Sprintf("s/area/%02d/", round*7))
		w.Commit(boltstore.Position{Index: uint64(round + 1), Term: 2, ConfigIndex: 1, Config: []byte("the members")})
		mustFlush(t, s)
	}
	mustClose(t, s)
	slices.Sort(keys)
	return append(slices.Compact(keys), "s/area/copied")
}

// checkDamaged opens a damaged copy: it must be refused by name, or give exactly the answers of the original.
func checkDamaged(t *testing.T, what, path string, content []byte, keys []string, want string) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	checkFile(t, what, path, keys, want)
}

func checkFile(t *testing.T, what, path string, keys []string, want string) (refused bool) {
	t.Helper()
	s, err := boltstore.Open(path, "", boltstore.Options{})
	if err != nil {
		var bad *storage.CorruptError
		if !errors.As(err, &bad) || bad.File != path {
			t.Errorf("%s: Open = %v, want a CorruptError that names the file", what, err)
		}
		return true
	}
	defer mustClose(t, s)
	if got, err := dump(s, keys); err != nil || got != want {
		t.Errorf("%s: accepted, but the answers differ (err %v)", what, err)
	}
	return false
}

func TestDamage(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.db")
	keys := writeSample(t, good)
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, good)
	want, err := dump(s, keys)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	inUse := usedBytes(content)
	path := filepath.Join(dir, "bad.db")

	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content[:inUse]); err != nil {
		t.Fatal(err)
	}
	refused := 0
	flip := func(bit int) {
		at := int64(bit / 8)
		if _, err := f.WriteAt([]byte{content[at] ^ 1<<(bit%8)}, at); err != nil {
			t.Fatal(err)
		}
		if checkFile(t, fmt.Sprintf("bit %d of byte %d", bit%8, at), path, keys, want) {
			refused++
		}
		if _, err := f.WriteAt(content[at:at+1], at); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	bits := make([]int, 0, inUse*8)
	if *everyBit {
		for bit := range inUse * 8 {
			bits = append(bits, bit)
		}
	} else {
		for page := range inUse / 4096 { // headers steer bbolt most; of the first two pages also the contents
			for at := range headerBytes(page) {
				bits = append(bits, (page*4096+at)*8+rng.IntN(8))
			}
		}
		for range 150 {
			bits = append(bits, rng.IntN(inUse*8))
		}
	}
	for _, bit := range bits {
		flip(bit)
	}
	if refused < len(bits)/10 {
		t.Errorf("only %d of %d flips were noticed: the file has too little in it for this test to say much", refused, len(bits))
	}
	for _, size := range []int{0, 1, 511, 512, 4095, 4096, 4097, 8191, 8192, inUse - 4096, inUse - 1, inUse, inUse + 1, len(content) - 1} {
		checkDamaged(t, fmt.Sprintf("cut to %d bytes", size), path, content[:size], keys, want)
	}
	for range 40 {
		size := rng.IntN(inUse)
		checkDamaged(t, fmt.Sprintf("cut to %d bytes", size), path, content[:size], keys, want)
	}
}

func headerBytes(page int) int {
	if page < 2 {
		return 16 + 64
	}
	return 16
}

// usedBytes returns where the file's last page in use ends; bbolt allocates far ahead.
func usedBytes(content []byte) int {
	end := len(content)
	for end > 0 && content[end-1] == 0 {
		end--
	}
	return min((end/4096+2)*4096, len(content))
}

func TestDamageZeroedAndSwappedPages(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.db")
	keys := writeSample(t, good)
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, good)
	want, err := dump(s, keys)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	pages := usedBytes(content) / 4096
	page := func(b []byte, i int) []byte { return b[i*4096 : (i+1)*4096] }
	for i := range pages {
		bad := append([]byte(nil), content[:pages*4096]...)
		clear(page(bad, i))
		checkDamaged(t, fmt.Sprintf("page %d zeroed", i), filepath.Join(dir, "bad.db"), bad, keys, want)
		j := (i + 3) % pages
		copy(page(bad, i), page(content, j))
		checkDamaged(t, fmt.Sprintf("page %d replaced by page %d", i, j), filepath.Join(dir, "bad.db"), bad, keys, want)
	}
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	path := filepath.Join(dir, "seed.db")
	s, err := boltstore.Open(path, "", boltstore.Options{})
	if err != nil {
		f.Fatal(err)
	}
	w, err := s.Begin()
	if err != nil {
		f.Fatal(err)
	}
	w.Put("s/a/b", record.New(record.Header{Version: 1}, []byte("v")))
	w.Commit(boltstore.Position{Index: 1, Term: 1})
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed[:usedBytes(seed)])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "f.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := boltstore.Open(path, "", boltstore.Options{})
		if err != nil {
			return
		}
		if _, err := dump(s, nil); err != nil {
			t.Errorf("accepted, but reading it fails: %v", err)
		}
		mustClose(t, s)
	})
}
