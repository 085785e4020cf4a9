package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/cmd/coffer/node/dev"
	"github.com/coffer-project/coffer/cmd/coffer/node/headers"
	"github.com/coffer-project/coffer/cmd/coffer/node/process"
	"github.com/coffer-project/coffer/cmd/coffer/node/registration"
	"github.com/coffer-project/coffer/cmd/coffer/node/reload"
	"github.com/coffer-project/coffer/cmd/coffer/node/selfinit"
	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
	"github.com/coffer-project/coffer/cmd/coffer/node/statsd"
	"github.com/coffer-project/coffer/server/httpapi"
	"golang.org/x/sync/errgroup"
)

// Options say what Run runs.
type Options struct {
	Config   []string // files and directories
	Check    bool     // check the configuration, and stop
	LogLevel string   // wins over the configuration's
	Dev      dev.Options
	// LogFormat and LogFile win over the configuration's likewise.
	LogFormat, LogFile string
	Rotation           map[string]string // by key of the configuration, "": as it says
	Version            string            // of the product

	// Execute replaces the process image when the server is sealed. Without it the server goes on in the same process.
	Execute  func(path string, args, env []string) error
	Out, Err io.Writer
}

// Run runs one node until ctx ends, as "coffer server" does.
func Run(ctx context.Context, o Options) error {
	if err := process.Protect(); err != nil {
		return fmt.Errorf("protecting the memory of this process: %w", err)
	}
	if o.Dev.Three {
		if len(o.Config) > 0 {
			return errors.New("-dev-ha configures its nodes itself: leave out -config, or start each node with it")
		}
		return o.Dev.RunThree(ctx, o.Err)
	}
	from, err := takeHandover()
	if err != nil {
		return err
	}
	cfg, err := loadConfig(o)
	if err != nil {
		return err
	}
	devOpts := o.Dev
	cleanup := func() {}
	defer func() { cleanup() }()
	if devOpts.On {
		var used dev.Dirs
		if from != nil {
			used = from.Dev
		}
		if cleanup, err = devOpts.Apply(cfg, used); err != nil {
			return err
		}
	}
	if err := cfg.Complete(); err != nil {
		return fmt.Errorf("the configuration is not complete:\n%w", err)
	}
	if o.Check {
		return check(cfg, o)
	}
	log, err := process.OpenLogs(o.Err, cfg, o.LogLevel, devOpts.On)
	if err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		log.Named("config").Warn(w)
	}
	next := &sealer{from: from, exec: o.Execute}
	reread := func() (*config.Config, error) {
		if len(o.Config) == 0 {
			return nil, nil
		}
		cfg, err := loadConfig(o)
		if err != nil || o.Dev.On { // which need not be complete
			return cfg, err
		}
		return cfg, cfg.Complete()
	}
	err = serve(ctx, cfg, reread, o.Version, &devOpts, next, log, o.Err)
	if !errors.Is(err, errSealed) || ctx.Err() != nil {
		return err
	}
	if devOpts.On {
		next.next.Dev = devOpts.Dirs(cfg)
		cleanup = func() {}
	}
	return next.execute()
}

func loadConfig(o Options) (*config.Config, error) {
	if len(o.Config) == 0 && !o.Dev.On {
		return nil, errors.New("give -config=FILE, or -dev for a development server")
	}
	cfg, err := settings.Load(o.Config...)
	if err != nil {
		return nil, fmt.Errorf("the configuration has problems:\n%w", err)
	}
	cfg.LogFile = cmp.Or(o.LogFile, cfg.LogFile)
	if err := cfg.Rotate(o.Rotation); err != nil {
		return nil, err
	}
	if o.LogFormat != "" {
		format, ok := config.LogFormat(o.LogFormat)
		if !ok {
			return nil, fmt.Errorf("-log-format must be text or json, not %q", o.LogFormat)
		}
		cfg.LogFormat = format
	}
	return cfg, nil
}

// setLockout takes what a configuration says of lockouts.
func (n *node) setLockout(c *config.Config) error {
	lockout, err := settings.Lockout(c)
	if err == nil {
		n.server.SetLockout(lockout)
	}
	return err
}

// check looks for what would keep the server from starting, and changes nothing.
func check(cfg *config.Config, o Options) error {
	var problems []error
	_, _, err := settings.OpenSeals(cfg, slog.New(slog.DiscardHandler))
	problems = append(problems, err)
	_, err = settings.JoinTargets(cfg.Storage)
	problems = append(problems, err)
	_, err = settings.Lockout(cfg)
	problems = append(problems, err)
	_, err = settings.AuditDevices(cfg)
	problems = append(problems, err)
	if cfg.Registration != nil && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		cfg.Warnings = append(cfg.Warnings, "service_registration works in a pod of Kubernetes only")
	}
	for _, c := range cfg.Listeners {
		l := &listener{config: c, http: &http.Server{}}
		if err := l.Take(c); err != nil {
			problems = append(problems, err)
		}
		_, err := l.tlsConfig()
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("the server would not start:\n%w", err)
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(o.Err, "Warning:", w)
	}
	fmt.Fprintln(o.Out, "The configuration is fine.")
	return nil
}

