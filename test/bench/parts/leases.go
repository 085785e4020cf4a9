package parts

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/test/bench/run"
)

// Leases measures leases and tokens by the million, on one node, without HTTP and policies: how fast they come
// and go, and what they cost a node that starts. The node that starts is a process of its own.
func Leases(b *run.Bench, s *run.Scope) {
	where := place{Dir: filepath.Join(s.TempDir(), "node"), Addr: freeAddr(s), Root: hex.EncodeToString(barrier.NewRootKey())}
	ca, err := cluster.NewCA()
	s.Check(err)
	where.CA = ca
	s.Check(os.MkdirAll(where.Dir, 0o700))
	n, err := where.open(context.Background(), true)
	s.Check(err)
	closed := false
	defer func() {
		if !closed {
			n.close()
		}
	}()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{}) // closed when the manager has ended
	go func() {
		defer close(ended)
		n.leases.Run(ctx)
	}()
	kept := b.Leases - b.Leases/10
	took, elapsed := run.Together(s, kept, func(int) error { return n.register(30 * 24 * time.Hour) })
	b.Add(run.Rated(fmt.Sprintf("lease create, up to %d leases, without HTTP, %d callers", kept, run.Callers), took, elapsed))
	expiry(b, s, n, b.Leases-kept)
	took, elapsed = run.Together(s, b.Leases, func(int) error { return n.newToken() })
	b.Add(run.Rated(fmt.Sprintf("token create, up to %d tokens, without HTTP, %d callers", b.Leases, run.Callers), took, elapsed))
	cancel()
	<-ended
	n.close()
	closed = true

	var out startOutcome
	s.Check(where.inChild(&out))
	if out.Leases < kept {
		s.Fatalf("%d leases counted after the restart, want %d", out.Leases, kept)
	}
	name := fmt.Sprintf("restart with %d leases and %d tokens", out.Leases, b.Leases)
	b.Add(run.Row{Name: name + ": to the first lease and the first renewal", Value: out.Serving.Seconds(), Unit: " s", Target: 1, Below: true})
	b.Add(run.Row{Name: name + ": to the count of all leases", Value: out.Counted.Seconds(), Unit: " s"})
	b.Add(run.Row{Name: name + ": resident memory of its own", Value: out.Own, Unit: " MiB", Target: 300, Below: true})
	b.Add(run.Row{Name: name + ": mapped files in memory, which the system takes back at need", Value: out.Mapped, Unit: " MiB"})
}

