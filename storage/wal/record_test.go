package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// reformat makes what begins at b look like one of the next format.
func reformat(b []byte, magic int) {
	be := binary.BigEndian
	be.PutUint16(b[magic:], format+1)
	n := magic + 4 + int(be.Uint16(b[magic+2:]))
	be.PutUint32(b[n:], crc32.Checksum(b[:n], castagnoli))
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
		records = append(records, record(i, 2))
	}
	for i := range records {
		b := appendBody(nil, &records[i])
		if len(b) != bodyBytes(&records[i]) {
			t.Errorf("record %d: bodyBytes = %d, and it has %d", i, bodyBytes(&records[i]), len(b))
		}
		got, err := decodeBody(b)
		if err != nil || !reflect.DeepEqual(got, records[i]) {
			t.Errorf("record %d: %v, or it changed", i, err)
		}
		for n := range min(len(b), 200) {
			if _, err := decodeBody(b[:n]); err == nil {
				t.Errorf("record %d, cut to %d bytes, is accepted", i, n)
			}
		}
	}
}

func TestUnknownFlag(t *testing.T) {
	b := appendBody(nil, &storage.Record{Index: 1, Ops: []storage.RecordOp{{Key: "s/a/b", Deleted: true}}})
	b[bodyFixedBytes] |= 1 << 3
	if _, err := decodeBody(b); !errors.Is(err, ErrFormat) {
		t.Errorf("an unknown flag: %v, want ErrFormat", err)
	}
}

func FuzzRecord(f *testing.F) {
	for i := range storage.Index(5) {
		r := record(i, 4)
		f.Add(appendBody(nil, &r))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeBody(b)
		if err != nil {
			return
		}
		if again := appendBody(nil, &r); !bytes.Equal(again, b) {
			t.Errorf("%x is accepted and encodes as %x", b, again)
		}
	})
}

// FuzzSegment reads any bytes as a file, behind a header that is right and without one.
func FuzzSegment(f *testing.F) {
	s := segment{number: 1, base: 5}
	header := s.header(9)
	good, chain := append([]byte(nil), header...), binary.BigEndian.Uint32(header[headerBytes-4:])
	for i := range storage.Index(4) {
		r := record(6+i, 4)
		good, chain = appendFrame(good, chain, &r)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(header)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := decodeHeader(b); err != nil {
			b = append(append([]byte(nil), header...), b...)
		}
		s, id, err := decodeHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(s.header(id), b[:headerBytes]) {
			t.Error("a header is accepted and encodes as something else")
		}
		start := s.marks[0]
		scanned := s.scan(bytes.NewReader(b[headerBytes:]), int64(len(b)), nil)
		if scanned == nil && s.end != int64(len(b)) || scanned != nil && !isDamage(scanned) {
			t.Fatalf("scan = %v, at %d of %d", scanned, s.end, len(b))
		}
		records, err := decodeChunk(b[headerBytes:s.end], start, mark{s.last, s.end, s.chain})
		if err != nil {
			return // checksums are right, and the content is not
		}
		again, chain := append([]byte(nil), b[:headerBytes]...), start.chain
		for i := range records {
			again, chain = appendFrame(again, chain, &records[i])
		}
		if !bytes.Equal(again, b[:s.end]) {
			t.Error("what was accepted encodes as something else")
		}
	})
}

func FuzzMark(f *testing.F) {
	m := synced{1, 2, 3, 4, 5, 6}
	f.Add(m.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMark(b)
		if err != nil {
			return
		}
		if again := m.encode(); !bytes.HasPrefix(b, bytes.TrimRight(again, "\x00")) {
			t.Errorf("%x is accepted and encodes as %x", b, again)
		}
	})
}
