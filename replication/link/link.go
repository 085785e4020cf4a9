// Package link is a node's part in the traffic between clusters: it moves the messages of replication's state machines over
// gRPC and enrols secondaries. Package follow has the connection to a primary, this one those of the secondaries (sessions.go, serve.go), and
// package state what they read and write on this node.
//
// It promises that a node follows its primary, or serves its secondaries, for as long as it is the active one, through lost
// connections and changes of role, and that nothing is sent after the guard has refused it. Start reading at Link.
package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/follow"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal"
)

// Options of New. All but the addresses and Logger are required.
type Options struct {
	State  replication.StateMachine
	Log    *wal.Log          // what the State appends to
	Store  replication.Store // over the State
	Layout replication.Layout
	Guard  Guard

	APIAddr, ClusterAddr string       // of this node, told to the primary; "": not told
	Logger               *slog.Logger // nil discards

	timing timing // for tests; zero values are the defaults
}

// timing is how long things take; zero values mean the defaults.
type timing struct {
	tick       time.Duration // between two looks at a machine that has nothing to do; 100 ms
	backoff    time.Duration // before the second attempt to connect, doubled with each; 200 ms
	maxBackoff time.Duration // 30 s
	quiet      time.Duration // between attempts when an operator is needed; 30 s
	cut        time.Duration // until the connection of a secondary that was revoked is cut the hard way; 500 ms
	grace      time.Duration // the same of one whose session ends for another reason; 2 s
	heartbeat  int64         // of sessions, ms
	checkpoint int64         // of sessions, ms
}

func (t *timing) fill() {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&t.tick, 100*time.Millisecond)
	set(&t.backoff, 200*time.Millisecond)
	set(&t.maxBackoff, 30*time.Second)
	set(&t.quiet, 30*time.Second)
	set(&t.cut, 500*time.Millisecond)
	set(&t.grace, 2*time.Second)
}

// Guard is what a Link asks about its own cluster, and before it serves anybody.
type Guard interface {
	Cluster
	Admission
	Announcements
	// Call runs something for a secondary; the index is to be waited for there. Errors are as Enrol's; with
	// storage.ErrUnavailable nothing was done.
	Call(ctx context.Context, p replication.Peer, kind string, payload []byte) (answer []byte, at storage.Index, err error)
}

// Cluster is what this cluster is, and where.
type Cluster interface {
	// Self describes the cluster, as of everything that is applied.
	Self() replication.Self
	// Addrs are the cluster addresses to give to secondaries; Active says whether this node serves them, and where the
	// one is that does.
	Addrs() []string
	Active() (self bool, addr string)
	follow.Cluster
}

// Admission says who may connect, and to what.
type Admission interface {
	// ServerTLS returns this node's certificate and the CA that secondaries' certificates must be of; nil while the
	// cluster is not a primary.
	ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error)
	// Admit returns whose certificate it is. ErrRevoked: its holder may not connect.
	Admit(ctx context.Context, cert *x509.Certificate) (replication.Peer, error)
	// Enrol redeems a one-time secret. What the other side's operator may read of an error is a *Refusal.
	Enrol(ctx context.Context, req replication.EnrolRequest) (replication.EnrolReply, error)
	// Renew issues another certificate to a secondary that has a valid one. Errors are as Enrol's.
	Renew(ctx context.Context, p replication.Peer, csr []byte) (cert []byte, err error)
	// Scope returns the units that the secondary may have at present, and a number that changes with them. ErrRevoked.
	Scope(ctx context.Context, p replication.Peer) (units map[string]bool, version uint64, err error)
}

// Announcements takes what others say of later primaries.
type Announcements interface {
	// Fence is called when a secondary has shown a later epoch.
	Fence(ctx context.Context, epoch storage.EpochID)
	// Announced takes what a secondary says of a later primary, itself for instance. Errors are as Enrol's.
	Announced(ctx context.Context, p replication.Peer, a replication.Announcement) (replication.AnnounceReply, error)
}

// Link is this node's part in the traffic between clusters. Safe for concurrent use. A process has one, for its lifetime:
// New; Serve and Stop around each time that the node is unsealed; Active while it is the active one; Follow within that
// on a secondary.
type Link struct {
	*state.Local // of this node
	o            Options
	log          *slog.Logger
	sessions     sessions

	mu     sync.Mutex
	server *server           // nil: not serving
	active *active           // nil: this is not the active node
	follow *follow.Following // nil: it follows no primary
}

// active is one time of being the active node.
type active struct {
	ctx   context.Context // ends with it
	trees *state.Trees
	wg    sync.WaitGroup // of what has to end with it
}

// New returns a Link. Close ends it, after Stop.
func New(o Options) (*Link, error) {
	if o.State == nil || o.Log == nil || o.Store == nil || o.Guard == nil || o.Layout.Unit == nil {
		return nil, errors.New("the link between clusters lacks one of its parts")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.timing.fill()
	local := state.New(state.Options{
		State: o.State, Log: o.Log, Store: o.Store, Layout: o.Layout, Cluster: o.Guard, Logger: o.Logger,
	})
	return &Link{Local: local, o: o, log: o.Logger}, nil
}

// Active does what belongs to the active node, until ctx ends: it keeps the digests and serves secondaries. It returns when
// everything of it has ended.
func (l *Link) Active(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &active{ctx: ctx, trees: state.NewTrees(l.Local)}
	l.mu.Lock()
	if l.active != nil {
		l.mu.Unlock()
		l.log.Error("the link of the active node was started twice")
		return
	}
	l.active = a
	l.mu.Unlock()
	a.wg.Go(func() { a.trees.Run(ctx) })
	a.wg.Go(func() { l.sessions.guard(ctx, l) })
	<-ctx.Done()
	l.mu.Lock()
	l.active = nil
	l.mu.Unlock()
	l.sessions.endAll(&transport.Redirect{}) // those that hang in the network, too
	a.wg.Wait()
	l.ClearCache()
}

// here returns what belongs to the active node, nil if this is not the one.
func (l *Link) here() *active {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active == nil || l.active.ctx.Err() != nil {
		return nil
	}
	return l.active
}

// join makes the end of Active wait for something that was begun; nil: too late. The caller calls wg.Done.
func (l *Link) join() *active {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active == nil || l.active.ctx.Err() != nil {
		return nil
	}
	l.active.wg.Add(1)
	return l.active
}
