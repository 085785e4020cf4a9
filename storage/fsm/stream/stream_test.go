package stream_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/fsm/stream"
	"github.com/coffer-project/coffer/storage/record"
)

// state returns a store of n records at an index.
func state(t *testing.T, n int, index uint64) *boltstore.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	err := boltstore.Build(path, func(add func(string, []byte) error) (boltstore.Position, error) {
		for i := range n {
			if err := add(fmt.Sprintf("s/a/%04d", i), record.New(record.Header{Version: 1}, make([]byte, i))); err != nil {
				return boltstore.Position{}, err
			}
		}
		return boltstore.Position{Index: index, Term: 3}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := boltstore.Open(path, "", boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reader(t *testing.T, s *boltstore.Store, stopped bool) *stream.Reader {
	t.Helper()
	v, err := s.DurableView()
	if err != nil {
		t.Fatal(err)
	}
	r := stream.NewReader(v, func() bool { return stopped })
	t.Cleanup(func() { r.Close() })
	return r
}

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 700} { // 700 records are several blocks
		r := reader(t, state(t, n, 9), false)
		b, err := io.ReadAll(r)
		if err != nil || r.Header.Length() != int64(len(b)) {
			t.Fatalf("a stream of %d bytes that was announced with %d: %v", len(b), r.Header.Length(), err)
		}
		found := 0
		h, err := stream.Decode(bytes.NewReader(b), func(stream.Header) error { return nil }, func(key string, rec []byte) error {
			_, value, err := record.Parse(rec)
			if err != nil || key != fmt.Sprintf("s/a/%04d", found) || len(value) != found {
				t.Errorf("record %d is %q, %d bytes, %v", found, key, len(value), err)
			}
			found++
			return nil
		})
		if err != nil || h.Index != 9 || h.Term != 3 || h.Count != uint64(n) || found != n {
			t.Errorf("Decode = %+v, %v, with %d records, want %d", h, err, found, n)
		}
	}
}

func TestHeaderCanBeRejected(t *testing.T) {
	no := errors.New("too old")
	_, err := stream.Decode(reader(t, state(t, 3, 9), false), func(stream.Header) error { return no }, func(string, []byte) error {
		t.Error("a record of a stream that was rejected")
		return nil
	})
	if !errors.Is(err, no) {
		t.Errorf("Decode = %v, want %v", err, no)
	}
}

func TestStopped(t *testing.T) {
	if _, err := io.ReadAll(reader(t, state(t, 3, 9), true)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("reading the state of a store that ends = %v, want ErrUnavailable", err)
	}
}
