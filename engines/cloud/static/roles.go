// Package static has the static roles of a mount: each keeps one key of an existing user, and replaces it on time.
//
// A user has one name at most, and a name one user. What is made for a name is noted before (leftover), so that nothing stays at
// the provider that belongs to no role; how a key is made so that it is not lost is in package accesskey. Records below the mount,
// all shared between clusters:
//
//	static/<name>        Role, with its credential
//	static-left/<name>   leftover: keys of a role that is being made, or is gone
//	static-user/<id>     userHolder: which of these names has a user
//
// Start reading at Routes, then create.go, rotate.go, schedule.go.
package static

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/root"
)

// Roles are the static roles of one mount on one node.
type Roles struct {
	log      *slog.Logger
	clients  *root.Clients
	locks    *accesskey.Locks // of the mount, by the role's name
	rotated  *atomic.Int64
	failures *atomic.Int64
	schedule schedule
}

// New returns the static roles of a mount. It counts in rotated the keys that are made, and in failures the rotations that fail.
func New(log *slog.Logger, clients *root.Clients, locks *accesskey.Locks, rotated, failures *atomic.Int64) *Roles {
	return &Roles{log: log, clients: clients, locks: locks, rotated: rotated, failures: failures}
}

// Routes declares the paths of static roles.
func (roles *Roles) Routes(r *engines.Router) {
	engines.On(r, engines.List, "static-roles", "List the static roles.", 0, list).Returns("keys: [string]")
	engines.On(r, engines.Read, "static-roles/{name}", "Read a static role: its user, and when its key was and will be replaced.", 0, read).
		Returns(staticRolesShape)
	engines.On(r, engines.Update, "static-roles/{name}", "Create a static role, with a new key of its user, or change what is given.", engines.Primary, roles.write).
		Returns(staticRolesShape).Exists = exists
	engines.On(r, engines.Delete, "static-roles/{name}", "Delete a static role and its key. The user stays.", engines.Primary, roles.remove)
	engines.On(r, engines.Update, "static-roles/{name}/rotate", "Replace the key of a static role now.", engines.Primary, roles.rotateNow).
		Returns(staticRolesShape)
	engines.On(r, engines.Read, "static-creds/{name}", "Read the key of a static role.", 0, readCreds).
		Returns("access_key, expiration, secret_key")
}

// RotateDue rotates the keys whose time has come, and removes what is left of static roles that are gone.
func (roles *Roles) RotateDue(ctx context.Context, m engines.Mount) error {
	return errors.Join(roles.cleanDue(ctx, m), roles.rotateDue(ctx, m))
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	staticRolesShape = `assume_role_arn, assume_role_session_name, external_id, id, key_created_at, last_error, last_rotation, name,
		next_rotation, rotation_failures: integer, rotation_period: integer, single_key: boolean, username`
)
