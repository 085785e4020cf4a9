// Package cloud is the secrets engine of credentials for a cloud provider: it creates users and keys on request and removes
// them when their lease ends, issues temporary credentials of roles, and rotates the keys of existing users.
//
// Nothing created at the provider is lost: a record of it is stored before it is created (rollback.go), and deleted in the
// commit that stores the lease or the static role. A new key is stored before the old one is deleted. Records below the
// mount:
//
//	config/root          root: how to reach the provider; shared between clusters
//	config/lease         leaseTerms; shared
//	role/<name>          role; shared
//	config/rotation      rotation: of the root key, not finished; shared
//	static/<name>        staticRole, with its credential; shared
//	static-left/<name>   leftover: keys of a static role that is being made, or is gone; shared
//	static-user/<id>     staticUser: which of these names has a user; shared
//
// and, of each cluster on its own (Mount.ClusterStorage):
//
//	rollback/<id>        rollback: what may have been made and belongs to nothing yet
//
// The package aws speaks to the provider; awstest is a provider for tests. Start reading at New, then creds.go, revoke.go,
// static.go, rotate.go.
package cloud

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
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
	router *engines.Router
	log    *slog.Logger
	counts *Counts
	client clients
	making sync.RWMutex // read-locked while a user is created or a key lock is held, see begin; write-locked by Leave

	keyLocks namedLocks // of static roles, by name, and of the root key
	schedule schedule
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
		return newEngine(o.Logger.With("mount", m.Namespace+m.Path), o.Counts), nil
	}
}

func newEngine(log *slog.Logger, counts *Counts) *engine {
	e := &engine{router: engines.NewRouter(), log: log, counts: counts}
	r := e.router

	engines.On(r, engines.Read, "config/root", "Read the root configuration, without its secret key.", 0, readRoot)
	engines.On(r, engines.Update, "config/root", "Configure how the provider is reached. What is left out goes back to its default.", 0, writeRoot)
	engines.On(r, engines.Update, "config/rotate-root", "Replace the root key by a new one, which only this server knows.", engines.Primary, e.rotateRoot)
	engines.On(r, engines.Read, "config/lease", "Read how long credentials of users last.", 0, readLease)
	engines.On(r, engines.Update, "config/lease", "Say how long credentials of users last.", 0, writeLease)

	engines.On(r, engines.List, "roles", "List the roles.", 0, listRoles)
	engines.On(r, engines.Read, "roles/{name}", "Read a role.", 0, readRole)
	engines.On(r, engines.Update, "roles/{name}", "Create a role, or change what is given.", 0, writeRole).Exists = roleExists
	engines.On(r, engines.Delete, "roles/{name}", "Delete a role. Credentials that it issued live on until they expire.", 0, deleteRole)

	engines.On(r, engines.List, "static-roles", "List the static roles.", 0, listStatic)
	engines.On(r, engines.Read, "static-roles/{name}", "Read a static role: its user, and when its key was and will be replaced.", 0, readStatic)
	engines.On(r, engines.Update, "static-roles/{name}", "Create a static role, with a new key of its user, or change what is given.", engines.Primary, e.writeStatic).Exists = staticExists
	engines.On(r, engines.Delete, "static-roles/{name}", "Delete a static role and its key. The user stays.", engines.Primary, e.deleteStatic)
	engines.On(r, engines.Update, "static-roles/{name}/rotate", "Replace the key of a static role now.", engines.Primary, e.rotateStatic)
	engines.On(r, engines.Read, "static-creds/{name}", "Read the key of a static role.", 0, readStaticCreds)

	const here = engines.ClusterLocal | engines.Active // each cluster makes its own users and leases
	engines.On(r, engines.Read, "creds/{name}", "Get credentials of a role.", here, e.issue("creds"))
	engines.On(r, engines.Update, "creds/{name}", "Get credentials of a role.", here, e.issue("creds"))
	engines.On(r, engines.Read, "sts/{name}", "Get credentials of a role: temporary ones, if it was made with a legacy parameter.", here, e.issue("sts"))
	engines.On(r, engines.Update, "sts/{name}", "Get credentials of a role: temporary ones, if it was made with a legacy parameter.", here, e.issue("sts"))
	engines.On(r, engines.List, "rollbacks", "List what may have been made at the provider, belongs to nothing, and is to be undone.", engines.ClusterLocal, listRollbacks)
	engines.On(r, engines.Read, "rollbacks/{id}", "Read a rollback: what it is about, and why it has not succeeded yet.", engines.ClusterLocal, readRollback)
	return e
}
