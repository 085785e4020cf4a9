// Package record has the form of what stands under a key of the state file, and a digest of all of it that changes with each record.
//
// It promises that a record which Parse accepts is what New made, but for damage that its owner's checksums find. Start reading at New.
package record

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/coffer-project/coffer/storage"
)

// A record is what stands under a key, big endian: format byte, flags byte, version (8 bytes); if the flag for it is
// set the origin, epoch (4) and index (8); value.
const (
	recordFormat = 1

	// HeaderBytes is the length of a record without value and origin, OriginBytes that of an origin.
	HeaderBytes = 10
	OriginBytes = 12

	flagOrigin = 1
)

// Header is what a record says about its value. Version is never 0. Origin is zero for what was first written in this
// cluster; otherwise it has an epoch and an index.
type Header struct {
	Version uint64
	Origin  storage.Position
}

// Mod returns the position of the value: its origin, or its version in this cluster's own log.
func (h Header) Mod() storage.Position {
	if h.Origin.IsZero() {
		return storage.Position{Index: storage.Index(h.Version)}
	}
	return h.Origin
}

// New returns the record of a value. It copies value.
func New(h Header, value []byte) []byte {
	size := HeaderBytes
	if !h.Origin.IsZero() {
		size += OriginBytes
	}
	rec := make([]byte, size, size+len(value))
	rec[0] = recordFormat
	binary.BigEndian.PutUint64(rec[2:], h.Version)
	if size > HeaderBytes {
		rec[1] = flagOrigin
		binary.BigEndian.PutUint32(rec[HeaderBytes:], h.Origin.Epoch)
		binary.BigEndian.PutUint64(rec[HeaderBytes+4:], uint64(h.Origin.Index))
	}
	return append(rec, value...)
}

// Parse returns what New was given. The value is part of rec.
func Parse(rec []byte) (h Header, value []byte, err error) {
	switch {
	case len(rec) < HeaderBytes:
		return h, nil, errors.New("record is too short")
	case rec[0] != recordFormat:
		return h, nil, errors.New("record has an unknown format")
	case rec[1]&^flagOrigin != 0:
		return h, nil, errors.New("record has unknown flags")
	}
	h.Version = binary.BigEndian.Uint64(rec[2:])
	if h.Version == 0 {
		return h, nil, errors.New("record has no version")
	}
	value = rec[HeaderBytes:len(rec):len(rec)]
	if rec[1]&flagOrigin == 0 {
		return h, value, nil
	}
	if len(value) < OriginBytes {
		return h, nil, errors.New("record is too short for its origin")
	}
	h.Origin.Epoch = binary.BigEndian.Uint32(value)
	h.Origin.Index = storage.Index(binary.BigEndian.Uint64(value[4:]))
	if h.Origin.Epoch == 0 || h.Origin.Index == 0 {
		return h, nil, errors.New("record has an incomplete origin")
	}
	return h, value[OriginBytes:], nil
}

// Digest describes a set of records, whatever their order: adding and removing commute.
type Digest struct {
	Sum   uint64 // of the records' hashes, modulo 2^64
	Count uint64 // records
	Bytes uint64 // of keys and records
}

// Add includes a record.
func (d *Digest) Add(key, rec []byte) {
	d.Sum += Hash(key, rec)
	d.Count++
	d.Bytes += uint64(len(key) + len(rec))
}

// Remove takes out a record that was added.
func (d *Digest) Remove(key, rec []byte) {
	d.Sum -= Hash(key, rec)
	d.Count--
	d.Bytes -= uint64(len(key) + len(rec))
}

// Merge includes a set of records, none of which is in this one.
func (d *Digest) Merge(o Digest) {
	d.Sum += o.Sum
	d.Count += o.Count
	d.Bytes += o.Bytes
}

// Take takes out a set of records that was added.
func (d *Digest) Take(o Digest) {
	d.Sum -= o.Sum
	d.Count -= o.Count
	d.Bytes -= o.Bytes
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Hash returns what a digest adds up. It joins two CRCs of different polynomials. Each is a hardware instruction, and each changes with
// any single flipped bit and any burst of up to 32: for this purpose that is worth more than mixing well.
// The key's length goes in, so that a byte cannot move between key and record unseen.
func Hash(key, rec []byte) uint64 {
	a := crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, rec)
	b := crc32.Update(crc32.Update(0, crc32.IEEETable, key), crc32.IEEETable, rec)
	return (uint64(a)<<32 | uint64(b)) + uint64(len(key))*0x9e3779b97f4a7c15
}
