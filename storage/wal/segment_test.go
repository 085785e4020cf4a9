package wal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
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

// FuzzSegment reads any bytes as a file, behind a header that is right and without one.
func FuzzSegment(f *testing.F) {
	s := segment{number: 1, base: 5}
	header := s.header(9)
	good, chain := append([]byte(nil), header...), binary.BigEndian.Uint32(header[headerBytes-4:])
	for i := range storage.Index(4) {
		r := sample(6+i, 4)
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
