package barrier

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"errors"
	"fmt"
	"math"

	"github.com/coffer-project/coffer/storage"
)

// nextKey is where a node that holds the former root key finds the next one, in the raw store: a version byte and then
// copies, oldest first, each a follower's public key and the root key for it. A copy is encrypted to a key pair that only
// one running process has, and inside of that under the former root key. So neither a disk nor a former root key opens
// it, alone or together, and a node takes a root key only from a holder of the one before.
const nextKey storage.Key = "l/barrier/next"

const (
	nextVersion     = 1
	followKeyBytes  = 32
	copyBytes       = followKeyBytes + followKeyBytes + RootKeyBytes + cryptBytes + 16 // names, encapsulation, two tags
	maxCopies       = 512                                                              // what is older is for nodes that were away for long
	copyPurpose     = "coffer next root key 1"
	copyWrapPurpose = "coffer next root key wrap 1"
)

var followKEM = hpke.DHKEM(ecdh.X25519())

// newFollower returns the key pair of this process.
func newFollower() hpke.PrivateKey {
	key, err := followKEM.GenerateKey()
	if err != nil {
		panic(err) // never fails: the program stops if there is no randomness
	}
	return key
}

// FollowKey is the public key that another node's Renew needs to tell this process the next root key. It is another
// one after each start, and the private part is in memory only.
func (b *Barrier) FollowKey() []byte { return b.follower.PublicKey().Bytes() }

// Renew adds to a transaction of the raw store what replaces the root key by next: the key ring with a new term, under
// next, and next itself for this process and for followers, which are FollowKeys. What was written before stays readable
// on every node that follows. The result seals, as SealBytes does, under the new term. The barrier follows once the
// transaction is committed. Errors: storage.ErrSealed, *storage.CorruptError, storage.ErrUnavailable when this node has not
// followed an earlier change yet.
func (b *Barrier) Renew(ctx context.Context, txn *storage.Txn, next []byte, followers [][]byte) (seal func(aad string, plain []byte) ([]byte, error), err error) {
	if _, err := b.current(ctx); err != nil { // follows what was changed before
		return nil, err
	}
	b.mu.Lock()
	root := bytes.Clone(b.root)
	b.mu.Unlock()
	if root == nil {
		return nil, storage.ErrSealed
	}
	defer clear(root)
	stored, err := txn.Get(ctx, ringKey)
	if err != nil {
		return nil, gone(err)
	}
	r, err := openRing(root, stored.Value)
	if errors.Is(err, ErrWrongKey) {
		return nil, fmt.Errorf("%w: the root key has just been replaced", storage.ErrUnavailable)
	}
	if err != nil {
		return nil, err
	}
	defer r.wipe()
	if err := r.grow(); err != nil {
		return nil, err
	}
	sealed, err := r.seal(next)
	if err != nil {
		return nil, err
	}
	copies, err := addCopies(ctx, txn, root, next, append([][]byte{b.FollowKey()}, followers...))
	if err != nil {
		return nil, err
	}
	txn.Put(ringKey, sealed)
	txn.Put(nextKey, copies)
	k := newKeys(r, storage.Entry{}, 0, nil)
	return func(aad string, plain []byte) ([]byte, error) { return k.seal(bytesName(aad), plain), nil }, nil
}

// grow adds a key with the next term, which becomes the active one.
func (r *ring) grow() error {
	last := r.entries[len(r.entries)-1].term
	if last == math.MaxUint32 {
		return errors.New("the key ring has no terms left")
	}
	r.entries = append(r.entries, newRingEntry(last+1))
	return nil
}

// addCopies returns the stored copies with those of next.
func addCopies(ctx context.Context, txn *storage.Txn, root, next []byte, followers [][]byte) ([]byte, error) {
	var before []byte
	switch e, err := txn.Get(ctx, nextKey); {
	case err == nil && len(e.Value) > 0 && e.Value[0] == nextVersion:
		before = e.Value[1:]
	case err != nil && !errors.Is(err, storage.ErrNotFound):
		return nil, err
	}
	wrapped := copyCipher(root).Seal(nil, nil, next, nil)
	defer clear(wrapped)
	for _, name := range followers {
		public, err := followKEM.NewPublicKey(name)
		if err != nil {
			return nil, fmt.Errorf("a node's follow key is not one: %w", err)
		}
		sealed, err := hpke.Seal(public, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(copyPurpose), wrapped)
		if err != nil {
			return nil, fmt.Errorf("encrypting the root key for another node: %w", err)
		}
		before = append(append(bytes.Clone(before), name...), sealed...)
	}
	before = before[max(0, len(before)-maxCopies*copyBytes):]
	return append([]byte{nextVersion}, before...), nil
}

// follow returns the ring that the store has now, and the root key that opens it, which the copies for this process lead
// to from root. ErrWrongKey if they do not.
func (b *Barrier) follow(ctx context.Context, root, sealed []byte) (ring, []byte, error) {
	e, err := b.raw.Get(ctx, nextKey)
	if errors.Is(err, storage.ErrNotFound) {
		return ring{}, nil, ErrWrongKey
	}
	if err != nil {
		return ring{}, nil, err
	}
	own := b.FollowKey()
	root = bytes.Clone(root)
	for copies := e.Value[min(1, len(e.Value)):]; len(copies) >= copyBytes; copies = copies[copyBytes:] {
		if !bytes.Equal(copies[:followKeyBytes], own) {
			continue
		}
		next, err := b.openCopy(root, copies[followKeyBytes:copyBytes])
		if err != nil {
			continue // of an earlier change, which root is already behind
		}
		clear(root)
		root = next
		if r, err := openRing(root, sealed); !errors.Is(err, ErrWrongKey) {
			return r, root, err
		}
	}
	clear(root)
	return ring{}, nil, ErrWrongKey
}

// openCopy opens one copy of the root key that follows root.
func (b *Barrier) openCopy(root, sealed []byte) ([]byte, error) {
	wrapped, err := hpke.Open(b.follower, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(copyPurpose), sealed)
	if err != nil {
		return nil, err
	}
	defer clear(wrapped)
	return copyCipher(root).Open(nil, nil, wrapped, nil)
}
