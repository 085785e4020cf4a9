package boltstore_test

import (
	"testing"

	"github.com/coffer-project/coffer/storage/boltstore"
)

func open(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path, "", boltstore.Options{})
	if err != nil {
		t.Fatalf("Open(%s): %v", path, err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func begin(t testing.TB, s *boltstore.Store) *boltstore.Writer {
	t.Helper()
	w, err := s.Begin()
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	return w
}

func mustFlush(t testing.TB, s *boltstore.Store) {
	t.Helper()
	if err := s.Flush(); err != nil {
		t.Fatalf("Flush: %v", err)
	}
}

func mustClose(t testing.TB, s *boltstore.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}
