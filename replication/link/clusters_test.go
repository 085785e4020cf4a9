package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/state"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/wal"
)

// testLayout: "s/<mount>/…" are a mount's, with the anchor "s/sys/root/mounts/<mount>"; the rest of s/sys/ is the root
// namespace's; s/index/ does not replicate.
var testLayout = replication.Layout{
	Unit: func(key storage.Key) (replication.Unit, bool) {
		if mount, ok := strings.CutPrefix(string(key), "s/sys/root/mounts/"); ok {
			return replication.Unit("mount/" + mount), true
		}
		switch {
		case key.Class() != storage.Shared || key.Area() == "index":
			return "", false
		case key.Area() == "sys":
			return "ns/root", true
		}
		return replication.Unit("mount/" + key.Area()), true
	},
	Anchor: func(key storage.Key) bool { return strings.HasPrefix(string(key), "s/sys/root/mounts/") },
	Prefixes: func(unit replication.Unit) []storage.Key {
		if mount, ok := strings.CutPrefix(string(unit), "mount/"); ok {
			return []storage.Key{storage.Key("s/" + mount + "/")}
		}
		return []storage.Key{"s/sys/"}
	},
}

func anchorKey(mount string) storage.Key { return storage.Key("s/sys/root/mounts/" + mount) }

// testCluster is a cluster of nodes with one state, which every commit reaches at once.
type testCluster struct {
	t     *testing.T
	id    string
	nodes []*testNode

	mu      sync.Mutex
	index   storage.Index
	entries map[storage.Key]storage.Entry // sealed
	applied state.Signal
	active  *testNode

	// As a primary.
	self      replication.Self
	ca        enrol.CA
	revoked   map[string]bool
	hidden    map[replication.Unit]bool // units that no secondary may have
	renewals  int
	enrolled  int
	announced []replication.Announcement
	fenced    uint32
	calls     func(kind string, payload []byte) ([]byte, storage.Index, error)

	paused atomic.Pointer[string] // as a secondary: why it takes nothing
}

// testNode is one node: a log, a link, and an address where it serves.
type testNode struct {
	c    *testCluster
	log  *wal.Log
	link *Link
	addr string
	stop context.CancelFunc // of being the active one
	done chan struct{}

	storage.Subscribers

	mu    sync.Mutex
	conns []net.Conn
}

// sealing is the test's encryption: enough to see whether values were opened.
var sealing = []byte("sealed:")

func seal(value []byte) []byte { return append(slices.Clone(sealing), value...) }

func unseal(sealed []byte) ([]byte, error) {
	value, ok := bytes.CutPrefix(sealed, sealing)
	if !ok {
		return nil, errors.New("not sealed")
	}
	return slices.Clone(value), nil
}

func newTestCluster(t *testing.T, id string, nodes int) *testCluster {
	t.Helper()
	ca, err := enrol.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{
		t: t, id: id, entries: map[storage.Key]storage.Entry{}, revoked: map[string]bool{}, hidden: map[replication.Unit]bool{}, ca: ca,
		self: replication.Self{SetID: "set", ClusterID: id},
	}
	c.index = storage.Index(rand.N(100)) //nolint:gosec // so that the clusters' indexes differ
	for i := range nodes {
		c.nodes = append(c.nodes, newTestNode(t, c, i))
	}
	return c
}

