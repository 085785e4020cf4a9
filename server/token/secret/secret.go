// Package secret makes the texts that are tokens and accessors, and the keyed hashes that stand for them in storage.
//
// It promises that tokens and accessors cannot be guessed, and that the hash of a token never equals that of an accessor. Start
// reading at NewToken, then Hasher.
package secret

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"sync"
)

// Tokens and accessors are hashed apart, so that one can never stand for the other.
const (
	TokenDomain    = "t"
	AccessorDomain = "a"
	BatchDomain    = "b"
)

// Hasher makes keyed hashes. It keeps the machines it made, as setting one up costs more than a hash.
type Hasher struct{ machines sync.Pool }

// machine is one keyed hash with room for what goes in and comes out.
type machine struct {
	mac  hash.Hash
	in   []byte
	sum  [sha256.Size]byte
	text [43]byte // sum in base64
}

// NewHasher returns a Hasher with this key.
func NewHasher(key []byte) *Hasher {
	return &Hasher{sync.Pool{New: func() any { return &machine{mac: hmac.New(sha256.New, key)} }}}
}

// Hash returns the keyed hash of a text of a domain.
func (h *Hasher) Hash(domain, text string) string {
	m := h.machines.Get().(*machine)
	defer h.machines.Put(m)
	m.in = append(append(m.in[:0], domain...), text...)
	m.mac.Reset()
	m.mac.Write(m.in) // a hash takes everything
	clear(m.in)       // it was a token
	base64.RawURLEncoding.Encode(m.text[:], m.mac.Sum(m.sum[:0]))
	return string(m.text[:])
}

const (
	tokenPrefix = "hvs."
	MaxBytes    = 512
)

// suffix is how the tokens and accessors of a namespace end, for clients that tell it by that. Root's have none.
func suffix(namespace string) string {
	if namespace == "root" {
		return ""
	}
	return "." + namespace
}

// NewToken returns a fresh service token: "hvs.", 96 characters of base64url, and what says its namespace.
func NewToken(namespace string) string {
	var b [72]byte
	rand.Read(b[:])
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:]) + suffix(namespace)
}

const accessorAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// NewAccessor returns 24 random letters and digits, about 142 bits, and what says its namespace.
func NewAccessor(namespace string) string {
	out := make([]byte, 0, 24)
	var b [32]byte
	for {
		rand.Read(b[:])
		for _, c := range b {
			if c >= 248 { // 4 × 62: beyond, some characters would be likelier than others
				continue
			}
			if out = append(out, accessorAlphabet[c%62]); len(out) == cap(out) {
				return string(out) + suffix(namespace)
			}
		}
	}
}
