package boltstore

import (
	"errors"
	"fmt"
	"math/bits"

	"go.etcd.io/bbolt"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/boltpage"
)

// The mark of a file is in the sequence numbers of its two buckets, which nothing else uses: earlier versions of
// this program keep them. A new file has its mark from the start; one of an earlier version gets it when it is opened for the first
// time.

// MarkError says that a file has another mark than it should have.
type MarkError struct {
	File              string
	Incarnation, Node uint64 // as the file has them
	Position          Position
}

// Error implements error.
func (e *MarkError) Error() string {
	return fmt.Sprintf("%s belongs to another incarnation (%016x) of another node (%016x)", e.File, e.Incarnation, e.Node)
}

// mark writes the mark in a transaction.
func mark(tx *bbolt.Tx, incarnation, node uint64) error {
	if err := tx.Bucket(boltpage.DataBucket).SetSequence(incarnation); err != nil {
		return err
	}
	return tx.Bucket(boltpage.MetaBucket).SetSequence(node)
}

// openMarked is openDB of a file that has, or gets, the mark that it should have. If writing it fails, for lack of space, the
// next opening tries again. A file that gets it is verified again: the verifier's sums are of the former pages.
func openMarked(path, name string, o *Options) (*bbolt.DB, *verifier, error) {
	db, found, err := openDB(path, name, o)
	if err != nil || o.Incarnation == 0 {
		return db, found, err
	}
	has, err := readMark(db, name)
	if err == nil {
		err = o.checkMark(has)
	}
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	if has.Incarnation != 0 {
		return db, found, nil
	}
	if err := db.Update(func(tx *bbolt.Tx) error { return mark(tx, o.Incarnation, o.Node) }); err != nil {
		o.Logger.Warn("the state file could not be marked as this node's", "err", err)
	}
	if err := db.Close(); err != nil {
		return nil, nil, err
	}
	return openDB(path, name, o)
}

func readMark(db *bbolt.DB, name string) (has *MarkError, err error) {
	has = &MarkError{File: name}
	err = db.View(func(tx *bbolt.Tx) error {
		has.Incarnation, has.Node = tx.Bucket(boltpage.DataBucket).Sequence(), tx.Bucket(boltpage.MetaBucket).Sequence()
		st, err := decodeState(tx.Bucket(boltpage.MetaBucket).Get(stateKey))
		has.Position = st.Position
		return err
	})
	return has, err
}

// checkMark compares a file's mark with the one it should have. None is fine.
func (o Options) checkMark(has *MarkError) error {
	switch {
	case has.Incarnation == o.Incarnation && has.Node == o.Node, has.Incarnation == 0 && has.Node == 0:
		return nil
	case o.flipped(has):
		return &storage.CorruptError{File: has.File, Detail: "its mark is damaged"}
	}
	return has
}

// flipped reports whether a few bits have changed in the mark, or in that of a file without one: that is damage, and not a
// file from elsewhere.
func (o Options) flipped(m *MarkError) bool {
	const few = 8
	distance := func(incarnation, node uint64) int {
		return bits.OnesCount64(m.Incarnation^incarnation) + bits.OnesCount64(m.Node^node)
	}
	return distance(o.Incarnation, o.Node) <= few || distance(0, 0) <= few
}
