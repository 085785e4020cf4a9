package seal

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"
)

// Limits of Attempts: how many there are at once, and how many combinations one share is tried in.
const (
	maxAttempts     = 64
	maxCombinations = 256
)

// ErrUnknownAttempt means that a nonce names no attempt in progress.
var ErrUnknownAttempt = errors.New("field \"nonce\" names no attempt in progress: it is over, or was reset; leave it out to begin another")

// Attempts collects shares that several clients give at the same time. Each source has an attempt of its own, and only that
// source, or a client that knows its nonce, adds to it or resets it. A share is tried with those of its own attempt first and
// then with those of all, so that holders at different addresses complete a key together, and wrong shares of others do not
// keep them from it. Safe for concurrent use.
type Attempts struct {
	threshold int
	verify    func(kek []byte) error

	mu   sync.Mutex
	list []*attempt // the one used last comes first
}

type attempt struct {
	source, nonce string
	parts         [][]byte
}

// NewAttempts collects shares as NewUnsealer does. Without verify the first combination that is complete counts.
func NewAttempts(cfg Config, verify func(kek []byte) error) *Attempts {
	_, threshold := cfg.Held()
	return &Attempts{threshold: max(threshold, 1), verify: verify}
}

// Submit adds one share, written in hex or base64, to the attempt of a source, or to the one that nonce names. done means
// that it completed the key, which the caller owns, and all attempts are over. A share given before changes nothing, and
// another one with the same number replaces it. Errors: ErrMalformedShare and ErrUnknownAttempt (the share is not counted),
// ErrWrongShares (this attempt alone was complete and is reset; the others are kept).
func (a *Attempts) Submit(source, nonce, share string) (done bool, kek []byte, err error) {
	part, err := parseShare(share, a.threshold)
	if err != nil {
		return false, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	own, err := a.takeLocked(source, nonce)
	if err != nil {
		clear(part)
		return false, nil, err
	}
	for i, p := range own.parts {
		if subtle.ConstantTimeCompare(p, part) == 1 {
			clear(part)
			return false, nil, nil
		}
		if a.threshold > 1 && number(p) == number(part) {
			clear(p)
			own.parts = append(own.parts[:i:i], own.parts[i+1:]...)
			break
		}
	}
	var others [][]byte
	for _, t := range a.list { // its own attempt is the first
		others = append(others, t.parts...)
	}
	own.parts = append(own.parts, part)
	tries := maxCombinations
	if kek := a.completeLocked([][]byte{part}, others, &tries); kek != nil {
		a.resetLocked()
		return true, kek, nil
	}
	if len(own.parts) >= a.threshold {
		a.dropLocked(own)
		return false, nil, ErrWrongShares
	}
	return false, nil, nil
}

// takeLocked returns the attempt that a share belongs to, as the first of the list.
func (a *Attempts) takeLocked(source, nonce string) (*attempt, error) {
	own := a.findLocked(source, nonce)
	if own == nil && nonce != "" {
		return nil, ErrUnknownAttempt
	}
	if own == nil {
		if len(a.list) == maxAttempts {
			a.dropLocked(a.list[maxAttempts-1])
		}
		own = &attempt{source: source, nonce: NewNonce()}
	} else {
		a.removeLocked(own)
	}
	a.list = append([]*attempt{own}, a.list...)
	return own, nil
}

// findLocked returns the attempt that nonce names or, without one, that of the source; nil if there is none.
func (a *Attempts) findLocked(source, nonce string) *attempt {
	for _, t := range a.list {
		if nonce == "" && t.source == source || nonce != "" && subtle.ConstantTimeCompare([]byte(t.nonce), []byte(nonce)) == 1 {
			return t
		}
	}
	return nil
}

// completeLocked looks for the key in combinations of the chosen shares with others, none of which have the same number.
func (a *Attempts) completeLocked(chosen, others [][]byte, tries *int) []byte {
	if len(chosen) == a.threshold {
		*tries--
		kek, err := Combine(chosen)
		if err != nil {
			return nil
		}
		if a.verify != nil && a.verify(kek) != nil {
			clear(kek)
			return nil
		}
		return kek
	}
	for i, p := range others {
		if *tries <= 0 {
			return nil
		}
		if taken(chosen, p) {
			continue
		}
		if kek := a.completeLocked(append(chosen[:len(chosen):len(chosen)], p), others[i+1:], tries); kek != nil {
			return kek
		}
	}
	return nil
}

// number is the number of a share, of those of a threshold above 1.
func number(part []byte) byte { return part[len(part)-1] }

func taken(chosen [][]byte, part []byte) bool {
	for _, c := range chosen {
		if number(c) == number(part) {
			return true
		}
	}
	return false
}

// Progress returns how many of the shares that are needed have been given, by all clients: less than the threshold.
func (a *Attempts) Progress() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	var distinct [][]byte
	for _, t := range a.list {
		for _, p := range t.parts {
			if !taken(distinct, p) {
				distinct = append(distinct, p)
			}
		}
	}
	return min(len(distinct), a.threshold-1)
}

// Nonce identifies the attempt of a source: "" when it has none.
func (a *Attempts) Nonce(source string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.findLocked(source, ""); t != nil {
		return t.nonce
	}
	return ""
}

// Reset forgets the attempt of a source, or the one that nonce names, if there is one.
func (a *Attempts) Reset(source, nonce string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.findLocked(source, nonce); t != nil {
		a.dropLocked(t)
	}
}

func (a *Attempts) resetLocked() {
	for len(a.list) > 0 {
		a.dropLocked(a.list[0])
	}
}

func (a *Attempts) dropLocked(t *attempt) {
	for _, p := range t.parts {
		clear(p)
	}
	a.removeLocked(t)
}

func (a *Attempts) removeLocked(t *attempt) {
	for i := range a.list {
		if a.list[i] == t {
			a.list = append(a.list[:i:i], a.list[i+1:]...)
			return
		}
	}
}

// parseShare decodes a share and checks its shape; errors never contain any of it.
func parseShare(share string, threshold int) ([]byte, error) {
	want := KeyBytes
	if threshold > 1 {
		want++
	}
	part, ok := decodeKey(share, want)
	if !ok {
		return nil, fmt.Errorf("%w: it must be %d bytes in hex or base64", ErrMalformedShare, want)
	}
	if threshold > 1 && number(part) == 0 { // no share has number 0: it would be the key itself
		clear(part)
		return nil, ErrMalformedShare
	}
	return part, nil
}
