package lease_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// rig is a manager over a store in memory, with engines that play their backends.
type rig struct {
	t     testing.TB
	mem   *storage.Memory
	store storage.Store
	m     *lease.Manager
	opts  lease.Options
	// tokens revokes tokens for the paths.
	tokens func(ctx context.Context, ns, prefix string) (int, error)

	mu     sync.Mutex
	mounts map[string]mounted
	ahead  time.Duration // of the wall clock
	log    bytes.Buffer
}

type mounted struct {
	engine *enginetest.Leases
	mount  engines.Mount
}

func newRig(t testing.TB, adjust ...func(*lease.Options)) *rig {
	r := &rig{t: t, mem: &storage.Memory{}, mounts: map[string]mounted{}}
	r.store = r.mem
	r.opts = lease.Options{
		Store: r.mem, Mounts: r, Namespaces: prefixes{},
		Logger: slog.New(slog.NewTextHandler(&lockedWriter{r: r}, nil)),
	}
	for _, f := range adjust {
		f(&r.opts)
	}
	r.m = r.manager()
	r.add("u1", "root", "aws/")
	return r
}

// manager returns one with the options and the clock of the rig.
func (r *rig) manager() *lease.Manager {
	m := lease.New(r.opts)
	lease.SetWallClock(m, r.now)
	return m
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(r.ahead)
}

// mountsFunc are lease.Mounts.
type mountsFunc func(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool)

func (f mountsFunc) EngineOf(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool) {
	return f(ctx, uuid)
}

// prefixes are namespaces that lie below those whose ids theirs begin with.
type prefixes struct{}

func (prefixes) Below(_ context.Context, ancestor, id string) bool {
	return ancestor == id || ancestor == "root" || strings.HasPrefix(id, ancestor)
}

type lockedWriter struct{ r *rig }

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.log.Write(p)
}

func (r *rig) logged(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), text)
}

func (r *rig) add(uuid, ns, path string) *enginetest.Leases {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := enginetest.NewLeases()
	r.mounts[uuid] = mounted{e, engines.Mount{
		UUID: uuid, Path: path, NamespaceID: ns, Accessor: "leases_" + uuid, Type: "leases",
		DefaultLeaseTTL: time.Hour, MaxLeaseTTL: 24 * time.Hour,
		Storage: storage.NewView(r.mem, storage.NewKey(storage.Shared, uuid, "")),
	}}
	return e
}

func (r *rig) drop(uuid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mounts, uuid)
}

// EngineOf implements lease.Mounts.
func (r *rig) EngineOf(_ context.Context, uuid string) (engines.Engine, engines.Mount, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.mounts[uuid]
	return m.engine, m.mount, ok
}

func (r *rig) engine(uuid string) *enginetest.Leases {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mounts[uuid].engine
}

func (r *rig) jump(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead += d
}

// registration is for a new credential of the mount.
func (r *rig) registration(uuid, path string, ttl time.Duration) (lease.Registration, string) {
	r.mu.Lock()
	m := r.mounts[uuid]
	r.mu.Unlock()
	serial := m.engine.Issue()
	return lease.Registration{
		NamespaceID: m.mount.NamespaceID, MountUUID: uuid, MountPath: m.mount.Path, Path: path, TokenKey: "token-1",
		Lease: m.engine.Lease(serial, ttl, 0), DefaultTTL: m.mount.DefaultLeaseTTL, MaxTTL: m.mount.MaxLeaseTTL,
	}, serial
}

// issue registers a lease for a new credential.
func (r *rig) issue(uuid, path string, ttl time.Duration) lease.Info {
	r.t.Helper()
	reg, _ := r.registration(uuid, path, ttl)
	info, err := r.m.Register(context.Background(), reg)
	if err != nil {
		r.t.Fatalf("Register: %v", err)
	}
	return info
}

// run runs a manager until stop, which waits for it. In a bubble it has begun when run returns.
func (r *rig) run(m *lease.Manager) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}) // closed when Run has returned
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-done
	}
}

// pass lets time go by in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// keys returns what is stored about leases.
func (r *rig) keys() []string {
	r.t.Helper()
	entries, err := r.mem.Scan(context.Background(), "l/lease/", "", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Key != "l/lease/clock" {
			out = append(out, string(e.Key))
		}
	}
	return out
}

func (r *rig) wantKeys(n int) {
	r.t.Helper()
	if keys := r.keys(); len(keys) != n {
		r.t.Errorf("%d keys stored, want %d:\n%s", len(keys), n, strings.Join(keys, "\n"))
	}
}

func (r *rig) wantNumber(m *lease.Manager, name string, want float64) {
	r.t.Helper()
	if got := m.Numbers()[name]; got != want {
		r.t.Errorf("%s = %v, want %v", name, got, want)
	}
}

// failing is a store whose commits fail while err is set.
type failing struct {
	storage.Store
	mu  sync.Mutex
	err error
}

func (f *failing) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	f.mu.Lock()
	err := f.err
	f.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("committing: %w", err)
	}
	return f.Store.Commit(ctx, b)
}
