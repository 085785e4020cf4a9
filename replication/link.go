package replication

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal"
)

// Protocol is the ALPN name of this traffic on the cluster port.
const Protocol = "coffer-replication"

// ServerName is the name in the certificates of a primary's nodes, whatever address they are dialled at.
const ServerName = "primary.replication.coffer.internal"

// CursorKey is where a secondary keeps how far it is. It belongs in wal.Options.CursorKey: after a promotion the log tells
// where other secondaries go on.
const CursorKey = progressPrefix + "cursor"

// StateMachine is this node's replicated state with sealed values. *fsm.FSM fulfils it.
type StateMachine interface {
	storage.Feed
	AppliedIndex() storage.Index
	WaitApplied(ctx context.Context, i storage.Index) error
	// BeginLog calls begin between two entries.
	BeginLog(begin func(applied storage.Index) error) error
}

// Frozen is the state as it was at one index. *fsm.Frozen fulfils it.
type Frozen interface {
	Index() storage.Index
	// Get returns an entry, or storage.ErrNotFound.
	Get(key storage.Key) (storage.Entry, error)
	// Walk calls fn, in byte order, for each key that begins with prefix and is greater than after, until fn returns
	// false. The value is valid during the call.
	Walk(ctx context.Context, prefix, after storage.Key, fn func(key storage.Key, mod storage.Position, value []byte) bool) error
	Close()
}

