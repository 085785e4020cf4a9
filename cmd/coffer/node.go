package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/approle"
	"github.com/coffer-project/coffer/engines/cloud"
	"github.com/coffer-project/coffer/engines/cubbyhole"
	"github.com/coffer-project/coffer/engines/kv"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/userpass"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/httpapi"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/server/trace"
	"github.com/coffer-project/coffer/server/ui"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/storage/scrub"
)

// apiVersion is the API generation spoken: clients decide by it what they dare to use.
const apiVersion = "1.21.0+ent.coffer"

// node is a server with everything it stands on.
type node struct {
	server *server.Server
	values *barrier.Barrier
	api    *httpapi.API
	*files
	link   *replication.Link
	stop   context.CancelFunc // of what goes on as long as the data is open
	traces *trace.Tracer      // nil: none
	log    *slog.Logger
}

// factories returns the engines that can be mounted, and the metrics they share.
func factories(named func(string) *slog.Logger) (map[string]engines.Factory, func() map[string]float64) {
	logins, credentials := new(saml.Counts), new(cloud.Counts)
	clouds := cloud.New(cloud.Options{Logger: named("cloud"), Counts: credentials})
	numbers := func() map[string]float64 {
		all := logins.Numbers()
		maps.Copy(all, credentials.Numbers())
		maps.Copy(all, userpass.Numbers())
		return all
	}
	return map[string]engines.Factory{
		"kv": kv.New, "cubbyhole": cubbyhole.New,
		"cloud": clouds, "aws": clouds, // the family's clients know it as aws
		"userpass": userpass.New, "approle": approle.New,
		"saml": saml.New(saml.Options{Logger: named("saml"), Counts: logins}),
	}, numbers
}

// lockoutOf returns what the operator says about lockouts: in the configuration, and in a variable that wins over it.
func lockoutOf(c *config.Config) (engines.LockoutDefaults, error) {
	out := engines.LockoutDefaults{ByType: c.UserLockout}
	if text := env("DISABLE_USER_LOCKOUT"); text != "" {
		disabled, err := strconv.ParseBool(text)
		if err != nil {
			return out, errors.New("the variable COFFER_DISABLE_USER_LOCKOUT (or VAULT_…, BAO_…) must be true or false")
		}
		out.Disabled = &disabled
	}
	return out, nil
}

// openNode opens the data and composes a sealed node. Close it with node.close.
func openNode(c *config.Config, dev devOptions, log *logs, bodies *httpapi.Bodies, next *sealer) (*node, error) {
	if err := boltstore.MkdirAll(c.Storage.Path); err != nil {
		return nil, fmt.Errorf("creating the data directory: %w", err)
	}
	id, err := nodeID(c.Storage)
	if err != nil {
		return nil, err
	}
	targets, err := joinTargets(c.Storage)
	if err != nil {
		return nil, err
	}
	auto, old, err := openSeals(c, log.Named("seal"))
	if err != nil {
		return nil, err
	}
	traces, err := trace.New(context.Background(), trace.Options{
		Endpoint: c.Traces.Endpoint, Insecure: c.Traces.Insecure, SampleRatio: c.Traces.SampleRatio,
		NodeID: id, Version: version(), Logger: log.Named("trace"),
	})
	if err != nil {
		return nil, err
	}
	data, err := openState(c, id, log.Named("storage"))
	if err != nil {
		return nil, errors.Join(err, traces.Close(context.Background()))
	}
	machine, changes := data.machine, data.changes
	n := &node{files: data, traces: traces, log: log.Named("server").With("node", id)}
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
	router := lifecycle.NewRawStore(machine, log.Named("server"))
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
	lockout, err := lockoutOf(c)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	mountable, numbers := factories(log.Named)
	admitted := func() map[string]float64 {
		all := numbers()
		maps.Copy(all, admissions(bodies, next.listeners))
		for _, s := range scrubbers {
			maps.Copy(all, s.Numbers())
		}
		return all
	}
	opts := server.Options{
		Link:      linkOf{link},
		Sync:      newSync(c.Sync, log.Named("sync")),
		Factories: mountable, Numbers: admitted, TempDir: c.Storage.Path, Logger: n.log,
		Version:         system.Version{API: apiVersion, Product: version()},
		DefaultLeaseTTL: c.DefaultLeaseTTL, MaxLeaseTTL: c.MaxLeaseTTL, Lockout: lockout,
		UnauthenticatedMetrics: unauthenticatedMetrics(c), RootTokenID: dev.rootToken,
		Loggers: log.Loggers, Config: c.Sanitized(), DataDir: c.Storage.Path, SnapshotRoot: c.Snapshots.LocalRoot,
		AuditFiles: auditFiles(c), FreeSpace: server.FreeSpace{
			WarnBelow: c.FreeSpaceWarning, WarnPercent: c.FreeSpacePercent, Minimum: c.Storage.FreeSpaceMinimum, Ballast: c.Storage.BallastSize,
		},
		Lifecycle: lifecycle.Options{
			NodeID: id, ClusterAddr: c.ClusterAddr, APIAddr: c.APIAddr, ClusterName: c.ClusterName,
			Raw: rawOf{machine}, Router: router, Barrier: barrierOf{values},
			AutoSeal: auto, OldSeal: old, RetryJoin: targets,
			OwnFiles: func(id lifecycle.Identity) error { return data.ownedBy(c.Storage.Path, id) },
			NewCA: func() (lifecycle.CA, error) {
				ca, err := cluster.NewCA()
				return lifecycle.CA(ca), err
			},
			Formats: cluster.Formats, NewKey: cluster.NewKey, KeyFile: filepath.Join(c.Storage.Path, "node-key"),
			OpenCluster: n.openCluster(c, id, log.Named("cluster")),
		},
	}
	opts.Lifecycle.StaySealed = next.from != nil && next.from.StaySealed
	if execute != nil {
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
		Backend: n.server, Logger: n.log, Observe: n.server.Observe, UI: web,
		MaxBodyBytes: l.MaxRequestBytes, Bodies: bodies, Timeout: l.MaxRequestDuration,
	})
	return n, nil
}

