package server

import (
	"context"
	"errors"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// sealedBytes is what encryption adds to a value: barrier.Overhead.
const sealedBytes = 34

// admitBytes holds what an engine is about to write to the storage quotas that concern its mount. What makes nothing grow, as
// deleting does, is always admitted.
func (s *Server) admitBytes(ctx context.Context, m engines.Mount, b storage.Batch) error {
	r := quota.Request{NamespacePath: s.namespacePath(m.NamespaceID), MountPath: m.Path, Path: m.Path}
	return s.quotas.Storage(ctx, r, func(ctx context.Context) (int64, error) { return s.growth(ctx, b) }, s.storedBytes)
}

// growth returns by how many bytes a batch makes grow what is stored.
func (s *Server) growth(ctx context.Context, b storage.Batch) (int64, error) {
	var sum int64
	for _, p := range b.Puts {
		old, err := s.raw.Get(ctx, p.Key)
		switch {
		case err == nil:
			sum += int64(len(p.Value)) + sealedBytes - int64(len(old.Value))
		case errors.Is(err, storage.ErrNotFound):
			sum += int64(len(p.Key)+len(p.Value)) + sealedBytes
		default:
			return 0, err
		}
	}
	for _, key := range b.Deletes {
		old, err := s.raw.Get(ctx, key)
		if err == nil {
			sum -= int64(len(key) + len(old.Value))
		} else if !errors.Is(err, storage.ErrNotFound) {
			return 0, err
		}
	}
	return sum, nil
}

// admitWrapped holds a wrapping token to the storage quotas that concern its namespace.
func (s *Server) admitWrapped(ctx context.Context, e *token.Entry) error {
	if e.Bytes == 0 {
		return nil
	}
	r := quota.Request{NamespacePath: s.namespacePath(e.Namespace), Path: e.Path}
	return s.quotas.Storage(ctx, r, func(context.Context) (int64, error) { return e.Bytes + sealedBytes, nil }, s.storedBytes)
}

// storedBytes measures what is stored in a quota's scope.
func (s *Server) storedBytes(ctx context.Context, scope quota.Scope) (int64, error) {
	in, _, err := s.namespaces.Resolve(ctx, scope.Namespace, "")
	if err != nil {
		return 0, err
	}
	spaces, err := s.namespaces.Everything(ctx)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range spaces {
		if n.ID != in.ID && !(scope.Below && s.below(ctx, in.ID, n.ID)) {
			continue
		}
		mounts, err := s.mounts.All(ctx, n.ID)
		if err != nil {
			return 0, err
		}
		for _, m := range mounts {
			if m.Type != "kv" && m.Type != "cubbyhole" || !strings.HasPrefix(m.Path, scope.Mount) {
				continue
			}
			bytes, err := s.mountBytes(ctx, m)
			if err != nil {
				return 0, err
			}
			sum += bytes
		}
	}
	if scope.Mount != "" {
		return sum, nil
	}
	_, wrapped, err := s.tokens.CountStored(ctx, func(ns, _, _ string) bool { return ns == in.ID || scope.Below && s.below(ctx, in.ID, ns) })
	return sum + wrapped, err
}

// mountBytes returns how many bytes a mount's data takes, encrypted, with its keys.
func (s *Server) mountBytes(ctx context.Context, m *mount.Mounted) (int64, error) {
	const page = 256
	var sum int64
	for _, class := range []storage.Class{storage.Shared, storage.Local} {
		prefix := storage.NewKey(class, m.Entry.UUID, "")
		for after := storage.Key(""); ; {
			entries, err := s.raw.Scan(ctx, prefix, after, page)
			if err != nil {
				return 0, err
			}
			for _, e := range entries {
				sum += int64(len(e.Key) + len(e.Value))
			}
			if len(entries) < page {
				break
			}
			after = entries[len(entries)-1].Key
		}
	}
	return sum, nil
}
