package barrier

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// The ring as stored: magic, version byte, then nonce, ciphertext and tag of AES-256-GCM under a key derived
// from the root key, with magic, version and the entry's key as associated data. Inside, oldest first, for
// each key: term (uint32), time of installation (int64, Unix milliseconds), 32 bytes. Big endian. Version 2, which
// a ring has once the root key was replaced, begins with the first root key: DeriveKey keeps to it.
const (
	ringMagic      = "COFFER-KEYRING"
	ringFirst      = 1 // under the first root key
	ringRenewed    = 2
	ringEntryBytes = 4 + 8 + 32
)

// stateFile is what a CorruptError names: a bad value is in the state of every node, not in one file.
const stateFile = "the replicated state"

// ring is what is in a key ring: at least one key, terms ascending. The last one is active.
type ring struct {
	first   []byte // the first root key of the cluster: what DeriveKey derives from
	entries []ringEntry
}

type ringEntry struct {
	term        uint32
	installedAt time.Time // UTC, whole milliseconds
	key         [32]byte
}

func newRingEntry(term uint32) ringEntry {
	e := ringEntry{term: term, installedAt: time.Now().UTC().Truncate(time.Millisecond)}
	rand.Read(e.key[:])
	return e
}

// wipe overwrites the keys.
func (r ring) wipe() {
	clear(r.first)
	for i := range r.entries {
		clear(r.entries[i].key[:])
	}
}

// encode returns the entries behind whatever out begins with.
func (r ring) encode(out []byte) []byte {
	out = slices.Grow(out, len(r.entries)*ringEntryBytes)
	for i := range r.entries {
		out = binary.BigEndian.AppendUint32(out, r.entries[i].term)
		out = binary.BigEndian.AppendUint64(out, uint64(r.entries[i].installedAt.UnixMilli()))
		out = append(out, r.entries[i].key[:]...)
	}
	return out
}

func decodeRing(plain []byte) ([]ringEntry, error) {
	if len(plain) == 0 || len(plain)%ringEntryBytes != 0 {
		return nil, fmt.Errorf("%d bytes are no whole number of keys", len(plain))
	}
	n := len(plain) / ringEntryBytes
	r := make([]ringEntry, n, n+1) // room for what a rotation appends, so that it leaves no copy of the keys behind
	last := uint32(0)
	for i := range r {
		e := plain[i*ringEntryBytes:]
		r[i].term = binary.BigEndian.Uint32(e)
		r[i].installedAt = time.UnixMilli(int64(binary.BigEndian.Uint64(e[4:]))).UTC()
		copy(r[i].key[:], e[12:])
		if r[i].term <= last {
			return nil, fmt.Errorf("term %d follows term %d", r[i].term, last)
		}
		last = r[i].term
	}
	return r, nil
}

// seal returns the ring as stored.
func (r ring) seal(rootKey []byte) ([]byte, error) {
	if len(rootKey) != RootKeyBytes {
		return nil, fmt.Errorf("a root key has %d bytes, not %d", RootKeyBytes, len(rootKey))
	}
	version, head := byte(ringFirst), make([]byte, 0, RootKeyBytes+len(r.entries)*ringEntryBytes)
	if !bytes.Equal(r.first, rootKey) {
		version, head = ringRenewed, append(head, r.first...)
	}
	plain := r.encode(head)
	defer clear(plain)
	return ringCipher(rootKey).Seal(ringHeader(version), nil, plain, ringAAD(version)), nil
}

// openRing reads a stored ring. Errors: ErrWrongKey, *storage.CorruptError.
func openRing(rootKey, sealed []byte) (ring, error) {
	rest, ok := bytes.CutPrefix(sealed, []byte(ringMagic))
	if !ok || len(rest) == 0 {
		return ring{}, corruptRing(errors.New("this is no key ring"))
	}
	version := rest[0]
	if version != ringFirst && version != ringRenewed {
		return ring{}, fmt.Errorf("the key ring has format %d, this server knows %d and %d", version, ringFirst, ringRenewed)
	}
	if len(rootKey) != RootKeyBytes {
		return ring{}, ErrWrongKey
	}
	plain, err := ringCipher(rootKey).Open(nil, nil, rest[1:], ringAAD(version))
	if err != nil {
		return ring{}, ErrWrongKey
	}
	defer clear(plain)
	first := rootKey
	if version == ringRenewed {
		if len(plain) < RootKeyBytes {
			return ring{}, corruptRing(fmt.Errorf("%d bytes are no root key", len(plain)))
		}
		first, plain = plain[:RootKeyBytes], plain[RootKeyBytes:]
		defer clear(first)
	}
	entries, err := decodeRing(plain)
	if err != nil {
		return ring{}, corruptRing(err)
	}
	return ring{bytes.Clone(first), entries}, nil
}

func corruptRing(err error) error {
	return &storage.CorruptError{File: stateFile, Detail: fmt.Sprintf("entry %q: %v", ringKey, err)}
}

func ringHeader(version byte) []byte { return append([]byte(ringMagic), version) }

func ringAAD(version byte) []byte { return append(ringHeader(version), ringKey...) }

func ringCipher(rootKey []byte) cipher.AEAD { return derivedCipher(rootKey, "coffer key ring 1") }

func copyCipher(rootKey []byte) cipher.AEAD { return derivedCipher(rootKey, copyWrapPurpose) }

func derivedCipher(rootKey []byte, purpose string) cipher.AEAD {
	key := derive(rootKey, purpose)
	defer clear(key)
	return newCipher(key)
}

// newCipher returns AES-256-GCM that puts a random nonce in front of what it seals.
func newCipher(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // block is AES
	}
	return aead
}
