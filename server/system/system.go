// Package system answers everything below sys/: the life of the node, mounts, Raft, keys and the server's
// own description. It is an engine like any other: its paths are declared as data, and the one request
// pipeline authorises and audits them. Policies and audit devices declare their own paths on the same router.
package system

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/storage"
)

// Options of the system paths. All are required.
type Options struct {
	Node    *lifecycle.Node
	Mounts  *mount.Table
	Barrier lifecycle.Barrier
	Raw     lifecycle.Raw
	// Metrics writes the metrics: in the Prometheus text format, or as JSON.
	Metrics func(prometheus bool) (contentType string, body []byte, err error)
	// TempDir is where a snapshot is verified before it replaces anything.
	TempDir string
	Version Version
	Logger  *slog.Logger
	// UnauthenticatedMetrics lets sys/metrics be read without a token.
	UnauthenticatedMetrics bool
	// ResolveFrom follows a path from the namespace with the id base through namespaces below it, and returns the
	// id of the last one and what is left of the path. Nil: there is only the root namespace.
	ResolveFrom func(ctx context.Context, base, path string) (id, rest string, err error)
	// Below reports whether a namespace is another one or lies below it. Nil: there is only the root namespace.
	Below func(ctx context.Context, ancestor, id string) bool
	// Disk says how the disk of the data is; nil: not known.
	Disk func() string
	// Replication returns the cluster's mode in performance replication, its id there, and how many milliseconds old the
	// newest sign of life of the primary is that has arrived. Nil: there is none.
	Replication func() (mode, clusterID string, canaryMS int64)
	// RoleSince returns the index of the last change of the cluster's role in replication, 0 if there was none. Nil: likewise.
	RoleSince func() storage.Index
}

// replication returns what Options.Replication does.
func (s *System) replication() (mode, clusterID string, canaryMS int64) {
	if s.opts.Replication == nil {
		return "disabled", "", 0
	}
	return s.opts.Replication()
}

// Version is what the server says of itself.
type Version struct {
	API     string // the API generation spoken, semver
	Product string
	Built   string // RFC 3339, may be empty
}

// System declares and answers the sys paths.
type System struct {
	opts   Options
	router *engines.Router
}

// New declares the paths on a fresh router.
func New(o Options) *System {
	s := &System{opts: o, router: engines.NewRouter()}
	s.nodePaths()
	s.mountPaths()
	s.lockoutPaths()
	s.raftPaths()
	s.keyPaths()
	s.rekeyPaths()
	s.generateRootPaths()
	s.metaPaths()
	s.remountPaths()
	s.gatePaths()
	return s
}

// Router implements engines.Engine. Others declare their sys paths on it before the server starts.
func (s *System) Router() *engines.Router { return s.router }

// none is the input of paths without fields.
type none struct{}

// plain answers JSON without the envelope, as the family does on the paths that work while sealed.
func plain(status int, v any) (*engines.Response, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Status: status, Raw: &engines.Raw{ContentType: "application/json", Body: append(body, '\n')}}, nil
}

// both answers data, and the same again at the top level, where older clients read it.
func both(data map[string]any) *engines.Response {
	return &engines.Response{Data: data, Top: data}
}

func (s *System) cluster() (lifecycle.Cluster, error) {
	if c := s.opts.Node.Cluster(); c != nil {
		return c, nil
	}
	return nil, storage.ErrSealed
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
