// Package stream encodes the state as one self-checking stream of bytes: what a snapshot is on its way to another node or
// into an archive.
//
// It promises that a stream which was read to its end without an error is what was written, and that its length follows from its
// header. When a snapshot is taken, and how one replaces the state, is said in package fsm. Start reading at the format below, then
// Reader and Decode.
package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/record"
)

// A snapshot stream is, all numbers big endian:
//
//	magic    "COFFER-SNAPSHOT" and the format, one byte
//	blocks   length (4, never 0) ‖ CRC-32C of length and payload (4) ‖ payload
//	trailer  0 (4) ‖ CRC-32C of those four bytes (4) ‖ SHA-256 of everything before it
//
// The payloads joined together are a header and then the records in ascending order of their keys:
//
//	header   length (4) ‖ index, term, configuration index, records, bytes of keys and records (8 each) ‖ configuration
//	record   length of the key (4) ‖ length of the record (4) ‖ key ‖ record
//
// All blocks but the last are full, so that the length of the stream follows from the header alone: Raft
// announces it before it sends.
const (
	magic         = "COFFER-SNAPSHOT\x01"
	blockBytes    = 64 << 10
	blockOverhead = 8
	trailerBytes  = blockOverhead + sha256.Size
	headerFixed   = 5 * 8

	// maxRecordBytes and maxConfigBytes bound what a damaged length can make a reader allocate.
	maxRecordBytes = storage.MaxValueBytes + 4<<10
	maxConfigBytes = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func blockCRC(length [4]byte, payload []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, length[:]), castagnoli, payload)
}

// Header is what a stream says about itself before its records.
type Header struct {
	boltstore.Position
	Count uint64 // records
	Bytes uint64 // of keys and records
}

func (h *Header) encode() []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, uint32(headerFixed+len(h.Config)))
	for _, v := range []uint64{h.Index, h.Term, h.ConfigIndex, h.Count, h.Bytes} {
		b = be.AppendUint64(b, v)
	}
	return append(b, h.Config...)
}

// Length returns the length of the whole stream.
func (h *Header) Length() int64 {
	payload := 4 + headerFixed + int64(len(h.Config)) + 8*int64(h.Count) + int64(h.Bytes)
	blocks := (payload + blockBytes - 1) / blockBytes
	return int64(len(magic)) + payload + blocks*blockOverhead + trailerBytes
}

// Reader reads a state as a stream, from one view. Not safe for concurrent use.
type Reader struct {
	Header Header

	view    boltstore.View
	stopped func() bool
	next    string // first key not yet read from the view
	ended   bool   // the view has no more records

	payload []byte // not yet in a block
	out     []byte // not yet read
	sum     hash.Hash
	started bool
	done    bool
	closed  bool
}

// NewReader returns a stream of the state in a view, which the reader closes with itself. Once stopped reports true, reading
// fails with storage.ErrUnavailable.
func NewReader(v boltstore.View, stopped func() bool) *Reader {
	d := v.Digest()
	return &Reader{
		Header: Header{Position: v.Position(), Count: d.Count, Bytes: d.Bytes}, view: v, stopped: stopped, sum: sha256.New(),
	}
}

// Close implements io.Closer.
func (s *Reader) Close() error {
	if !s.closed {
		s.closed = true
		s.view.Close()
	}
	return nil
}

