package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/storage"
)

// markName is the file that makes a log active. It has two slots of one page each, which are written in turn, so that
// the one that is not being written survives a crash. A slot is, all numbers big endian:
//
//	magic ‖ format (2) ‖ length of what follows but the CRC (2) ‖
//	sequence, log id, first segment, last segment, offset in it, index (8 each) ‖ CRC-32C of all that (4)
const (
	markName  = "mark"
	markMagic = "COFFER-WALMARK"
	markBody  = 6 * 8
	slotBytes = 4096
)

// synced says what is durable: the segments from first to last, up to an offset in that. Behind a mark that names a last
// segment which does not exist there is no file: the log is complete from the index on all the same.
type synced struct {
	sequence uint64 // the larger one counts
	id       uint64 // of the log
	first    uint64 // segments below are garbage
	last     uint64
	offset   uint64
	index    storage.Index // of the last record before the offset
}

func (m *synced) fields() []*uint64 {
	return []*uint64{&m.sequence, &m.id, &m.first, &m.last, &m.offset, (*uint64)(&m.index)}
}

func (m *synced) encode() []byte {
	be := binary.BigEndian
	b := append(make([]byte, 0, slotBytes), markMagic...)
	b = be.AppendUint16(b, format)
	b = be.AppendUint16(b, markBody)
	for _, v := range m.fields() {
		b = be.AppendUint64(b, *v)
	}
	b = be.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:slotBytes]
}

func decodeMark(b []byte) (m synced, err error) {
	body, err := checkFramed(b, markMagic, markBody)
	if err != nil {
		return m, err
	}
	for i, v := range m.fields() {
		*v = binary.BigEndian.Uint64(body[8*i:])
	}
	return m, nil
}

// markFile is the open file.
type markFile struct {
	file     file
	sequence uint64 // last written
}

// write makes m durable.
func (f *markFile) write(m synced) error {
	m.sequence = f.sequence + 1
	if _, err := f.file.WriteAt(m.encode(), int64(m.sequence%2)*slotBytes); err != nil {
		return err
	}
	if err := f.file.Sync(); err != nil {
		return err
	}
	f.sequence = m.sequence
	return nil
}

// readMark returns the newer of the two slots. sure is false if the other one is damaged: it may have been the newer one.
// none is set if there is no mark at all.
func readMark(path string) (m synced, sure, none bool, err error) {
	b, err := os.ReadFile(path) //nolint:gosec // it is in our own directory
	if errors.Is(err, os.ErrNotExist) {
		return m, false, true, nil
	}
	if err != nil {
		return m, false, false, err
	}
	b = append(b, make([]byte, max(0, 2*slotBytes-len(b)))...)
	bad := 0
	sure, none = true, true
	for i := range 2 {
		slot := b[i*slotBytes : (i+1)*slotBytes]
		s, err := decodeMark(slot)
		switch {
		case errors.Is(err, ErrFormat):
			return m, false, false, err
		case err == nil && (none || s.sequence > m.sequence):
			m, none = s, false
		case err != nil:
			bad++
			sure = sure && blank(slot)
		}
	}
	// Only the first write leaves the other slot blank.
	return m, sure && (bad == 0 || m.sequence == 1), none, nil
}

func blank(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// saveMark makes m durable. If that fails, it makes durable that there is no mark, after which a crash leaves an inactive
// log, as good. An error means that neither worked. The caller holds syncMu.
func (l *Log) saveMark(m synced) error {
	err := l.writeMark(m)
	if err == nil {
		return nil
	}
	l.log.Warn("the mark of the log of changes could not be written: the log will not outlast a crash", "err", err)
	if removeErr := l.removeMark(); removeErr != nil {
		return fmt.Errorf("syncing the log of changes: %w", errors.Join(err, removeErr))
	}
	return nil
}

func (l *Log) writeMark(m synced) error {
	if l.marks != nil {
		return l.marks.write(m)
	}
	f, err := l.opts.open(filepath.Join(l.dir, markName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	l.marks = &markFile{file: f}
	if err := l.marks.write(m); err != nil {
		return err
	}
	return l.syncDir(l.dir)
}

// removeMark makes it durable that there is no mark.
func (l *Log) removeMark() error {
	if l.marks != nil {
		l.marks.file.Close() //nolint:errcheck // it goes
		l.marks = nil
	}
	if err := os.Remove(filepath.Join(l.dir, markName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return l.syncDir(l.dir)
}

func (l *Log) syncDir(dir string) error {
	d, err := l.opts.open(dir, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // nothing was written to it
	return d.Sync()
}
