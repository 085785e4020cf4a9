package raftlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"slices"
	"sync"
	"time"
)

const stableMagic = "COFFERSTB1"

// stableKey is the one key that raft-boltdb's stable store holds.
var stableKey = []byte("stable")

// errNotFound has the text by which Raft knows that a value was never set.
var errNotFound = errors.New("not found")

// Stable is the raft.StableStore: Raft's term and vote. All values are in one checksummed record, because a
// vote that is forgotten or altered elects two leaders.
type Stable struct {
	logs *Log

	mu      sync.Mutex
	values  map[string][]byte
	Closing <-chan struct{} // ends the retries of SetUint64; nil: none
}

// Get implements raft.StableStore.
func (s *Stable) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.values[string(key)]; ok {
		return v, nil
	}
	return nil, errNotFound
}

// GetUint64 implements raft.StableStore.
func (s *Stable) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, errors.New("a stable value is not a number")
	}
	return binary.BigEndian.Uint64(v), nil
}

// Set implements raft.StableStore.
func (s *Stable) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := maps.Clone(s.values)
	if values == nil {
		values = map[string][]byte{}
	}
	values[string(key)] = slices.Clone(value)
	err := s.logs.time(&s.logs.votes, func() error {
		return s.logs.change(func() error { return s.logs.bolt.Set(stableKey, encodeStable(values)) })
	})
	if err == nil {
		s.values = values
	}
	return err
}

// SetUint64 implements raft.StableStore. Raft ends the process when it cannot store a new term, so a full
// disk is waited for: until then this node takes part in nothing, which is what it owes the others.
func (s *Stable) SetUint64(key []byte, v uint64) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.Set(key, binary.BigEndian.AppendUint64(nil, v))
		if err == nil || s.Closing == nil || string(key) != "CurrentTerm" {
			return err
		}
		select {
		case <-time.After(wait):
		case <-s.Closing:
			return nil // Raft is stopping and responds no more
		}
	}
}

func encodeStable(values map[string][]byte) []byte {
	b := []byte(stableMagic)
	b = binary.AppendUvarint(b, uint64(len(values)))
	for _, k := range slices.Sorted(maps.Keys(values)) {
		b = binary.AppendUvarint(b, uint64(len(k)))
		b = append(b, k...)
		b = binary.AppendUvarint(b, uint64(len(values[k])))
		b = append(b, values[k]...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeStable(b []byte) (map[string][]byte, error) {
	damaged := errors.New("the record of Raft's votes is damaged")
	if len(b) < len(stableMagic)+4 || string(b[:len(stableMagic)]) != stableMagic {
		return nil, damaged
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, damaged
	}
	rest := body[len(stableMagic):]
	take := func() ([]byte, bool) {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return nil, false
		}
		v := rest[size : size+int(n)]
		rest = rest[size+int(n):]
		return v, true
	}
	count, size := binary.Uvarint(rest)
	if size <= 0 {
		return nil, damaged
	}
	rest = rest[size:]
	values := map[string][]byte{}
	for range count {
		k, ok1 := take()
		v, ok2 := take()
		if !ok1 || !ok2 {
			return nil, damaged
		}
		values[string(k)] = slices.Clone(v)
	}
	if len(rest) != 0 {
		return nil, damaged
	}
	return values, nil
}
