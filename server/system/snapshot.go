package system

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/archive"
	"github.com/coffer-project/coffer/storage"
)

// sumsAAD separates the sealed sums of snapshots from everything else under the key ring.
const sumsAAD = "coffer snapshot sums v1"

// WriteSnapshot writes an archive of the state to w, once the state has been compared with the other voters'. The state in it
// is encrypted as stored; the sums are sealed under the key ring, which proves later that the archive was made by this cluster.
func (s *System) WriteSnapshot(ctx context.Context, w io.Writer) error {
	if err := s.compareStates(ctx); err != nil {
		return err
	}
	return s.writeSnapshot(ctx, w)
}

// compareStates returns nil if this node's state is the majority's: a snapshot of another one would bring it back later.
func (s *System) compareStates(ctx context.Context) error {
	c, err := s.cluster()
	if err != nil {
		return err
	}
	if err := c.Compare(ctx); err != nil {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "no snapshot is taken: this node's data could not be compared with that of the other voters, or differs from it", Err: err}
	}
	return nil
}

func (s *System) writeSnapshot(ctx context.Context, w io.Writer) error {
	id := s.opts.Node.Identity()
	meta := archive.Meta{
		ClusterID: id.ID, ClusterName: id.Name, Created: time.Now().UTC(), ProductVersion: s.opts.Version.Product,
		Index: uint64(s.opts.Raw.AppliedIndex()),
	}
	return archive.Write(ctx, w, meta,
		func(w io.Writer) error { _, _, err := s.opts.Raw.WriteSnapshot(ctx, w); return err },
		func(sums []byte) ([]byte, error) { return s.opts.Barrier.SealBytes(sumsAAD, sums) })
}

// takeSnapshot streams an archive of the state.
func (s *System) takeSnapshot(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	if err := s.compareStates(ctx); err != nil {
		return nil, err
	}
	name := "coffer-" + time.Now().UTC().Format("20060102T150405Z") + ".snap"
	return &engines.Response{Raw: &engines.Raw{
		ContentType: "application/gzip",
		Header:      http.Header{"Content-Disposition": {`attachment; filename="` + name + `"`}},
		Stream: func(ctx context.Context, w interface{ Write([]byte) (int, error) }) error {
			return s.writeSnapshot(ctx, w)
		},
	}}, nil
}

// restoreSnapshot verifies the archive completely before anything is replaced. Without force it must have
// been made by this cluster.
func (s *System) restoreSnapshot(force bool) engines.Handler[none] {
	return func(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
		a, err := archive.Extract(req.RawBody, s.opts.TempDir)
		if err != nil {
			return nil, &engines.Error{Kind: engines.KindInvalid, Detail: "the snapshot was refused, nothing was changed: " + err.Error(), Err: err}
		}
		defer a.Close()
		if !force {
			open := func(sealed []byte) ([]byte, error) { return s.opts.Barrier.OpenBytes(sumsAAD, sealed) }
			if err := a.Genuine(open); err != nil {
				return nil, engines.Invalid("the snapshot was not made by this cluster: restore it with snapshot-force if that is what you want; afterwards the cluster unseals with the keys of the snapshot")
			}
		}
		if !force && storage.Index(a.Meta.Index) < s.role().Version {
			return nil, engines.Invalid("the snapshot is older than the role of this cluster in replication: restored, the cluster would have its former role " +
				"again, perhaps as a second primary beside the present one; nothing was changed. Restore a later snapshot, or the secondaries' data from their primary. " +
				"With snapshot-force it is restored all the same: first make sure that no other cluster of the set takes writes")
		}
		state, err := a.Open()
		if err != nil {
			return nil, err
		}
		defer state.Close()
		s.opts.Logger.Warn("restoring a snapshot", "index", a.Meta.Index, "cluster_id", a.Meta.ClusterID, "force", force)
		// The client may go away; a restore that has begun must finish.
		return nil, s.opts.Node.Restore(context.WithoutCancel(ctx), state)
	}
}
