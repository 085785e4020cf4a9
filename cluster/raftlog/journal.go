package raftlog

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/raftlog/sector"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltfile"
)

// The journal is a file of a fixed size: a block that names it, and two halves, which are written in turn. All numbers are big endian.
//
//	block    magic ‖ id, bytes of a half (8 each) ‖ length of the identity (2) ‖ identity of the data directory ‖ CRC-32C of all that (4)
//	half     records, each beginning in a sector of its own
//	sector   CRC-32C of the rest (4) ‖ id (8) ‖ generation (8) ‖ sector at which the record begins (4) ‖ its bytes (4) ‖ part of the record
//	record   entries: index, term (8 each) ‖ type (1) ‖ time (8) ‖ length of the data, of the extensions (4 each) ‖ data ‖ extensions
//
// A generation is one filling of a half: of the first half if it is even, else of the second. The header in raft.db names the id and the first
// generation that raft.db does not have. Of that one and the next, the records are entries of the log; everything else in the file is stale.
//
// A sector is written whole or not at all. So each of them is empty or checks out, or it was damaged. A record is written once the one
// before is durable, and a place once in a generation: so a record that is not complete, behind which there is no other, was never acknowledged.
const (
	JournalName  = "raft.journal"
	journalMagic = "COFFERJNL1"

	journalHalf  = 8 << 20
	journalBlock = 4096
	entryHead    = 8 + 8 + 1 + 8 + 4 + 4
)

// journalRef is what the header in raft.db says of the journal; an id of 0: that there is none.
type journalRef struct{ id, generation uint64 }

func refOf(s sector.Sector) journalRef { return journalRef{s.ID, s.Generation} }

// journal is an open journal. Its fields belong to who holds Log.writeMu.
type journal struct {
	file *os.File
	id   uint64
	half int64

	generation uint64 // that is being filled
	at         int64  // where in its half the next record begins
	inBolt     uint64 // the generation that raft.db names; it is generation, or the one before
	end        uint64 // last entry of the generation before, if that is not in raft.db
	suspect    bool   // a write failed, there or in raft.db, and may have been done all the same: nothing is written behind it

	payload, sectors []byte // scratch
}

// beginJournal makes the file at path, which createJournal has made or checked, a journal with a new id. What is in it is left: it is stale.
func beginJournal(path string, half int64, identity []byte) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 8)
	rand.Read(id) //nolint:errcheck // it never fails
	id[0] |= 0x80 // not 0
	block := append([]byte(journalMagic), id...)
	if len(identity) > journalBlock/2 {
		identity = nil
	}
	block = binary.BigEndian.AppendUint64(block, uint64(half))
	block = binary.BigEndian.AppendUint16(block, uint16(len(identity)))
	block = append(block, identity...)
	block = binary.BigEndian.AppendUint32(block, crc32.Checksum(block, castagnoli))
	if _, err = file.WriteAt(block, 0); err == nil {
		err = file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &journal{file: file, id: binary.BigEndian.Uint64(id), half: half, generation: 1, inBolt: 1}, nil
}

// createJournal makes the file unless it is there in its size and none of it is damaged: what is stale would be read after a crash, too. It writes
// zeros, because what is only allocated would need more than its data to be durable when it is written.
func createJournal(path string, half int64) error {
	size := journalBlock + 2*half
	if wholeJournal(path, size) {
		return boltfile.SyncDir(filepath.Dir(path))
	}
	return boltfile.Replace(path, func(f *os.File) (err error) {
		zeros := make([]byte, 1<<20)
		for left := size; left > 0 && err == nil; left -= int64(len(zeros)) {
			_, err = f.Write(zeros[:min(left, int64(len(zeros)))])
		}
		return err
	})
}

// wholeJournal reports whether there is a file of this size without a damaged sector.
func wholeJournal(path string, size int64) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != size {
		return false
	}
	b := make([]byte, 512*sector.Bytes)
	for at := int64(journalBlock); at < size; at += int64(len(b)) {
		b = b[:min(int64(len(b)), size-at)]
		if _, err := f.ReadAt(b, at); err != nil {
			return false
		}
		if _, err := sector.ParseAll(b); err != nil {
			return false
		}
	}
	return true
}

// frame makes the sectors of a record of entries, which are sealed, at the place for the next one. false: there is no room for it.
func (j *journal) frame(sealed []*raft.Log) bool {
	j.payload = j.payload[:0]
	for _, e := range sealed {
		if int64(len(j.payload)+entryHead+len(e.Data)+len(e.Extensions)) > j.half {
			return false
		}
		j.payload = appendEntry(j.payload, e)
	}
	j.sectors = sector.Append(j.sectors[:0], j.id, j.generation, uint32(j.at/sector.Bytes), j.payload)
	return j.at+int64(len(j.sectors)) <= j.half
}

// write makes what frame made durable.
func (j *journal) write() error {
	_, err := j.file.WriteAt(j.sectors, journalBlock+int64(j.generation%2)*j.half+j.at)
	if err == nil {
		err = boltfile.SyncData(j.file)
	}
	j.at += int64(len(j.sectors))
	j.suspect = err != nil
	return err
}

func appendEntry(b []byte, e *raft.Log) []byte {
	b = appendHead(b, e)
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Data)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Extensions)))
	b = append(b, e.Data...)
	return append(b, e.Extensions...)
}

