package accesskey

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/failure"
)

const (
	// SeenTime is how old a note must be, when the mount goes, for a user that is not found to be one that is not there. It is
	// shorter than in other cases, because no request is in progress in the mount any more.
	SeenTime = 30 * time.Second
	// KeepTime is how long a note keeps its mount: roots whose account is closed must not do so for ever.
	KeepTime = 24 * time.Hour
)

// Unfinished is what a try to settle something has found; the zero value is nothing.
type Unfinished struct {
	Since time.Time // of what is unfinished
	Again time.Time // when it will be certain what was made
	What  string    // for error texts
}

// UntilSettled repeats settle until there is nothing unfinished, if that is soon. What has failed for KeepTime is left.
func UntilSettled(ctx context.Context, log *slog.Logger, settle func(context.Context) (Unfinished, error)) error {
	for {
		try, done := context.WithTimeout(ctx, TryTime)
		u, err := settle(try)
		done()
		switch {
		case ctx.Err() != nil || failure.OfStore(err):
			return cmp.Or(ctx.Err(), err)
		case err != nil && time.Since(u.Since) > KeepTime && !u.Since.IsZero():
			log.Error("an access key that belongs to nothing may be left behind at the provider: remove it there", "of", u.What, "err", failure.RecordText(err))
			return nil
		case err != nil:
			return &engines.Error{Kind: engines.KindUpstream, Err: err,
				Detail: "what was made of " + u.What + " cannot be removed now, it is tried again: " + failure.Detail(ForClient(err))}
		case u.Again.IsZero():
			return nil
		}
		if wait := time.Until(u.Again); wait > SeenTime {
			return ErrUnsure
		} else if err := failure.Pause(ctx, wait); err != nil {
			return err
		}
	}
}
