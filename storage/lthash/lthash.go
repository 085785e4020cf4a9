// Package lthash describes a set of records by one sum, which changes with each record that is added to the set or taken
// out of it, whatever the order.
//
// It is LtHash (Bellare and Micciancio's sum of hashes; Lewi, Kim, Maykov and Weis, "Securing Update Propagation with
// Homomorphic Hashing") with 1,024 lanes of 16 bits: two different sets with the same sum cannot be found, also not by an
// attacker who chooses the records and knows every sum. So it needs no key. A record is hashed with SHA-256, and the result is expanded
// by ChaCha8 (c2sp.org/chacha8rand).
package lthash

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

// Size is the length of a fingerprint.
const Size = sha256.Size

const words = 256

// Sum describes a set of records. The zero Sum is that of the empty set. Not safe for concurrent use.
type Sum struct {
	lanes [words]uint64 // four of 16 bits in each
}

const high = 0x8000800080008000 // the highest bit of each lane

// Add includes a record, which is not in the set.
func (s *Sum) Add(key, rec []byte) {
	var one Sum
	one.expand(key, rec)
	s.Merge(&one)
}

// Remove takes out a record, which is in the set.
func (s *Sum) Remove(key, rec []byte) {
	var one Sum
	one.expand(key, rec)
	s.subtract(&one)
}

// Merge includes the records of another set, which has none in common with this one.
func (s *Sum) Merge(o *Sum) {
	for i, b := range &o.lanes {
		a := s.lanes[i]
		s.lanes[i] = (a&^high + b&^high) ^ (a^b)&high
	}
}

// subtract takes out the records of another set, which are all in this one.
func (s *Sum) subtract(o *Sum) {
	for i, b := range &o.lanes {
		a := s.lanes[i]
		s.lanes[i] = (a | high - b&^high) ^ (a^^b)&high
	}
}

// expand makes s the sum of a set of one record.
func (s *Sum) expand(key, rec []byte) {
	var x rand.ChaCha8
	x.Seed(hash(key, rec))
	for i := range s.lanes {
		s.lanes[i] = x.Uint64()
	}
}

// Fingerprint returns a hash of the sum: two sets with the same one are the same.
func (s *Sum) Fingerprint() [Size]byte {
	b := make([]byte, 0, 8*words)
	for _, l := range s.lanes {
		b = binary.BigEndian.AppendUint64(b, l)
	}
	return sha256.Sum256(b)
}

// hash returns what the lanes of one record are expanded from. The length of the key goes in, so that no byte can move
// between key and record.
func hash(key, rec []byte) (seed [32]byte) {
	h := sha256.New()
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(key)))
	h.Write(length[:])
	h.Write(key)
	h.Write(rec)
	h.Sum(seed[:0])
	return seed
}
