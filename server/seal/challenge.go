package seal

import (
	"crypto/rand"
	"crypto/subtle"
	"sync"
	"time"
)

// Limits of the join challenges a leader remembers.
const (
	ChallengeTTL  = 10 * time.Minute
	maxChallenges = 256
)

// NewChallenge returns a random nonce and the blob from which only a node that holds the seal's key can tell
// it. The blob is good for the named server only.
func NewChallenge(w Wrapper, serverID string) (blob, nonce []byte, err error) {
	nonce = make([]byte, 32)
	rand.Read(nonce)
	blob, err = w.Wrap(nonce, challengePurpose(serverID))
	return blob, nonce, err
}

// AnswerChallenge returns the nonce, or ErrWrongKey, or ErrMalformed. It opens nothing but challenges to this
// server, so that a stranger posing as the leader cannot have other sealed data decrypted.
func AnswerChallenge(w Wrapper, serverID string, blob []byte) ([]byte, error) {
	return w.Unwrap(blob, challengePurpose(serverID))
}

func challengePurpose(serverID string) string { return "join challenge: " + serverID }

// Challenges is a leader's memory of the challenges it issued: one for each server, each good for one answer
// within ChallengeTTL, at most 256; beyond that the oldest is forgotten. The zero value is ready. Safe for
// concurrent use.
type Challenges struct {
	mu   sync.Mutex
	open map[string]challenge
}

type challenge struct {
	nonce     []byte
	expiresAt time.Time
}

// Issue returns a new challenge for a server; an earlier one for it is void.
func (c *Challenges) Issue(w Wrapper, serverID string) (blob []byte, err error) {
	blob, nonce, err := NewChallenge(w, serverID)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[string]challenge{}
	}
	delete(c.open, serverID)
	c.pruneLocked()
	c.open[serverID] = challenge{nonce: nonce, expiresAt: time.Now().Add(ChallengeTTL)}
	return blob, nil
}

// pruneLocked forgets what is expired and, if that leaves no room, the oldest.
func (c *Challenges) pruneLocked() {
	now, oldest := time.Now(), ""
	for id, ch := range c.open {
		if !now.Before(ch.expiresAt) {
			delete(c.open, id)
		} else if oldest == "" || ch.expiresAt.Before(c.open[oldest].expiresAt) {
			oldest = id
		}
	}
	if len(c.open) >= maxChallenges {
		delete(c.open, oldest)
	}
}

// Verify returns nil if answer is the nonce of the server's challenge, else ErrChallenge. Any answer, right or
// wrong, uses the challenge up.
func (c *Challenges) Verify(serverID string, answer []byte) error {
	c.mu.Lock()
	ch, ok := c.open[serverID]
	delete(c.open, serverID)
	c.mu.Unlock()
	if !ok || !time.Now().Before(ch.expiresAt) || subtle.ConstantTimeCompare(ch.nonce, answer) != 1 {
		return ErrChallenge
	}
	return nil
}

// Clear forgets every challenge, for instance when leadership is lost.
func (c *Challenges) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = nil
}
