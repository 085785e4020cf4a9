// Package primaries is what a cluster knows of the other primaries of its set: those that it has met and that are not of its history,
// and those whose place it has taken and that may not know it.
//
// It promises that two clusters that both take themselves for the primary come to know of each other as soon as any cluster can reach
// both, and that the one of the earlier epoch is fenced. server/replicated makes the changes of role. Start reading at Known.
package primaries

import (
	"context"
	"log/slog"
	"sync"

	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// Options of Known. All are required.
type Options struct {
	Store   storage.Store // plaintext, without any fence
	Link    traffic.Enroller
	Cluster Cluster
	Logger  *slog.Logger
}

// Cluster is this cluster.
type Cluster interface {
	Current(ctx context.Context) (roles.Role, error) // the role, as of the last applied change
	RoleWritten()                                    // to be called after the role was written
	APIAddr() string
}

// Known are the other primaries of the set. Safe for concurrent use.
type Known struct {
	o        Options
	wake     chan struct{} // that a former primary is to be told of the latest one; capacity 1, level-triggered, never closed
	attempts attempts
	claims   sync.Mutex // held while a claim is looked at
}

// New returns what a cluster knows.
func New(o Options) *Known { return &Known{o: o, wake: make(chan struct{}, 1)} }

// Wake makes Announce try again at once.
func (k *Known) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}
