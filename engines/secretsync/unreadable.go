package secretsync

import (
	"context"
	"errors"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/storage"
)

// A record that cannot be decoded was written by a newer version of the server, or is damaged. What it is about is left as it is,
// here and at its destination, and what it might speak against is not done. Everything else goes on.

const (
	codeUnreadable  = "unreadable"
	unreadableCause = "a record of secret sync that this needs cannot be read: it was written by a newer version of the server, or is damaged. Nothing is changed; the log names the record"
)

// unreadable reports whether an error is about a record that cannot be decoded. Each is logged once, without its content.
func (s *Syncer) unreadable(err error) bool {
	e, ok := errors.AsType[*engines.UnreadableError](err)
	if ok && s.gauges.AddUnreadable(e) {
		kind, owner := describeKey(e.Key)
		s.log.Warn("a record of secret sync cannot be read and is left alone: it was written by a newer version, or is damaged", "kind", kind, "owner", owner)
	}
	return ok
}

// ownerOf tells what a key is of: a kind of record, and the destination or association that it belongs to.
func describeKey(key storage.Key) (kind, owner string) {
	ns, kind, owner := SplitKey(key)
	kinds := map[string]string{"d": "destination", "a": "association", "l": "link", "c": "claim", "n": "newest association"}
	switch name, ok := kinds[kind]; {
	case ok:
		kind = name
	case kind == "":
		return "other", key.Area()
	}
	if parts := strings.SplitN(owner, "/", 3); len(parts) > 2 { // what follows is the name of a secret
		owner = parts[0] + "/" + parts[1]
	}
	return kind, ns + "/" + owner
}

// told makes errors about unreadable records ones that the client may see.
func withClientErrors[In any](do engines.Handler[In]) engines.Handler[In] {
	return func(ctx context.Context, req *engines.Request, in *In) (*engines.Response, error) {
		resp, err := do(ctx, req, in)
		return resp, clientError(err)
	}
}

func clientError(err error) error {
	if _, ok := errors.AsType[*engines.UnreadableError](err); ok {
		return &engines.Error{Kind: engines.KindFailed, Detail: unreadableCause, Err: err}
	}
	return err
}

// on declares a route of which errors about unreadable records are told.
func route[In any](r *engines.Router, op engines.Operation, pattern, help string, flags engines.Flags, do engines.Handler[In]) *engines.Route {
	return engines.On(r, op, pattern, help, flags, withClientErrors(do))
}

// survey is scan for what goes on past records that cannot be read. left is how many those are.
func scanAllReadable[T any, P interface {
	*T
	engines.Record
}](ctx context.Context, s *Syncer, prefix storage.Key, do func(key storage.Key, v P) bool) (left int, err error) {
	err = ScanReadable(ctx, s.host.Store(), prefix, do, func(_ storage.Key, err error) error {
		if !s.unreadable(err) {
			return err
		}
		left++
		return nil
	})
	return left, err
}

// leftOut is what an answer says of records that it lacks.
func missingWarning(left int) []string {
	if left == 0 {
		return nil
	}
	return []string{"something is missing here: " + unreadableCause}
}

// lostLink stands for a link that cannot be read.
func unreadableLink(secret string) *Link {
	return &Link{Secret: secret, Unreadable: true, Outcome: Outcome{Status: InternalError, Code: codeUnreadable, Cause: unreadableCause}}
}

// errUnreadable is why a name could not be looked after.
func errUnreadable(err error) error {
	return &destination.Error{Class: destination.Internal, Code: codeUnreadable, Text: unreadableCause, Err: err}
}

// checkUnreadable forgets records that cannot be read and are not there any more, or are others by now.
func (s *Reconciler) checkUnreadable(ctx context.Context) error {
	for key, version := range s.gauges.Unreadable() {
		e, err := s.host.Store().Get(ctx, key)
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		if err != nil || e.Version != version {
			s.gauges.RemoveUnreadable(key)
		}
	}
	return nil
}