func newTestNode(t *testing.T, c *testCluster, i int) *testNode {
	t.Helper()
	log, err := wal.Open(t.TempDir(), wal.Options{CursorKey: replication.CursorKey})
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{c: c, log: log}
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("COFFER_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", fmt.Sprintf("%s/%d", c.id, i))
	}
	n.link, err = New(Options{
		State: n, Log: log, Store: testStore{c}, Layout: testLayout, Guard: testGuard{n},
		APIAddr: "https://" + c.id, Logger: logger,
		timing: timing{tick: 5 * time.Millisecond, backoff: 5 * time.Millisecond, maxBackoff: 20 * time.Millisecond, quiet: 20 * time.Millisecond,
			cut: 50 * time.Millisecond, heartbeat: 20, checkpoint: 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.link.Keep(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n.serve(t, "127.0.0.1:0")
	t.Cleanup(func() {
		n.retire()
		n.halt()
		n.link.Close()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// serve opens the node's port.
func (n *testNode) serve(t *testing.T, addr string) {
	t.Helper()
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	n.addr = tcp.Addr().String()
	if n.link.o.ClusterAddr == "" {
		n.link.o.ClusterAddr = n.addr
	}
	go n.link.Serve(&testListener{Listener: tcp, n: n}) //nolint:errcheck // it ends with the test
}

// halt closes the port and every connection, without a word.
func (n *testNode) halt() {
	n.cut()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	n.link.Stop(ctx)
}

// cut breaks every connection.
func (n *testNode) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		conn.Close()
	}
	n.conns = nil
}

// lead makes the node the active one.
func (n *testNode) lead() {
	if before := n.c.activeNode(); before != nil {
		before.retire()
	}
	n.c.mu.Lock()
	n.c.active = n
	n.c.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.done = cancel, make(chan struct{})
	go func() {
		defer close(n.done)
		n.link.Active(ctx)
	}()
	eventually(n.c.t, "the node is active", func() bool { return n.link.here() != nil })
}

// retire ends that.
func (n *testNode) retire() {
	n.c.mu.Lock()
	if n.c.active == n {
		n.c.active = nil
	}
	n.c.mu.Unlock()
	if n.stop != nil {
		n.stop()
		<-n.done
	}
}

// testListener shakes hands as the cluster port does.
type testListener struct {
	net.Listener
	n *testNode
}

func (l *testListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := tls.Server(raw, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := l.n.link.ServerTLS(hello)
			if c == nil && err == nil {
				err = errors.New("not a primary")
			}
			if err == nil {
				c.NextProtos = []string{replication.Protocol}
			}
			return c, err
		}})
		if conn.Handshake() != nil {
			raw.Close()
			continue
		}
		l.n.mu.Lock()
		l.n.conns = append(l.n.conns, raw)
		l.n.mu.Unlock()
		return conn, nil
	}
}

func (n *testNode) AppliedIndex() storage.Index {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return n.c.index
}

func (n *testNode) WaitApplied(ctx context.Context, i storage.Index) error {
	for {
		applied := n.c.applied.Wait()
		if n.AppliedIndex() >= i {
			return nil
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *testNode) BeginLog(begin func(storage.Index) error) error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return begin(n.c.index)
}

func (n *testNode) Freeze(context.Context) (replication.Frozen, error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return &testFrozen{index: n.c.index, entries: maps.Clone(n.c.entries)}, nil
}

type testFrozen struct {
	index   storage.Index
	entries map[storage.Key]storage.Entry
}

func (z *testFrozen) Index() storage.Index { return z.index }
func (z *testFrozen) Close()               {}
func (z *testFrozen) Get(key storage.Key) (storage.Entry, error) {
	e, ok := z.entries[key]
	if !ok {
		return storage.Entry{}, storage.ErrNotFound
	}
	return e, nil
}
func (z *testFrozen) Walk(_ context.Context, prefix, after storage.Key, fn func(storage.Key, storage.Position, []byte) bool) error {
	for _, key := range slices.Sorted(maps.Keys(z.entries)) {
		if e := z.entries[key]; strings.HasPrefix(string(key), string(prefix)) && key > after {
			mod := e.Origin
			if mod.IsZero() {
				mod.Index = e.Version
			}
			if !fn(key, mod, e.Value) {
				break
			}
		}
	}
	return nil
}

// testStore is the plaintext over the state.
type testStore struct{ c *testCluster }

func (testStore) OpenValue(_ context.Context, _ storage.Key, sealed []byte) ([]byte, error) {
	return unseal(sealed)
}

func (s testStore) Get(_ context.Context, key storage.Key) (storage.Entry, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	e, ok := s.c.entries[key]
	if !ok {
		return storage.Entry{}, storage.ErrNotFound
	}
	var err error
	e.Value, err = unseal(e.Value)
	return e, err
}

func (s testStore) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	s.c.mu.Lock()
	keys := slices.Sorted(maps.Keys(s.c.entries))
	s.c.mu.Unlock()
	var out []storage.Entry
	for _, key := range keys {
		if strings.HasPrefix(string(key), string(prefix)) && key > after && (limit <= 0 || len(out) < limit) {
			if e, err := s.Get(ctx, key); err == nil {
				out = append(out, e)
			}
		}
	}
	return out, nil
}

func (s testStore) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	entries, err := s.Scan(ctx, prefix, prefix+storage.Key(after), limit)
	var names []string
	for _, e := range entries {
		names = append(names, string(e.Key[len(prefix):]))
	}
	return names, err
}

