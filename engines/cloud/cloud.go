// Package cloud is the secrets engine of credentials for a cloud provider: it creates users and keys on request and removes
// them when their lease ends, issues temporary credentials of roles, and rotates the keys of existing users.
//
// Nothing created at the provider is lost: a record of it is stored before it is created (rollback.go), and deleted in the
// commit that stores the lease or the static role. A new key is stored before the old one is deleted. Records below the
// mount:
//
//	config/root          root.Root: how to reach the provider; shared between clusters
//	config/lease         leaseTerms; shared
//	role/<name>          role.Role; shared
//	config/rotation      rotation: of the root key, not finished; shared
//	static/, static-left/, static-user/: of static roles, see package static; shared
//
// and, of each cluster on its own (Mount.ClusterStorage):
//
//	rollback/<id>        rollback: what may have been made and belongs to nothing yet
//	issued/<role>/<user> issued: a user that counts against max_users
//
// The package aws speaks to the provider; awstest is a provider for tests. Start reading at New, then creds.go, revoke.go,
// rotate.go, and package static.
package cloud

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/engines/cloud/static"
)

// Options are what every mount of a node shares. The zero value works.
type Options struct {
	Logger *slog.Logger // nil: discard
	Counts *Counts      // nil: not counted
}

// Counts are what the mounts of a node have done since it started. Safe for concurrent use.
type Counts struct {
	Issued         atomic.Int64 // credentials, of all types
	Revoked        atomic.Int64 // users removed
	Rotated        atomic.Int64 // static and root keys
	RotateFailures atomic.Int64
	RolledBack     atomic.Int64 // things made at the provider that belonged to nothing
}

// Numbers returns the counts by name, for the metrics.
func (c *Counts) Numbers() map[string]float64 {
	return map[string]float64{
		"cloud_credentials_issued_total":  float64(c.Issued.Load()),
		"cloud_users_removed_total":       float64(c.Revoked.Load()),
		"cloud_keys_rotated_total":        float64(c.Rotated.Load()),
		"cloud_rotation_failures_total":   float64(c.RotateFailures.Load()),
		"cloud_rollbacks_completed_total": float64(c.RolledBack.Load()),
	}
}

// engine is one mount on one node.
type engine struct {
	router  *engines.Router
	log     *slog.Logger
	counts  *Counts
	clients *root.Clients
	locks   accesskey.Locks
	static  *static.Roles
	// counting is held while users are counted and one more is noted.
	counting sync.Mutex
}

// Router implements engines.Engine.
func (e *engine) Router() *engines.Router { return e.router }

// New returns the engines.Factory. Its engines are engines.Leaser, engines.Worker and engines.Leaver.
func New(o Options) engines.Factory {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Counts == nil {
		o.Counts = new(Counts)
	}
	return func(m engines.Mount) (engines.Engine, error) {
		return newEngine(o.Logger.With("mount", m.Namespace+m.Path), o.Counts, m), nil
	}
}

func newEngine(log *slog.Logger, counts *Counts, m engines.Mount) *engine {
	e := &engine{router: engines.NewRouter(), log: log, counts: counts, clients: root.NewClients(log, m)}
	e.static = static.New(log, e.clients, &e.locks, &counts.Rotated, &counts.RotateFailures)
	r := e.router

	root.Routes(r, rotationData)
	engines.On(r, engines.Update, "config/rotate-root", "Replace the root key by a new one, which only this server knows.", engines.Primary, e.rotateRoot).
		Returns("access_key")
	engines.On(r, engines.Read, "config/lease", "Read how long credentials of users last.", 0, readLease).Returns("lease, lease_max")
	engines.On(r, engines.Update, "config/lease", "Say how long credentials of users last.", 0, writeLease)

	role.Routes(r)

	e.static.Routes(r)

	const here = engines.ClusterLocal | engines.Active // each cluster makes its own users and leases
	engines.On(r, engines.Read, "creds/{name}", "Get credentials of a role.", here, e.issue("creds")).Returns(credsShape)
	engines.On(r, engines.Update, "creds/{name}", "Get credentials of a role.", here, e.issue("creds")).Returns(credsShape)
	engines.On(r, engines.Read, "sts/{name}", "Get credentials of a role: temporary ones, if it was made with a legacy parameter.", here, e.issue("sts")).
		Returns(credsShape)
	engines.On(r, engines.Update, "sts/{name}", "Get credentials of a role: temporary ones, if it was made with a legacy parameter.", here, e.issue("sts")).
		Returns(credsShape)
	engines.On(r, engines.List, "rollbacks", "List what may have been made at the provider, belongs to nothing, and is to be undone.", engines.ClusterLocal, listRollbacks).
		Returns("key_info: {*: {account, attempts: integer, created_at, id, kind, last_error, next_attempt, user}}, keys: [string]")
	engines.On(r, engines.Read, "rollbacks/{id}", "Read a rollback: what it is about, and why it has not succeeded yet.", engines.ClusterLocal, readRollback).
		Returns("account, attempts: integer, created_at, id, kind, last_error, next_attempt, user")
	return e
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	credsShape = "access_key, arn, secret_key, security_token: string?, session_token: string?, ttl: integer"
)
