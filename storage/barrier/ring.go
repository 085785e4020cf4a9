package barrier

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// The ring as stored: magic, version byte, then nonce, ciphertext and tag of AES-256-GCM under a key derived
// from the root key, with magic, version and the entry's key as associated data. Inside, oldest first, for
// each key: term (uint32), time of installation (int64, Unix milliseconds), 32 bytes. Big endian.
const (
	ringMagic      = "COFFER-KEYRING"
	ringVersion    = 1
	ringEntryBytes = 4 + 8 + 32
)

// stateFile is what a CorruptError names: a bad value is in the state of every node, not in one file.
const stateFile = "the replicated state"

// ring is what is in a key ring: at least one key, terms ascending. The last one is active.
type ring []ringEntry

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
	for i := range r {
		clear(r[i].key[:])
	}
}

func (r ring) encode() []byte {
	out := make([]byte, 0, len(r)*ringEntryBytes)
	for i := range r {
		out = binary.BigEndian.AppendUint32(out, r[i].term)
		out = binary.BigEndian.AppendUint64(out, uint64(r[i].installedAt.UnixMilli()))
		out = append(out, r[i].key[:]...)
	}
	return out
}

func decodeRing(plain []byte) (ring, error) {
	if len(plain) == 0 || len(plain)%ringEntryBytes != 0 {
		return nil, fmt.Errorf("%d bytes are no whole number of keys", len(plain))
	}
	n := len(plain) / ringEntryBytes
	r := make(ring, n, n+1) // room for what a rotation appends, so that it leaves no copy of the keys behind
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
	plain := r.encode()
	defer clear(plain)
	return ringCipher(rootKey).Seal(ringHeader(), nil, plain, ringAAD()), nil
}

// openRing reads a stored ring. Errors: ErrWrongKey, *storage.CorruptError.
func openRing(rootKey, sealed []byte) (ring, error) {
	rest, ok := bytes.CutPrefix(sealed, []byte(ringMagic))
	if !ok || len(rest) == 0 {
		return nil, corruptRing(errors.New("this is no key ring"))
	}
	if rest[0] != ringVersion {
		return nil, fmt.Errorf("the key ring has format %d, this server knows %d", rest[0], ringVersion)
	}
	if len(rootKey) != RootKeyBytes {
		return nil, ErrWrongKey
	}
	plain, err := ringCipher(rootKey).Open(nil, nil, rest[1:], ringAAD())
	if err != nil {
		return nil, ErrWrongKey
	}
	defer clear(plain)
	r, err := decodeRing(plain)
	if err != nil {
		return nil, corruptRing(err)
	}
	return r, nil
}

func corruptRing(err error) error {
	return &storage.CorruptError{File: stateFile, Detail: fmt.Sprintf("entry %q: %v", ringKey, err)}
}

func ringHeader() []byte { return append([]byte(ringMagic), ringVersion) }

func ringAAD() []byte { return append(ringHeader(), ringKey...) }

func ringCipher(rootKey []byte) cipher.AEAD {
	key := derive(rootKey, "coffer key ring 1")
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
