package accesskey

import (
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
)

const (
	keyTries   = 3
	firstPause = 250 * time.Millisecond
	maxPause   = 2 * time.Second
	// answerTime is what the rest of the request takes at most.
	answerTime = 10 * time.Second
)

// ForNewUser creates the key of a new user. After a lost response there may be a key whose secret is lost: ForNewUser deletes it.
func ForNewUser(ctx context.Context, api aws.API, user string) (aws.Credentials, error) {
	for try := 1; ; try++ {
		key, err := api.CreateAccessKey(ctx, user)
		if aws.KindOf(err) != aws.Unavailable || try == keyTries {
			return key, err
		}
		keys, e := api.ListAccessKeys(ctx, user)
		if e != nil {
			return key, err
		}
		for _, k := range keys {
			if api.DeleteAccessKey(ctx, user, k.ID) != nil {
				return key, err
			}
		}
	}
}

// WaitUntilValid waits until the provider accepts a new key, at most for limit, and returns warnings.
func WaitUntilValid(ctx context.Context, api aws.API, key aws.Credentials, limit time.Duration) []string {
	if limit <= 0 {
		return nil
	}
	until := time.Now().Add(limit)
	if end, ok := ctx.Deadline(); ok && end.Add(-answerTime).Before(until) {
		until = end.Add(-answerTime)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	start := time.Now()
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		if _, err := api.CallerIdentity(ctx, key); err == nil {
			return []string{"wait_until_valid: the access key is valid, where the provider was asked"}
		}
		if failure.Pause(ctx, wait) != nil {
			waited := time.Since(start).Round(time.Second)
			return []string{fmt.Sprintf("wait_until_valid: the access key is not valid yet, after %v: wait before you use it", waited)}
		}
	}
}