func (s testStore) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if err := b.Validate(0); err != nil {
		return 0, err
	}
	for i := range b.Puts {
		b.Puts[i].Value = seal(b.Puts[i].Value)
	}
	return s.c.commit(b)
}

// commit applies a batch with sealed values, on all nodes in the order that the state machine promises.
func (c *testCluster) commit(b storage.Batch) (storage.Index, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range b.Reads {
		if c.entries[r.Key].Version != r.Version {
			return 0, storage.ErrConflict
		}
	}
	at := c.index + 1
	record := storage.Record{Index: at, TimeMS: time.Now().UnixMilli()}
	change := storage.Change{Index: at}
	entries := maps.Clone(c.entries)
	prior := func(key storage.Key) storage.Position {
		e, ok := entries[key]
		if ok && e.Origin.IsZero() {
			return storage.Position{Index: e.Version}
		}
		return e.Origin
	}
	for _, p := range b.Puts {
		record.Ops = append(record.Ops, storage.RecordOp{Key: p.Key, Value: p.Value, Origin: p.Origin, Prior: prior(p.Key)})
		e := storage.Entry{Key: p.Key, Value: p.Value, Version: at, Origin: p.Origin}
		entries[p.Key] = e
		change.Entries = append(change.Entries, e)
	}
	for _, key := range b.Deletes {
		change.Entries = append(change.Entries, storage.Entry{Key: key})
		if was := prior(key); !was.IsZero() {
			record.Ops = append(record.Ops, storage.RecordOp{Key: key, Deleted: true, Prior: was})
			delete(entries, key)
		}
	}
	for _, n := range c.nodes {
		kept := record
		kept.Ops = slices.DeleteFunc(slices.Clone(record.Ops), func(op storage.RecordOp) bool { return !n.log.Keeps(string(op.Key)) })
		if len(kept.Ops) > 0 {
			if err := n.log.Append(kept); err != nil {
				return 0, err
			}
		}
	}
	c.entries = entries
	for _, n := range c.nodes {
		n.mu.Lock()
		n.Announce(change)
		n.mu.Unlock()
	}
	c.index = at
	c.applied.Raise()
	return at, nil
}

// put writes as the cluster's own client would.
func (c *testCluster) put(key storage.Key, value string) storage.Index {
	c.t.Helper()
	at, err := testStore{c}.Commit(c.t.Context(), storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(value)}}})
	if err != nil {
		c.t.Fatal(err)
	}
	return at
}

func (c *testCluster) remove(key storage.Key) {
	c.t.Helper()
	if _, err := (testStore{c}).Commit(c.t.Context(), storage.Batch{Deletes: []storage.Key{key}}); err != nil {
		c.t.Fatal(err)
	}
}

// admin changes what the guard knows, as one entry of the log.
func (c *testCluster) admin(change func()) {
	c.t.Helper()
	c.mu.Lock()
	change()
	c.self.Since = c.index + 1 // the role is not seen with another's index
	c.mu.Unlock()
	at := c.put("l/replication/role", "x")
	c.mu.Lock()
	c.self.Since = at
	c.mu.Unlock()
}