// decodeEntries returns the entries of a record, unsealed.
func decodeEntries(b []byte) (entries []*raft.Log, err error) {
	for len(b) > 0 {
		if len(b) < entryHead {
			return nil, errors.New("an entry is cut short")
		}
		e := &raft.Log{Index: binary.BigEndian.Uint64(b), Term: binary.BigEndian.Uint64(b[8:]), Type: raft.LogType(b[16])}
		if at := int64(binary.BigEndian.Uint64(b[17:])); at != 0 {
			e.AppendedAt = time.Unix(0, at).UTC()
		}
		data, extensions := uint64(binary.BigEndian.Uint32(b[25:])), uint64(binary.BigEndian.Uint32(b[29:]))
		if b = b[entryHead:]; data+extensions > uint64(len(b)) {
			return nil, errors.New("an entry is cut short")
		}
		e.Data = bytes.Clone(b[:data])
		e.Extensions = bytes.Clone(b[data : data+extensions])
		b = b[data+extensions:]
		if err := unseal(e); err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// readJournal returns the entries that a raft.db which names ref, and whose last entry is last (0: none), does not have. A damaged
// journal, or one that does not belong to it, is a *storage.CorruptError; one of another node is a *storage.ForeignError.
func readJournal(path string, ref journalRef, last uint64, identity storage.FileIdentity) ([]*raft.Log, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &storage.CorruptError{File: path, Detail: "it is missing, and " + FileName + " says that entries are in it"}
	}
	if err != nil {
		return nil, err
	}
	if err := checkBlock(path, b, ref, identity); err != nil {
		return nil, err
	}
	entries, err := readHalves(b[journalBlock:], ref)
	if err != nil {
		return nil, &storage.CorruptError{File: path, Detail: err.Error()}
	}
	for _, e := range entries {
		if last != 0 && e.Index != last+1 {
			return nil, &storage.CorruptError{File: path, Detail: fmt.Sprintf("entry %d follows entry %d", e.Index, last)}
		}
		last = e.Index
	}
	return entries, nil
}

// checkBlock checks that a journal is the one that raft.db names.
func checkBlock(path string, b []byte, ref journalRef, want storage.FileIdentity) error {
	const fixed = len(journalMagic) + 8 + 8 + 2
	if len(b) < journalBlock || string(b[:len(journalMagic)]) != journalMagic {
		return &storage.CorruptError{File: path, Detail: "it is no journal, or cut short"}
	}
	end := fixed + int(binary.BigEndian.Uint16(b[fixed-2:]))
	if end > journalBlock-4 || crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return &storage.CorruptError{File: path, Detail: "the checksum of its first block is wrong"}
	}
	if half := binary.BigEndian.Uint64(b[len(journalMagic)+8:]); uint64(len(b)-journalBlock) != 2*half || half%sector.Bytes != 0 {
		return &storage.CorruptError{File: path, Detail: "it is cut short"}
	}
	if binary.BigEndian.Uint64(b[len(journalMagic):]) == ref.id {
		return nil
	}
	if is, err := storage.DecodeFileIdentity(b[fixed:end]); err == nil && !want.IsZero() && !is.Same(want) {
		return &storage.ForeignError{File: path, Is: is, Want: want}
	}
	return &storage.CorruptError{File: path, Detail: "it is not the one that " + FileName + " beside it names: one of them is from another time or place"}
}

func readHalves(b []byte, ref journalRef) ([]*raft.Log, error) {
	var all []*raft.Log
	for _, generation := range []uint64{ref.generation, ref.generation + 1} {
		half := b[:len(b)/2]
		if generation%2 == 1 {
			half = b[len(b)/2:]
		}
		entries, err := readHalf(half, journalRef{ref.id, generation})
		if err != nil {
			return nil, err
		}
		switch {
		case generation == ref.generation:
		case len(all) == 0 && len(entries) > 0:
			return nil, errors.New("the first entries in it are lost")
		case len(entries) == 0 && ref.generation > 1:
			// The generation before ref is still there, but for what was torn: it had entries.
			if s, err := sector.Parse(half[:sector.Bytes]); err != nil || s.ID != ref.id || s.Generation+1 < ref.generation {
				return nil, errors.New("it is from an earlier time than " + FileName + " beside it")
			}
		}
		all = append(all, entries...)
	}
	return all, nil
}

// readHalf returns the entries of a generation.
func readHalf(b []byte, ref journalRef) (entries []*raft.Log, err error) {
	sectors, err := sector.ParseAll(b)
	if err != nil {
		return nil, err
	}
	at := uint32(0)
	for {
		record, ok := joinSectors(sectors, at, ref)
		if !ok {
			break
		}
		found, err := decodeEntries(record)
		if err != nil {
			return nil, err
		}
		entries = append(entries, found...)
		at += sector.Count(len(record))
	}
	for _, s := range sectors[at:] {
		switch {
		case s.ID == ref.id && s.Generation > ref.generation:
			return nil, errors.New(FileName + " beside it is from an earlier time")
		case refOf(s) == ref && s.Record != at:
			return nil, errors.New("a record in its middle is lost")
		}
	}
	return entries, nil
}

// joinSectors returns the record that begins at a sector, false if not all of it is there.
func joinSectors(sectors []sector.Sector, at uint32, ref journalRef) ([]byte, bool) {
	if int(at) >= len(sectors) {
		return nil, false
	}
	first := sectors[at]
	count := sector.Count(int(first.Size))
	if refOf(first) != ref || first.Record != at || count == 0 || int64(at)+int64(count) > int64(len(sectors)) {
		return nil, false
	}
	record := make([]byte, 0, count*sector.Room)
	for _, s := range sectors[at : at+count] {
		if refOf(s) != ref || s.Record != at || s.Size != first.Size {
			return nil, false
		}
		record = append(record, s.Part...)
	}
	return record[:first.Size], true
}
