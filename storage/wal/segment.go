package wal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal/record"
)

// A segment file is, all numbers big endian, a header and records:
//
//	header   magic ‖ format (2) ‖ length of what follows but the CRC (2) ‖
//	         log id, number, base, time of the base in Unix milliseconds (8 each) ‖ chain before (4) ‖ CRC-32C of all that (4)
//	record   length of the body (4) ‖ chain (4) ‖ body
//
// The chain at a record is the CRC-32C of the chain before it, the length and the body; at the first record, what is
// before it is the header's CRC. So a record checks out only behind the records that it was written behind. The base is
// the index of the last record in the segment before, whose chain is in the header: that joins the two.
const (
	segmentMagic  = "COFFER-WAL"
	format        = 1
	headerBody    = 4*8 + 4
	headerBytes   = len(segmentMagic) + 4 + headerBody + 4
	frameBytes    = 4 + 4
	markEvery     = 64 << 10
	segmentSuffix = ".segment"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segment is one file.
type segment struct {
	number uint64
	base   storage.Index // complete from here on
	baseMS int64
	before uint32 // chain at the end of the segment before
	end    int64  // its length
	last   storage.Index
	lastMS int64  // of its last record
	chain  uint32 // at its end
	marks  []mark // places to begin reading, in order, the first right behind the header; nil: not read yet
}

// mark is a place between two records.
type mark struct {
	index  storage.Index // of the record before
	offset int64
	chain  uint32
}

// damage is what is wrong with a segment.
type damage struct{ detail string }

func (d *damage) Error() string { return d.detail }

func damaged(format string, args ...any) error { return &damage{fmt.Sprintf(format, args...)} }

func isDamage(err error) bool {
	var d *damage
	return errors.As(err, &d)
}

func segmentName(number uint64) string { return fmt.Sprintf("%016d%s", number, segmentSuffix) }

// parseSegmentName returns the number in the name of a segment.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && segmentName(n) == name
}

func (l *Log) segmentPath(number uint64) string { return filepath.Join(l.dir, segmentName(number)) }

func (s *segment) header(id uint64) []byte {
	be := binary.BigEndian
	b := append(make([]byte, 0, headerBytes), segmentMagic...)
	b = be.AppendUint16(b, format)
	b = be.AppendUint16(b, headerBody)
	for _, v := range [...]uint64{id, s.number, uint64(s.base), uint64(s.baseMS)} {
		b = be.AppendUint64(b, v)
	}
	b = be.AppendUint32(b, s.before)
	return be.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHeader returns a segment that ends behind its header.
func decodeHeader(b []byte) (s segment, id uint64, err error) {
	body, err := checkFramed(b, segmentMagic, headerBody)
	if err != nil {
		return s, 0, err
	}
	be := binary.BigEndian
	id = be.Uint64(body)
	s.number, s.base, s.baseMS = be.Uint64(body[8:]), storage.Index(be.Uint64(body[16:])), int64(be.Uint64(body[24:]))
	s.before = be.Uint32(body[32:])
	s.end, s.last, s.lastMS = int64(headerBytes), s.base, s.baseMS
	s.chain = be.Uint32(b[headerBytes-4:])
	s.marks = []mark{{s.base, s.end, s.chain}}
	return s, id, nil
}

// checkFramed returns what stands between magic, format and length, and the CRC. Another format is ErrFormat if the rest
// is right, so that a flipped bit is not taken for a newer program.
func checkFramed(b []byte, magic string, want int) ([]byte, error) {
	fixed := len(magic) + 4
	if len(b) < fixed || string(b[:len(magic)]) != magic {
		return nil, damaged("it does not begin as it should")
	}
	be := binary.BigEndian
	n := int(be.Uint16(b[len(magic)+2:]))
	if len(b) < fixed+n+4 || crc32.Checksum(b[:fixed+n], castagnoli) != be.Uint32(b[fixed+n:]) {
		return nil, damaged("the checksum of its header is wrong")
	}
	if be.Uint16(b[len(magic):]) != format {
		return nil, ErrFormat
	}
	if n != want {
		return nil, damaged("its header has a wrong length")
	}
	return b[fixed : fixed+n], nil
}

// readHeader returns the segment in a file as its header has it, and the file's length.
func (l *Log) readHeader(number uint64) (s segment, bytes int64, err error) {
	f, err := os.Open(l.segmentPath(number))
	if err != nil {
		return s, 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return s, 0, err
	}
	b := make([]byte, 512)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return s, 0, damaged("reading its header: %v", err)
	}
	s, id, err := decodeHeader(b[:n])
	switch {
	case err != nil:
		return s, 0, err
	case id != l.id || s.number != number:
		return s, 0, damaged("it belongs to another log or place")
	}
	return s, info.Size(), nil
}

