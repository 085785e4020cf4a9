package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/cmd/coffer/node/process"
	"github.com/coffer-project/coffer/server/httpapi"
	"golang.org/x/sync/errgroup"
)

// Options say what Run runs.
type Options struct {
	Config   []string // files and directories
	Check    bool     // check the configuration, and stop
	LogLevel string   // wins over the configuration's
	Dev      Dev
	Version  string // of the product

	// Execute replaces the process image when the server is sealed. Without it the server goes on in the same process.
	Execute  func(path string, args, env []string) error
	Out, Err io.Writer
}

// Run runs one node until ctx ends, as "coffer server" does.
func Run(ctx context.Context, o Options) error {
	if err := process.Protect(); err != nil {
		return fmt.Errorf("protecting the memory of this process: %w", err)
	}
	from, err := takeHandover()
	if err != nil {
		return err
	}
	cfg, err := loadConfig(o)
	if err != nil {
		return err
	}
	dev := o.Dev
	cleanup := func() {}
	if dev.On {
		if cleanup, err = dev.apply(cfg, from); err != nil {
			return err
		}
	}
	defer func() { cleanup() }()
	if err := cfg.Complete(); err != nil {
		return fmt.Errorf("the configuration is not complete:\n%w", err)
	}
	if o.Check {
		fmt.Fprintln(o.Out, "The configuration is fine.")
		return nil
	}
	log, err := process.OpenLogs(o.Err, cfg, o.LogLevel, dev.On)
	if err != nil {
		return err
	}
	next := &sealer{from: from, exec: o.Execute}
	err = serve(ctx, cfg, o.Version, dev, next, log, o.Err)
	if !errors.Is(err, errSealed) || ctx.Err() != nil {
		return err
	}
	if dev.On {
		next.next.DevDir = cfg.Storage.Path
		cleanup = func() {}
	}
	return next.execute()
}

func loadConfig(o Options) (*config.Config, error) {
	if len(o.Config) == 0 && !o.Dev.On {
		return nil, errors.New("give -config=FILE, or -dev for a development server")
	}
	cfg, err := LoadConfig(o.Config...)
	if err != nil {
		return nil, fmt.Errorf("the configuration has problems:\n%w", err)
	}
	return cfg, nil
}

// LoadConfig loads the configuration. What one file for all nodes cannot say is in variables, which win over it.
func LoadConfig(paths ...string) (*config.Config, error) {
	cfg, err := config.Load(paths...)
	if err != nil {
		return nil, err
	}
	cfg.APIAddr = cmp.Or(local.Env("API_ADDR"), cfg.APIAddr)
	cfg.ClusterAddr = cmp.Or(local.Env("CLUSTER_ADDR"), cfg.ClusterAddr)
	cfg.Storage.NodeID = cmp.Or(local.Env("RAFT_NODE_ID"), cfg.Storage.NodeID)
	return cfg, nil
}

// drainTime is how long requests under way may take after the signal to stop.
const drainTime = 15 * time.Second

