package boltstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage/lthash"
	"github.com/coffer-project/coffer/storage/record"
)

// checkSum compares the sum of a view, which is kept up to date, with that of what it holds.
func checkSum(t *testing.T, v View) {
	t.Helper()
	got, err := v.Sum()
	if err != nil {
		t.Fatal(err)
	}
	var want lthash.Sum
	err = v.Scan(context.Background(), "", "", func(key string, rec []byte) bool {
		want.Add([]byte(key), rec)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatal("the sum of the view is not that of its records")
	}
}

// TestSum changes records at random, with folds that fail before and after they are written, and opens the file again.
func TestSum(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.db")
	r := rand.New(rand.NewPCG(5, 6))
	index := uint64(0)
	for range 3 {
		s, err := Open(path, "", Options{FoldInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			w, err := s.Begin()
			if err != nil {
				t.Fatal(err)
			}
			index++
			for range 1 + r.IntN(5) {
				key := fmt.Sprint("s/t/", r.IntN(40))
				if r.IntN(3) == 0 {
					w.Delete(key)
				} else {
					w.Put(key, record.New(record.Header{Version: index}, fmt.Append(nil, r.IntN(5))))
				}
			}
			w.Commit(Position{Index: index, Term: 1})
			before, err := s.View()
			if err != nil {
				t.Fatal(err)
			}
			switch r.IntN(4) {
			case 0:
				if err = s.Flush(); err != nil && s.reused { // by the state that before shows
					err = nil
				}
			case 1:
				failing(s, func(*frozen) error { return errors.New("no space") })
			case 2:
				failing(s, func(f *frozen) error { return errors.Join(s.write(f), errors.New("the last step failed")) })
			}
			if err != nil {
				t.Fatal(err)
			}
			checkSum(t, before)
			after, err := s.View()
			if err != nil {
				t.Fatal(err)
			}
			checkSum(t, after)
			before.Close()
			after.Close()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// failing has one fold fail. The flusher is idle: only Flush has it fold.
func failing(s *Store, fold func(*frozen) error) {
	s.fold = fold
	_ = s.Flush()
	s.fold = s.write
}
