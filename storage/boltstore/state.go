package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/storage/record"
)

// Position is how far a log has been applied.
type Position struct {
	Index       uint64 // of the last entry applied, 0 before the first
	Term        uint64 // of that entry
	ConfigIndex uint64 // of the entry with the latest configuration, 0 if none
	Config      []byte // that configuration as Raft encodes it; not to be modified
	// Logged is how far a second log of what was applied had come, one that the caller keeps beside the file; 0 if there
	// is none.
	Logged uint64
}

// state is the one record of the meta bucket. It changes in the same transaction as the data it describes.
type state struct {
	Position
	record.Digest
}

var stateKey = []byte("state")

// Layout of the state record: magic, format (2 bytes), index, term, configuration index, sum, count, bytes
// (8 each), length of the configuration (4), the configuration, in format 2 how far the second log is (8, never 0), and
// the hash of all that (8).
const (
	stateMagic      = "COFFER-FSM"
	stateFormat     = 1
	stateLogged     = 2
	stateFixedBytes = len(stateMagic) + 2 + 6*8 + 4
)

func (s *state) encode() []byte {
	be := binary.BigEndian
	b := append(make([]byte, 0, stateFixedBytes+len(s.Config)+16), stateMagic...)
	format := uint16(stateFormat)
	if s.Logged != 0 {
		format = stateLogged
	}
	b = be.AppendUint16(b, format)
	for _, v := range []uint64{s.Index, s.Term, s.ConfigIndex, s.Sum, s.Count, s.Bytes} {
		b = be.AppendUint64(b, v)
	}
	b = be.AppendUint32(b, uint32(len(s.Config)))
	b = append(b, s.Config...)
	if s.Logged != 0 {
		b = be.AppendUint64(b, s.Logged)
	}
	return be.AppendUint64(b, record.Hash(nil, b))
}

func decodeState(b []byte) (s state, err error) {
	be := binary.BigEndian
	if !bytes.HasPrefix(b, []byte(stateMagic)) {
		return s, errors.New("it does not begin with the magic " + stateMagic)
	}
	if len(b) < stateFixedBytes+8 {
		return s, errors.New("the state record is too short")
	}
	body, sum := b[:len(b)-8], be.Uint64(b[len(b)-8:])
	if record.Hash(nil, body) != sum {
		return s, errors.New("the checksum of the state record is wrong")
	}
	format := be.Uint16(b[len(stateMagic):])
	if format != stateFormat && format != stateLogged {
		return s, fmt.Errorf("its format is %d, this program knows %d and %d", format, stateFormat, stateLogged)
	}
	nums := body[len(stateMagic)+2:]
	for i, v := range []*uint64{&s.Index, &s.Term, &s.ConfigIndex, &s.Sum, &s.Count, &s.Bytes} {
		*v = be.Uint64(nums[8*i:])
	}
	config := body[stateFixedBytes:]
	if n := len(config) - 8; format == stateLogged && n >= 0 {
		s.Logged, config = be.Uint64(config[n:]), config[:n]
	}
	if (format == stateLogged) != (s.Logged != 0) {
		return s, errors.New("the state record does not say how far the second log is")
	}
	if uint64(be.Uint32(nums[6*8:])) != uint64(len(config)) {
		return s, errors.New("the state record has the wrong length")
	}
	s.Config = bytes.Clone(config)
	return s, nil
}
