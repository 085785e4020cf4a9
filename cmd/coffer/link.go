package main

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
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/server/freespace"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/wal"
)

// Package replication and the server know nothing of each other. These types join them: linkOf is what the server needs
// of the traffic, guardOf what the traffic needs of the server.

// layout says which key belongs where.
var layout = replication.Layout{
	Unit: func(k storage.Key) (replication.Unit, bool) {
		unit, ok := replicated.Unit(k)
		return replication.Unit(unit), ok
	},
	Anchor:   replicated.Anchor,
	Prefixes: func(u replication.Unit) []storage.Key { return replicated.Prefixes(string(u)) },
}

// newLink returns the link of a node, and the guard, which the server has to be given to.
func newLink(machine *fsm.FSM, log *wal.Log, b *barrier.Barrier, apiAddr, clusterAddr string, logger *slog.Logger) (*replication.Link, *guardOf, error) {
	guard := new(guardOf)
	link, err := replication.New(replication.Options{
		State:  machine,
		Freeze: func(ctx context.Context) (replication.Frozen, error) { return machine.Freeze(ctx) },
		Log:    log, Store: b, OpenValue: b.OpenValue, Layout: layout, Guard: guard,
		APIAddr:     func() string { return apiAddr },
		ClusterAddr: func() string { return clusterAddr },
		Logger:      logger, Paused: guard.paused,
	})
	return link, guard, err
}

// linkOf is a replicated.Link.
type linkOf struct{ *replication.Link }

func (l linkOf) Follow(ctx context.Context, setID, clusterID string, lineage storage.Lineage, up replicated.Upstream, h replicated.FollowHooks) error {
	return l.Link.Follow(ctx, setID, clusterID, lineage, replication.Upstream(up), replication.FollowHooks{
		BeforeDrop: h.BeforeDrop,
		Learned:    func(ctx context.Context, n replication.Learned) { h.Learned(ctx, replicated.Learned(n)) },
	})
}

func (l linkOf) Enrol(ctx context.Context, addrs []string, ca []byte, req replicated.EnrolRequest) (replicated.EnrolReply, error) {
	reply, err := l.Link.Enrol(ctx, addrs, ca, replication.EnrolRequest{
		SetID: req.SetID, ClusterID: req.ClusterID, SecondaryID: req.SecondaryID, Secret: req.Secret, CSR: req.CSR,
		Latest: replication.OtherPrimary(req.Latest),
	})
	if refusal, ok := errors.AsType[*replication.Refusal](err); ok {
		err = engines.Invalid("%s", refusal.Detail)
	}
	return replicated.EnrolReply(reply), err
}

func (l linkOf) Announce(ctx context.Context, up replicated.Upstream, a replicated.Announcement) (replicated.AnnounceReply, error) {
	reply, err := l.Link.Announce(ctx, replication.Upstream(up), replication.Announcement{
		SetID: a.SetID, OtherPrimary: replication.OtherPrimary(a.OtherPrimary), Claim: a.Claim,
	})
	out := replicated.AnnounceReply{EpochID: reply.EpochID, Primary: reply.Primary, Fenced: reply.Fenced}
	for _, o := range reply.Others {
		out.Others = append(out.Others, replicated.OtherPrimary(o))
	}
	return out, err
}

