package boltstore

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/record"
)

// A file without a mark gets one and keeps it, whatever is written by programs that know no marks; any other mark is told apart
// from damage.
func TestMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fsm.db")
	const incarnation, node = 0xfedc_ba98_7654_3210, 0x8123_4567_89ab_cdef
	open := func(incarnation, node uint64) error {
		t.Helper()
		s, err := Open(path, "", Options{Incarnation: incarnation, Node: node})
		if err != nil {
			return err
		}
		w, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		pos := w.Position()
		pos.Index++
		w.Put("k", record.New(record.Header{Version: pos.Index}, []byte("v")))
		w.Commit(pos)
		return s.Close()
	}
	for _, mark := range [][2]uint64{{0, 0}, {incarnation, node}, {incarnation, node}, {0, 0}} {
		if err := open(mark[0], mark[1]); err != nil {
			t.Fatalf("Open with the mark %x = %v", mark, err)
		}
	}
	var foreign *MarkError
	if err := open(^uint64(incarnation), node); !errors.As(err, &foreign) || foreign.Incarnation != incarnation || foreign.Node != node || foreign.Position.Index != 4 {
		t.Errorf("Open with another mark = %v", err)
	}
	var corrupt *storage.CorruptError
	if err := open(incarnation^1<<20, node); !errors.As(err, &corrupt) {
		t.Errorf("Open of a file with a flipped bit in its mark = %v, want damage", err)
	}
}
