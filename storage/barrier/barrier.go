// Package barrier encrypts: it wraps a Store of sealed values in a Store of plaintext.
//
// Every value is sealed with AES-256-GCM under the active key of a key ring, bound to its key, so that the
// Raft log, the state file and snapshots hold ciphertext, and a value moved to another key does not open.
// Keys of entries stay readable. The ring is an entry itself, encrypted under the root key, which only ever
// lives in memory; Rotate adds a key to it and keeps the old ones, Renew replaces the root key, and the running nodes
// follow (renew.go). The entries below l/seal/ and l/barrier/
// are what a sealed node must read: they go through the raw store, and the barrier refuses them.
//
// It assumes that one root key belongs to one cluster, and that the composition passes it the feed of the raw store
// (Changed), by which a node learns that another one rotated. Start reading at Barrier, then keys.open.
package barrier

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// ringKey is where the key ring is, in the raw store.
const ringKey storage.Key = "l/barrier/keyring"

// RootKeyBytes is the size of a root key.
const RootKeyBytes = 32

// Sentinels. Use errors.Is.
var (
	// ErrWrongKey says that the key ring does not open with the root key.
	ErrWrongKey = errors.New("the root key does not open the key ring")
	// ErrForged says that bytes given to OpenBytes are not what SealBytes made for the same aad.
	ErrForged = errors.New("not sealed by this barrier, or changed since")
)

// KeyInfo describes the active encryption key. Encryptions is what was saved of all nodes' counts (SaveCount) and
// what this node has sealed under the key since: it is a lower bound of what the cluster did.
type KeyInfo struct {
	Term        uint32 // from 1, one more at each rotation
	InstalledAt time.Time
	Encryptions uint64
	Unsaved     uint64 // the part of Encryptions that is in this node's memory only
}

// Barrier is a Store of plaintext over a raw Store of sealed values. While it is sealed, every operation
// answers storage.ErrSealed. Safe for concurrent use.
type Barrier struct {
	raw     storage.Store
	changes atomic.Uint64        // counts announced changes of the stored ring
	keys    atomic.Pointer[keys] // nil while sealed; replaced as a whole

	follower hpke.PrivateKey // opens what Renew of other nodes leaves for this process

	mu    sync.Mutex // guards root, first, and every replacement of keys
	root  []byte     // nil while sealed
	first []byte     // the cluster's first root key; nil while sealed
}

// New returns a sealed barrier over raw.
func New(raw storage.Store) *Barrier { return &Barrier{raw: raw, follower: newFollower()} }

// NewRootKey returns a random root key.
func NewRootKey() []byte {
	key := make([]byte, RootKeyBytes)
	rand.Read(key) // never fails: the program stops if there is no randomness
	return key
}

// KeyringPut returns the entry that a new cluster begins with: a ring of one fresh key. It belongs in the
// raw store. The only error is a root key that is not RootKeyBytes long.
func KeyringPut(rootKey []byte) (storage.Put, error) {
	r := ring{bytes.Clone(rootKey), []ringEntry{newRingEntry(1)}}
	defer r.wipe()
	sealed, err := r.seal(rootKey)
	if err != nil {
		return storage.Put{}, err
	}
	return storage.Put{Key: ringKey, Value: sealed}, nil
}

// Unseal reads the key ring and opens it with rootKey, which is copied. Errors: storage.ErrNotFound if there
// is no ring, ErrWrongKey, *storage.CorruptError. After an error the barrier is as it was before: sealed, or
// open with the keys it had.
func (b *Barrier) Unseal(ctx context.Context, rootKey []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, opened, err := b.read(ctx, rootKey, nil)
	if err != nil {
		return err
	}
	b.install(k, opened)
	return nil
}

// opened is what opens a ring, besides the keys in it.
type opened struct{ root, first []byte }

// install puts keys into effect, which the barrier owns from then on. b.mu is held.
func (b *Barrier) install(k *keys, o opened) {
	clear(b.root)
	clear(b.first)
	b.root, b.first = o.root, o.first
	b.keys.Store(k)
}

// Seal forgets all keys. Operations under way may still finish. Sealing twice is fine.
func (b *Barrier) Seal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.install(nil, opened{})
}

// Sealed reports whether the barrier has no keys.
func (b *Barrier) Sealed() bool { return b.keys.Load() == nil }

// Changed takes note of a change of the raw store. Give it every Change of the feed; it does not block.
func (b *Barrier) Changed(ch storage.Change) {
	if ch.Touches(ringKey, nextKey) {
		b.changes.Add(1)
	}
}

