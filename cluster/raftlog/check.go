package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
)

// span is a range of indexes, both ends in it.
type span struct{ from, to uint64 }

// logState is what a verified file holds.
type logState struct {
	first, last uint64
	bytes       int64
	remains     []span // entries that the header does not name
	stable      map[string][]byte
	journal     journalRef             // that has the entries behind last
	used        func(page uint64) bool // nil: not known
}

// checkLogs reads the whole file and vouches for it. The file must not be open. Reading happens before bbolt
// sees the file, because bbolt would map it, and crash or repair where we want to know.
func checkLogs(path string) (logState, error) {
	f, err := os.Open(path)
	if err != nil {
		return logState{}, err
	}
	defer f.Close()
	var s logScan
	used, err := boltfile.Walk(f, s.visit)
	if err != nil {
		return logState{}, corrupt(path, err)
	}
	state, err := s.done()
	if err != nil {
		return logState{}, corrupt(path, err)
	}
	state.used = used
	return state, nil
}

// corrupt tells damage from a file that cannot be read at all.
func corrupt(path string, err error) error {
	if boltfile.Failed(err) {
		return err
	}
	return &storage.CorruptError{File: path, Detail: err.Error()}
}

// logScan collects what the file holds, in key order: bucket conf, then logs, where the header comes last.
type logScan struct {
	found  raft.Log // the entry being read; the next one takes its place
	stable map[string][]byte
	header *raft.Log
	runs   []span // of contiguous entries
	sizes  []int64
}

func (s *logScan) visit(bucket string, key, value []byte) error {
	switch bucket {
	case "conf":
		if string(key) != string(stableKey) {
			return errors.New("an unknown value stands beside Raft's votes")
		}
		values, err := decodeStable(value)
		s.stable = values
		return err
	case "logs":
		return s.entry(key, value)
	default:
		return errors.New("an unknown bucket")
	}
}

func (s *logScan) entry(key, value []byte) error {
	if len(key) != 8 {
		return errors.New("an entry has a key that is no index")
	}
	index := binary.BigEndian.Uint64(key)
	e := &s.found
	*e = raft.Log{Data: e.Data[:0], Extensions: e.Extensions[:0]}
	err := decodeEntry(value, e)
	if err == nil && e.Index != index {
		err = errors.New("it is another one")
	}
	if err != nil {
		return fmt.Errorf("entry %d: %w", index, err)
	}
	if index == headerIndex {
		s.header = &raft.Log{Data: bytes.Clone(e.Data)}
		return nil
	}
	size := int64(len(e.Data) + entryOverhead)
	if n := len(s.runs); n > 0 && s.runs[n-1].to+1 == index {
		s.runs[n-1].to = index
		s.sizes[n-1] += size
		return nil
	}
	s.runs = append(s.runs, span{index, index})
	s.sizes = append(s.sizes, size)
	return nil
}

// decodeEntry is the inverse of what raft-boltdb stores, with our checksum verified and removed. It takes the room of the slices in e.
func decodeEntry(value []byte, e *raft.Log) error {
	if err := codec.NewDecoderBytes(value, &codec.MsgpackHandle{}).Decode(e); err != nil {
		return errors.New("it cannot be decoded")
	}
	return unseal(e)
}

// done compares what was found with what the header promises.
func (s *logScan) done() (logState, error) {
	if s.stable == nil || s.header == nil {
		return logState{}, errors.New("Raft's votes or the log's header are missing")
	}
	first, last, journal, err := parseHeader(s.header)
	if err != nil {
		return logState{}, err
	}
	state := logState{first: first, last: last, stable: s.stable, journal: journal}
	found := last == 0
	for i, r := range s.runs {
		if last == 0 || first < r.from || last > r.to {
			state.remains = append(state.remains, r)
			continue
		}
		found = true
		state.bytes = s.sizes[i] * int64(last-first+1) / int64(r.to-r.from+1)
		if r.from < first {
			state.remains = append(state.remains, span{r.from, first - 1})
		}
		if r.to > last {
			state.remains = append(state.remains, span{last + 1, r.to})
		}
	}
	if !found {
		return logState{}, fmt.Errorf("entries %d to %d are not all there", first, last)
	}
	return state, nil
}
