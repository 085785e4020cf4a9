// Package system is the engine below sys/: its own paths are about the life of the node, Raft, keys and the server's description.
// It is an engine like any other: its paths are declared as data, and the one request pipeline authorises and audits them. Others
// declare theirs on the same router: mounts, web and process below this package, and those that own policies, audit devices, leases and the like.
package system

import (
	"context"
	"log/slog"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input/jsontext"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// Options of the system paths. All are required.
type Options struct {
	Node    *lifecycle.Node
	Mounts  *mount.Table
	Barrier lifecycle.Barrier
	Raw     lifecycle.Raw
	Metrics Metrics
	// TempDir is where a snapshot is verified before it replaces anything.
	TempDir string
	Version Version
	Logger  *slog.Logger
	// UnauthenticatedMetrics lets sys/metrics be read without a token.
	UnauthenticatedMetrics bool
	// Disk is that of the data; nil: not known.
	Disk Disk
	// Replication is performance replication; nil: there is none.
	Replication Replication
}

// Metrics writes the metrics: in the Prometheus text format, or as JSON.
type Metrics interface {
	Render(prometheus bool) (contentType string, body []byte, err error)
}

// Disk says in one word how a disk is.
type Disk interface{ Health() string }

// Replication is this cluster in performance replication: replicated.Store.
type Replication interface {
	Role() roles.Role
	// CanaryAge returns how old the newest heartbeat of the primary is that has arrived; false if there is none.
	CanaryAge(ctx context.Context) (age time.Duration, ok bool)
}

// role returns the cluster's role in performance replication.
func (s *System) role() roles.Role {
	if s.opts.Replication == nil {
		return roles.Role{Mode: roles.Disabled}
	}
	return s.opts.Replication.Role()
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
	s.raftPaths()
	s.keyPaths()
	s.rekeyPaths()
	s.generateRootPaths()
	s.metaPaths()
	s.toolPaths()
	s.gatePaths()
	return s
}

// Router implements engines.Engine. Others declare their sys paths on it before the server starts.
func (s *System) Router() *engines.Router { return s.router }

// none is the input of paths without fields.
type none struct{}

// plain answers JSON without the envelope, as the family does on the paths that work while sealed.
func plain(status int, v any) (*engines.Response, error) {
	body, err := jsontext.Append(nil, v)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Status: status, Raw: &engines.Raw{ContentType: "application/json", Body: append(body, '\n')}}, nil
}

// both answers data, and the same again at the top level, where older clients read it.
func both(data map[string]any) *engines.Response {
	return &engines.Response{Data: data, Top: data}
}

func (s *System) cluster() (members.Cluster, error) {
	if c := s.opts.Node.Cluster(); c != nil {
		return c, nil
	}
	return nil, storage.ErrSealed
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