// Options of New. All but the last three are required.
type Options struct {
	State  StateMachine
	Freeze func(context.Context) (Frozen, error) // of the State
	Log    *wal.Log                              // what the State appends to
	// Store is the plaintext over the State, with no fence in front of it. OpenValue opens a sealed value of a Record or of
	// a Frozen.
	Store     storage.Store
	OpenValue func(ctx context.Context, key storage.Key, sealed []byte) ([]byte, error)
	Layout    Layout
	Guard     Guard

	APIAddr, ClusterAddr func() string // of this node, told to the primary; nil: not told
	Logger               *slog.Logger  // nil discards
	// Paused returns why this cluster takes nothing from its primary at the moment, "" if it does: the connection and calls go on,
	// and what is sent waits at the primary. It is asked often. nil: never.
	Paused func() string

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

// Self is this cluster's place in its set.
type Self struct {
	Primary          bool
	Demoted          bool // a secondary that was a primary, and follows nobody yet
	SetID, ClusterID string
	Lineage          storage.Lineage
	Since            storage.Index // the entry that says so
}

// Peer is a secondary, as its primary knows it.
type Peer struct {
	ID        string // opaque
	ClusterID string // "" until it has enrolled
}

// Guard is what a Link asks about its own cluster, and before it serves anybody.
type Guard interface {
	// ServerTLS returns this node's certificate and the CA that secondaries' certificates must be of; nil while the
	// cluster is not a primary.
	ServerTLS(ctx context.Context) (*tls.Certificate, *x509.CertPool, error)
	// Admit returns whose certificate it is. ErrRevoked: it is of nobody who may connect.
	Admit(ctx context.Context, cert *x509.Certificate) (Peer, error)
	// Enrol redeems a one-time secret. What the other side's operator may read of an error is a *Refusal.
	Enrol(ctx context.Context, req EnrolRequest) (EnrolReply, error)
	// Renew issues another certificate to a secondary that has a valid one. Errors are as Enrol's.
	Renew(ctx context.Context, p Peer, csr []byte) (cert []byte, err error)
	// Scope returns the units that the secondary may have at present, and a number that changes with them. ErrRevoked.
	Scope(ctx context.Context, p Peer) (units map[string]bool, version uint64, err error)
	// Self describes the cluster, as of everything that is applied.
	Self() Self
	// Fence is called when a secondary has shown a later epoch.
	Fence(ctx context.Context, epoch storage.EpochID)
	// Announced takes what a secondary says of a later primary, itself for instance. Errors are as Enrol's.
	Announced(ctx context.Context, p Peer, a Announcement) (AnnounceReply, error)
	// Addrs are the cluster addresses to give to secondaries; Active says whether this node serves them, and where the
	// one is that does.
	Addrs() []string
	Active() (self bool, addr string)
	// Call runs something for a secondary; the index is to be waited for there. Errors are as Enrol's; with
	// storage.ErrUnavailable nothing was done.
	Call(ctx context.Context, p Peer, kind string, payload []byte) (answer []byte, at storage.Index, err error)
}

// Refusal is an error whose text may be read in another cluster. Others arrive as "internal error".
type Refusal struct{ Detail string }

func (r *Refusal) Error() string { return r.Detail }

// Upstream is what a secondary needs for its connection.
type Upstream struct {
	Format      int
	SecondaryID string
	SetID       string
	PrimaryID   string
	CA          []byte // PEM
	Cert        []byte // PEM
	Key         []byte // PEM, secret
	Addrs       []string
	APIAddr     string
	Since       time.Time
}

// EnrolRequest is what a cluster sends to become a secondary.
type EnrolRequest struct {
	SetID, ClusterID, SecondaryID string
	Secret                        string
	CSR                           []byte       // DER
	Latest                        OtherPrimary // the latest primary that the cluster knows of; zero: none
}

// EnrolReply is what it gets.
type EnrolReply struct {
	Cert      []byte // PEM
	SetID     string
	PrimaryID string
	Lineage   storage.Lineage
	Addrs     []string
	APIAddr   string
}

// ActiveReply describes the node that answered.
type ActiveReply struct {
	SetID, ClusterID string
	Epoch            uint32
	Active           bool
	ActiveAddr       string
	Addrs            []string
}

// OtherPrimary is a primary of the set, of another cluster, named by its epoch.
type OtherPrimary struct {
	storage.EpochID
	APIAddr string // "": not known
}

// Announcement tells a former primary of a later one.
type Announcement struct {
	SetID string
	OtherPrimary
	// Claim asks, of a primary that was demoted, to be the only one that is promoted at what it has said last.
	Claim bool
}

// AnnounceReply is what it answers.
type AnnounceReply struct {
	storage.EpochID // the cluster that answers, and the last epoch of its history
	Primary, Fenced bool
	Others          []OtherPrimary // primaries that it has met, without the announced one
}

// FollowHooks are what a Link calls while it follows. Nil ones are not called.
type FollowHooks struct {
	// BeforeDrop is called before a unit is deleted, to end what was handed out of it.
	BeforeDrop func(ctx context.Context, unit string)
	// Learned is called when the primary's history, cluster id or addresses have changed, or the certificate was renewed.
	Learned func(ctx context.Context, l Learned)
}

// Learned is what a secondary has heard; zero fields are as before.
type Learned struct {
	PrimaryID string
	Lineage   storage.Lineage
	Addrs     []string
	Cert      []byte // PEM
	Scope     bool   // what the secondary gets may be something else
}

// Link is this node's part in the traffic between clusters. Safe for concurrent use. A process has one, for its lifetime:
// New; Serve and Stop around each time that the node is unsealed; Active while it is the active one; Follow within that
// on a secondary.
type Link struct {
	o    Options
	log  *slog.Logger
	stop func() // the subscription to State

	progress progress      // a secondary's cursor
	head     atomic.Uint64 // index of the last shared change that was announced
	cache    entryCache    // of what sessions read
	sessions sessions
	scoped   signal        // role, registry or filters may have changed, or mounts
	scopedAt atomic.Uint64 // the last entry that changed them
	scopes   atomic.Uint64 // how often they did

	mu     sync.Mutex
	server *server // nil: not serving
	active *active // nil: this is not the active node
	follow *follow // nil: it follows nobody
}

// active is one time of being the active node.
type active struct {
	ctx   context.Context // ends with it
	trees *trees
	wg    sync.WaitGroup // of what has to end with it
}

// New returns a Link. Close ends it.
func New(o Options) (*Link, error) {
	if o.State == nil || o.Freeze == nil || o.Log == nil || o.Store == nil || o.OpenValue == nil || o.Guard == nil || o.Layout.Unit == nil {
		return nil, errors.New("the link between clusters lacks one of its parts")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.APIAddr == nil {
		o.APIAddr = func() string { return "" }
	}
	if o.ClusterAddr == nil {
		o.ClusterAddr = func() string { return "" }
	}
	o.timing.fill()
	l := &Link{o: o, log: o.Logger}
	l.stop = o.State.OnChange(l.changed)
	return l, nil
}

// Close ends the subscription to the state. Stop comes first.
func (l *Link) Close() { l.stop() }

// changed runs on the apply path.
func (l *Link) changed(ch storage.Change) {
	shared, scope, cursor := ch.Reset, ch.Reset, ch.Reset
	look := func(key storage.Key) {
		switch {
		case key.Class() == storage.Shared:
			shared = true
			scope = scope || l.o.Layout.Anchor(key) // it may have been moved to where a filter says otherwise
		case key == CursorKey || key == ownKey:
			cursor = true
		case isBelow(key, replicationPrefix) && !isBelow(key, progressPrefix):
			scope = true
		}
	}
	for i := range ch.Puts {
		look(ch.Puts[i].Key)
	}
	for _, key := range ch.Deletes {
		look(key)
	}
	if shared {
		l.head.Store(uint64(ch.Index))
	}
	if cursor {
		l.progress.outdated()
	}
	if scope {
		l.scopedAt.Store(uint64(ch.Index))
		l.scopes.Add(1)
		l.scoped.raise()
	}
}

// Head returns the index of the last change to shared data on this node.
func (l *Link) Head() storage.Index {
	if head := l.head.Load(); head != 0 {
		return storage.Index(head)
	}
	return l.o.Log.Head() // nothing was announced since the process began
}

// Oldest returns the index after which this node keeps changes for other clusters.
func (l *Link) Oldest() storage.Index { return l.o.Log.Base() }

// Keep makes this node keep a log of shared changes for other clusters, or remove it.
func (l *Link) Keep(_ context.Context, on bool) error {
	switch {
	case on == l.o.Log.Active():
		return nil
	case !on:
		return l.o.State.BeginLog(func(storage.Index) error { return l.o.Log.End() })
	}
	return l.o.State.BeginLog(func(applied storage.Index) error {
		if l.o.Log.Active() {
			return nil
		}
		return l.o.Log.Begin(applied)
	})
}

// Refresh tells the sessions that registry, filters or mounts may have changed. Sessions of revoked secondaries end.
func (l *Link) Refresh() {
	l.scopes.Add(1)
	l.scoped.raise()
}

// Active does what belongs to the active node, until ctx ends: it keeps the digests and serves secondaries. It returns when
// everything of it has ended.
func (l *Link) Active(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &active{ctx: ctx, trees: newTrees(l)}
	l.mu.Lock()
	if l.active != nil {
		l.mu.Unlock()
		l.log.Error("the link of the active node was started twice")
		return
	}
	l.active = a
	l.mu.Unlock()
	a.wg.Go(func() { a.trees.run(ctx) })
	a.wg.Go(func() { l.sessions.guard(ctx, l) })
	<-ctx.Done()
	l.mu.Lock()
	l.active = nil
	l.mu.Unlock()
	l.sessions.endAll(&redirect{}) // those that hang in the network, too
	a.wg.Wait()
	l.cache.clear()
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

// records returns what the log has after an index, and the index through which that is complete. It is never ahead of
// what the state shows, so that what was announced with an entry (a role, a lineage) is known when the entry is read.
func (l *Link) records(after storage.Index, maxBytes int) (records []storage.Record, through storage.Index, err error) {
	applied := l.o.State.AppliedIndex()
	head := l.o.Log.Head() // has everything up to applied: records are appended first
	if applied <= after && after >= l.o.Log.Base() && l.o.Log.Active() {
		return nil, after, nil
	}
	records, through, err = l.o.Log.Since(after, maxBytes)
	if errors.Is(err, wal.ErrTruncated) {
		return nil, 0, ErrTruncated
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading the log of changes: %w", err)
	}
	for i := range records {
		if records[i].Index > applied {
			return records[:i], applied, nil
		}
	}
	if through >= head {
		through = max(applied, after)
	}
	return records, through, nil
}

// freeze returns the state of now, and how positions in it are to be understood.
func (l *Link) freeze(ctx context.Context) (Frozen, resolver, error) {
	z, err := l.o.Freeze(ctx)
	if err != nil {
		return nil, resolver{}, err
	}
	if err := l.o.State.WaitApplied(ctx, z.Index()); err != nil { // what came with it is announced
		z.Close()
		return nil, resolver{}, err
	}
	return z, l.resolver(), nil
}

// signal wakes everyone who waits for something to be looked at again. Level-triggered: take C first, look, then wait.
type signal struct {
	mu sync.Mutex
	c  chan struct{} // closed by raise, nil if nobody waits
}

func (s *signal) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}

func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}
