// Package batch seals and opens batch tokens, which carry what they are instead of being stored.
//
// It promises that Open returns only what Seal was given, by a Sealer with the same key. What a batch token may be, and whether it is
// still valid, is said in package token. Start reading at the format below, then Sealer.
package batch

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"time"
)

// ErrInvalid is the answer to every text that was not sealed with this key.
var ErrInvalid = errors.New("not a batch token")

// A batch token is "hvb." and, in base64url, 24 random bytes, the sealed entry and a tag of 16 bytes. The first
// 12 random bytes and the key of a Sealer give the key that seals this one token, with AES-256-GCM; the other 12
// are the nonce. With one key for all tokens, random nonces would be at risk of repeating after 2^32 of them,
// which a busy cluster makes in days.
const (
	Prefix     = "hvb."
	MaxBytes   = 8 << 10 // proxies in between often take no longer headers
	saltBytes  = 12
	nonceBytes = 12
	purpose    = "coffer batch token 1" // authenticated with each token
)

var strictBase64 = base64.RawURLEncoding.Strict() // a token has one spelling, and so one Key

// Content is what a batch token carries. The names are short because it travels with every request.
type Content struct {
	Format      int               `json:"v"` // 1
	Policies    []string          `json:"p"`
	Namespace   string            `json:"n"`
	Path        string            `json:"w"`
	DisplayName string            `json:"d,omitempty"`
	Meta        map[string]string `json:"m,omitempty"`
	EntityID    string            `json:"e,omitempty"`
	Parent      string            `json:"o,omitempty"`
	BoundCIDRs  []netip.Prefix    `json:"b,omitempty"`
	Mount       string            `json:"u,omitempty"`
	Role        string            `json:"r,omitempty"`
	CreatedAt   int64             `json:"c"` // nanoseconds
	TTL         time.Duration     `json:"t"`
}

// Sealer seals and opens batch tokens. Safe for concurrent use.
type Sealer struct{ key []byte }

// NewSealer returns a Sealer with a key of 32 bytes.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) != 32 {
		return nil, errors.New("the key of batch tokens is not 32 bytes long")
	}
	return &Sealer{key}, nil
}

// cipher returns the cipher of the one token with this salt.
func (s *Sealer) cipher(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Expand(sha256.New, s.key, purpose+"\x00"+string(salt), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Seal returns the token that carries a content. Content.Format is set here.
func (s *Sealer) Seal(c Content) (string, error) {
	c.Format = 1
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // texts, numbers and networks
	}
	random := make([]byte, saltBytes+nonceBytes, saltBytes+nonceBytes+len(text)+16)
	rand.Read(random) // never fails
	aead, err := s.cipher(random[:saltBytes])
	if err != nil {
		return "", err
	}
	sealed := aead.Seal(random, random[saltBytes:], text, []byte(purpose))
	return Prefix + strictBase64.EncodeToString(sealed), nil
}

// Open returns what a token carries, or ErrInvalid for everything that Seal did not make, or another version did.
func (s *Sealer) Open(token string) (*Content, error) {
	encoded := strings.TrimPrefix(token, Prefix)
	if strings.ContainsAny(encoded, "\r\n") { // which the decoder would skip
		return nil, ErrInvalid
	}
	sealed, err := strictBase64.DecodeString(encoded)
	if err != nil || len(sealed) < saltBytes+nonceBytes {
		return nil, ErrInvalid
	}
	aead, err := s.cipher(sealed[:saltBytes])
	if err != nil {
		return nil, err
	}
	text, err := aead.Open(nil, sealed[saltBytes:saltBytes+nonceBytes], sealed[saltBytes+nonceBytes:], []byte(purpose))
	if err != nil {
		return nil, ErrInvalid
	}
	var c Content
	if err := json.Unmarshal(text, &c); err != nil || c.Format != 1 {
		return nil, ErrInvalid
	}
	return &c, nil
}
