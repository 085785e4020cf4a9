package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/link"
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/server/freespace"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/wal"
)

// The server knows the contract of replication only, and what fulfils that knows nothing of the server. These types join them:
// linkOf is what the server needs of the traffic, guardOf what the traffic needs of the server.

// layout says which key belongs where.
var layout = replication.Layout{
	Unit: func(k storage.Key) (replication.Unit, bool) {
		unit, ok := filter.Unit(k)
		return replication.Unit(unit), ok
	},
	Anchor:   filter.Anchor,
	Prefixes: func(u replication.Unit) []storage.Key { return filter.Prefixes(string(u)) },
}

// newLink returns the link of a node, and the guard, which the server has to be given to.
func newLink(machine *fsm.FSM, log *wal.Log, b *barrier.Barrier, apiAddr, clusterAddr string, logger *slog.Logger) (*link.Link, *guardOf, error) {
	guard := new(guardOf)
	l, err := link.New(link.Options{
		State: stateOf{machine}, Log: log, Store: received{b, guard}, Layout: layout, Guard: guard,
		APIAddr: apiAddr, ClusterAddr: clusterAddr, Logger: logger,
	})
	return l, guard, err
}

// received is the store that takes what comes from the primary. Like every other write it takes room on the disk.
type received struct {
	*barrier.Barrier
	guard *guardOf
}

// Commit implements storage.Committer.
func (r received) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	bytes := b.Bytes()
	index, err := r.Barrier.Commit(ctx, b)
	r.guard.server.Wrote(bytes)
	return index, err
}

// stateOf is a replication.StateMachine.
type stateOf struct{ *fsm.FSM }

func (s stateOf) Freeze(ctx context.Context) (replication.Frozen, error) { return s.FSM.Freeze(ctx) }

// linkOf is a traffic.Link.
type linkOf struct{ *link.Link }

func (l linkOf) Follow(ctx context.Context, setID, clusterID string, lineage storage.Lineage, up traffic.Upstream, h replication.FollowEvents) error {
	return l.Link.Follow(ctx, setID, clusterID, lineage, replication.Upstream(up), h)
}

func (l linkOf) Enrol(ctx context.Context, addrs []string, ca []byte, req replication.EnrolRequest) (replication.EnrolReply, error) {
	reply, err := l.Link.Enrol(ctx, addrs, ca, req)
	if refusal, ok := errors.AsType[*replication.Refusal](err); ok {
		err = engines.Invalid("%s", refusal.Detail)
	}
	return reply, err
}

func (l linkOf) Announce(ctx context.Context, up traffic.Upstream, a replication.Announcement) (replication.AnnounceReply, error) {
	return l.Link.Announce(ctx, replication.Upstream(up), a)
}

func (l linkOf) WhoIsActive(ctx context.Context, addr string, up traffic.Upstream) (replication.ActiveReply, error) {
	return l.Link.WhoIsActive(ctx, addr, replication.Upstream(up))
}

func (l linkOf) Call(ctx context.Context, kind string, payload []byte) ([]byte, storage.Position, error) {
	answer, at, err := l.Link.Call(ctx, kind, payload)
	if refusal, ok := errors.AsType[*replication.Refusal](err); ok {
		err = engines.Invalid("%s", refusal.Detail)
	}
	if errors.Is(err, replication.ErrRevoked) {
		err = fmt.Errorf("%w: %w", storage.ErrUnavailable, err) // nothing was done
	}
	return answer, at, err
}

func (l linkOf) Conflicts(ctx context.Context) ([]traffic.Conflict, error) {
	copies, err := l.Link.Conflicts(ctx)
	var out []traffic.Conflict
	for _, c := range copies {
		out = append(out, traffic.Conflict(c))
	}
	return out, err
}

// guardOf is a link.Guard. The server is given to it before anything is served.
type guardOf struct{ server *server.Server }

func (g *guardOf) store() *replicated.Store { return g.server.Replicated() }

