// Package node composes a server from its parts and runs it: the configuration, the data directory, listeners, seals, engines, the
// cluster and the links to other clusters. Run is "coffer server", and what tests use that need a server in their own process. A node is sealed by replacing the
// process image (handover.go).
//
// Read Run and serve in run.go, then openNode. adapt.go and link.go fulfil what the server asks of the cluster and of replication.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/node/datadir"
	"github.com/coffer-project/coffer/cmd/coffer/node/process"
	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/approle"
	"github.com/coffer-project/coffer/engines/cert"
	"github.com/coffer-project/coffer/engines/cloud"
	"github.com/coffer-project/coffer/engines/cubbyhole"
	"github.com/coffer-project/coffer/engines/kv"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/userpass"
	"github.com/coffer-project/coffer/replication/link"
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/server/httpapi"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/lifecycle/rawstore"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/server/trace"
	"github.com/coffer-project/coffer/server/ui"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/boltfile"
	"github.com/coffer-project/coffer/storage/scrub"
)

// apiVersion is the API generation spoken: clients decide by it what they dare to use.
const apiVersion = "1.21.0+ent.coffer"

// node is a server with everything it stands on.
type node struct {
	server *server.Server
	values *barrier.Barrier
	api    *httpapi.API
	*datadir.Files
	link    *link.Link
	version string // of the product
	config  atomic.Pointer[config.Config]
	stop    context.CancelFunc // of what goes on as long as the data is open
	traces  *trace.Tracer      // nil: none
	log     *slog.Logger
}

// factories returns the engines that can be mounted, and the metrics they share.
func factories(named func(string) *slog.Logger) (map[string]engines.Factory, func() map[string]float64) {
	logins, credentials := new(saml.Counts), new(cloud.Counts)
	clouds := cloud.New(cloud.Options{Logger: named("cloud"), Counts: credentials})
	numbers := func() map[string]float64 {
		all := logins.Numbers()
		maps.Copy(all, credentials.Numbers())
		maps.Copy(all, userpass.Numbers())
		maps.Copy(all, cert.Numbers())
		return all
	}
	return map[string]engines.Factory{
		"kv": kv.New, "cubbyhole": cubbyhole.New,
		"cloud": clouds, "aws": clouds, // the family's clients know it as aws
		"userpass": userpass.New, "approle": approle.New,
		"cert": cert.New, "saml": saml.New(saml.Options{Logger: named("saml"), Counts: logins}),
	}, numbers
}

// openNode opens the data and composes a sealed node. Close it with node.close. A *damageError is about data that was whole as far as it
// was checked when it was opened.
func openNode(c *config.Config, version string, devRootToken string, log *process.Logs, bodies *httpapi.Bodies, next *sealer) (_ *node, err error) {
	if err := boltfile.MkdirAll(c.Storage.Path); err != nil {
		return nil, fmt.Errorf("creating the data directory: %w", err)
	}
	id, err := datadir.NodeID(c.Storage)
	if err != nil {
		return nil, err
	}
	targets, err := settings.JoinTargets(c.Storage)
	if err != nil {
		return nil, err
	}
	auto, old, err := settings.OpenSeals(c, log.Named("seal"))
	if err != nil {
		return nil, err
	}
	traces, err := trace.New(context.Background(), trace.Options{
		Endpoint: c.Traces.Endpoint, Insecure: c.Traces.Insecure, SampleRatio: c.Traces.SampleRatio,
		NodeID: id, Version: version, Logger: log.Named("trace"),
	})
	if err != nil {
		return nil, err
	}
	checked := *c
	if next.from != nil && next.from.Check {
		checked.Storage.VerifyAtStart = math.MaxInt64
	}
	data, err := datadir.Open(&checked, id, log.Named("storage"))
	if err != nil {
		return nil, errors.Join(err, traces.Close(context.Background()))
	}
	defer func() {
		if corrupt := (*storage.CorruptError)(nil); errors.As(err, &corrupt) {
			err = &damageError{err}
		}
	}()
	machine, changes := data.Machine, data.Changes
	n := &node{Files: data, version: version, traces: traces, log: log.Named("server").With("node", id)}
	n.config.Store(c)
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go changes.Run(ctx)
	scrubbers := []*scrub.Scrubber{
		scrub.New("state", machine, c.Storage.ScrubInterval, log.Named("storage")),
		scrub.New("change_log", changes, c.Storage.ScrubInterval, log.Named("storage")),
	}
	for _, s := range scrubbers {
		go s.Run(ctx)
	}
	router := rawstore.New(machine, log.Named("server"))
	values := barrier.New(router)
	n.values = values
	if err := cluster.CheckFormats(ctx, machine); err != nil {
		return nil, errors.Join(err, n.close())
	}
	link, guard, err := newLink(machine, changes, values, c.APIAddr, c.ClusterAddr, log.Named("replication"))
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	n.link = link
	lockout, err := settings.Lockout(c)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	devices, err := settings.AuditDevices(c)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	plugins, err := newPlugins(c.Plugins, c.UI, c.Storage.Path, version, log.Named("plugin"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("plugins: %w", err), n.close())
	}
	mountable, numbers := factories(log.Named)
	admitted := func() map[string]float64 {
		all := numbers()
		maps.Copy(all, admissions(bodies, next.listeners))
		for _, s := range scrubbers {
			maps.Copy(all, s.Numbers())
		}
		left, _ := machine.Unverified()
		all["state_unverified_bytes"] = float64(left)
		return all
	}
	opts := server.Options{
		Link:      linkOf{link},
		Sync:      newSync(c.Sync, log.Named("sync")),
		Plugins:   plugins,
		Factories: mountable, Numbers: admitted, TempDir: c.Storage.Path, Logger: n.log,
		Version:         system.Version{API: apiVersion, Product: version},
		DefaultLeaseTTL: c.DefaultLeaseTTL, MaxLeaseTTL: c.MaxLeaseTTL, Lockout: lockout,
		UnauthenticatedMetrics: settings.UnauthenticatedMetrics(c), RootTokenID: devRootToken,
		Loggers: log.Loggers, Config: func() map[string]any { return n.config.Load().Sanitized() }, DataDir: c.Storage.Path, SnapshotRoot: c.Snapshots.LocalRoot,
		AuditFiles: settings.AuditFiles(c), AuditDevices: devices, FreeSpace: server.FreeSpace{
			WarnBelow: c.FreeSpaceWarning, WarnPercent: c.FreeSpacePercent, Minimum: c.Storage.FreeSpaceMinimum, Ballast: c.Storage.BallastSize,
			Pending: machine.Pending,
		},
		Lifecycle: lifecycle.Options{
			NodeID: id, ClusterAddr: c.ClusterAddr, APIAddr: c.APIAddr, ClusterName: c.ClusterName,
			Raw: rawOf{machine}, Router: router, Barrier: barrierOf{values},
			AutoSeal: auto, OldSeal: old, RetryJoin: targets,
			OwnFiles: func(id lifecycle.Identity) error { return data.SetCluster(c.Storage.Path, id) },
			Raft:     &raft{n, c, cluster.NodeID(id), log.Named("cluster")},
			Formats:  cluster.Formats, KeyFile: filepath.Join(c.Storage.Path, "node-key"),
		},
	}
	opts.Lifecycle.StaySealed = next.from != nil && next.from.StaySealed
	if next.exec != nil {
		opts.Lifecycle.Sealing = next.sealing
	}
	n.server = server.New(opts)
	guard.server = n.server
	l := c.Listeners[0]
	var web http.Handler
	if c.UI {
		web = n.server.UIHeaders().Wrap(ui.Handler())
	}
	n.api = httpapi.New(httpapi.Options{
		Requests: n.server.Requests(), Backend: n.server, Logger: n.log, Observe: n.server.Metrics().Observe, UI: web,
		MaxBodyBytes: l.MaxRequestBytes, JSON: httpapi.JSONBounds(l.JSON), Bodies: bodies, Timeout: l.MaxRequestDuration,
	})
	return n, nil
}