// serve runs a node until ctx ends: first the listeners stop and drain, then the node hands over and leaves,
// then the files close. A server that was sealed ends likewise, with errSealed, and next has what its successor needs.
func serve(ctx context.Context, cfg *config.Config, version string, dev Dev, next *sealer, log *process.Logs, stderr io.Writer) (err error) {
	collectLessOften()
	memory := process.LimitMemory(log.Named("server"))
	hangups := make(chan os.Signal, 1)     // one that is pending stands for all
	signal.Notify(hangups, syscall.SIGHUP) // from the start: unheard it would end the process
	defer signal.Stop(hangups)
	signal.Ignore(syscall.SIGPIPE) // readers of the log or the audit log may go away
	var listeners []*listener
	defer func() {
		for _, l := range listeners {
			l.net.Close()
		}
	}()
	for i := range cfg.Listeners {
		l, err := bind(cfg.Listeners[i], len(cfg.Listeners), next.from, log.Named("http"))
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	ctx, next.stop = context.WithCancelCause(ctx)
	defer next.stop(nil)
	next.listeners = listeners
	for _, l := range listeners {
		if l.config.OpenCeremonies {
			log.Named("server").Warn("generate-root and rekey need no token on this listener: remove enable_unauthenticated_ceremonies when it has served its purpose", "address", l.url())
		}
	}
	if dev.On {
		cfg.APIAddr = listeners[0].url()
	}
	n, err := openNode(cfg, version, dev, log, httpapi.NewBodies(bodyMemory(cfg.Listeners[0], memory)), next)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	// Not before the addresses and the data are this process's: the file may be that of a server which has them.
	removePID, err := process.WritePID(cfg.PIDFile)
	if err != nil {
		return err
	}
	defer removePID()

	// The node outlives the listeners, so that requests under way can finish.
	living, die := context.WithCancel(context.WithoutCancel(ctx))
	group, stopping := errgroup.WithContext(ctx)
	var life errgroup.Group
	life.Go(func() error { return n.server.Run(living) })
	for _, l := range listeners {
		l.http.Handler = l.front(n.front())
		group.Go(l.serve)
	}
	group.Go(func() error { return reloads(stopping, hangups, n, log, listeners) })
	group.Go(func() error { return start(stopping, n, &dev, next.from, listeners[0], stderr) })
	defer dev.removeToken()
	group.Go(func() error {
		<-stopping.Done()
		limit := drainTime
		if errors.Is(context.Cause(ctx), errSealed) {
			limit = sealedDrainTime
			n.notifyManager("STATUS=Sealed, restarting in place")
		} else {
			n.notifyManager("STOPPING=1")
		}
		drain, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		var errs []error
		for _, l := range listeners {
			errs = append(errs, l.drain(drain))
		}
		return errors.Join(errs...)
	})
	err = group.Wait()
	die()
	err = errors.Join(err, life.Wait())
	if errors.Is(context.Cause(ctx), errSealed) {
		if err != nil {
			n.log.Warn("closing after sealing", "err", err)
		}
		return errSealed
	}
	return err
}

// collectLessOften trades memory for time: what lives on the heap is small, because the data is in files that
// are mapped, so that with the default setting the garbage collector would run dozens of times a second.
func collectLessOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
}

// bodyMemory is how much memory the bodies of requests may take: what the configuration says, else at most a quarter of
// what the process may have, but enough for each address to send the largest request there may be.
func bodyMemory(l config.Listener, limit int64) int64 {
	if l.RequestMemory > 0 {
		return l.RequestMemory
	}
	memory := int64(httpapi.DefaultBodyMemory)
	if limit > 0 {
		memory = min(memory, limit/4)
	}
	return max(memory, 4*cmp.Or(l.MaxRequestBytes, config.DefaultRequestBytes))
}

// start announces the server; a development server is initialised and unsealed first.
func start(ctx context.Context, n *node, dev *Dev, from *handover, l *listener, stderr io.Writer) error {
	if dev.On && from == nil {
		return dev.start(ctx, n, l.url(), stderr)
	}
	n.log.Info("serving", "address", l.url())
	n.notifyManager("READY=1")
	fmt.Fprintf(stderr, "coffer: ready at %s\n", l.url())
	return nil
}

// reloads reloads what can be, at each hangup.
func reloads(ctx context.Context, hangups <-chan os.Signal, n *node, log *process.Logs, listeners []*listener) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			for _, l := range listeners {
				if err := l.reload(); err != nil {
					n.log.Error("reloading", "err", err)
				}
			}
			if err := n.server.ReloadAudit(); err != nil {
				n.log.Error("reopening audit files", "err", err)
			}
			if err := log.Reopen(); err != nil {
				n.log.Error("reopening the log", "err", err)
			}
			n.log.Info("reloaded certificates, audit files and the log")
		}
	}
}
