// Package plugin runs secrets engines and auth methods that are programs of their own: the plugins of Vault and OpenBao (protocol 5),
// those that come with Coffer, and others that an operator registers in the catalogue by their checksum. A plugin is not trusted: see
// package process. A mount whose engine is a plugin is a mount like any other (engine.go); its process runs on the active node only.
// Start reading at Host, then engine.
package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/plugin/backend"
	"github.com/coffer-project/coffer/server/plugin/process"
	"github.com/coffer-project/coffer/storage"
)

// Options configure a Host.
type Options struct {
	Store     storage.Store // plaintext
	Directory string        // plugin_directory; "": there are no plugins
	Shipped   []*Plugin     // that come with the server: ReadManifest
	User      *process.User // of the processes; nil: the server's
	TempDir   string
	Version   string // of the server, as plugins see it
	Limits    process.Limits
	Logger    *slog.Logger
	// System is what a mount's plugin may know.
	System func(engines.Mount) backend.System
	Node   Node
	UI     bool // there is a web UI for browsers to go on to
}

// Node is this node in its cluster.
type Node interface {
	Active() bool
	// Secondary reports whether another cluster writes what is shared.
	Secondary() bool
	// LeaseAtPrimary has that cluster renew, or else revoke, what a lease of this one stands for.
	LeaseAtPrimary(ctx context.Context, m engines.Mount, l engines.LeaseRecord, renew bool) (engines.Lease, error)
}

// Host has the catalogue of plugins and runs their processes. Safe for concurrent use.
type Host struct {
	opts    Options
	log     *slog.Logger
	numbers numbers

	mu        sync.Mutex
	starting  map[string]*sync.Mutex // by what is run: held while it starts, so that others do not wait for it
	processes map[string]*shared     // by what is run
	engines   map[string]*engine     // by the UUID of the mount
}

// shared is a process that several mounts use.
type shared struct {
	*process.Process
	plugin *Plugin
	key    string
	users  int
}

// New returns a Host. No process runs until a mount needs it.
func New(o Options) *Host {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Host{opts: o, log: o.Logger, numbers: numbers{plugins: map[string]*counts{}}, starting: map[string]*sync.Mutex{}, processes: map[string]*shared{}, engines: map[string]*engine{}}
}

func (h *Host) active() bool                          { return h.opts.Node.Active() }
func (h *Host) secondary() bool                       { return h.opts.Node.Secondary() }
func (h *Host) system(m engines.Mount) backend.System { return h.opts.System(m) }

// openTimeout is how long a request waits for its plugin to start.
const openTimeout = 15 * time.Second

// Factory implements mount.Plugins. An engine takes the place of the one that its mount had before.
func (h *Host) Factory(auth bool, name, version string) engines.Factory {
	return func(m engines.Mount) (engines.Engine, error) {
		e := newEngine(h, m, Ref{auth, name, version})
		h.mu.Lock()
		before := h.engines[m.UUID]
		h.engines[m.UUID] = e
		h.mu.Unlock()
		if before != nil {
			go before.stop()
		}
		return e, nil
	}
}

// forget takes an engine out whose mount goes.
func (h *Host) forget(e *engine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.engines[e.mount.UUID] == e {
		delete(h.engines, e.mount.UUID)
	}
}

// process returns the process of a plugin, which is started if none runs that can take another mount. Call release when it is not
// needed any more.
func (h *Host) process(ctx context.Context, ref Ref) (*shared, error) {
	p, err := h.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	key := p.processKey()
	starting := h.startingLock(key)
	starting.Lock()
	defer starting.Unlock()
	if s := h.share(key); s != nil {
		return s, nil
	}
	program, err := process.Open(h.opts.Directory, p.Command, p.SHA256)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	started, err := process.Start(ctx, process.Options{
		Name: ref.Name, Program: program, Args: p.Args, Env: p.Env, User: h.opts.User, TempDir: h.opts.TempDir,
		Version: h.opts.Version, Limits: h.opts.Limits, Logger: h.log,
	})
	if err != nil {
		return nil, err
	}
	h.numbers.add(ref, func(c *counts) { c.starts++; c.processes++ })
	go func() {
		<-started.Done()
		h.numbers.add(ref, func(c *counts) { c.processes-- })
	}()
	h.log.Info("plugin started", "plugin", ref.String(), "shared_by_mounts", started.Multiplexed, "pid_namespace", started.Alone)
	s := &shared{Process: started, plugin: p, key: key, users: 1}
	if started.Multiplexed {
		h.mu.Lock()
		h.processes[key] = s
		h.mu.Unlock()
	}
	return s, nil
}

func (h *Host) startingLock(key string) *sync.Mutex {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starting[key] == nil {
		h.starting[key] = new(sync.Mutex)
	}
	return h.starting[key]
}

// share returns the running process with a key, for one more mount; nil if there is none.
func (h *Host) share(key string) *shared {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.processes[key]
	if s == nil {
		return nil
	}
	select {
	case <-s.Done():
		delete(h.processes, key)
		return nil
	default:
		s.users++
		return s
	}
}

// release ends a process that no mount uses any more.
func (h *Host) release(s *shared) {
	h.mu.Lock()
	s.users--
	last := s.users == 0
	if last && h.processes[s.key] == s {
		delete(h.processes, s.key)
	}
	h.mu.Unlock()
	if last {
		s.Kill()
	}
}

// Stop ends all processes: when the node is not the active one any more, or seals.
func (h *Host) Stop() { h.restart(func(*engine) bool { return true }) }

// RoleChanged restarts what depends on the role of the cluster if that is another one now. It does not block.
func (h *Host) RoleChanged() {
	go h.restart(func(e *engine) bool {
		b := e.open.Load()
		return b != nil && b.secondary != h.secondary()
	})
}

// restart ends the part of mounts in their processes. The next request starts it again.
func (h *Host) restart(which func(*engine) bool) {
	h.mu.Lock()
	var all []*engine
	for _, e := range h.engines {
		if which(e) {
			all = append(all, e)
		}
	}
	h.mu.Unlock()
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Go(e.stop)
	}
	wg.Wait()
}

// Ref names a plugin: a mount's, for instance.
type Ref struct {
	Auth    bool // an auth method; else a secrets engine
	Name    string
	Version string // "": the pinned one, else the newest
}

func (r Ref) kind() string {
	if r.Auth {
		return "auth"
	}
	return "secret"
}

func (r Ref) String() string {
	if r.Version == "" {
		return fmt.Sprintf("%s/%s", r.kind(), r.Name)
	}
	return fmt.Sprintf("%s/%s@%s", r.kind(), r.Name, r.Version)
}
