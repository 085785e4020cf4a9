package seal

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/openbao/openbao/sdk/v2/helper/shamir"
)

// Split cuts a key-encryption key into shares of which threshold are needed. One share of a threshold of 1
// is a copy of the key; others are one byte longer than the key, and their last byte is their number.
func Split(kek []byte, shares, threshold int) ([][]byte, error) {
	if err := ValidateShares(shares, threshold); err != nil {
		return nil, err
	}
	if threshold == 1 {
		return [][]byte{append([]byte(nil), kek...)}, nil
	}
	return shamir.Split(kek, shares, threshold)
}

// Combine returns the key of these shares. It cannot know whether they were right or enough: a wrong share
// gives a wrong key, not an error.
func Combine(shares [][]byte) ([]byte, error) {
	if len(shares) == 1 {
		return append([]byte(nil), shares[0]...), nil
	}
	kek, err := shamir.Combine(shares)
	if err != nil {
		return nil, ErrMalformedShare
	}
	return kek, nil
}

// Unsealer collects the shares of one attempt. Safe for concurrent use.
type Unsealer struct {
	threshold int
	verify    func(kek []byte) error

	mu    sync.Mutex
	parts [][]byte
	nonce string
}

// NewUnsealer collects shares of the key that people hold of the seal cfg describes: the unseal key or the recovery
// key. verify says whether a combined key is the right one (see OpensRoot and VerifyRecovery); nil leaves that to
// the caller.
func NewUnsealer(cfg Config, verify func(kek []byte) error) *Unsealer {
	_, threshold := cfg.Held()
	return NewCollector(threshold, verify)
}

// NewCollector is NewUnsealer for any key of KeyBytes that was Split with this threshold.
func NewCollector(threshold int, verify func(key []byte) error) *Unsealer {
	return &Unsealer{threshold: max(threshold, 1), verify: verify}
}

// Threshold returns how many shares complete an attempt.
func (u *Unsealer) Threshold() int { return u.threshold }

// Submit adds one share, written in hex or base64. When it completes the threshold, done is true, kek is the
// verified key, which the caller owns, and the attempt is over. A share given before changes nothing and is no
// error. Errors: ErrMalformedShare (the share is not counted), ErrWrongShares (the attempt is reset).
func (u *Unsealer) Submit(share string) (done bool, kek []byte, err error) {
	part, err := parseShare(share, u.threshold)
	if err != nil {
		return false, nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.parts {
		if subtle.ConstantTimeCompare(p, part) == 1 {
			clear(part)
			return false, nil, nil
		}
		if p[len(p)-1] == part[len(part)-1] {
			clear(part)
			return false, nil, fmt.Errorf("%w: a different share with the same number was already given; "+
				"reset the attempt if that one was mistyped", ErrMalformedShare)
		}
	}
	if u.nonce == "" {
		u.nonce = NewNonce()
	}
	u.parts = append(u.parts, part)
	if len(u.parts) < u.threshold {
		return false, nil, nil
	}
	defer u.resetLocked()
	if kek, err = Combine(u.parts); err != nil {
		return false, nil, ErrWrongShares
	}
	if u.verify != nil {
		if err := u.verify(kek); err != nil {
			clear(kek)
			return false, nil, fmt.Errorf("%w (%w)", ErrWrongShares, err)
		}
	}
	return true, kek, nil
}

// Progress returns how many different shares this attempt has.
func (u *Unsealer) Progress() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.parts)
}

// Nonce identifies the attempt in progress: "" when there is none.
func (u *Unsealer) Nonce() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.nonce
}

// Reset forgets the attempt in progress.
func (u *Unsealer) Reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.resetLocked()
}

func (u *Unsealer) resetLocked() {
	for _, p := range u.parts {
		clear(p)
	}
	u.parts, u.nonce = nil, ""
}

// NewNonce returns a random version 4 UUID, which names one attempt.
func NewNonce() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// decodeKey decodes text of exactly size bytes in hex or base64 (standard alphabet, padding optional). The
// length of the text tells the two apart.
func decodeKey(text string, size int) ([]byte, bool) {
	text = strings.TrimSpace(text)
	var out []byte
	var err error
	if len(text) == hex.EncodedLen(size) {
		out, err = hex.DecodeString(text)
	} else {
		out, err = base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	}
	if err != nil || len(out) != size {
		clear(out)
		return nil, false
	}
	return out, true
}