// damageError is damage that was found while the node was composed.
type damageError struct{ error }

func (e *damageError) Unwrap() error { return e.error }

// raft is lifecycle.Raft of a node.
type raft struct {
	n   *node
	c   *config.Config
	id  cluster.NodeID
	log *slog.Logger
}

// NewCA implements lifecycle.Raft.
func (*raft) NewCA() (passport.CA, error) {
	ca, err := cluster.NewCA()
	return passport.CA(ca), err
}

// NewKey implements lifecycle.Raft.
func (*raft) NewKey() (private, public []byte, err error) { return cluster.NewKey() }

// OpenCluster implements lifecycle.Raft.
func (r *raft) OpenCluster(_ context.Context, p passport.Passport) (members.Cluster, error) {
	n, c := r.n, r.c
	advertise := c.ClusterAddr
	if strings.HasSuffix(advertise, ":0") {
		advertise = "" // a free port: what the listener gets
	}
	member, err := cluster.Open(cluster.Options{
		ID: r.id, Dir: c.Storage.Path, Identity: n.Identity, Entering: p.Entering, Machine: n.Machine, NonVoter: c.Storage.NonVoter,
		ListenAddr: c.Listeners[0].ClusterAddress, AdvertiseAddr: advertise, APIAddr: c.APIAddr,
		Version: n.version, FollowKey: n.values.FollowKey(), Key: p.Key, CA: cluster.CA(p.CA), Trust: p.Trust, Records: recordsOf{p.Records}, Handler: n.traces.Wrap(n.api.Forwarded()), Logger: r.log,
		HeartbeatTimeout: c.Storage.HeartbeatTimeout, ElectionTimeout: c.Storage.ElectionTimeout,
		TrailingLogs: uint64(c.Storage.TrailingLogs), SnapshotThreshold: uint64(c.Storage.SnapshotThreshold),
		SnapshotInterval: c.Storage.SnapshotInterval, ScrubInterval: c.Storage.ScrubInterval,
		Space: n,
	})
	if err != nil {
		return nil, err
	}
	return serveClusters(member, n.link, n.log)
}

// Disk implements cluster.Space.
func (n *node) Disk() cluster.Disk { return cluster.Disk(n.server.Space()) }

// front is what listeners serve: the API and the UI.
func (n *node) front() http.Handler {
	cors := n.server.CORS()
	return n.traces.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !cors.Apply(w, r) {
			n.api.ServeHTTP(w, r)
		}
	}))
}

// close releases the data. The server has stopped.
func (n *node) close() error {
	n.stop()
	if n.link != nil {
		n.link.Close()
	}
	return errors.Join(n.Files.Close(), n.traces.Close(context.Background()))
}