// Rotate adds a key to the ring; from then on every node seals with it. What is stored stays sealed under
// the keys before, which the ring keeps. It needs a raw store that takes writes, and returns its errors
// (storage.ErrReadOnly on a standby).
func (b *Barrier) Rotate(ctx context.Context) (KeyInfo, error) {
	b.mu.Lock()
	root := bytes.Clone(b.root) // the commit must not happen under the lock
	b.mu.Unlock()
	if root == nil {
		return KeyInfo{}, storage.ErrSealed
	}
	defer clear(root)

	var info KeyInfo
	_, err := storage.Update(ctx, b.raw, func(txn *storage.Txn) error {
		stored, err := txn.Get(ctx, ringKey)
		if err != nil {
			return gone(err)
		}
		r, err := openRing(root, stored.Value)
		if err != nil {
			return err
		}
		defer func() { r.wipe() }()
		if err := r.grow(); err != nil {
			return err
		}
		active := r.entries[len(r.entries)-1]
		info = KeyInfo{Term: active.term, InstalledAt: active.installedAt}
		sealed, err := r.seal(root)
		txn.Put(ringKey, sealed)
		return err
	})
	if err != nil {
		return KeyInfo{}, fmt.Errorf("rotating the key ring: %w", err)
	}
	b.changes.Add(1) // also without a feed
	if _, err := b.current(ctx); err != nil {
		return KeyInfo{}, err
	}
	return info, nil
}

// DeriveKey returns 32 bytes that only this cluster's first root key yields for this purpose: always the same, also
// after the root key was replaced.
func (b *Barrier) DeriveKey(purpose string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil {
		return nil, storage.ErrSealed
	}
	return derive(b.first, "coffer derived key 1: "+purpose), nil
}

// derive is HKDF-SHA256. Purposes begin differently for each use within this package.
func derive(rootKey []byte, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, rootKey, nil, purpose, 32)
	if err != nil {
		panic(err) // the length asked for is constant and allowed
	}
	return key
}

// current returns keys at least as new as every change of the ring announced before the call.
func (b *Barrier) current(ctx context.Context) (*keys, error) {
	k := b.keys.Load()
	switch {
	case k == nil:
		return nil, storage.ErrSealed
	case k.changes == b.changes.Load():
		return k, nil
	}
	return b.reload(ctx, k)
}

// reload reads the ring again, because k is out of date or did not open a value, unless another goroutine did so
// since the caller got k. Until a ring that does not open is replaced by one that does, or by another
// Unseal, every operation fails: what would be sealed now could not be read later.
func (b *Barrier) reload(ctx context.Context, k *keys) (*keys, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.keys.Load()
	if now == nil {
		return nil, storage.ErrSealed
	}
	if now != k && now.changes == b.changes.Load() {
		return now, nil
	}
	next, opened, err := b.read(ctx, b.root, now)
	switch {
	case errors.Is(err, ErrWrongKey):
		return nil, fmt.Errorf("%w: the state was replaced by one with another root key: %w", storage.ErrSealed, err)
	case err != nil:
		return nil, gone(err)
	}
	if opened.root == nil { // it is the ring as before
		b.keys.Store(next)
	} else {
		b.install(next, opened)
	}
	return next, nil
}

// gone keeps "there is no key ring" from looking like "there is no such entry" to the caller that asked for one.
func gone(err error) error {
	if errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("%w: the key ring is gone", storage.ErrSealed)
	}
	return err
}

// read returns the keys of the stored ring, and what opened it: rootKey or, with now, the keys that it replaces, also a
// root key that has followed it. If the ring has not changed what opened it is empty. b.mu is held.
func (b *Barrier) read(ctx context.Context, rootKey []byte, now *keys) (*keys, opened, error) {
	changes := b.changes.Load() // before reading: a change during the read makes the result out of date
	stored, err := b.raw.Get(ctx, ringKey)
	if err != nil {
		return nil, opened{}, fmt.Errorf("reading the key ring: %w", err)
	}
	if now != nil && bytes.Equal(now.stored, stored.Value) { // cheap: anybody's forged bytes lead here
		same := *now
		same.changes, same.version = changes, stored.Version
		return &same, opened{}, nil
	}
	r, err := openRing(rootKey, stored.Value)
	root := rootKey
	if errors.Is(err, ErrWrongKey) && now != nil {
		r, root, err = b.follow(ctx, rootKey, stored.Value)
	}
	if err != nil {
		return nil, opened{}, err
	}
	defer r.wipe()
	return newKeys(r, stored, changes, now), opened{bytes.Clone(root), bytes.Clone(r.first)}, nil
}