func (l linkOf) WhoIsActive(ctx context.Context, addr string, up replicated.Upstream) (replicated.ActiveReply, error) {
	reply, err := l.Link.WhoIsActive(ctx, addr, replication.Upstream(up))
	return replicated.ActiveReply(reply), err
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

func (l linkOf) FollowStatus() replicated.FollowStatus {
	s := l.Link.FollowStatus()
	out := replicated.FollowStatus{
		State: string(s.State), Reason: s.Reason, Paused: s.Paused, Terminal: s.Terminal, Cursor: s.Cursor, Head: s.Head,
		LagEntries: s.LagEntries, LagBytes: s.LagBytes, LagSeconds: s.LagSeconds, EntriesIn: s.EntriesIn, BytesIn: s.BytesIn,
		RateIn: s.RateIn, BytesRate: s.BytesRate, ETASeconds: s.ETASeconds, Connected: s.Connected, Final: s.Final,
		LastHeard: s.LastHeard, EqualAt: s.EqualAt, ClockSkew: s.ClockSkew, Exact: s.Exact, Units: s.Units, KeysDone: s.KeysDone,
		KeysTotal: s.KeysTotal, CanKeepUp: s.CanKeepUp,
	}
	if r := s.Repair; r != nil {
		out.Repair = &replicated.RepairStatus{
			Cause: r.Cause, StartedAt: r.StartedAt, Seconds: r.Seconds, Running: r.Running, Units: r.Units, UnitsAll: r.UnitsAll,
			Buckets: r.Buckets, Keys: r.Keys, Bytes: r.Bytes,
		}
	}
	return out
}

func (l linkOf) SessionStatus() []replicated.SessionStatus {
	var out []replicated.SessionStatus
	for _, s := range l.Link.SessionStatus() {
		out = append(out, replicated.SessionStatus{
			Peer: replicated.Peer(s.Peer), Addr: s.Addr, APIAddr: s.APIAddr, ClusterAddr: s.ClusterAddr, ConnectedAt: s.ConnectedAt,
			LastHeartbeat: s.LastHeartbeat, EqualAt: s.EqualAt, EndedAt: s.EndedAt, Cursor: s.Cursor, LagEntries: s.LagEntries, LagSeconds: s.LagSeconds,
			EntriesOut: s.EntriesOut, BytesOut: s.BytesOut, RateOut: s.RateOut, ClockSkew: s.ClockSkew, Exact: s.Exact,
		})
	}
	return out
}

func (l linkOf) Conflicts(ctx context.Context) ([]replicated.Conflict, error) {
	copies, err := l.Link.Conflicts(ctx)
	var out []replicated.Conflict
	for _, c := range copies {
		out = append(out, replicated.Conflict(c))
	}
	return out, err
}

// guardOf is a replication.Guard. The server is given to it before anything is served.
type guardOf struct{ server *server.Server }

func (g *guardOf) store() *replicated.Store { return g.server.Replicated() }

// paused returns why nothing is taken from the primary: what it sends would fill the disk, which the node needs for itself.
func (g *guardOf) paused() string {
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
	reply, err := g.store().Enrol(ctx, replicated.EnrolRequest{
		SetID: req.SetID, ClusterID: req.ClusterID, SecondaryID: req.SecondaryID, Secret: req.Secret, CSR: req.CSR,
		Latest: replicated.OtherPrimary(req.Latest),
	})
	return replication.EnrolReply(reply), guardError(err)
}

func (g *guardOf) Renew(ctx context.Context, p replication.Peer, csr []byte) ([]byte, error) {
	cert, err := g.store().Renew(ctx, replicated.Peer(p), csr)
	return cert, guardError(err)
}

func (g *guardOf) Scope(ctx context.Context, p replication.Peer) (map[string]bool, uint64, error) {
	units, version, err := g.store().Scope(ctx, replicated.Peer(p))
	return units, version, guardError(err)
}

func (g *guardOf) Self() replication.Self {
	r := g.store().Role()
	return replication.Self{
		Primary: r.Mode == replicated.Primary, Demoted: r.Mode == replicated.Secondary && r.Demoted,
		SetID: r.SetID, ClusterID: r.ClusterID, Lineage: r.Lineage, Since: r.Version,
	}
}

func (g *guardOf) Fence(ctx context.Context, epoch storage.EpochID) { g.store().Fence(ctx, epoch) }
func (g *guardOf) Addrs() []string                                  { return g.store().Addrs() }
func (g *guardOf) Active() (self bool, addr string)                 { return g.store().Active() }

func (g *guardOf) Announced(ctx context.Context, p replication.Peer, a replication.Announcement) (replication.AnnounceReply, error) {
	reply, err := g.store().Announced(ctx, replicated.Peer(p), replicated.Announcement{
		SetID: a.SetID, OtherPrimary: replicated.OtherPrimary(a.OtherPrimary), Claim: a.Claim,
	})
	out := replication.AnnounceReply{EpochID: reply.EpochID, Primary: reply.Primary, Fenced: reply.Fenced}
	for _, o := range reply.Others {
		out.Others = append(out.Others, replication.OtherPrimary(o))
	}
	return out, guardError(err)
}

func (g *guardOf) Call(ctx context.Context, p replication.Peer, kind string, payload []byte) ([]byte, storage.Index, error) {
	answer, at, err := g.server.ServeSecondary(ctx, replicated.Peer(p), kind, payload)
	return answer, at, guardError(err)
}

// guardError is how a failure of the server looks to the link, which passes on only what another cluster may read.
func guardError(err error) error {
	var e *engines.Error
	switch {
	case errors.Is(err, replicated.ErrRevoked), errors.Is(err, replicated.ErrStranger):
		return fmt.Errorf("%w: %w", replication.ErrRevoked, err)
	case errors.As(err, &e) && e.Kind != engines.KindInternal:
		return &replication.Refusal{Detail: e.Detail}
	}
	return err
}

// memberOf is a member of a cluster that other clusters can talk to as well.
type memberOf struct {
	clusterOf
	link *replication.Link
	log  *slog.Logger
}

// serveClusters begins to serve other clusters on a member's port.
func serveClusters(member *cluster.Node, link *replication.Link, log *slog.Logger) (lifecycle.Cluster, error) {
	listener, err := member.Listen(replication.Protocol, link.ServerTLS)
	if err != nil {
		return nil, fmt.Errorf("listening for other clusters: %w", err)
	}
	go func() {
		if err := link.Serve(listener); err != nil {
			log.Error("serving other clusters", "err", err)
		}
	}()
	return memberOf{clusterOf{member}, link, log}, nil
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
