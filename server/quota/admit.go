package quota

import (
	"context"
	"errors"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// sealedBytes is what encryption adds to a value: barrier.Overhead.
const sealedBytes = 34

// AdmitLease says whether a mount may give out one more lease, for a request to a path below it: it holds it to the lease count
// quota that concerns it.
func (q *Quotas) AdmitLease(ctx context.Context, namespace, mountPath, path string) error {
	r := Request{NamespacePath: q.opts.Namespaces.Path(namespace), MountPath: mountPath, Path: mountPath + path}
	return q.Leases(ctx, r, q.opts.Usage.Leases)
}

// AdmitToken says whether a request to a path of a namespace may make one more token, of a login with a role or without one, with so
// many bytes that it wraps: it holds it to the lease count quota that concerns it and, if it wraps anything, to the storage quota
// of its namespace.
func (q *Quotas) AdmitToken(ctx context.Context, namespace, path, role string, bytes int64) error {
	r := Request{NamespacePath: q.opts.Namespaces.Path(namespace), Path: path}
	if bytes != 0 {
		wrapped := func(context.Context) (int64, error) { return bytes + sealedBytes, nil }
		if err := q.Storage(ctx, func() Request { return r }, wrapped, q.opts.Usage.Bytes); err != nil {
			return err
		}
	}
	var err error
	if r.MountPath, err = q.opts.Usage.MountPath(ctx, namespace, path); err != nil {
		return err
	}
	r.Role = role
	return q.Leases(ctx, r, q.opts.Usage.Leases)
}

// AdmitWrite says whether an engine may write a batch: it holds it to the storage quota that concerns its mount. What makes nothing
// grow, as deleting does, is always admitted.
func (q *Quotas) AdmitWrite(ctx context.Context, m engines.Mount, b storage.Batch) error {
	describe := func() Request {
		return Request{NamespacePath: q.opts.Namespaces.Path(m.NamespaceID), MountPath: m.Path, Path: m.Path}
	}
	return q.Storage(ctx, describe, func(ctx context.Context) (int64, error) { return q.growth(ctx, b) }, q.opts.Usage.Bytes)
}

// growth returns by how many bytes a batch makes grow what is stored.
func (q *Quotas) growth(ctx context.Context, b storage.Batch) (int64, error) {
	var sum int64
	for _, p := range b.Puts {
		old, err := q.opts.Raw.Get(ctx, p.Key)
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
		old, err := q.opts.Raw.Get(ctx, key)
		if err == nil {
			sum -= int64(len(key) + len(old.Value))
		} else if !errors.Is(err, storage.ErrNotFound) {
			return 0, err
		}
	}
	return sum, nil
}
