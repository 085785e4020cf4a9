package barrier

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// A sealed value: format byte, flags byte, key term (uint32, big endian), 12 bytes of random nonce,
// ciphertext with a 16-byte tag. The associated data is format, term and the entry's whole key.
const (
	valueFormat = 1
	headerBytes = 1 + 1 + 4
	cryptBytes  = 12 + 16 // nonce and tag
)

// Overhead is how much longer, in bytes, a sealed value is than its plaintext.
const Overhead = headerBytes + cryptBytes

// badValue is why a sealed value does not open with the keys at hand. It says nothing of the content.
type badValue string

func (e badValue) Error() string { return string(e) }

// keys is an opened ring, ready for use. Only the counts in it change.
type keys struct {
	stored  []byte        // the ring it came from, as stored
	version storage.Index // of that entry
	changes uint64        // Barrier.changes before the ring was read
	active  *termKey
	terms   map[uint32]*termKey
}

type termKey struct {
	term        uint32
	installedAt time.Time
	aead        cipher.AEAD
	encryptions *atomic.Uint64 // of this node since it was unsealed
	saved       *atomic.Uint64 // those of them that are part of the stored count
}

// newKeys makes r ready for use. It goes on counting where before, if not nil, left off.
func newKeys(r ring, stored storage.Entry, changes uint64, before *keys) *keys {
	k := &keys{stored: stored.Value, version: stored.Version, changes: changes, terms: make(map[uint32]*termKey, len(r.entries))}
	for i := range r.entries {
		e := &r.entries[i]
		k.active = &termKey{
			term: e.term, installedAt: e.installedAt,
			aead: newCipher(e.key[:]), encryptions: new(atomic.Uint64), saved: new(atomic.Uint64),
		}
		if before != nil && before.terms[e.term] != nil {
			k.active.encryptions, k.active.saved = before.terms[e.term].encryptions, before.terms[e.term].saved
		}
		k.terms[e.term] = k.active
	}
	return k
}

// seal returns plain sealed for name under the active key.
func (k *keys) seal(name string, plain []byte) []byte {
	k.active.encryptions.Add(1)
	size := Overhead + len(plain)
	room := make([]byte, headerBytes, size+len(name)+aadBytes)
	out := room[:headerBytes:size]
	out[0] = valueFormat
	binary.BigEndian.PutUint32(out[2:], k.active.term)
	return k.active.aead.Seal(out, nil, plain, appendAAD(room[size:size], k.active.term, name))
}

// open returns what was sealed for name. Its errors are badValues. It allocates room for the plaintext and, behind it, the
// associated data, and nothing else.
func (k *keys) open(name string, sealed []byte) ([]byte, error) {
	if len(sealed) < Overhead {
		return nil, badValue("too short for a sealed value")
	}
	if sealed[0] != valueFormat || sealed[1] != 0 { // no flag has a meaning yet
		return nil, badValue("unknown format of a sealed value")
	}
	term := binary.BigEndian.Uint32(sealed[2:])
	key, ok := k.terms[term]
	if !ok {
		return nil, badValue(fmt.Sprintf("the key ring has no term %d", term))
	}
	size := len(sealed) - Overhead
	room := make([]byte, 0, size+len(name)+aadBytes)
	plain, err := key.aead.Open(room[:0:size], nil, sealed[headerBytes:], appendAAD(room[size:size], term, name))
	if err != nil {
		return nil, badValue("the value does not authenticate")
	}
	return plain, nil
}

// aadBytes is how much longer the associated data is than the name.
const aadBytes = 1 + 4

// appendAAD appends the associated data of a value.
func appendAAD(aad []byte, term uint32, name string) []byte {
	aad = append(aad, valueFormat)
	aad = binary.BigEndian.AppendUint32(aad, term)
	return append(aad, name...)
}
