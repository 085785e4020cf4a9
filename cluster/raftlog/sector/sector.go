// Package sector is the form of the sectors of a journal: each has a checksum, and says which journal, generation and record it is of. A sector
// that was never written is all zeros. Package raftlog makes records of them.
package sector

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Bytes is the size of a sector, of which Room is for its part of a record.
const (
	Bytes = 512
	Room  = Bytes - head

	head = 4 + 8 + 8 + 4 + 4
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	empty      [Bytes]byte
)

// Sector is what one says. The zero value is that of an empty one.
type Sector struct {
	ID, Generation uint64 // of the journal; what is being filled of it
	Record         uint32 // the sector at which the record begins, from that of the half
	Size           uint32 // of the record, in bytes
	Part           []byte // Room bytes, those behind the end of the record zero
}

// Count returns how many sectors a record of so many bytes takes.
func Count(size int) uint32 { return uint32((size + Room - 1) / Room) }

// Append appends the sectors of a record.
func Append(b []byte, id, generation uint64, at uint32, record []byte) []byte {
	for rest := record; len(rest) > 0; {
		from := len(b)
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint64(b, id)
		b = binary.BigEndian.AppendUint64(b, generation)
		b = binary.BigEndian.AppendUint32(b, at)
		b = binary.BigEndian.AppendUint32(b, uint32(len(record)))
		n := min(len(rest), Room)
		b = append(append(b, rest[:n]...), empty[:Room-n]...)
		rest = rest[n:]
		binary.BigEndian.PutUint32(b[from:], crc32.Checksum(b[from+4:], castagnoli))
	}
	return b
}

// Parse returns what a sector says.
func Parse(b []byte) (s Sector, err error) {
	if bytes.Equal(b, empty[:]) {
		return s, nil
	}
	if binary.BigEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return s, errors.New("its checksum is wrong")
	}
	s.ID, s.Generation = binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])
	s.Record, s.Size = binary.BigEndian.Uint32(b[20:]), binary.BigEndian.Uint32(b[24:])
	s.Part = b[head:]
	return s, nil
}

// ParseAll returns what the sectors of a half say, or of a part of one.
func ParseAll(b []byte) (all []Sector, err error) {
	all = make([]Sector, len(b)/Bytes)
	for i := range all {
		if all[i], err = Parse(b[i*Bytes : (i+1)*Bytes]); err != nil {
			return nil, fmt.Errorf("sector %d of a half: %w", i, err)
		}
	}
	return all, nil
}
