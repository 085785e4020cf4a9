package seal

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ChallengeTTL is how long a join challenge can be answered.
const ChallengeTTL = 10 * time.Minute

// AnswerChallenge returns the answer to a challenge, or ErrWrongKey, or ErrMalformed. It opens nothing but
// challenges to this server, so that a stranger posing as the leader cannot have other sealed data decrypted.
func AnswerChallenge(ctx context.Context, w Wrapper, serverID string, blob []byte) ([]byte, error) {
	k, ok := w.(kmsWrapper)
	if !ok {
		return w.Unwrap(ctx, blob, challengePurpose(serverID))
	}
	if len(blob) < 2 {
		return nil, ErrMalformed
	}
	n := 2 + int(binary.BigEndian.Uint16(blob))
	if len(blob) < n {
		return nil, fmt.Errorf("%w: too short", ErrMalformed)
	}
	key, err := k.Unwrap(ctx, blob[2:n], challengeKeyPurpose)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return newKEK("", key).unwrap(blob[n:], challengePurpose(serverID))
}

// challengeKeyPurpose is that of the data key of challenges by a key management service.
const challengeKeyPurpose = "key of join challenges"

func challengePurpose(serverID string) string { return "join challenge: " + serverID }

// Challenges issues and checks join challenges: blobs from which only a node that holds the seal's key can tell
// the answer, each good for one server and one answer within ChallengeTTL. Anybody may ask for challenges, so
// nothing is remembered of them: the answer itself proves, by a MAC, when and for whom it was made. Only right
// answers are remembered, which takes the seal's key. The zero value is ready. Safe for concurrent use.
type Challenges struct {
	mu   sync.Mutex
	key  []byte               // of the MAC; made at first use
	used map[string]time.Time // right answers that were given, until they expire

	service sync.Mutex // held while a key management service is asked
	shared  dataKey
}

// dataKey is what challenges are encrypted with where a key management service has the seal's key: strangers must not
// be able to have it called, and paid for, as often as they like.
type dataKey struct {
	keyID   string
	kek     kek
	wrapped []byte // the key, by the service
	err     error  // why there is none
	until   time.Time
}

const (
	dataKeyTTL   = time.Hour
	dataKeyRetry = 5 * time.Second
)

// wrap encrypts a challenge.
func (c *Challenges) wrap(ctx context.Context, w Wrapper, answer []byte, purpose string) ([]byte, error) {
	k, ok := w.(kmsWrapper)
	if !ok {
		return w.Wrap(ctx, answer, purpose)
	}
	d, err := c.dataKey(ctx, k)
	if err != nil {
		return nil, err
	}
	blob, err := d.kek.wrap(answer, purpose)
	if err != nil {
		return nil, err
	}
	out := binary.BigEndian.AppendUint16(nil, uint16(len(d.wrapped)))
	return append(append(out, d.wrapped...), blob...), nil
}

func (c *Challenges) dataKey(ctx context.Context, w kmsWrapper) (dataKey, error) {
	c.service.Lock()
	defer c.service.Unlock()
	id := w.kind + " " + w.keyID
	if d := c.shared; d.keyID == id && time.Now().Before(d.until) {
		return d, d.err
	}
	key := make([]byte, KeyBytes)
	rand.Read(key)
	defer clear(key)
	d := dataKey{keyID: id, kek: newKEK("", key)}
	// A caller that asks and hangs up must not cause a new call each time.
	d.wrapped, d.err = w.Wrap(context.WithoutCancel(ctx), key, challengeKeyPurpose)
	if d.err == nil && len(d.wrapped) > 1<<16-1 {
		d.err = errors.New("issuing a join challenge: the wrapped data key is too long")
	}
	d.until = time.Now().Add(dataKeyTTL)
	if d.err != nil {
		d.until = time.Now().Add(dataKeyRetry)
	}
	c.shared = d
	return d, d.err
}

// An answer is the time of its expiry, in nanoseconds, something random, and the MAC over both and the server.
const (
	answerBody  = 8 + 16
	answerBytes = answerBody + sha256.Size
)

// Issue returns a new challenge for a server.
func (c *Challenges) Issue(ctx context.Context, w Wrapper, serverID string) (blob []byte, err error) {
	answer := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(ChallengeTTL).UnixNano()))
	answer = append(answer, make([]byte, answerBody-len(answer))...)
	rand.Read(answer[8:])
	return c.wrap(ctx, w, append(answer, c.mac(answer, serverID)...), challengePurpose(serverID))
}

func (c *Challenges) mac(body []byte, serverID string) []byte {
	c.mu.Lock()
	if c.key == nil {
		c.key = make([]byte, 32)
		rand.Read(c.key)
	}
	h := hmac.New(sha256.New, c.key)
	c.mu.Unlock()
	h.Write(body)
	h.Write([]byte(serverID))
	return h.Sum(nil)
}

// Verify returns nil if answer is that of a challenge to the server that was not answered before, else
// ErrChallenge.
func (c *Challenges) Verify(serverID string, answer []byte) error {
	if len(answer) != answerBytes || !hmac.Equal(answer[answerBody:], c.mac(answer[:answerBody], serverID)) {
		return ErrChallenge
	}
	now, expires := time.Now(), time.Unix(0, int64(binary.BigEndian.Uint64(answer)))
	if !now.Before(expires) {
		return ErrChallenge
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, at := range c.used {
		if !now.Before(at) {
			delete(c.used, other)
		}
	}
	if _, again := c.used[string(answer)]; again {
		return ErrChallenge
	}
	if c.used == nil {
		c.used = map[string]time.Time{}
	}
	c.used[string(answer)] = expires
	return nil
}
