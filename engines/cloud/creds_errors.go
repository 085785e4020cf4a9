package cloud

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// clientError is the response to a client whose call failed at the provider: 502 if a retry may succeed, else 400, with the
// action and the provider's message. Other errors are returned unchanged.
func clientError(err error) error {
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

// pause waits for d, or returns the context's error.
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
