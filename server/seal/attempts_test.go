package seal_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/server/seal"
)

// newAttempts returns attempts for a key of 5 shares, 3 of which are enough, and the shares and the key.
func newAttempts(t *testing.T) (a *seal.Attempts, shares []string, key []byte) {
	t.Helper()
	key, parts, err := seal.NewShares(5, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		shares = append(shares, base64.StdEncoding.EncodeToString(p))
	}
	return seal.NewAttempts(seal.ShamirConfig(5, 3), func(kek []byte) error {
		if !bytes.Equal(kek, key) {
			return seal.ErrWrongKey
		}
		return nil
	}), shares, key
}

// wrong is a share that belongs to no key.
func wrong(i int) string {
	part := bytes.Repeat([]byte{byte(i)}, seal.KeyBytes+1)
	part[0], part[seal.KeyBytes] = 0xff, byte(i%250+1)
	return base64.StdEncoding.EncodeToString(part)
}

// Holders at different addresses complete the key, whatever others give and reset meanwhile.
func TestAttemptsOfOthers(t *testing.T) {
	a, shares, key := newAttempts(t)
	for holder := range 3 {
		for i := range 12 { // four complete attempts that are wrong, and one that is not complete
			_, _, err := a.Submit("stranger", "", wrong(12*holder+i))
			if (i%3 == 2) != errors.Is(err, seal.ErrWrongShares) {
				t.Fatalf("wrong share %d: %v", i, err)
			}
		}
		a.Submit("another", "", wrong(100+holder)) //nolint:errcheck // the third one completes an attempt
		a.Reset("stranger", "")
		a.Reset("stranger", "a nonce that is none")
		done, kek, err := a.Submit(fmt.Sprint("holder", holder), "", shares[holder])
		if err != nil || done != (holder == 2) {
			t.Fatalf("share %d: done %v, %v", holder, done, err)
		}
		if done && !bytes.Equal(kek, key) {
			t.Error("it completed another key")
		}
	}
	if a.Progress() != 0 || a.Nonce("holder0") != "" {
		t.Error("the attempts are not over")
	}
}

// Shares of one address are one attempt; a mistyped share is replaced by the right one; a nonce joins an attempt.
func TestAttemptsOfOne(t *testing.T) {
	a, shares, _ := newAttempts(t)
	first, _ := base64.StdEncoding.DecodeString(shares[0])
	first[0] ^= 1
	mustSubmit := func(source, nonce, share string, want bool) {
		t.Helper()
		if done, _, err := a.Submit(source, nonce, share); err != nil || done != want {
			t.Fatalf("done %v, %v", done, err)
		}
	}
	mustSubmit("one", "", base64.StdEncoding.EncodeToString(first), false)
	mustSubmit("one", "", shares[0], false)
	mustSubmit("one", "", shares[0], false)
	if a.Progress() != 1 {
		t.Errorf("progress %d, want 1", a.Progress())
	}
	nonce := a.Nonce("one")
	if _, _, err := a.Submit("two", "no nonce", shares[1]); !errors.Is(err, seal.ErrUnknownAttempt) {
		t.Errorf("a nonce that names nothing: %v", err)
	}
	mustSubmit("two", nonce, shares[1], false)
	if a.Nonce("two") != "" {
		t.Error("a share for another attempt has begun one")
	}
	a.Reset("two", "")
	if a.Progress() != 2 {
		t.Errorf("progress %d after a reset by another, want 2", a.Progress())
	}
	a.Reset("two", nonce)
	if a.Progress() != 0 {
		t.Errorf("progress %d after a reset by its nonce, want 0", a.Progress())
	}
	for i, share := range []string{shares[4], shares[3], shares[1]} {
		mustSubmit("one", "", share, i == 2)
	}
}

// What clients give is bounded, and what one share costs too.
func TestAttemptsAreBounded(t *testing.T) {
	a, shares, _ := newAttempts(t)
	for i := range 80 {
		a.Submit(fmt.Sprint("stranger", i), "", wrong(i)) //nolint:errcheck // of no interest
	}
	for i, share := range shares[:3] { // of one address: whatever there is besides
		if done, _, err := a.Submit("holder", "", share); err != nil || done != (i == 2) {
			t.Fatalf("share %d: done %v, %v", i, done, err)
		}
	}
}
