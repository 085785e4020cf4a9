package replicated_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/api"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// network connects the clusters of a test by their cluster addresses.
type network map[string]*cluster

// cluster is one node with everything that this package needs, and a link that moves no data.
type cluster struct {
	*replicated.Store
	t      testing.TB
	store  *storage.Memory
	link   *fakeLink
	router *engines.Router
	addr   string

	mounts     []filter.Mount
	namespaces []filter.Namespace
	sick       error // of the disk
	wiped      int
	wipe       func() error // nil: succeeds
}

func newCluster(t testing.TB, net network, id string) *cluster {
	c := &cluster{
		t: t, store: new(storage.Memory), addr: id + ".example:8201", router: engines.NewRouter(),
		namespaces: []filter.Namespace{{ID: "root"}},
	}
	c.mounts = []filter.Mount{
		{NamespaceID: "root", Path: "sys/", UUID: uuidOf(1), Builtin: true}, {NamespaceID: "root", Path: "secret/", UUID: uuidOf(2)},
		{NamespaceID: "root", Path: "here/", UUID: uuidOf(3), Local: true},
	}
	c.link = &fakeLink{net: net, own: c, follows: make(chan string, 16)}
	around := surroundings{c, id}
	c.Store = replicated.NewStore(replicated.Options{Store: c.store, Link: c.link, Node: around, Data: around, Secrets: around})
	t.Cleanup(c.store.OnChange(c.Changed))
	api.New(c.Store).Routes(c.router)
	net[c.addr] = c
	return c
}

// surroundings are the node of a cluster, its data and its secrets.
type surroundings struct {
	c  *cluster
	id string
}

func (s surroundings) ClusterID() string           { return s.id }
func (s surroundings) APIAddr() string             { return "https://" + s.id + ".example:8200" }
func (s surroundings) NodeAddrs() []string         { return []string{s.c.addr} }
func (s surroundings) Active() (bool, string)      { return true, "" }
func (s surroundings) AppliedIndex() storage.Index { return 420 }
func (s surroundings) Health() error               { return s.c.sick }

func (s surroundings) Mounts(context.Context) ([]filter.Mount, error) { return s.c.mounts, nil }

func (s surroundings) Namespaces(context.Context) ([]filter.Namespace, error) {
	return s.c.namespaces, nil
}

func (s surroundings) Wipe(context.Context) error {
	s.c.wiped++
	if s.c.wipe != nil {
		return s.c.wipe()
	}
	return nil
}

func (s surroundings) BeforeDrop(context.Context, string) {}

func (s surroundings) Wrap(context.Context, string, time.Duration, any) (*engines.WrapInfo, error) {
	return nil, errors.New("nothing can be wrapped here")
}

func (s surroundings) Parted(context.Context, *storage.Txn) error { return nil }

// uuidOf returns the nth UUID.
func uuidOf(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// run runs what runs on the active node. The test's end, or stop, ends it.
func (c *cluster) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	c.t.Cleanup(stop)
	return stop
}

// call sends a request to a path below sys/replication/.
func (c *cluster) call(op engines.Operation, path, body string) (*engines.Response, error) {
	return c.router.Handle(context.Background(), &engines.Request{Op: op, Path: "replication/" + path, Body: json.RawMessage(body)})
}

func (c *cluster) post(path, body string) error {
	_, err := c.call(engines.Update, "performance/"+path, body)
	return err
}

func (c *cluster) mustPost(path, body string) *engines.Response {
	c.t.Helper()
	r, err := c.call(engines.Update, "performance/"+path, body)
	if err != nil {
		c.t.Fatalf("POST %s: %v", path, err)
	}
	return r
}

// get returns the data of an answer.
func (c *cluster) get(path string) (map[string]any, error) {
	r, err := c.call(engines.Read, "performance/"+path, "")
	if err != nil {
		return nil, err
	}
	text, err := r.EncodedData()
	if err != nil {
		c.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		c.t.Fatalf("GET %s: %v in %s", path, err, text)
	}
	return out, nil
}

func (c *cluster) mustGet(path string) map[string]any {
	c.t.Helper()
	out, err := c.get(path)
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	return out
}

