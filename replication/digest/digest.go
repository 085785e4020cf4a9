// Package digest compares large sets of keys without sending them.
//
// A Tree describes the keys of one unit and the positions at which they were last written: 65,536 buckets by a hash of
// the key, in 256 groups; each the sum of the hashes of its items, so that adding and removing commute and cost the same
// whatever the size. Contents are not part of it: two clusters of one set that have a key from the same position have
// the same value. Pure; not safe for concurrent use unless said otherwise.
package digest

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/coffer-project/coffer/storage"
)

// Groups is the number of groups, and of buckets in each.
const Groups = 256

// Sum describes a set of items. The zero Sum is the empty set.
type Sum struct {
	A, B  uint64 // two sums of hashes, modulo 2^64
	Count uint64
}

// Add includes o.
func (s *Sum) Add(o Sum) { s.A, s.B, s.Count = s.A+o.A, s.B+o.B, s.Count+o.Count }

// Sub takes out o, which was included.
func (s *Sum) Sub(o Sum) { s.A, s.B, s.Count = s.A-o.A, s.B-o.B, s.Count-o.Count }

// Of returns the Sum of one item.
func Of(key storage.Key, mod storage.Position) Sum {
	b := make([]byte, 0, 256)
	b = binary.BigEndian.AppendUint32(b, mod.Epoch)
	b = binary.BigEndian.AppendUint64(b, uint64(mod.Index))
	b = append(b, key...)
	h := sha256.Sum256(b)
	return Sum{A: binary.BigEndian.Uint64(h[:8]), B: binary.BigEndian.Uint64(h[8:16]), Count: 1}
}

// Bucket returns the bucket of a key, in [0, 65536). Its group is the high byte.
func Bucket(key storage.Key) int {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h := uint64(offset)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * prime
	}
	return int(uint16(h>>48 ^ h>>32 ^ h>>16 ^ h))
}

// Buckets is a set of buckets.
type Buckets [Groups * Groups / 64]uint64

// Add includes a bucket.
func (b *Buckets) Add(bucket int) { b[bucket/64] |= 1 << (bucket % 64) }

// Has reports whether the key is in one of the buckets. A nil set has them all.
func (b *Buckets) Has(key storage.Key) bool {
	if b == nil {
		return true
	}
	at := Bucket(key)
	return b[at/64]&(1<<(at%64)) != 0
}
