// Package pipeline is the one way that every request takes, whatever it asks for:
//
//	namespace, mount, route → quota → authenticate → authorise → audit → engine → token, lease, wrapping → audit → answer
//
// It knows neither HTTP (package httpapi is the edge) nor how its parts are made (package server joins them). Requests that another
// cluster passes on take the same way, with less that they may do. Start reading at Pipeline.Handle.
package pipeline

import (
	"log/slog"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/fence"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/login"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/quota"
	"github.com/coffer-project/coffer/server/remote"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/server/rights"
	"github.com/coffer-project/coffer/server/system/process"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/wrapping"
)

// Parts are what requests pass on their way. All are required.
type Parts struct {
	Node       *lifecycle.Node
	System     *engines.Router // of the paths below sys/
	Namespaces *namespace.Store
	Mounts     *mount.Table
	Quotas     *quota.Quotas
	Tokens     *token.Store
	Identity   *identity.Store
	Rights     *rights.Rights
	Logins     *login.Logins
	Leases     *lease.Manager
	Wraps      *wrapping.Store
	Audit      *audit.Broker
	Flights    *process.InFlight
	Replicated *replicated.Store
	Link       traffic.Link
	Primary    remote.Primary // where this cluster is a secondary
	Store      *fence.Store
	NoRoom     func() bool // whether the writes of clients have to be rejected, for want of room on the disk
	Logger     *slog.Logger
}

// Pipeline runs requests. Safe for concurrent use.
type Pipeline struct{ Parts }

// New returns the pipeline over its parts.
func New(p Parts) *Pipeline { return &Pipeline{p} }