// auditFiles says where audit devices may write: what the configuration names, or a directory beside the data.
func auditFiles(c *config.Config) audit.Files {
	if c.Audit.FileRoots != nil {
		return audit.Files{Roots: c.Audit.FileRoots}
	}
	beside, err := filepath.Abs(c.Storage.Path + "-audit")
	if err != nil {
		return audit.Files{} // without a working directory nothing is known to be beside
	}
	return audit.Files{Roots: []string{beside}, MakeRoot: true}
}

func unauthenticatedMetrics(c *config.Config) bool {
	for _, l := range c.Listeners {
		if l.UnauthMetricsAccess {
			return true
		}
	}
	return c.UnauthenticatedMetrics
}

// openCluster returns the function that starts this node's part in Raft, each time the node unseals.
func (n *node) openCluster(c *config.Config, id string, log *slog.Logger) func(context.Context, lifecycle.Passport) (lifecycle.Cluster, error) {
	advertise := c.ClusterAddr
	if strings.HasSuffix(advertise, ":0") {
		advertise = "" // a free port: what the listener gets
	}
	return func(_ context.Context, p lifecycle.Passport) (lifecycle.Cluster, error) {
		member, err := cluster.Open(cluster.Options{
			ID: cluster.NodeID(id), Dir: c.Storage.Path, Identity: n.identity, Entering: p.Entering, Machine: n.machine, NonVoter: c.Storage.NonVoter,
			ListenAddr: c.Listeners[0].ClusterAddress, AdvertiseAddr: advertise, APIAddr: c.APIAddr,
			Version: version(), FollowKey: n.values.FollowKey(), Key: p.Key, CA: cluster.CA(p.CA), Trust: p.Trust, Records: recordsOf{p.Records}, Handler: n.traces.Wrap(n.api.Forwarded()), Logger: log,
			HeartbeatTimeout: c.Storage.HeartbeatTimeout, ElectionTimeout: c.Storage.ElectionTimeout,
			TrailingLogs: uint64(c.Storage.TrailingLogs), SnapshotThreshold: uint64(c.Storage.SnapshotThreshold),
			SnapshotInterval: c.Storage.SnapshotInterval, ScrubInterval: c.Storage.ScrubInterval,
			Disk: func() cluster.Disk { return cluster.Disk(n.server.Space()) },
		})
		if err != nil {
			return nil, err
		}
		return serveClusters(member, n.link, n.log)
	}
}

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
	return errors.Join(n.files.close(), n.traces.Close(context.Background()))
}

// nodeID returns the configured id, or the one made at the first start. The file that keeps it has a checksum:
// a node that came back under another name would be a second node to the cluster.
func nodeID(s config.Storage) (string, error) {
	if s.NodeID != "" {
		return s.NodeID, nil
	}
	path := filepath.Join(s.Path, "node-id")
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		id, sum, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
		if !ok || sum != idSum(id) {
			return "", fmt.Errorf("%w\nSet node_id in the storage stanza to the id that \"coffer operator raft list-peers\" shows for this node, "+
				"or remove the file to start as a new node", &storage.CorruptError{File: path, Detail: "its checksum is wrong"})
		}
		return id, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("reading the node id: %w", err)
	}
	raw := make([]byte, 8)
	rand.Read(raw)
	id := "node-" + hex.EncodeToString(raw)
	err = writePrivate(path, func(f *os.File) error {
		_, err := fmt.Fprintf(f, "%s %s\n", id, idSum(id))
		return err
	})
	if err != nil {
		return "", err
	}
	return id, boltstore.SyncDir(s.Path)
}

func idSum(id string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(id), crc32.MakeTable(crc32.Castagnoli)))
}

func joinTargets(s config.Storage) ([]lifecycle.JoinTarget, error) {
	var targets []lifecycle.JoinTarget
	for _, j := range s.RetryJoin {
		t := lifecycle.JoinTarget{
			LeaderAPIAddr: j.LeaderAPIAddr, ServerName: j.LeaderServerName, CACert: []byte(j.LeaderCACert), NonVoter: s.NonVoter,
		}
		for file, into := range map[string]*[]byte{
			j.LeaderCACertFile: &t.CACert, j.LeaderClientCertFile: &t.ClientCert, j.LeaderClientKeyFile: &t.ClientKey,
		} {
			if file == "" {
				continue
			}
			pem, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("retry_join: %w", err)
			}
			*into = pem
		}
		targets = append(targets, t)
	}
	return targets, nil
}