func (c *testCluster) activeNode() *testNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active
}

// enable makes the cluster the first primary.
func (c *testCluster) enable() {
	c.admin(func() {
		c.self.Primary = true
		c.self.Lineage = storage.Lineage{{Epoch: 1, ClusterID: c.id, Base: 1}}
	})
	c.nodes[0].lead()
}

// shared returns the shared contents that replicate, in plaintext and with positions of the set.
func (c *testCluster) shared() map[storage.Key]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[storage.Key]string{}
	for key, e := range c.entries {
		unit, ok := testLayout.Unit(key)
		if !ok || c.hidden[unit] {
			continue
		}
		mod := e.Origin
		if mod.IsZero() {
			mod = c.self.Lineage.Resolve(c.id, storage.Position{Index: e.Version})
		}
		out[key] = fmt.Sprintf("%s at %s", bytes.TrimPrefix(e.Value, sealing), mod)
	}
	return out
}

// testGuard is a primary's registry, filters and certificates.
type testGuard struct{ n *testNode }

func (g testGuard) ServerTLS(context.Context) (*tls.Certificate, *x509.CertPool, error) {
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	if !g.n.c.self.Primary && !g.n.c.self.Demoted {
		return nil, nil, nil
	}
	cert, err := g.n.c.ca.Issue(time.Now())
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(g.n.c.ca.Cert)
	return &cert, pool, nil
}

func (g testGuard) Admit(_ context.Context, cert *x509.Certificate) (replication.Peer, error) {
	s, err := enrol.Identify(cert)
	if err != nil {
		return replication.Peer{}, replication.ErrRevoked
	}
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	if g.n.c.revoked[s.ID] {
		return replication.Peer{}, replication.ErrRevoked
	}
	return replication.Peer{ID: s.ID, ClusterID: s.ClusterID}, nil
}

func (g testGuard) Enrol(_ context.Context, req replication.EnrolRequest) (replication.EnrolReply, error) {
	if req.Secret != "secret" {
		return replication.EnrolReply{}, &replication.Refusal{Detail: "the activation token was already used"}
	}
	cert, err := g.n.c.ca.SignCSR(req.CSR, enrol.Subject{ID: req.SecondaryID, ClusterID: req.ClusterID, Enrolment: "1"}, time.Now())
	if err != nil {
		return replication.EnrolReply{}, err
	}
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	g.n.c.enrolled++
	self := g.n.c.self
	return replication.EnrolReply{Cert: cert, SetID: self.SetID, PrimaryID: self.ClusterID, Lineage: self.Lineage, Addrs: g.n.c.addrs(), APIAddr: "https://x"}, nil
}

func (g testGuard) Renew(_ context.Context, p replication.Peer, csr []byte) ([]byte, error) {
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	g.n.c.renewals++
	return g.n.c.ca.SignCSR(csr, enrol.Subject{ID: p.ID, ClusterID: p.ClusterID, Enrolment: "1"}, time.Now())
}

func (g testGuard) Scope(_ context.Context, p replication.Peer) (map[string]bool, uint64, error) {
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	if g.n.c.revoked[p.ID] {
		return nil, 0, replication.ErrRevoked
	}
	units := map[string]bool{"ns/root": true}
	for key := range g.n.c.entries {
		if unit, ok := testLayout.Unit(key); ok && testLayout.Anchor(key) && !g.n.c.hidden[unit] {
			units[string(unit)] = true
		}
	}
	version := uint64(0)
	for unit := range units { // the same for the same units
		for _, b := range []byte(unit) {
			version += uint64(b) * uint64(b) * uint64(len(unit))
		}
	}
	return units, version, nil
}

func (g testGuard) Self() replication.Self {
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	return g.n.c.self
}

func (g testGuard) Fence(_ context.Context, epoch storage.EpochID) {
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	g.n.c.fenced = epoch.Number
}

