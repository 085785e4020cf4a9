package parts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/link"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/wal"
	"github.com/coffer-project/coffer/test/bench/run"
)

// twin is a cluster of one node that replicates: all that a node has below its API, with real files, Raft, encryption
// and the link on the cluster port. Who is primary of whom is decided by the measurement.
type twin struct {
	id      string
	addr    string
	machine *fsm.FSM
	changes *wal.Log
	store   *barrier.Barrier
	link    *link.Link
	ca      enrol.CA // of its secondaries
	retire  func()   // ends being active
	leave   func()   // ends following

	mu    sync.Mutex
	self  replication.Self
	addrs []string                                                       // told to secondaries
	role  func(self replication.Self, at storage.Index) replication.Self // takes effect with the next role entry
}

const (
	roleKey     storage.Key = "l/replication/role"
	setID                   = "bench"
	benchAnchor             = storage.Key("s/sys/root/mounts/" + benchMount)
)

// units are what replicates.
var units = map[string]bool{"ns/root": true, "global": true, "mount/" + benchMount: true}

var layout = replication.Layout{
	Unit: func(k storage.Key) (replication.Unit, bool) {
		unit, ok := filter.Unit(k)
		return replication.Unit(unit), ok
	},
	Anchor:   filter.Anchor,
	Prefixes: func(u replication.Unit) []storage.Key { return filter.Prefixes(string(u)) },
}

// state is a replication.StateMachine.
type state struct{ *fsm.FSM }

func (s state) Freeze(ctx context.Context) (replication.Frozen, error) { return s.FSM.Freeze(ctx) }

func newTwin(s *run.Scope, id string) *twin {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := filepath.Join(s.TempDir(), id)
	s.Check(os.MkdirAll(dir, 0o700))
	t := &twin{id: id, addr: freeAddr(s), self: replication.Self{SetID: setID, ClusterID: id}}
	var err error
	t.ca, err = enrol.NewCA(time.Now())
	s.Check(err)
	t.changes, err = wal.Open(filepath.Join(dir, "wal"), wal.Options{CursorKey: replication.CursorKey})
	s.Check(err)
	t.machine, err = fsm.Open(dir, fsm.Options{Log: t.changes})
	s.Check(err)
	t.machine.OnChange(t.changed)
	ca, err := cluster.NewCA()
	s.Check(err)
	n, err := cluster.Open(cluster.Options{
		ID: "n0", Dir: dir, Machine: t.machine, ListenAddr: t.addr, CA: ca, StabilizationTime: 100 * time.Millisecond,
	})
	s.Check(err)
	s.Check(n.Bootstrap(ctx))
	for !n.IsLeader() {
		<-n.LeaderChanges()
	}
	below := raw{t.machine, n}
	root := barrier.NewRootKey()
	ring, err := barrier.KeyringPut(root)
	s.Check(err)
	_, err = below.Commit(ctx, storage.Batch{Puts: []storage.Put{ring}})
	s.Check(err)
	t.store = barrier.New(below)
	t.machine.OnChange(t.store.Changed)
	s.Check(t.store.Unseal(ctx, root))
	t.addrs = []string{t.addr}
	t.link, err = link.New(link.Options{
		State: state{t.machine}, Log: t.changes, Store: t.store, Layout: layout, Guard: t,
	})
	s.Check(err)
	listener, err := n.Listen(replication.Protocol, t.link.ServerTLS)
	s.Check(err)
	go func() { _ = t.link.Serve(listener) }()
	t.activate()
	s.Cleanup(func() {
		stop, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		t.retire()
		t.link.Stop(stop)
		t.link.Close()
		_ = n.Close(stop)
		_ = t.machine.Close()
		_ = t.changes.Close()
	})
	return t
}

// activate makes the node the active one of its cluster. What it keeps in memory for that is built anew.
func (t *twin) activate() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}) // closed when it is not active any more
	go func() {
		defer close(done)
		t.link.Active(ctx)
	}()
	t.retire = sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// lead makes the cluster a primary: the first one of the set, or the next after another.
func (t *twin) lead(s *run.Scope, after storage.Lineage) {
	ctx := context.Background()
	var from storage.Position
	if len(after) > 0 {
		var err error
		from, err = t.link.Cursor(ctx)
		s.Check(err)
	}
	t.become(s, func(self replication.Self, at storage.Index) replication.Self {
		branch := storage.Branch{Epoch: after.Epoch() + 1, ClusterID: t.id, From: from, Base: at}
		self.Primary, self.Since, self.Lineage = true, at, append(slices.Clone(after), branch)
		return self
	}, replication.CursorKey)
	s.Check(t.link.Reset(ctx))
	s.Check(t.link.Keep(ctx, true))
}

// demote makes a primary one no more.
func (t *twin) demote(s *run.Scope) {
	t.become(s, func(self replication.Self, at storage.Index) replication.Self {
		self.Primary, self.Demoted, self.Since = false, true, at
		return self
	})
	self := t.Self()
	at := storage.Position{Epoch: self.Lineage.Epoch(), Index: self.Since}
	s.Check(t.link.SetCursor(context.Background(), at, self.Lineage, slices.Sorted(maps.Keys(units))))
}

// become changes the role with one entry of the log.
func (t *twin) become(s *run.Scope, role func(replication.Self, storage.Index) replication.Self, deletes ...storage.Key) {
	t.mu.Lock()
	t.role = role
	t.mu.Unlock()
	_, err := t.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: roleKey, Value: []byte("role")}}, Deletes: deletes})
	s.Check(err)
}

