package cloud

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// refused is what a client is told of a call that failed at the provider: 502 if it may succeed later, else 400, with the
// action and the provider's words. Errors of others stay what they are.
func refused(err error) error {
	e, ok := errors.AsType[*aws.Error](err)
	if !ok {
		return err
	}
	kind := engines.KindInvalid
	switch e.Kind {
	case aws.Throttled, aws.Unavailable, aws.Conflict:
		kind = engines.KindUpstream
	}
	return &engines.Error{Kind: kind, Detail: e.Error(), Err: e.Err}
}

// pause waits, or returns why it did not.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
