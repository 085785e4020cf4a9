package cloud

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// A key is made in four steps: an attempt is stored with the keys that there are; the oldest key goes if there is no room;
// the key is made; it is stored and the attempt goes, in one commit. After a crash, or a lost response, the keys
// that are neither stored nor among those of the attempt are ours, and their secrets are lost: they are deleted before the
// next key is created. Each try gives the attempt a new id, so that an earlier, slower try can no longer store its key.

// attempt is the making of a key.
type attempt struct {
	ID     string    `json:"id"`
	Since  time.Time `json:"since"` // the first try
	Until  time.Time `json:"until"` // when the last one has ended for certain
	Listed bool      `json:"listed,omitempty"`
	Seen   []string  `json:"seen,omitempty"` // the keys there were before the first try
}

const (
	maxUserKeys = 2 // of a user, at the provider
	// tryTime bounds one try to make a key.
	tryTime = 2 * time.Minute
	// maxSkew is how far the provider's clock may be off: beyond it, the provider rejects requests.
	maxSkew = 15 * time.Minute
	// surelyListed is how long after a lost response a list of keys must contain the lost one if it exists.
	surelyListed = 15 * time.Second
)

// clock is the time as it is stored.
func clock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// nextAttempt returns a new try, which inherits what is known of earlier ones.
func nextAttempt(before *attempt, now time.Time) *attempt {
	a := &attempt{ID: rand.Text(), Since: now, Until: now.Add(tryTime)}
	if before != nil && before.Listed {
		a.Since, a.Listed, a.Seen = before.Since, true, before.Seen
	}
	return a
}

// again returns the attempt with a new id, for a search for lost keys that creates none.
func (a *attempt) again() *attempt {
	if a == nil {
		return &attempt{ID: rand.Text()}
	}
	same := *a
	same.ID = rand.Text()
	return &same
}

// ended notes that the last try is over.
func (a *attempt) ended(now time.Time) {
	if now.Before(a.Until) {
		a.Until = now
	}
}

// surely reports whether what the attempt made must be listed by now.
func (a *attempt) surely(now time.Time) bool { return !now.Before(a.Until.Add(surelyListed)) }

// made reports whether a key can be one that the attempt made and lost. known are the ids of keys that are stored.
func (a *attempt) made(k aws.Key, known []string) bool {
	if a == nil || !a.Listed || slices.Contains(a.Seen, k.ID) || slices.Contains(known, k.ID) {
		return false
	}
	return k.CreatedAt.IsZero() || k.CreatedAt.After(a.Since.Add(-maxSkew)) && k.CreatedAt.Before(a.Until.Add(maxSkew))
}

func (a *attempt) see(keys []aws.Key) {
	a.Listed, a.Seen = true, nil
	for _, k := range keys {
		a.Seen = append(a.Seen, k.ID)
	}
}

// deleteLostKeys deletes the keys of a user that an attempt created and lost, and returns the others, the oldest first.
func deleteLostKeys(ctx context.Context, api aws.API, user string, a *attempt, known ...string) (kept []aws.Key, lost int, err error) {
	keys, err := api.ListAccessKeys(ctx, user)
	if err != nil {
		return nil, 0, err
	}
	for _, k := range keys {
		if !a.made(k, known) {
			kept = append(kept, k)
			continue
		}
		if err := dropKey(ctx, api, user, k.ID); err != nil {
			return nil, lost, err
		}
		lost++
	}
	return kept, lost, nil
}

// rootID returns the id of the root key, "" if there is none.
func rootID(ctx context.Context, m engines.Mount) (string, error) {
	r, _, err := getRoot(ctx, m.Storage)
	return r.AccessKey, err
}

// rejectRootUser rejects a user who has the root key: a rotation would delete the oldest of its keys, which may be the root key.
func rejectRootUser(root, user string, keys []aws.Key) error {
	if root == "" || !slices.ContainsFunc(keys, func(k aws.Key) bool { return k.ID == root }) {
		return nil
	}
	return engines.Invalid("the IAM user %q has the key of config/root, which a static role would replace some day: config/rotate-root rotates that one", user)
}

// dropKey deletes a key. One that is not there counts as deleted.
func dropKey(ctx context.Context, api aws.API, user, id string) error {
	if err := api.DeleteAccessKey(ctx, user, id); err != nil && aws.KindOf(err) != aws.NotFound {
		return err
	}
	return nil
}

// makeKey makes a key for a user who has these, the oldest first. The oldest goes if there is no room; of two that are as
// old, since the provider counts in seconds, the one that is not current.
func makeKey(ctx context.Context, api aws.API, user string, keys []aws.Key, current string) (ownKey, []aws.Key, error) {
	if len(keys) >= maxUserKeys {
		oldest := 0
		if keys[0].ID == current && keys[1].CreatedAt.Equal(keys[0].CreatedAt) {
			oldest = 1
		}
		if err := dropKey(ctx, api, user, keys[oldest].ID); err != nil {
			return ownKey{}, keys, err
		}
		keys = slices.Delete(slices.Clone(keys), oldest, oldest+1)
	}
	c, err := api.CreateAccessKey(ctx, user)
	if err != nil {
		return ownKey{}, keys, err
	}
	return ownKey{ID: c.AccessKey, Secret: c.SecretKey.Reveal(), CreatedAt: clock()}, keys, nil
}

// maybeMade reports whether a failed attempt to create a key may have created one, now or before: a full quota may be due to a
// key that is not yet in the list.
func maybeMade(err error) bool {
	switch aws.KindOf(err) {
	case aws.Denied, aws.Invalid, aws.NotFound, aws.Throttled:
		return false
	}
	return true
}

// backoff is how long to wait after a number of failures: from 10 seconds to an hour.
func backoff(failures int) time.Duration {
	return min(10*time.Second<<min(max(failures-1, 0), 12), time.Hour)
}

// detached returns a context for what has to be done even after the request has been cancelled.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
}

const maxErrorBytes = 512

// recordText is the text of an error for a record or a warning. Errors of the provider hold no secrets.
func recordText(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*aws.Error](err); ok {
		text = e.Error()
	}
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
	}
	return strings.ToValidUTF8(text, "")
}
