package accesskey

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
)

// ErrOvertaken means that a later attempt has claimed the same record.
var ErrOvertaken = errors.New("overtaken: another request changes the same key")

// ErrUnsure means that a key may have been made that is not in the provider's lists yet.
var ErrUnsure = &engines.Error{Kind: engines.KindUnavailable, Detail: "the rotation before was cut short, and it is not certain yet what it has made: try again in a minute"}

// ForClient is the response to a client whose key could not be created.
func ForClient(err error) error {
	if errors.Is(err, ErrOvertaken) {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "another request was changing the same key: try again", Err: err}
	}
	return failure.ForClient(err)
}

// IsInvalid reports whether an error says that a key is not valid any more, or not yet.
func IsInvalid(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	if !ok || e.Kind != aws.Denied {
		return false
	}
	switch e.Code {
	case "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch", "UnrecognizedClient":
		return true
	}
	return false
}

// UntilValid is how long a new key is waited for: it is known everywhere only after some seconds.
const UntilValid = 30 * time.Second

// RetryUntil repeats fn while the provider denies it or is unavailable, at most for the time given.
func RetryUntil(ctx context.Context, most time.Duration, fn func(context.Context) error) error {
	ctx, done := context.WithTimeout(ctx, most)
	defer done()
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := fn(ctx)
		switch aws.KindOf(err) {
		case aws.Denied, aws.Throttled, aws.Unavailable, aws.Conflict:
		default:
			return err
		}
		if failure.Pause(ctx, wait) != nil {
			return err
		}
	}
}
