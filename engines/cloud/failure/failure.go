// Package failure has what the making of credentials and of keys does about failed calls: what clients, administrators and records read of an
// error, whether it is one of the storage, and how long to wait. Start reading at ForClient.
package failure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

// ForClient is the response to a client whose call failed at the provider: 502 if a retry may succeed, else 400, with the
// action and the provider's message. Other errors are returned unchanged.
func ForClient(err error) error {
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

// Pause waits for d, or returns the context's error.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Backoff is how long to wait after a number of failures: from 10 seconds to an hour.
func Backoff(failures int) time.Duration {
	return engines.Backoff(10*time.Second, time.Hour, failures)
}

// Detached returns a context for what has to be done even after the request has been cancelled.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
}

const maxErrorBytes = 512

// RecordText is the text of an error for a record or a warning. Errors of the provider hold no secrets.
func RecordText(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*aws.Error](err); ok {
		text = e.Error()
	}
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
	}
	return strings.ToValidUTF8(text, "")
}

// Detail is what administrators may read of an error.
func Detail(err error) string {
	if e, ok := errors.AsType[*engines.Error](ForClient(err)); ok {
		return e.Detail
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "it took too long"
	}
	return "internal error: the server's log says more"
}

// OfStore reports whether the store failed, so that there is no point in going on.
func OfStore(err error) bool {
	return slices.ContainsFunc([]error{
		storage.ErrReadOnly, storage.ErrPrimaryOnly, storage.ErrUnavailable, storage.ErrOutcomeUnknown, storage.ErrSealed,
	}, func(of error) bool { return errors.Is(err, of) })
}

// Safely turns a panic into an error: otherwise a panic in a goroutine ends the process.
func Safely(log *slog.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a rotation panicked", "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			err = errors.New("panic")
		}
	}()
	return do()
}
