package boltstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A record is what stands under a key: format byte, flags byte, version (8 bytes, big endian), value.
const (
	recordFormat      = 1
	recordHeaderBytes = 10
)

// NewRecord returns the record of a value. It copies value.
func NewRecord(version uint64, value []byte) []byte {
	rec := make([]byte, recordHeaderBytes, recordHeaderBytes+len(value))
	rec[0] = recordFormat
	binary.BigEndian.PutUint64(rec[2:], version)
	return append(rec, value...)
}

// ParseRecord returns what NewRecord was given. The value is part of rec.
func ParseRecord(rec []byte) (version uint64, value []byte, err error) {
	switch {
	case len(rec) < recordHeaderBytes:
		return 0, nil, errors.New("record is too short")
	case rec[0] != recordFormat:
		return 0, nil, errors.New("record has an unknown format")
	case rec[1] != 0:
		return 0, nil, errors.New("record has unknown flags")
	}
	version = binary.BigEndian.Uint64(rec[2:])
	if version == 0 {
		return 0, nil, errors.New("record has no version")
	}
	return version, rec[recordHeaderBytes:len(rec):len(rec)], nil
}

// Digest describes a set of records, whatever their order: adding and removing commute.
type Digest struct {
	Sum   uint64 // of the records' hashes, modulo 2^64
	Count uint64 // records
	Bytes uint64 // of keys and records
}

// Add includes a record.
func (d *Digest) Add(key, rec []byte) {
	d.Sum += recordHash(key, rec)
	d.Count++
	d.Bytes += uint64(len(key) + len(rec))
}

// Remove takes out a record that was added.
func (d *Digest) Remove(key, rec []byte) {
	d.Sum -= recordHash(key, rec)
	d.Count--
	d.Bytes -= uint64(len(key) + len(rec))
}

func (d *Digest) merge(o Digest) {
	d.Sum += o.Sum
	d.Count += o.Count
	d.Bytes += o.Bytes
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordHash joins two CRCs of different polynomials. Each is a hardware instruction, and each changes with
// any single flipped bit and any burst of up to 32: for this purpose that is worth more than mixing well.
// The key's length goes in, so that a byte cannot move between key and record unseen.
func recordHash(key, rec []byte) uint64 {
	a := crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, rec)
	b := crc32.Update(crc32.Update(0, crc32.IEEETable, key), crc32.IEEETable, rec)
	return (uint64(a)<<32 | uint64(b)) + uint64(len(key))*0x9e3779b97f4a7c15
}
