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
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Tokens and accessors are hashed apart, so that one can never stand for the other.
const (
	TokenDomain    = "t"
	AccessorDomain = "a"
	BatchDomain    = "b"
)

const hashChars = 43 // in base64

// Hasher makes keyed hashes. It keeps the machines it made, as setting one up costs more than a hash.
type Hasher struct{ machines sync.Pool }

// machine is one keyed hash with room for what goes in and comes out.
type machine struct {
	mac  hash.Hash
	in   []byte
	sum  [sha256.Size]byte
	text [storage.TimeTextBytes + hashChars]byte
}

// NewHasher returns a Hasher with this key.
func NewHasher(key []byte) *Hasher {
	return &Hasher{sync.Pool{New: func() any { return &machine{mac: hmac.New(sha256.New, key)} }}}
}

// Name returns what a text of a domain is stored under: its hash, after the time that a service token or an accessor begins with. So those
// that are made one after the other are stored side by side, in a few pages. Texts of earlier versions have no time.
func (h *Hasher) Name(domain, text string) string {
	m := h.machines.Get().(*machine)
	defer h.machines.Put(m)
	m.in = append(append(m.in[:0], domain...), text...)
	m.mac.Reset()
	m.mac.Write(m.in) // a hash takes everything
	clear(m.in)       // it was a token
	n := copy(m.text[:], timePrefix(domain, text))
	base64.RawURLEncoding.Encode(m.text[n:n+hashChars], m.mac.Sum(m.sum[:0]))
	return string(m.text[:n+hashChars])
}

// timePrefix returns the time that a text of a domain begins with, at most storage.TimeTextBytes long; "": none.
func timePrefix(domain, text string) string {
	if domain == BatchDomain {
		return ""
	}
	ours, chars := true, accessorChars
	if domain == TokenDomain { // those that their creator chose have no dot
		text, ours = strings.CutPrefix(text, tokenPrefix)
		chars = tokenChars
	}
	if text, _, _ = strings.Cut(text, "."); !ours || len(text) != chars || strings.Trim(text[:storage.TimeTextBytes], storage.Alphabet) != "" {
		return ""
	}
	return text[:storage.TimeTextBytes]
}

const (
	tokenPrefix = "hvs."
	MaxBytes    = 512

	randomChars   = 24 // of an accessor
	accessorChars = storage.TimeTextBytes + randomChars
	tokenChars    = storage.TimeTextBytes + 96
)

// suffix is how the tokens and accessors of a namespace end, for clients that tell it by that. Root's have none.
func suffix(namespace string) string {
	if namespace == "root" {
		return ""
	}
	return "." + namespace
}

// NewToken returns a fresh service token: "hvs.", its time unless that is zero, 96 random characters of base64url, and what says its namespace.
func NewToken(namespace string, at time.Time) string {
	var b [72]byte
	rand.Read(b[:])
	return tokenPrefix + timeText(at) + base64.RawURLEncoding.EncodeToString(b[:]) + suffix(namespace)
}

// timeText is nothing for the zero time.
func timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return storage.TimeText(at)
}

// NewAccessor returns its time unless that is zero, 24 random letters and digits, about 142 bits, and what says its namespace.
func NewAccessor(namespace string, at time.Time) string {
	begin := timeText(at)
	out := append(make([]byte, 0, accessorChars), begin...)
	var b [32]byte
	for {
		rand.Read(b[:])
		for _, c := range b {
			if c >= 248 { // 4 × 62: beyond, some characters would be likelier than others
				continue
			}
			if out = append(out, storage.Alphabet[c%62]); len(out) == len(begin)+randomChars {
				return string(out) + suffix(namespace)
			}
		}
	}
}
