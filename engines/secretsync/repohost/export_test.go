package repohost

import (
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Hurry has a write look for its effect without waiting.
func Hurry(d destination.Destination) { d.(*dest).pause = 0 }

// Later has what was seen of the place be so much older.
func Later(d destination.Destination, by time.Duration) {
	d.(*dest).mu.Lock()
	defer d.(*dest).mu.Unlock()
	d.(*dest).seen = d.(*dest).seen.Add(-by)
}

// DecodeKey is what answers with a public key go through; it returns a function that seals.
func DecodeKey(id, key *string) (func([]byte) (string, error), error) {
	k, err := decodeKey(github.PublicKey{KeyID: id, Key: key})
	if err != nil {
		return nil, err
	}
	return k.seal, nil
}

// Expiry and Clock are checks of Verify.
func Expiry(at, now time.Time) destination.Check { return expiry(at, now) }

// Clock compares the clocks.
func Clock(date string, now time.Time) destination.Check { return clock(date, now) }
