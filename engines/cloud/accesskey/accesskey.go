// Package accesskey makes keys of a user at the provider so that none is lost.
//
// A key is made in four steps: an attempt is stored with the keys that there are; the oldest key goes if there is no room;
// the key is made; it is stored and the attempt goes, in one commit. After a crash, or a lost response, the keys
// that are neither stored nor among those of the attempt are ours, and their secrets are lost: they are deleted before the
// next key is created. Each try gives the attempt a new id, so that an earlier, slower try can no longer store its key.
//
// The records are the caller's: a static role, or the rotation of the root key. What both need around the making is here, too: the locks
// of a mount (locks.go), what errors mean (failed.go), and how long a mount that goes waits (settle.go). Start reading at Attempt.
package accesskey

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// Attempt is the making of a key.
type Attempt struct {
	ID     string    `json:"id"`
	Since  time.Time `json:"since"` // the first try
	Until  time.Time `json:"until"` // when the last one has ended for certain
	Listed bool      `json:"listed,omitempty"`
	Seen   []string  `json:"seen,omitempty"` // the keys there were before the first try
}

const (
	maxUserKeys = 2 // of a user, at the provider
	// TryTime bounds one try to make a key.
	TryTime = 2 * time.Minute
	// maxSkew is how far the provider's clock may be off: beyond it, the provider rejects requests.
	maxSkew = 15 * time.Minute
	// SurelyListed is how long after a lost response a list of keys must contain the lost one if it exists.
	SurelyListed = 15 * time.Second
)

// Now is the time as it is stored.
func Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// NextAttempt returns a new try, which inherits what is known of earlier ones.
func NextAttempt(before *Attempt, now time.Time) *Attempt {
	a := &Attempt{ID: rand.Text(), Since: now, Until: now.Add(TryTime)}
	if before != nil && before.Listed {
		a.Since, a.Listed, a.Seen = before.Since, true, before.Seen
	}
	return a
}

// Again returns the attempt with a new id, for a search for lost keys that creates none.
func (a *Attempt) Again() *Attempt {
	if a == nil {
		return &Attempt{ID: rand.Text()}
	}
	same := *a
	same.ID = rand.Text()
	return &same
}

// Ended notes that the last try is over.
func (a *Attempt) Ended(now time.Time) {
	if now.Before(a.Until) {
		a.Until = now
	}
}

// Surely reports whether what the attempt made must be listed by now.
func (a *Attempt) Surely(now time.Time) bool { return !now.Before(a.Until.Add(SurelyListed)) }

// made reports whether a key can be one that the attempt made and lost. known are the ids of keys that are stored.
func (a *Attempt) made(k aws.Key, known []string) bool {
	if a == nil || !a.Listed || slices.Contains(a.Seen, k.ID) || slices.Contains(known, k.ID) {
		return false
	}
	return k.CreatedAt.IsZero() || k.CreatedAt.After(a.Since.Add(-maxSkew)) && k.CreatedAt.Before(a.Until.Add(maxSkew))
}

// See notes the keys that there are before the attempt makes one.
func (a *Attempt) See(keys []aws.Key) {
	a.Listed, a.Seen = true, nil
	for _, k := range keys {
		a.Seen = append(a.Seen, k.ID)
	}
}

// DeleteLost deletes the keys of a user that an attempt created and lost, and returns the others, the oldest first.
func DeleteLost(ctx context.Context, api aws.API, user string, a *Attempt, known ...string) (kept []aws.Key, lost int, err error) {
	keys, err := api.ListAccessKeys(ctx, user)
	if err != nil {
		return nil, 0, err
	}
	for _, k := range keys {
		if !a.made(k, known) {
			kept = append(kept, k)
			continue
		}
		if err := Drop(ctx, api, user, k.ID); err != nil {
			return nil, lost, err
		}
		lost++
	}
	return kept, lost, nil
}

// Drop deletes a key. One that is not there counts as deleted.
func Drop(ctx context.Context, api aws.API, user, id string) error {
	if err := api.DeleteAccessKey(ctx, user, id); err != nil && aws.KindOf(err) != aws.NotFound {
		return err
	}
	return nil
}

// Make makes a key for a user who has these, the oldest first. The oldest goes if there is no room; of two that are as
// old, since the provider counts in seconds, the one that is not current.
func Make(ctx context.Context, api aws.API, user string, keys []aws.Key, current string) (Own, []aws.Key, error) {
	if len(keys) >= maxUserKeys {
		oldest := 0
		if keys[0].ID == current && keys[1].CreatedAt.Equal(keys[0].CreatedAt) {
			oldest = 1
		}
		if err := Drop(ctx, api, user, keys[oldest].ID); err != nil {
			return Own{}, keys, err
		}
		keys = slices.Delete(slices.Clone(keys), oldest, oldest+1)
	}
	c, err := api.CreateAccessKey(ctx, user)
	if err != nil {
		return Own{}, keys, err
	}
	return Own{ID: c.AccessKey, Secret: c.SecretKey.Reveal(), CreatedAt: Now()}, keys, nil
}

// MaybeMade reports whether a failed attempt to create a key may have created one, now or before: a full quota may be due to a
// key that is not yet in the list.
func MaybeMade(err error) bool {
	switch aws.KindOf(err) {
	case aws.Denied, aws.Invalid, aws.NotFound, aws.Throttled:
		return false
	}
	return true
}

// Own is a key of a user with its secret, behind the barrier.
type Own struct {
	ID        string    `json:"id"`
	Secret    string    `json:"secret"`
	CreatedAt time.Time `json:"created_at"`
}
