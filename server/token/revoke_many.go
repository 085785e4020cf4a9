package token

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/server/token/record"

	"github.com/coffer-project/coffer/storage"
)

// RevokePath revokes the service tokens of a namespace that were made by requests to a path or below it, with all
// tokens made from them. Paths are relative to the namespace: "auth/userpass" is every login there.
// It returns how many tokens it found. It reads all tokens; one that cannot be read or removed does not keep it
// from the others, and the errors are joined. A token that is made meanwhile may stay: first make the path
// unreachable.
func (s *Store) RevokePath(ctx context.Context, namespace, path string) (n int, err error) {
	path = strings.TrimSuffix(path, "/") + "/"
	return s.revokeWhere(ctx, func(e *Entry) bool { return e.Namespace == namespace && strings.HasPrefix(e.Path+"/", path) })
}

// RevokeMount is RevokePath for the logins of the auth mount with this UUID, whatever its path was then.
func (s *Store) RevokeMount(ctx context.Context, uuid string) (n int, err error) {
	return s.revokeWhere(ctx, func(e *Entry) bool { return uuid != "" && e.Mount == uuid })
}

// RevokeNamespace is RevokePath for everything in a namespace, without those below it.
func (s *Store) RevokeNamespace(ctx context.Context, namespace string) (n int, err error) {
	return s.revokeWhere(ctx, func(e *Entry) bool { return e.Namespace == namespace })
}

func (s *Store) revokeWhere(ctx context.Context, fits func(*Entry) bool) (n int, err error) {
	var problems []error
	revoke := func(keys []string) (goOn bool) {
		marked, err := s.mark(ctx, keys, record.WithChildren)
		n += len(marked)
		if err == nil {
			err = s.removeAll(ctx, marked)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("revoking tokens: %w", err))
		}
		return ctx.Err() == nil && !isOutage(err)
	}
	var keys []string
	for entry, err := range record.Scan(ctx, s.store, record.IDPrefix) {
		if err != nil {
			problems = append(problems, err)
			break
		}
		e, err := record.Decode(keyOf(entry), entry.Value)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if !fits(e) {
			continue
		}
		if keys = append(keys, e.Key); len(keys) < batchTokens {
			continue
		}
		if !revoke(keys) {
			return n, errors.Join(problems...)
		}
		keys = keys[:0]
	}
	if len(keys) > 0 {
		revoke(keys)
	}
	return n, errors.Join(problems...)
}

// keyOf returns the Key of a stored token.
func keyOf(e storage.Entry) string { return strings.TrimPrefix(string(e.Key), string(record.IDPrefix)) }