// frame puts a record behind b, with the chain that has chain before it.
func appendFrame(b []byte, chain uint32, r *storage.Record) (frame []byte, next uint32) {
	start := len(b)
	b = append(b, make([]byte, frameBytes)...)
	b = record.Append(b, r)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-frameBytes))
	next = link(chain, b[start:start+4], b[start+frameBytes:])
	binary.BigEndian.PutUint32(b[start+4:], next)
	return b, next
}

func link(chain uint32, length, body []byte) uint32 {
	return crc32.Update(crc32.Update(chain, castagnoli, length), castagnoli, body)
}

// extend notes a record of n bytes that was written or read behind the segment's end.
func (s *segment) extend(n int64, index storage.Index, chain uint32) {
	s.end += n
	s.last, s.chain = index, chain
	if s.end-s.marks[len(s.marks)-1].offset >= markEvery {
		s.marks = append(s.marks, mark{index, s.end, chain})
	}
}

// scan reads records from r, which begins behind the header of s and holds at most limit bytes, and extends s by those
// that check out. It returns damage that says why it ended before the limit, or the error of onBody, which may be nil;
// the body is valid during the call.
func (s *segment) scan(r io.Reader, limit int64, onBody func(body []byte) error) error {
	in := bufio.NewReaderSize(r, int(min(256<<10, limit)))
	var head [frameBytes]byte
	var body []byte
	for s.end < limit {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return damaged("reading at byte %d: %v", s.end, err)
		}
		n := int64(binary.BigEndian.Uint32(head[:]))
		if n > limit-s.end-frameBytes {
			return damaged("the record at byte %d is longer than the file", s.end)
		}
		if int64(cap(body)) < n {
			body = make([]byte, n)
		}
		body = body[:n]
		if _, err := io.ReadFull(in, body); err != nil {
			return damaged("reading at byte %d: %v", s.end, err)
		}
		index, chain, err := checkRecord(s.last, s.chain, head[:], body)
		if err != nil {
			return damaged("at byte %d: %v", s.end, err)
		}
		if onBody != nil {
			if err := onBody(body); err != nil {
				return err
			}
		}
		s.extend(frameBytes+n, index, chain)
	}
	return nil
}

// checkRecord checks a record behind one with index last, at which the chain is chain.
func checkRecord(last storage.Index, chain uint32, head, body []byte) (storage.Index, uint32, error) {
	next := link(chain, head[:4], body)
	if next != binary.BigEndian.Uint32(head[4:]) {
		return 0, 0, damaged("the checksum of a record is wrong")
	}
	index, err := record.Index(body)
	if err != nil || index <= last {
		return 0, 0, damaged("a record is out of order")
	}
	return index, next, nil
}

// readChunk returns the records between two marks of the segment, or between a mark and its end.
func (l *Log) readChunk(s *segment, i int) ([]storage.Record, error) {
	from, to := s.marks[i], mark{s.last, s.end, s.chain}
	if i+1 < len(s.marks) {
		to = s.marks[i+1]
	}
	f, err := os.Open(l.segmentPath(s.number))
	if errors.Is(err, os.ErrNotExist) {
		return nil, damaged("it is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	b := make([]byte, to.offset-from.offset)
	if n, err := f.ReadAt(b, from.offset); n < len(b) {
		return nil, damaged("reading at byte %d: %v", from.offset+int64(n), err)
	}
	return decodeChunk(b, from, to)
}

// decodeChunk returns the records in b, which must be exactly what is between the marks.
func decodeChunk(b []byte, from, to mark) (records []storage.Record, err error) {
	at := from
	for len(b) > 0 {
		if len(b) < frameBytes {
			return nil, damaged("a record is cut short")
		}
		n := int64(binary.BigEndian.Uint32(b))
		if n > int64(len(b)-frameBytes) {
			return nil, damaged("a record is longer than it was")
		}
		body := b[frameBytes : frameBytes+n : frameBytes+n]
		if at.index, at.chain, err = checkRecord(at.index, at.chain, b[:frameBytes], body); err != nil {
			return nil, err
		}
		r, err := record.Decode(body)
		if errors.Is(err, record.ErrInvalid) {
			return nil, damaged("%v", err)
		}
		if err != nil {
			return nil, fmt.Errorf("reading record %d: %w", at.index, err)
		}
		records = append(records, r)
		at.offset += frameBytes + n
		b = b[frameBytes+n:]
	}
	if at != to {
		return nil, damaged("records are missing")
	}
	return records, nil
}
