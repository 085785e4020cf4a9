package link

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/follow"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/storage"
)

// Follow makes this cluster a follower of a primary until ctx ends; it reconnects by itself. It belongs within Active, and
// there can be one at a time.
func (l *Link) Follow(ctx context.Context, setID, clusterID string, _ storage.Lineage, up replication.Upstream, events replication.FollowEvents) error {
	a := l.join()
	if a == nil {
		return fmt.Errorf("%w: this is not the active node", storage.ErrUnavailable)
	}
	defer a.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	f, err := follow.New(ctx, follow.Options{
		SetID: setID, ClusterID: clusterID, Upstream: up, Events: events, Cluster: l.o.Guard, Local: l.Local, Trees: a.trees, Layout: l.o.Layout,
		APIAddr: l.o.APIAddr, ClusterAddr: l.o.ClusterAddr, Logger: l.log,
		Tick: l.o.timing.tick, Backoff: l.o.timing.backoff, MaxBackoff: l.o.timing.maxBackoff, Quiet: l.o.timing.quiet,
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.follow != nil {
		l.mu.Unlock()
		return errors.New("this node follows a primary already")
	}
	l.follow = f
	l.mu.Unlock()
	f.Run(ctx)
	l.mu.Lock()
	l.follow = nil
	l.mu.Unlock()
	l.FollowerAt(storage.Position{})
	return nil
}

// Repair makes the follower compare everything with its primary, as soon as it is connected.
func (l *Link) Repair(cause string) error {
	l.mu.Lock()
	f := l.follow
	l.mu.Unlock()
	if f == nil {
		return errors.New("this node follows no primary")
	}
	f.Repair(cause)
	return nil
}

// upstream calls do with a connection to the primary. again is closed when there may be another one; nil if there will be
// none soon.
func (l *Link) upstream(ctx context.Context, do func(context.Context, *transport.Client) error) (again <-chan struct{}, err error) {
	l.mu.Lock()
	f := l.follow
	l.mu.Unlock()
	if f == nil {
		return nil, fmt.Errorf("%w: this node follows no primary", storage.ErrUnavailable)
	}
	return f.Do(ctx, do)
}

// storedStatus is that of a node that follows no primary, or not yet: what the cursor tells.
func (l *Link) storedStatus() replication.FollowStatus {
	out := replication.FollowStatus{State: replication.Disconnected}
	out.Cursor, out.EqualAt = l.Applied(context.Background())
	out.LagSeconds = follow.LagSince(time.Now(), out.EqualAt, time.Time{}, false)
	return out
}

// FollowStatus describes this node's following. If it follows no primary that is what is stored: how far it is, and since when.
func (l *Link) FollowStatus() replication.FollowStatus {
	l.mu.Lock()
	f := l.follow
	l.mu.Unlock()
	if f == nil {
		return l.storedStatus()
	}
	return f.Status()
}

// Root returns a digest of all shared data that replicates to or from here, in hexadecimal; "" while it is being built.
func (l *Link) Root() string {
	a := l.here()
	if a == nil {
		return ""
	}
	sum, ok := a.trees.Whole()
	if !ok {
		return ""
	}
	b := binary.BigEndian.AppendUint64(nil, sum.A)
	b = binary.BigEndian.AppendUint64(b, sum.B)
	return hex.EncodeToString(binary.BigEndian.AppendUint64(b, sum.Count))
}
