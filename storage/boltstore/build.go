package boltstore

import (
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/boltpage"
	"github.com/coffer-project/coffer/storage/record"
)

// buildBytes is how much Build puts into one transaction.
const buildBytes = 8 << 20

// Source passes records to add, in ascending order of their keys, and returns the position they belong to.
type Source func(add func(key string, rec []byte) error) (Position, error)

// Build writes a new file at path, which must not exist, with what comes from a source, and syncs it. No reader
// has checked the file yet: Open does. On error there is no file.
func Build(path string, from Source) error { return BuildMarked(path, 0, 0, from) }

// BuildMarked is Build of a file that has the mark of Options.
func BuildMarked(path string, incarnation, node uint64, from Source) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = f.Close(); err == nil {
		err = build(path, incarnation, node, from)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func build(path string, incarnation, node uint64, from Source) (err error) {
	opts := boltfile.Options(0)
	opts.PageSize = pageSize
	opts.NoSync, opts.NoGrowSync = true, true // one sync at the end
	db, err := bbolt.Open(path, 0o600, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.MaxSize = opts.InitialMmapSize
	b := builder{db: db}
	if err := b.begin(); err != nil {
		return err
	}
	defer func() { _ = b.tx.Rollback() }() // after a commit: does nothing
	pos, err := from(b.add)
	if err != nil {
		return err
	}
	st := state{Position: pos, Digest: b.digest}
	if err := b.tx.Bucket(boltpage.MetaBucket).Put(stateKey, st.encode()); err != nil {
		return err
	}
	if err := mark(b.tx, incarnation, node); err != nil {
		return err
	}
	if err := b.tx.Commit(); err != nil {
		return err
	}
	return db.Sync()
}

type builder struct {
	db     *bbolt.DB
	tx     *bbolt.Tx
	data   *bbolt.Bucket
	bytes  int // in this transaction
	last   string
	digest record.Digest
}

func (b *builder) begin() (err error) {
	if b.tx, err = b.db.Begin(true); err != nil {
		return err
	}
	if _, err = b.tx.CreateBucketIfNotExists(boltpage.MetaBucket); err != nil {
		return err
	}
	b.data, err = b.tx.CreateBucketIfNotExists(boltpage.DataBucket)
	if err != nil {
		return err
	}
	b.data.FillPercent = 0.9 // sorted input fills pages in order
	b.bytes = 0
	return nil
}

func (b *builder) add(key string, rec []byte) error {
	if key <= b.last {
		return fmt.Errorf("record %d is out of order", b.digest.Count)
	}
	b.last = key
	k, r := []byte(key), append([]byte(nil), rec...) // bbolt keeps both until the transaction ends
	b.digest.Add(k, r)
	if err := b.data.Put(k, r); err != nil {
		return err
	}
	if b.bytes += len(k) + len(r); b.bytes < buildBytes {
		return nil
	}
	if err := b.tx.Commit(); err != nil {
		return err
	}
	return b.begin()
}