// Paused returns why nothing is taken from the primary: what it sends would fill the disk, which the node needs for itself.
func (g *guardOf) Paused() string {
	if g.server.Space() != freespace.Full {
		return ""
	}
	return "the disk of the data directory has less free space than free_space_minimum: free some; replication goes on by itself"
}

func (g *guardOf) ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	return g.store().ServerTLS(ctx)
}

func (g *guardOf) Admit(ctx context.Context, cert *x509.Certificate) (replication.Peer, error) {
	p, err := g.store().Admit(ctx, cert)
	return replication.Peer(p), guardError(err)
}

func (g *guardOf) Enrol(ctx context.Context, req replication.EnrolRequest) (replication.EnrolReply, error) {
	reply, err := g.store().Enrol(ctx, req)
	return reply, guardError(err)
}

func (g *guardOf) Renew(ctx context.Context, p replication.Peer, csr []byte) ([]byte, error) {
	cert, err := g.store().Renew(ctx, p, csr)
	return cert, guardError(err)
}

func (g *guardOf) Scope(ctx context.Context, p replication.Peer) (map[string]bool, uint64, error) {
	units, version, err := g.store().Scope(ctx, p)
	return units, version, guardError(err)
}

func (g *guardOf) Self() replication.Self {
	r := g.store().Role()
	return replication.Self{
		Primary: r.Mode == roles.Primary, Demoted: r.Mode == roles.Secondary && r.Demoted,
		SetID: r.SetID, ClusterID: r.ClusterID, Lineage: r.Lineage, Since: r.Version,
	}
}

func (g *guardOf) Fence(ctx context.Context, epoch storage.EpochID) { g.store().Fence(ctx, epoch) }
func (g *guardOf) Addrs() []string                                  { return g.store().Addrs() }
func (g *guardOf) Active() (self bool, addr string)                 { return g.store().Active() }

func (g *guardOf) Announced(ctx context.Context, p replication.Peer, a replication.Announcement) (replication.AnnounceReply, error) {
	reply, err := g.store().Announced(ctx, p, a)
	return reply, guardError(err)
}

func (g *guardOf) Call(ctx context.Context, p replication.Peer, kind string, payload []byte) ([]byte, storage.Index, error) {
	answer, at, err := g.server.ServeSecondary(ctx, p, kind, payload)
	return answer, at, guardError(err)
}

// guardError is how a failure of the server looks to the link, which passes on only what another cluster may read.
func guardError(err error) error {
	var e *engines.Error
	switch {
	case errors.Is(err, registry.ErrRevoked), errors.Is(err, registry.ErrStranger):
		return fmt.Errorf("%w: %w", replication.ErrRevoked, err)
	case errors.As(err, &e) && e.Kind != engines.KindInternal:
		return &replication.Refusal{Detail: e.Detail}
	}
	return err
}

// memberOf is a member of a cluster that other clusters can talk to as well.
type memberOf struct {
	clusterOf
	link *link.Link
	log  *slog.Logger
}

// serveClusters begins to serve other clusters on a member's port.
func serveClusters(member *cluster.Node, l *link.Link, log *slog.Logger) (members.Cluster, error) {
	listener, err := member.Listen(replication.Protocol, l.ServerTLS)
	if err != nil {
		return nil, fmt.Errorf("listening for other clusters: %w", err)
	}
	go func() {
		if err := l.Serve(listener); err != nil {
			log.Error("serving other clusters", "err", err)
		}
	}()
	return memberOf{clusterOf{member}, l, log}, nil
}

// Drain implements lifecycle.Cluster.
func (m memberOf) Drain(ctx context.Context) {
	m.link.Stop(ctx)
	m.clusterOf.Drain(ctx)
}

// Close implements lifecycle.Cluster.
func (m memberOf) Close(ctx context.Context) error {
	m.link.Stop(ctx)
	return m.clusterOf.Close(ctx)
}