// drainTime is how long requests under way may take after the signal to stop.
const drainTime = 15 * time.Second

// serve runs a node until ctx ends: first the listeners stop and drain, then the node hands over and leaves,
// then the files close. A server that was sealed ends likewise, with errSealed, and next has what its successor needs.
func serve(ctx context.Context, cfg *config.Config, reread func() (*config.Config, error), version string, devOpts *dev.Options, next *sealer, log *process.Logs, stderr io.Writer) (err error) {
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
			if devOpts.On && errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w\nAnother server, of Coffer or another product, has this port: stop it, or choose another port with -dev-listen-address=127.0.0.1:8210", err)
			}
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
	if devOpts.On {
		cfg.APIAddr = listeners[0].url()
	}
	n, err := openNode(cfg, version, devOpts.RootToken, log, httpapi.NewBodies(bodyMemory(cfg.Listeners[0], memory)), next)
	if damage := (*damageError)(nil); errors.As(err, &damage) && next.exec != nil && (next.from == nil || !next.from.Check) {
		log.Named("server").Error("the data is damaged: starting again, to check all of it", "err", err)
		next.sealing(next.from != nil && next.from.StaySealed)
		next.next.Check = true
		return errSealed
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	// Not before the addresses and the data are this process's: the file may be that of a server which has them.
	register, err := registrationOf(cfg, n)
	if err != nil {
		return err
	}
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
	group.Go(func() error { register(stopping); return nil })
	reloader := &reload.Reloader{Read: reread, Config: &n.config, Audit: n.server, Lockout: n.setLockout, Logs: log, Log: n.log, Dev: devOpts.On}
	for _, l := range listeners {
		l.http.Handler = l.front(n.front(), headers.Own(cfg, n.server.Node().ID()))
		l.asks = n.server.WantsCertificates
		group.Go(l.serve)
		reloader.Listeners = append(reloader.Listeners, l)
	}
	group.Go(func() error {
		reloader.Run(stopping, hangups)
		return nil
	})
	if to := cmp.Or(cfg.Statsd.Address, cfg.Statsd.DogAddress); to != "" {
		group.Go(func() error {
			statsd.Run(stopping, statsd.Options{
				Address: to, Every: cfg.Statsd.Every, Dog: cfg.Statsd.DogAddress != "", Tags: cfg.Statsd.Tags,
				Values: n.server.Metrics().Values, Logger: log.Named("statsd"),
			})
			return nil
		})
	}
	if cfg.Founds {
		group.Go(func() error { return found(stopping, cfg, n) })
	}
	group.Go(func() error {
		return start(stopping, n, devOpts, next.from, listeners[0], cfg.LogFormat == "json", stderr)
	})
	defer devOpts.RemoveToken()
	group.Go(func() error {
		<-stopping.Done()
		limit := drainTime
		if errors.Is(context.Cause(ctx), errSealed) {
			limit = sealedDrainTime
			process.NotifyManager(n.log, "STATUS=Sealed, restarting in place")
		} else {
			process.NotifyManager(n.log, "STOPPING=1")
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
func start(ctx context.Context, n *node, devOpts *dev.Options, from *handover, l *listener, jsonLog bool, stderr io.Writer) error {
	if devOpts.On && from == nil {
		return startDev(ctx, n, devOpts, l.url(), stderr)
	}
	n.log.Info("serving", "address", l.url())
	process.NotifyManager(n.log, "READY=1")
	if jsonLog {
		return json.NewEncoder(stderr).Encode(map[string]any{
			slog.TimeKey: time.Now(), slog.LevelKey: "INFO", slog.MessageKey: "coffer: ready at " + l.url(), "address": l.url(),
		})
	}
	fmt.Fprintf(stderr, "coffer: ready at %s\n", l.url())
	return nil
}

// found does what the initialize stanzas say.
func found(ctx context.Context, cfg *config.Config, n *node) error {
	others, err := settings.JoinTargets(cfg.Storage)
	if err != nil {
		return err
	}
	return selfinit.Run(ctx, selfinit.Options{
		Requests: cfg.Initialize, Others: others, Node: n.server.Node(), API: n.api,
		Marker: filepath.Join(cfg.Storage.Path, "initialize-incomplete"), Logger: n.log,
	})
}

// registrationOf returns what tells Kubernetes the state of the node until its context ends. Without a stanza it does nothing.
func registrationOf(c *config.Config, n *node) (func(context.Context), error) {
	r := c.Registration
	if r == nil {
		return func(context.Context) {}, nil
	}
	pod, err := registration.New(cmp.Or(local.Env("K8S_NAMESPACE"), r.Namespace), cmp.Or(local.Env("K8S_POD_NAME"), r.Pod, os.Getenv("HOSTNAME")), n.version, n.log)
	if err != nil {
		return nil, err
	}
	life := n.server.Node()
	return func(ctx context.Context) {
		pod.Run(ctx, func(ctx context.Context) registration.State {
			active, sealed := life.Active(), life.Sealed()
			return registration.State{Active: active, Sealed: sealed, Initialized: life.Initialized(ctx), Standby: !active && !sealed && life.Current()}
		})
	}, nil
}