// tokenFor returns an activation token for a secondary that has no way to the primary's API.
func (c *cluster) tokenFor(secondary *cluster, id string) string {
	c.t.Helper()
	key := secondary.mustPost("secondary/generate-public-key", "{}").Data.(map[string]any)["secondary_public_key"].(string)
	body, err := json.Marshal(map[string]any{"id": id, "secondary_public_key": key})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.mustPost("primary/secondary-token", string(body)).Data.(map[string]any)["token"].(string)
}

// join makes another cluster a secondary of c, which has finished its wipe.
func (c *cluster) join(secondary *cluster, id string) {
	c.t.Helper()
	secondary.mustPost("secondary/enable", fmt.Sprintf(`{"token":%q}`, c.tokenFor(secondary, id)))
	r := secondary.role()
	r.Wiping = false
	secondary.setRole(r)
	secondary.link.caughtUp(storage.Position{Epoch: r.Lineage.Epoch(), Index: 400})
}

func (c *cluster) role() roles.Role {
	c.t.Helper()
	r, err := c.Current(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// setRole stores a role as it is.
func (c *cluster) setRole(r roles.Role) {
	c.t.Helper()
	c.put(roles.RoleKey, r)
}

func (c *cluster) put(key storage.Key, v any) {
	c.t.Helper()
	value, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: value}}}); err != nil {
		c.t.Fatal(err)
	}
}

// keys returns what is stored below l/replication/, the role left out.
func (c *cluster) keys() []string {
	c.t.Helper()
	entries, err := c.store.Scan(context.Background(), "l/replication/", "", 0)
	if err != nil {
		c.t.Fatal(err)
	}
	var keys []string
	for _, e := range entries {
		if e.Key != roles.RoleKey {
			rest := strings.TrimPrefix(string(e.Key), "l/replication/")
			name, _, _ := strings.Cut(rest, "/")
			keys = append(keys, name)
		}
	}
	return slices.Compact(keys)
}

// refused checks an error for the client: its kind, and that the text says what it should.
func refused(t testing.TB, what string, err error, kind engines.Kind, parts ...string) {
	t.Helper()
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("%s: %v, want an error of kind %d", what, err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(e.Detail, part) {
			t.Errorf("%s: %q does not say %q", what, e.Detail, part)
		}
	}
}

// fakeLink moves no data. It keeps the cursor where the real one does.
type fakeLink struct {
	traffic.Offline
	net     network
	own     *cluster
	follows chan string // cluster ids that are followed, as each Follow begins

	mu        sync.Mutex
	status    traffic.FollowStatus
	sessions  []traffic.SessionStatus
	units     map[string]bool
	down      bool // no other cluster can be reached
	refreshed int
	resets    int
	cursors   int // SetCursor
	running   int
	repaired  string
	conflicts []traffic.Conflict
	events    replication.FollowEvents
}

const cursorKey = replicated.ProgressPrefix + "cursor"

func (l *fakeLink) set(fn func(l *fakeLink)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(l)
}

// final is the primary's final word: it was demoted, and everything that it had is here.
func (l *fakeLink) final() { l.set(func(l *fakeLink) { l.status.Final = true }) }

// caughtUp makes the cluster a secondary that lacks nothing, and lost its primary.
func (l *fakeLink) caughtUp(at storage.Position) {
	l.own.put(cursorKey, at)
	l.set(func(l *fakeLink) {
		l.status = traffic.FollowStatus{State: "disconnected", Cursor: at, Head: at, Exact: true, LastHeard: time.Now()}
		l.units = map[string]bool{"global": true, "ns/root": true}
	})
}

// peer returns the cluster behind an address.
func (l *fakeLink) peer(addr string) (*cluster, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.net[addr]
	if c == nil || l.down {
		return nil, fmt.Errorf("%w: dial %s: no route to host", storage.ErrUnavailable, addr)
	}
	return c, nil
}

func (l *fakeLink) Follow(ctx context.Context, setID, _ string, _ storage.Lineage, up traffic.Upstream, h replication.FollowEvents) error {
	l.set(func(l *fakeLink) { l.running++; l.events = h })
	defer l.set(func(l *fakeLink) { l.running-- })
	l.follows <- up.PrimaryID
	if setID != up.SetID {
		return errors.New("the role and the upstream are of two sets")
	}
	<-ctx.Done()
	return ctx.Err()
}