// expiry lets leases end all at once, while others are created.
func expiry(b *run.Bench, s *run.Scope, n *leaseNode, count int) {
	ends := time.Now().Add(max(time.Duration(count)*time.Second/5000, 2*time.Second))
	_, _ = run.Together(s, count, func(int) error { return n.register(max(time.Until(ends), time.Millisecond)) })
	before := n.revoked.Load()
	<-time.After(time.Until(ends))
	var done atomic.Bool
	var callers sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	for range run.Callers / 4 {
		callers.Go(func() {
			for !done.Load() {
				begin := time.Now()
				s.Check(n.register(30 * 24 * time.Hour))
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	begin := time.Now()
	for n.revoked.Load() < int64(count) {
		<-time.After(10 * time.Millisecond)
	}
	elapsed := time.Since(begin)
	done.Store(true)
	callers.Wait()
	b.Add(run.Row{Name: fmt.Sprintf("lease revoke at expiry, %d at once, beside %d callers", count, run.Callers/4), Value: float64(int64(count)-before) / elapsed.Seconds(), Unit: "/s"})
	b.Add(run.Rated("lease create meanwhile", took, elapsed))
}

// place is where a node lives; a child gets it from its parent.
type place struct {
	Dir, Addr, Root string
	CA              cluster.CA
}

// leaseNode is a cluster of one node with leases and tokens over it.
type leaseNode struct {
	machine *fsm.FSM
	node    *cluster.Node
	leases  *lease.Manager
	tokens  *token.Store
	revoked atomic.Int64
}

// open starts the node and waits until it leads.
func (p place) open(ctx context.Context, fresh bool) (*leaseNode, error) {
	n := &leaseNode{}
	var err error
	if n.machine, err = fsm.Open(p.Dir, fsm.Options{}); err != nil {
		return nil, err
	}
	n.node, err = cluster.Open(cluster.Options{
		ID: "n0", Dir: p.Dir, Machine: n.machine, ListenAddr: p.Addr, CA: p.CA, StabilizationTime: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	if fresh {
		if err := n.node.Bootstrap(ctx); err != nil {
			return nil, err
		}
	}
	for !n.node.IsLeader() {
		<-n.node.LeaderChanges()
	}
	below := raw{n.machine, n.node}
	root, err := hex.DecodeString(p.Root)
	if err != nil {
		return nil, err
	}
	if fresh {
		ring, err := barrier.KeyringPut(root)
		if err != nil {
			return nil, err
		}
		if _, err := below.Commit(ctx, storage.Batch{Puts: []storage.Put{ring}}); err != nil {
			return nil, err
		}
	}
	store := barrier.New(below)
	if err := store.Unseal(ctx, root); err != nil {
		return nil, err
	}
	n.leases = lease.New(lease.Options{Store: store, Mounts: n})
	n.tokens = token.New(token.Options{Store: store})
	n.machine.OnChange(n.tokens.Changed)
	if fresh {
		_, err = store.Commit(ctx, storage.Batch{Puts: token.InitPuts()})
	}
	return n, err
}

func (n *leaseNode) close() {
	stop, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = n.node.Close(stop)
	_ = n.machine.Close()
}

// EngineOf implements lease.Mounts.
func (n *leaseNode) EngineOf(context.Context, string) (engines.Engine, engines.Mount, bool) {
	return leaseEngine{n}, engines.Mount{UUID: benchMount, Path: "bench/", NamespaceID: "root", DefaultLeaseTTL: time.Hour, MaxLeaseTTL: 32 * 24 * time.Hour}, true
}

const benchMount = "6b1f0c1e-0d7b-4b55-9a55-0a1c3f6f8a11"

// leaseEngine is an engine whose backend answers at once.
type leaseEngine struct{ *leaseNode }

func (leaseEngine) Router() *engines.Router { return engines.NewRouter() }

func (e leaseEngine) RevokeLease(context.Context, engines.Mount, engines.LeaseRecord) error {
	e.revoked.Add(1)
	return nil
}

func (leaseEngine) RenewLease(context.Context, engines.Mount, engines.LeaseRecord) (engines.Lease, error) {
	return engines.Lease{TTL: time.Hour, Renewable: true}, nil
}

func (n *leaseNode) register(ttl time.Duration) error {
	_, err := n.registerOne(ttl)
	return err
}

func (n *leaseNode) registerOne(ttl time.Duration) (lease.Info, error) {
	return n.leases.Register(context.Background(), lease.Registration{
		MountUUID: benchMount, MountPath: "bench/", Path: "creds/role", TokenKey: "wY7kzqT0m3b3v9i1m0c7Jx1sCk0nQ2pZr4tUvWxYz12",
		Lease:  engines.Lease{TTL: ttl, Renewable: true, Kind: "bench", Internal: json.RawMessage(`{"user":"v-token-role-0123456789abcdef"}`)},
		MaxTTL: 32 * 24 * time.Hour,
	})
}

func (n *leaseNode) newToken() error {
	_, err := n.tokens.Create(context.Background(), token.Params{
		Policies: []string{"default", "app"}, Path: "auth/approle/login", DisplayName: "approle", TTL: 24 * time.Hour,
	})
	return err
}

// startOutcome is what a child measured.
type startOutcome struct {
	Serving time.Duration // files closed, to a lease created and renewed, and a token created
	Counted time.Duration // the same, to the count of all leases
	Leases  int
	Own     float64 // MiB of memory, without the mapped files
	Mapped  float64 // MiB of the mapped files that are in memory
}

// inChild measures a start in a process of its own.
func (p place) inChild(out *startOutcome) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	in, err := json.Marshal(p)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "start")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	text, err := cmd.Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

// StartMain is the child: it opens the node that a place on standard input names, and writes a startOutcome.
func StartMain() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var p place
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	begin := time.Now()
	n, err := p.open(context.Background(), false)
	if err != nil {
		return err
	}
	defer n.close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}) // closed when the manager has ended
	go func() {
		defer close(ended)
		n.leases.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	info, err := n.registerOne(time.Hour)
	if err != nil {
		return err
	}
	if _, err := n.leases.Renew(ctx, "", info.ID, 2*time.Hour); err != nil {
		return err
	}
	if err := n.newToken(); err != nil {
		return err
	}
	out := startOutcome{Serving: time.Since(begin)}
	for !n.leases.Counted() {
		<-time.After(time.Millisecond)
	}
	out.Counted = time.Since(begin)
	out.Leases = n.leases.CountBy("", "")
	if out.Own, err = run.StatusMiB("self", "RssAnon:"); err != nil {
		return err
	}
	if out.Mapped, err = run.StatusMiB("self", "RssFile:"); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
