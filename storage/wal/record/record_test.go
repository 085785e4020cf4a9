package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

// sample returns a record of up to three operations, which have all combinations of what an operation may have.
func sample(index storage.Index) storage.Record {
	r := storage.Record{Index: index, TimeMS: int64(index) * 1000}
	for n := range index % 4 {
		bits := index>>2 + n
		op := storage.RecordOp{Key: storage.Key(fmt.Sprintf("s/area/%d/%d", index, n)), Deleted: bits&1 != 0}
		if !op.Deleted {
			op.Value = bytes.Repeat([]byte{byte(index)}, int(index%60))
		}
		if bits&2 != 0 {
			op.Origin = storage.Position{Epoch: 1 + uint32(n), Index: index}
		}
		if bits&4 != 0 {
			op.Prior = storage.Position{Epoch: uint32(n), Index: index + 1}
		}
		r.Ops = append(r.Ops, op)
	}
	return r
}

func TestRecordRoundTrip(t *testing.T) {
	records := []storage.Record{
		{Index: 1},
		{Index: 1<<64 - 1, TimeMS: -1, Ops: []storage.RecordOp{{Key: "", Value: []byte{}}}},
		{Index: 7, TimeMS: 8, Ops: []storage.RecordOp{
			{Key: "s/a/b", Value: []byte("v"), Origin: storage.Position{Epoch: 1, Index: 2}},
			{Key: "s/a/c", Deleted: true, Prior: storage.Position{Index: 6}},
			{Key: "s/a/d", Value: make([]byte, 1<<20), Prior: storage.Position{Epoch: 1<<32 - 1, Index: 1<<64 - 1}},
		}},
	}
	for i := range storage.Index(200) {
		records = append(records, sample(i))
	}
	for i := range records {
		b := record.Append(nil, &records[i])
		if len(b) != record.Size(&records[i]) {
			t.Errorf("record %d: Size = %d, and it has %d", i, record.Size(&records[i]), len(b))
		}
		got, err := record.Decode(b)
		if err != nil || !reflect.DeepEqual(got, records[i]) {
			t.Errorf("record %d: %v, or it changed", i, err)
		}
		for n := range min(len(b), 200) {
			if _, err := record.Decode(b[:n]); err == nil {
				t.Errorf("record %d, cut to %d bytes, is accepted", i, n)
			}
		}
	}
}

func TestUnknownFlag(t *testing.T) {
	b := record.Append(nil, &storage.Record{Index: 1, Ops: []storage.RecordOp{{Key: "s/a/b", Deleted: true}}})
	b[8+8+4] |= 1 << 3
	if _, err := record.Decode(b); !errors.Is(err, record.ErrFormat) {
		t.Errorf("an unknown flag: %v, want ErrFormat", err)
	}
}

func FuzzRecord(f *testing.F) {
	for i := range storage.Index(5) {
		r := sample(i)
		f.Add(record.Append(nil, &r))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := record.Decode(b)
		if err != nil {
			return
		}
		if again := record.Append(nil, &r); !bytes.Equal(again, b) {
			t.Errorf("%x is accepted and encodes as %x", b, again)
		}
	})
}
