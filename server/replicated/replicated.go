// Package replicated is this cluster's place in performance replication: whether it is a primary, a secondary or neither,
// who may follow it and what of it.
//
// What it keeps is class l, behind the barrier, below l/replication/: the Role, which is one entry that every shared write
// has as a precondition, so that a change of role stops such writes at one index; the replication CA and the registry of
// secondaries on a primary; what belongs to the connection on a secondary. The traffic itself is behind traffic.Link, which
// package replication fulfils.
//
// This package has the Store, which makes the changes of role and does what follows from them. What it is made of is below: roles (what
// the cluster is), registry (who may follow it), filter and scopes (what of it), traffic (the connections), primaries (which
// other clusters are primaries of the set, or were); api has the paths by which operators change it. Start
// reading at roles.Role, then Store, then states.go.
package replicated

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Keys of what is kept. Local to the cluster.
const (
	seenKeys storage.Key = "l/replication/seen/" // + hex of a secondary's opaque id
	// cursorKey is the entry without which package replication applies nothing.
	cursorKey = ProgressPrefix + "cursor"
	// ProgressPrefix is where package replication keeps a secondary's cursor, units and conflicts.
	ProgressPrefix storage.Key = "l/replication/progress/"
)

// WrappingToken returns the wrapping token of an activation token that this primary has signed, exactly as it is. Nothing is
// used up. Its errors are for the operator of the secondary.
func (s *Store) WrappingToken(ctx context.Context, token string) (engines.Sensitive, error) {
	return s.registry.WrappingToken(ctx, token)
}