func (g testGuard) Announced(_ context.Context, p replication.Peer, a replication.Announcement) (replication.AnnounceReply, error) {
	if a.SetID != g.Self().SetID {
		return replication.AnnounceReply{}, &replication.Refusal{Detail: "of another set"}
	}
	g.n.c.mu.Lock()
	defer g.n.c.mu.Unlock()
	g.n.c.announced = append(g.n.c.announced, a)
	return replication.AnnounceReply{
		EpochID: g.n.c.self.Lineage.Last(), Primary: true, Fenced: true,
		Others: []replication.OtherPrimary{{EpochID: storage.EpochID{Number: 7, ClusterID: p.ID}, APIAddr: "https://seven"}},
	}, nil
}

func (c *testCluster) addrs() (out []string) {
	for _, n := range c.nodes {
		out = append(out, n.addr)
	}
	return out
}

func (g testGuard) Addrs() []string { return g.n.c.addrs() }

func (g testGuard) Paused() string {
	if why := g.n.c.paused.Load(); why != nil {
		return *why
	}
	return ""
}

func (g testGuard) Active() (bool, string) {
	active := g.n.c.activeNode()
	if active == nil {
		return false, ""
	}
	return active == g.n, active.addr
}

func (g testGuard) Call(_ context.Context, p replication.Peer, kind string, payload []byte) ([]byte, storage.Index, error) {
	return g.n.c.calls(kind, payload)
}

// certify makes the certificate of a secondary, good from a time on.
func (c *testCluster) certify(id string, s *testCluster, from time.Time) replication.Upstream {
	c.t.Helper()
	csr, key, err := enrol.NewCSR()
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := c.ca.SignCSR(csr, enrol.Subject{ID: id, ClusterID: s.id, Enrolment: "1"}, from)
	if err != nil {
		c.t.Fatal(err)
	}
	return replication.Upstream{
		Format: 1, SecondaryID: id, SetID: c.self.SetID, PrimaryID: c.id, CA: c.ca.Cert, Cert: cert, Key: key, Addrs: c.addrs(),
	}
}

// events are the replication.FollowEvents of a test.
type events struct {
	beforeDrop func(context.Context, string)
	learned    func(context.Context, replication.Learned)
}

func (e events) BeforeDrop(ctx context.Context, unit string) {
	if e.beforeDrop != nil {
		e.beforeDrop(ctx, unit)
	}
}

func (e events) Learned(ctx context.Context, l replication.Learned) {
	if e.learned != nil {
		e.learned(ctx, l)
	}
}

// follows makes the secondary's node follow, until the test ends or stop.
func (s *testCluster) follows(up replication.Upstream, e events) (stop func()) {
	s.t.Helper()
	n := s.activeNode()
	if n == nil {
		n = s.nodes[0]
		n.lead()
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.link.Follow(ctx, up.SetID, s.id, nil, up, e); err != nil {
			s.t.Error(err)
		}
	}()
	eventually(s.t, "it follows", func() bool {
		n.link.mu.Lock()
		defer n.link.mu.Unlock()
		return n.link.follow != nil
	})
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return stop
}

// eventually waits for something that happens by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(20 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("it does not come to this: %s", what)
		}
	}
}

// catchesUp waits until the secondary is exact, and compares.
func (s *testCluster) catchesUp(p *testCluster) {
	s.t.Helper()
	eventually(s.t, s.id+" has what "+p.id+" has", func() bool { return maps.Equal(s.shared(), p.shared()) })
	eventually(s.t, s.id+" is streaming", func() bool {
		st := s.activeNode().link.FollowStatus()
		return st.State == replication.Streaming && st.Exact
	})
	if !maps.Equal(s.shared(), p.shared()) {
		s.t.Fatalf("%s and %s differ:\n%v\n%v", s.id, p.id, s.shared(), p.shared())
	}
}

// connectedTo returns how many secondaries are connected.
func connectedTo(l *Link) (n int) {
	for _, st := range l.SessionStatus() {
		if st.EndedAt.IsZero() {
			n++
		}
	}
	return n
}
