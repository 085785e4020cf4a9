package secrets

import (
	"context"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
	"golang.org/x/sync/errgroup"
)

// gone looks for secrets that came once, are still here, and are not at the source any more.
func (r *copied) gone(ctx context.Context, names []string) error {
	now := make(map[string]bool, len(names))
	for _, name := range names {
		now[r.keyOf(name)] = true
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.Workers)
	for _, key := range r.Ledger.Names(kindSecret, r.m.Namespace, r.m.Path+"/") {
		if now[key] {
			continue
		}
		g.Go(func() error {
			path := strings.TrimPrefix(key, r.m.Path+"/")
			if err := r.goneOne(ctx, path); err != nil {
				return r.fail(ctx, path, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (r *copied) goneOne(ctx context.Context, path string) error {
	at := r.m.Path + "/" + path
	if r.m.KV() == 2 {
		at = r.m.Path + "/metadata/" + path
	}
	// It may be there nevertheless: in a folder that the token may not list, or written since.
	if _, err := r.Source.Get(ctx, r.m.Namespace, at, nil); !source.Absent(err) {
		return err
	}
	there, same, err := r.asItCame(ctx, path, at)
	switch {
	case err != nil || !there:
		return err
	case !r.DeleteGone || r.Mode == move.Verify:
		r.report(path, move.Gone, "it was imported, and is not at the source any more; -delete-gone deletes it here")
		return nil
	case !same && !r.Overwrite:
		r.report(path, move.Gone, "it is not at the source any more, and may have changed here since it was imported: delete it here if it is not needed")
		return nil
	case r.Mode == move.Apply:
		if _, err := r.Destination.Send(ctx, http.MethodDelete, r.m.Namespace, at, nil); err != nil {
			return err
		}
	}
	r.report(path, move.Delete, "it is not at the source any more")
	return nil
}

// asItCame reports whether the destination has a secret, and whether it is known to be what was imported.
func (r *copied) asItCame(ctx context.Context, path, at string) (there, same bool, err error) {
	if r.m.KV() == 1 {
		ours, err := r.Destination.Fields(ctx, r.m.Namespace, at)
		if err != nil || ours == nil {
			return false, false, err
		}
		sum := r.hash(ours)
		r.mu.Lock()
		defer r.mu.Unlock()
		return true, r.seen[r.name(path)] == sum, nil
	}
	ours, err := r.ours(ctx, path)
	if err != nil || ours == nil {
		return false, false, err
	}
	entry, _ := r.Ledger.Get(kindSecret, r.m.Namespace, r.keyOf(path))
	return true, ledger.Fingerprint(ours) == entry.Source, nil
}
