// Package record encodes what the log of changes has of one entry: the body of a record in a segment file.
//
// It promises one encoding of each record, and that whatever bytes are decoded give a record or an error. Files, checksums and the
// order of records are in package wal. Start reading at the format below, then Append and Decode.
package record

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/coffer-project/coffer/storage"
)

// The body of a record, all numbers big endian:
//
//	index (8) ‖ time (8) ‖ number of ops (4) ‖ ops
//	op: flags (1) ‖ length of the key (4) ‖ key ‖ length of the value (4) ‖ value ‖ origin (12) ‖ prior (12)
//
// Flags say what there is of the value, the origin and the prior position; a position is epoch (4) and index (8). There
// is one encoding of a record. What comes later gets a flag of its own.
const (
	flagDeleted = 1 << iota // no value
	flagOrigin
	flagPrior
	knownFlags = flagDeleted | flagOrigin | flagPrior
)

const (
	bodyFixedBytes = 8 + 8 + 4
	minOpBytes     = 1 + 4
	positionBytes  = 4 + 8
)

// Sentinels. Use errors.Is.
var (
	// ErrInvalid says that bytes are no record.
	ErrInvalid = errors.New("a record's content makes no sense")
	// ErrFormat says that a newer version of this program wrote the record.
	ErrFormat = errors.New("the log was written by a newer version of this program")
)

// Append puts the encoded record behind b.
func Append(b []byte, r *storage.Record) []byte {
	be := binary.BigEndian
	b = be.AppendUint64(b, uint64(r.Index))
	b = be.AppendUint64(b, uint64(r.TimeMS))
	b = be.AppendUint32(b, uint32(len(r.Ops)))
	for i := range r.Ops {
		op := &r.Ops[i]
		var flags byte
		if op.Deleted {
			flags |= flagDeleted
		}
		if !op.Origin.IsZero() {
			flags |= flagOrigin
		}
		if !op.Prior.IsZero() {
			flags |= flagPrior
		}
		b = append(b, flags)
		b = be.AppendUint32(b, uint32(len(op.Key)))
		b = append(b, op.Key...)
		if !op.Deleted {
			b = be.AppendUint32(b, uint32(len(op.Value)))
			b = append(b, op.Value...)
		}
		for _, p := range [...]storage.Position{op.Origin, op.Prior} {
			if !p.IsZero() {
				b = be.AppendUint32(b, p.Epoch)
				b = be.AppendUint64(b, uint64(p.Index))
			}
		}
	}
	return b
}

// Size returns the length of the encoded record.
func Size(r *storage.Record) int {
	n := bodyFixedBytes
	for i := range r.Ops {
		op := &r.Ops[i]
		n += minOpBytes + len(op.Key)
		if !op.Deleted {
			n += 4 + len(op.Value)
		}
		if !op.Origin.IsZero() {
			n += positionBytes
		}
		if !op.Prior.IsZero() {
			n += positionBytes
		}
	}
	return n
}

// MaxBytes is what a length can say. No entry of a Raft log is as large.
const MaxBytes = math.MaxUint32

// Index returns the index of a record whose checksum was right.
func Index(b []byte) (storage.Index, error) {
	if len(b) < bodyFixedBytes {
		return 0, ErrInvalid
	}
	return storage.Index(binary.BigEndian.Uint64(b)), nil
}

// Decode returns the record in b, whose values are parts of b. Flags that it does not know are ErrFormat.
func Decode(b []byte) (r storage.Record, err error) {
	if len(b) < bodyFixedBytes {
		return r, ErrInvalid
	}
	d := decoder{b: b}
	r.Index, r.TimeMS = storage.Index(d.uint64()), int64(d.uint64())
	n := d.uint32()
	if int64(n) > int64(len(d.b)/minOpBytes) {
		return r, ErrInvalid
	}
	if n > 0 {
		r.Ops = make([]storage.RecordOp, n)
	}
	for i := range r.Ops {
		flags := d.take(1)
		if d.failed {
			return r, ErrInvalid
		}
		if flags[0]&^knownFlags != 0 {
			return r, ErrFormat
		}
		op := &r.Ops[i]
		op.Key = storage.Key(d.take(d.uint32()))
		if op.Deleted = flags[0]&flagDeleted != 0; !op.Deleted {
			op.Value = d.take(d.uint32())
		}
		if flags[0]&flagOrigin != 0 {
			op.Origin = d.position()
		}
		if flags[0]&flagPrior != 0 {
			op.Prior = d.position()
		}
	}
	if d.failed || len(d.b) > 0 {
		return r, ErrInvalid
	}
	return r, nil
}

// decoder takes parts from the front of b. Once something is missing it has failed, and gives zeros.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) take(n uint32) []byte {
	if d.failed || int64(n) > int64(len(d.b)) {
		d.failed = true
		return nil
	}
	part := d.b[:n:n]
	d.b = d.b[n:]
	return part
}

func (d *decoder) uint32() uint32 {
	if part := d.take(4); part != nil {
		return binary.BigEndian.Uint32(part)
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if part := d.take(8); part != nil {
		return binary.BigEndian.Uint64(part)
	}
	return 0
}

// position takes one that is not zero: a zero one has no flag.
func (d *decoder) position() storage.Position {
	p := storage.Position{Epoch: d.uint32(), Index: storage.Index(d.uint64())}
	if p.IsZero() {
		d.failed = true
	}
	return p
}
