package traffic

import (
	"context"
	"fmt"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/storage"
)

// Offline is the Link of a server that has none: everything that needs another cluster is unavailable.
type Offline struct{}

var errOffline = fmt.Errorf("%w: this server has no connection to other clusters", storage.ErrUnavailable)

// Follow implements Link.
func (Offline) Follow(ctx context.Context, _, _ string, _ storage.Lineage, _ Upstream, _ replication.FollowEvents) error {
	<-ctx.Done()
	return ctx.Err()
}

// Active implements Link.
func (Offline) Active(ctx context.Context) { <-ctx.Done() }

// Keep implements Link.
func (Offline) Keep(context.Context, bool) error { return nil }

// Enrol implements Link.
func (Offline) Enrol(context.Context, []string, []byte, replication.EnrolRequest) (replication.EnrolReply, error) {
	return replication.EnrolReply{}, errOffline
}

// Announce implements Link.
func (Offline) Announce(context.Context, Upstream, replication.Announcement) (replication.AnnounceReply, error) {
	return replication.AnnounceReply{}, errOffline
}

// WhoIsActive implements Link.
func (Offline) WhoIsActive(context.Context, string, Upstream) (replication.ActiveReply, error) {
	return replication.ActiveReply{}, errOffline
}

// Call implements Link.
func (Offline) Call(context.Context, string, []byte) ([]byte, storage.Position, error) {
	return nil, storage.Position{}, errOffline
}

// AwaitCursor implements Link.
func (Offline) AwaitCursor(context.Context, storage.Position) error { return errOffline }

// Cursor implements Link.
func (Offline) Cursor(context.Context) (storage.Position, error) {
	return storage.Position{}, errOffline
}

// Refresh implements Link.
func (Offline) Refresh() {}

// FollowStatus implements Link.
func (Offline) FollowStatus() FollowStatus { return FollowStatus{State: "disconnected"} }

// SessionStatus implements Link.
func (Offline) SessionStatus() []SessionStatus { return nil }

// Head implements Link.
func (Offline) Head() storage.Index { return 0 }

// Oldest implements Link.
func (Offline) Oldest() storage.Index { return 0 }

// Root implements Link.
func (Offline) Root() string { return "" }

// Repair implements Link.
func (Offline) Repair(string) error { return errOffline }

// Conflicts implements Link.
func (Offline) Conflicts(context.Context) ([]Conflict, error) { return nil, nil }

// Reset implements Link.
func (Offline) Reset(context.Context) error { return nil }

// SetCursor implements Link.
func (Offline) SetCursor(context.Context, storage.Position, storage.Lineage, []string) error {
	return errOffline
}

// Units implements Link.
func (Offline) Units(context.Context) (map[string]bool, error) { return nil, nil }