func (s *Reader) Read(p []byte) (int, error) {
	if s.closed {
		return 0, errors.New("reading a snapshot: it is closed")
	}
	for len(s.out) == 0 {
		if s.done {
			return 0, io.EOF
		}
		if err := s.produce(); err != nil {
			return 0, fmt.Errorf("reading a snapshot: %w", err)
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// produce puts the next part of the stream into out.
func (s *Reader) produce() error {
	if !s.started {
		s.started = true
		s.payload = s.Header.encode()
		s.emit([]byte(magic))
		return nil
	}
	if err := s.fill(); err != nil {
		return err
	}
	if len(s.payload) == 0 {
		s.done = true
		var zero [4]byte
		s.emit(binary.BigEndian.AppendUint32(zero[:], blockCRC(zero, nil)))
		s.out = s.sum.Sum(s.out)
		return nil
	}
	n := min(len(s.payload), blockBytes)
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(n))
	block := make([]byte, 0, blockOverhead+n)
	block = binary.BigEndian.AppendUint32(append(block, length[:]...), blockCRC(length, s.payload[:n]))
	s.emit(append(block, s.payload[:n]...))
	s.payload = s.payload[:copy(s.payload, s.payload[n:])]
	return nil
}

func (s *Reader) emit(b []byte) {
	s.sum.Write(b)
	s.out = b
}

// fill reads records until there is enough for a block.
func (s *Reader) fill() error {
	if s.stopped() {
		return storage.ErrUnavailable
	}
	if s.ended || len(s.payload) >= blockBytes {
		return nil
	}
	be := binary.BigEndian
	return s.view.Walk(func(c *boltstore.Cursor) error {
		c.Seek(s.next)
		for len(s.payload) < blockBytes {
			key, rec, ok := c.Next()
			if !ok {
				s.ended = true
				return nil
			}
			s.payload = be.AppendUint32(s.payload, uint32(len(key)))
			s.payload = be.AppendUint32(s.payload, uint32(len(rec)))
			s.payload = append(append(s.payload, key...), rec...)
			s.next = key + "\x00"
		}
		return nil
	})
}

// corrupt is a finding about a stream.
func corrupt(format string, args ...any) error {
	return &storage.CorruptError{File: "the snapshot", Detail: fmt.Sprintf(format, args...)}
}

// blockReader yields the payload of a stream and checks everything around it. It returns io.EOF only after
// a right trailer with nothing behind it.
type blockReader struct {
	r       io.Reader
	sum     hash.Hash
	payload []byte // not yet read; part of block
	block   []byte
	last    bool // a block that was not full has been seen
	err     error
}

func newBlockReader(r io.Reader) *blockReader {
	return &blockReader{r: r, sum: sha256.New(), block: make([]byte, blockBytes)}
}

func (b *blockReader) Read(p []byte) (int, error) {
	for len(b.payload) == 0 {
		if b.err == nil {
			b.err = b.readBlock()
		}
		if b.err != nil {
			return 0, b.err
		}
	}
	n := copy(p, b.payload)
	b.payload = b.payload[n:]
	return n, nil
}

// get fills p from the underlying stream.
func (b *blockReader) get(p []byte) error {
	_, err := io.ReadFull(b.r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("it is cut short")
	}
	return err
}

func (b *blockReader) readMagic() error {
	got := make([]byte, len(magic))
	if err := b.get(got); err != nil {
		return err
	}
	b.sum.Write(got)
	last := len(got) - 1
	switch {
	case string(got[:last]) != magic[:last]:
		return corrupt("it does not begin like one")
	case got[last] != magic[last]:
		return corrupt("its format is %d and this program knows %d", got[last], magic[last])
	}
	return nil
}

func (b *blockReader) readBlock() error {
	var head [blockOverhead]byte
	if err := b.get(head[:]); err != nil {
		return err
	}
	length, crc := [4]byte(head[:4]), binary.BigEndian.Uint32(head[4:])
	n := binary.BigEndian.Uint32(length[:])
	if n > blockBytes || b.last && n > 0 {
		return corrupt("a block has a wrong length")
	}
	payload := b.block[:n]
	if err := b.get(payload); err != nil {
		return err
	}
	if blockCRC(length, payload) != crc {
		return corrupt("the checksum of a block is wrong")
	}
	b.sum.Write(head[:])
	b.sum.Write(payload)
	b.payload, b.last = payload, n < blockBytes
	if n > 0 {
		return nil
	}
	return b.readEnd()
}

func (b *blockReader) readEnd() error {
	var sum [sha256.Size]byte
	if err := b.get(sum[:]); err != nil {
		return err
	}
	if !bytes.Equal(sum[:], b.sum.Sum(nil)) {
		return corrupt("its hash is wrong")
	}
	switch n, err := io.ReadFull(b.r, sum[:1]); {
	case n > 0:
		return corrupt("something follows its end")
	case !errors.Is(err, io.EOF):
		return err
	}
	return io.EOF
}

// Decode reads a whole stream. onHeader may reject it; add gets each record, whose slice is valid
// during the call. Nothing that was read is to be trusted before Decode returns nil.
func Decode(r io.Reader, onHeader func(Header) error, add func(key string, rec []byte) error) (h Header, err error) {
	blocks := newBlockReader(r)
	if err := blocks.readMagic(); err != nil {
		return h, err
	}
	if h, err = readHeader(blocks); err != nil {
		return h, err
	}
	if err := onHeader(h); err != nil {
		return h, err
	}
	var count, size uint64
	var last string
	var buf []byte
	for {
		key, rec, err := readRecord(blocks, &buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return h, err
		}
		head, _, err := record.Parse(rec)
		switch {
		case err != nil:
			return h, corrupt("record %d: %v", count, err)
		case head.Version > h.Index:
			return h, corrupt("record %d is newer than the snapshot", count)
		case key <= last:
			return h, corrupt("record %d is out of order", count)
		}
		last = key
		count, size = count+1, size+uint64(len(key)+len(rec))
		if err := add(key, rec); err != nil {
			return h, err
		}
	}
	if count != h.Count || size != h.Bytes {
		return h, corrupt("it holds %d records of %d bytes and should hold %d of %d", count, size, h.Count, h.Bytes)
	}
	return h, nil
}

func readHeader(r io.Reader) (h Header, err error) {
	be := binary.BigEndian
	var length [4]byte
	if err := readPayload(r, length[:]); err != nil {
		return h, err
	}
	n := be.Uint32(length[:])
	if n < headerFixed || n > headerFixed+maxConfigBytes {
		return h, corrupt("its header has a wrong length")
	}
	b := make([]byte, n)
	if err := readPayload(r, b); err != nil {
		return h, err
	}
	for i, v := range []*uint64{&h.Index, &h.Term, &h.ConfigIndex, &h.Count, &h.Bytes} {
		*v = be.Uint64(b[8*i:])
	}
	h.Config = b[headerFixed:]
	return h, nil
}

// readRecord returns io.EOF at the end of the stream. rec is part of buf.
func readRecord(r io.Reader, buf *[]byte) (key string, rec []byte, err error) {
	be := binary.BigEndian
	var lengths [8]byte
	if n, err := io.ReadFull(r, lengths[:]); err != nil {
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			err = corrupt("it ends within a record")
		}
		return "", nil, err
	}
	keyLen, recLen := be.Uint32(lengths[:]), be.Uint32(lengths[4:])
	if keyLen == 0 || keyLen > storage.MaxKeyBytes || recLen > maxRecordBytes {
		return "", nil, corrupt("a record has a wrong length")
	}
	if n := int(keyLen + recLen); cap(*buf) < n {
		*buf = make([]byte, n)
	}
	b := (*buf)[:keyLen+recLen]
	if err := readPayload(r, b); err != nil {
		return "", nil, err
	}
	return string(b[:keyLen]), b[keyLen:], nil
}

func readPayload(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("it ends within its header or a record")
	}
	return err
}
