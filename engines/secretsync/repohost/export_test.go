package repohost

import (
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Pause is how long a write waits before it looks for its effect a second time.
func Pause(d destination.Destination, pause time.Duration) { d.(*dest).pause = pause }

// Later has what was seen of the destination be so much older.
func Later(d destination.Destination, by time.Duration) {
	d.(*dest).mu.Lock()
	defer d.(*dest).mu.Unlock()
	d.(*dest).seen = d.(*dest).seen.Add(-by)
}

// DecodeKey is what answers with a public key go through; it returns a function that seals.
func DecodeKey(id, key string) (func([]byte) (string, error), error) {
	k, err := decodeKey(keyIn{id, key})
	if err != nil {
		return nil, err
	}
	return k.seal, nil
}

// Expiry and Clock are checks of Verify.
func Expiry(at, now time.Time) destination.Check { return expiry(at, now) }

// Clock compares the clocks.
func Clock(date string, now time.Time) destination.Check {
	return destination.ClockCheck("GitHub", date, now)
}

// TokenAges has the token of an app be so much older.
func TokenAges(d destination.Destination, by time.Duration) {
	a := d.(*dest).client.app
	a.until = a.until.Add(-by)
}