func (l *fakeLink) Enrol(ctx context.Context, addrs []string, _ []byte, req replication.EnrolRequest) (replication.EnrolReply, error) {
	c, err := l.peer(addrs[0])
	if err != nil {
		return replication.EnrolReply{}, err
	}
	return c.Store.Enrol(ctx, req)
}

// Announce goes to the cluster at the first address that answers, as the secondary of up, if it is known there.
func (l *fakeLink) Announce(ctx context.Context, up traffic.Upstream, a replication.Announcement) (replication.AnnounceReply, error) {
	for _, addr := range up.Addrs {
		c, err := l.peer(addr)
		if err != nil {
			continue
		}
		if cert, _, err := c.ServerTLS(ctx); cert == nil || err != nil {
			return replication.AnnounceReply{}, errors.New("no handshake")
		}
		return c.Announced(ctx, roles.Peer{ID: up.SecondaryID, ClusterID: l.own.role().ClusterID}, a)
	}
	return replication.AnnounceReply{}, fmt.Errorf("%w: no response from %q", storage.ErrUnavailable, up.Addrs)
}

func (l *fakeLink) WhoIsActive(_ context.Context, addr string, _ traffic.Upstream) (replication.ActiveReply, error) {
	c, err := l.peer(addr)
	if err != nil {
		return replication.ActiveReply{}, err
	}
	mode, set, id, lineage := c.Self()
	if mode != roles.Primary {
		return replication.ActiveReply{}, errors.New("it is not a primary")
	}
	return replication.ActiveReply{SetID: set, ClusterID: id, Epoch: lineage.Epoch(), Active: true, Addrs: c.Addrs()}, nil
}

func (l *fakeLink) Call(ctx context.Context, kind string, payload []byte) ([]byte, storage.Position, error) {
	var up traffic.Upstream
	e, err := l.own.store.Get(ctx, "l/replication/upstream")
	if err != nil {
		return nil, storage.Position{}, storage.ErrUnavailable
	}
	if err := json.Unmarshal(e.Value, &up); err != nil {
		return nil, storage.Position{}, err
	}
	c, err := l.peer(up.Addrs[0])
	if err != nil {
		return nil, storage.Position{}, err
	}
	peer := roles.Peer{ID: up.SecondaryID, ClusterID: l.own.role().ClusterID}
	answer, at, err := c.Answer(ctx, peer, kind, payload)
	return answer, storage.Position{Epoch: 1, Index: at}, err
}

func (l *fakeLink) Cursor(ctx context.Context) (at storage.Position, err error) {
	e, err := l.own.store.Get(ctx, cursorKey)
	if errors.Is(err, storage.ErrNotFound) {
		return at, nil
	}
	return at, errors.Join(err, json.Unmarshal(e.Value, &at))
}

func (l *fakeLink) SetCursor(_ context.Context, at storage.Position, _ storage.Lineage, units []string) error {
	l.own.put(cursorKey, at)
	l.set(func(l *fakeLink) {
		l.cursors++
		l.units = map[string]bool{}
		for _, u := range units {
			l.units[u] = true
		}
	})
	return nil
}

func (l *fakeLink) Reset(ctx context.Context) error {
	l.set(func(l *fakeLink) { l.resets++; l.units = nil; l.status = traffic.FollowStatus{} })
	_, err := l.own.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{cursorKey}})
	return err
}

func (l *fakeLink) Refresh() { l.set(func(l *fakeLink) { l.refreshed++ }) }

func (l *fakeLink) Repair(cause string) error {
	l.set(func(l *fakeLink) { l.repaired = cause })
	return nil
}

func (l *fakeLink) FollowStatus() traffic.FollowStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

func (l *fakeLink) SessionStatus() []traffic.SessionStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions
}

func (l *fakeLink) Units(context.Context) (map[string]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.units), nil
}

func (l *fakeLink) Conflicts(context.Context) ([]traffic.Conflict, error) { return l.conflicts, nil }

func (l *fakeLink) Head() storage.Index { return 417 }

func (l *fakeLink) Oldest() storage.Index { return 17 }

func (l *fakeLink) Root() string { return "5ca1ab1e" }

var _ traffic.Link = (*fakeLink)(nil)