// changed runs on the apply path.
func (t *twin) changed(ch storage.Change) {
	if !slices.ContainsFunc(ch.Entries, func(e storage.Entry) bool { return e.Key == roleKey }) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.self = t.role(t.self, ch.Index)
}

// follow makes the cluster a secondary of another, reached at addr, until unfollow.
func (t *twin) follow(s *run.Scope, primary *twin, addr string) {
	csr, key, err := enrol.NewCSR()
	s.Check(err)
	cert, err := primary.ca.SignCSR(csr, enrol.Subject{ID: t.id, ClusterID: t.id, Enrolment: "1"}, time.Now())
	s.Check(err)
	up := replication.Upstream{
		Format: 1, SecondaryID: t.id, SetID: setID, PrimaryID: primary.id, CA: primary.ca.Cert, Cert: cert, Key: key, Addrs: []string{addr},
	}
	primary.mu.Lock()
	primary.addrs = up.Addrs
	primary.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.Check(t.link.Keep(ctx, true))
	done := make(chan struct{}) // closed when it follows no more
	go func() {
		defer close(done)
		for {
			err := t.link.Follow(ctx, setID, t.id, nil, up, t)
			if !errors.Is(err, storage.ErrUnavailable) || ctx.Err() != nil {
				return
			}
			<-time.After(time.Millisecond) // it becomes active just now
		}
	}()
	t.leave = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	s.Cleanup(t.leave)
}

// unfollow ends that.
func (t *twin) unfollow() { t.leave() }

// keys counts what replicates.
func (t *twin) keys(s *run.Scope) (n int) {
	z, err := t.machine.Freeze(context.Background())
	s.Check(err)
	defer z.Close()
	s.Check(z.Walk(context.Background(), "s/", "", func(key storage.Key, _ storage.Position, _ []byte) bool {
		if _, ok := layout.Unit(key); ok {
			n++
		}
		return true
	}))
	return n
}

// Learned implements replication.FollowEvents.
func (t *twin) Learned(_ context.Context, l replication.Learned) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(l.Lineage) > 0 {
		t.self.Lineage = l.Lineage
	}
}

// await waits until something is so, for some minutes at most.
func (t *twin) await(s *run.Scope, what string, is func() bool) {
	for late := time.After(5 * time.Minute); !is(); {
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			s.Fatalf("cluster %s does not come to this: %s; it is %+v", t.id, what, t.link.FollowStatus())
		}
	}
}

// awaitExact waits until the secondary has everything and follows.
func (t *twin) awaitExact(s *run.Scope) {
	t.await(s, "to be exact", func() bool {
		st := t.link.FollowStatus()
		return st.State == replication.Streaming && st.Exact
	})
}

// awaitHead waits until the secondary has everything that the primary has written so far.
func (t *twin) awaitHead(s *run.Scope, primary *twin) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s.Check(t.link.AwaitCursor(ctx, storage.Position{Epoch: primary.Self().Lineage.Epoch(), Index: primary.link.Head()}))
}

// same fails unless both clusters have the same.
func (t *twin) same(s *run.Scope, other *twin) {
	if a, b := t.link.Root(), other.link.Root(); a != b || a == "" {
		s.Fatalf("the digests of %s and %s differ: %q and %q", t.id, other.id, a, b)
	}
}

// What a link asks of its cluster. These do what the server's do, without an API in front.

// ServerTLS implements link.Guard.
func (t *twin) ServerTLS(context.Context) (*tls.Certificate, *x509.CertPool, error) {
	if self := t.Self(); !self.Primary && !self.Demoted {
		return nil, nil, nil
	}
	cert, err := t.ca.Issue(time.Now())
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(t.ca.Cert)
	return &cert, pool, nil
}

// Admit implements link.Guard.
func (t *twin) Admit(_ context.Context, cert *x509.Certificate) (replication.Peer, error) {
	who, err := enrol.Identify(cert)
	return replication.Peer{ID: who.ID, ClusterID: who.ClusterID}, err
}

// Enrol implements link.Guard.
func (t *twin) Enrol(context.Context, replication.EnrolRequest) (replication.EnrolReply, error) {
	return replication.EnrolReply{}, &replication.Refusal{Detail: "nobody enrols here"}
}

// Renew implements link.Guard.
func (t *twin) Renew(context.Context, replication.Peer, []byte) ([]byte, error) {
	return nil, &replication.Refusal{Detail: "nobody renews here"}
}

// Scope implements link.Guard.
func (t *twin) Scope(context.Context, replication.Peer) (map[string]bool, uint64, error) {
	return units, 1, nil
}

// Self implements link.Guard.
func (t *twin) Self() replication.Self {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.self
}

// Fence implements link.Guard.
func (t *twin) Fence(context.Context, storage.EpochID) {}

// Announced implements link.Guard.
func (t *twin) Announced(context.Context, replication.Peer, replication.Announcement) (replication.AnnounceReply, error) {
	return replication.AnnounceReply{}, nil
}

// Addrs implements link.Guard.
func (t *twin) Addrs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addrs
}

// Active implements link.Guard.
func (t *twin) Active() (bool, string) { return true, "" }

// Paused implements link.Cluster.
func (t *twin) Paused() string { return "" }

// BeforeDrop implements replication.FollowEvents.
func (t *twin) BeforeDrop(context.Context, string) {}

// Call implements link.Guard.
func (t *twin) Call(context.Context, replication.Peer, string, []byte) ([]byte, storage.Index, error) {
	return nil, 0, fmt.Errorf("nothing is done for secondaries here: %w", storage.ErrUnavailable)
}
