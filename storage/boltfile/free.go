package boltfile

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"

	"github.com/coffer-project/coffer/storage/boltpage"
)

const (
	metaFlag = 4
	freeFlag = 16
	metaSize = 64
)

// SetFree writes a list of the pages that are free into a closed file, as bbolt would, so that bbolt does not look for them: that takes a
// walk through all pages. used is the truth. The list is in a transaction of its own, and belongs to the file until bbolt's next one. It takes free
// pages that kept does not have, if enough of them lie beside each other. Where it cannot be written, as on a full disk, there is none afterwards. Both
// meta pages must be whole.
func SetFree(f *os.File, used, kept func(id uint64) bool) error {
	if setFree(f, used, kept) == nil {
		return nil
	}
	if err := SyncMetas(f); err != nil {
		return err
	}
	return ForgetFree(f)
}

func setFree(f *os.File, used, kept func(id uint64) bool) error {
	now, err := newestMeta(f)
	if err != nil {
		return err
	}
	size := uint64(now.PageSize)
	var ids []uint64
	for id := uint64(2); id < now.HighWater; id++ {
		if !used(id) {
			ids = append(ids, id)
		}
	}
	pages := (boltpage.HeaderBytes + 8*uint64(len(ids)+1) + size - 1) / size
	at, high := now.HighWater, now.HighWater+pages
	first := 0 // of the pages beside each other that end with the present one
	for i, id := range ids {
		switch {
		case kept(id):
			first = i + 1
			continue
		case ids[first]+uint64(i-first) != id:
			first = i
		}
		if uint64(i-first)+1 == pages {
			at, high = ids[first], now.HighWater
			ids = slices.Delete(ids, first, i+1)
			break
		}
	}
	count := uint64(len(ids))
	list := make([]byte, boltpage.HeaderBytes, pages*size)
	native.PutUint64(list, at)
	native.PutUint16(list[8:], freeFlag)
	native.PutUint16(list[10:], uint16(min(count, 0xffff)))
	native.PutUint32(list[12:], uint32(pages-1))
	if count >= 0xffff {
		list = native.AppendUint64(list, count) // the first word is then the number
	}
	for _, id := range ids {
		list = native.AppendUint64(list, id)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(list[:cap(list)], int64(at*size)); err != nil {
		return errors.Join(err, f.Truncate(info.Size()))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return writeMeta(f, now, high, at)
}

// ForgetFree takes the list of free pages out of a closed file that has one: bbolt then looks for them.
func ForgetFree(f *os.File) error {
	now, err := newestMeta(f)
	if err != nil || now.Freelist == boltpage.NoFreelist {
		return err
	}
	return writeMeta(f, now, now.HighWater, boltpage.NoFreelist)
}

// Settle is SyncMetas for a file that is about to be checked and opened. The process before may have ended after it had written a meta page and before
// that was synced: the system shows what the disk does not have, and what bbolt takes for free may be in use there. What is damaged is left to the check.
func Settle(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is synced
	if err := SyncMetas(f); Failed(err) {
		return err
	}
	return nil
}

// Failed reports whether an error of this package says that the system could not read or write, and not that the file is damaged.
func Failed(err error) bool {
	_, failed := errors.AsType[*fs.PathError](err)
	return failed
}

// SyncMetas writes the two meta pages again as they are read, and syncs them: bbolt goes on from a meta page that it has written and could not sync, and
// the system takes it for written. No transaction may be writing one of them.
func SyncMetas(f *os.File) error {
	now, err := newestMeta(f)
	if err != nil {
		return err
	}
	both := make([]byte, 2*now.PageSize)
	if _, err := f.ReadAt(both, 0); err != nil {
		return readError("its meta pages", err)
	}
	if _, err := f.WriteAt(both, 0); err != nil {
		return err
	}
	return f.Sync()
}

// writeMeta writes the meta page of a transaction after now, which has the same root.
func writeMeta(f *os.File, now boltpage.Meta, high, list uint64) error {
	page, size := make([]byte, boltpage.HeaderBytes+metaSize), int64(now.PageSize)
	if _, err := f.ReadAt(page, int64(now.Tx%2)*size); err != nil {
		return readError("its meta page", err)
	}
	m, next := page[boltpage.HeaderBytes:], now.Tx+1
	if native.Uint64(m[48:]) != now.Tx {
		return fmt.Errorf("meta page %d is not that of transaction %d", now.Tx%2, now.Tx)
	}
	native.PutUint64(page, next%2)
	native.PutUint16(page[8:], metaFlag)
	native.PutUint64(m[32:], list)
	native.PutUint64(m[40:], high)
	native.PutUint64(m[48:], next)
	sum := fnv.New64a()
	sum.Write(m[:metaSize-8])
	native.PutUint64(m[metaSize-8:], sum.Sum64())
	if _, err := f.WriteAt(page, int64(next%2)*size); err != nil {
		return err
	}
	return f.Sync()
}
