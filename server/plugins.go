package server

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/passpolicy"
	"github.com/coffer-project/coffer/server/remote"
	"github.com/coffer-project/coffer/storage"
)

// Plugins runs engines that are programs of their own: plugin.Host.
type Plugins interface {
	mount.Plugins
	Routes(r *engines.Router)
	// Stop ends all processes. It is called when the node is not the active one any more.
	Stop()
	// RoleChanged restarts what depends on the role of the cluster if that is another one now. It does not block.
	RoleChanged()
	Numbers() map[string]float64
}

// PluginHost is what plugins see of the server.
type PluginHost struct{ s *Server }

// Store holds everything, in plain text.
func (h PluginHost) Store() storage.Store { return h.s.barrier }

// Active reports whether this node is the active one.
func (h PluginHost) Active() bool { return h.s.Active() }

// Secondary reports whether another cluster writes what is shared.
func (h PluginHost) Secondary() bool { return h.s.Secondary() }

// Cluster returns this cluster's name and id.
func (h PluginHost) Cluster() (name, id string) {
	identity := h.s.node.Identity()
	return identity.Name, identity.ID
}

// Identity reads an object of a namespace's identities as a client would, such as "entity/id/…". nil: there is none.
func (h PluginHost) Identity(ctx context.Context, namespaceID, path string) (json.RawMessage, error) {
	resp, err := h.s.identity.Router().Handle(ctx, &engines.Request{
		Op: engines.Read, Path: path, Mount: engines.Mount{Type: "identity", NamespaceID: namespaceID},
	})
	if e, ok := errors.AsType[*engines.Error](err); ok && e.Kind == engines.KindNotFound {
		return nil, nil
	}
	if err != nil || resp == nil {
		return nil, err
	}
	return resp.EncodedData()
}

// Password makes one by a password policy of a namespace.
func (h PluginHost) Password(ctx context.Context, namespaceID, policy string) (string, error) {
	return passpolicy.NewStore(h.s.barrier).Generate(ctx, namespaceID, policy)
}

// Wrap puts data where the holder of a token finds it.
func (h PluginHost) Wrap(ctx context.Context, m engines.Mount, data json.RawMessage, ttl time.Duration) (*engines.WrapInfo, error) {
	return h.s.wraps.Wrap(ctx, m.NamespaceID, m.Path, ttl, &engines.Response{Data: data})
}

// LeaseAtPrimary has the primary cluster renew, or else revoke, what a lease of this one stands for.
func (h PluginHost) LeaseAtPrimary(ctx context.Context, m engines.Mount, l engines.LeaseRecord, renew bool) (engines.Lease, error) {
	return h.s.primary.Lease(ctx, remote.Lease{MountUUID: m.UUID, Accessor: m.Accessor, NamespaceID: m.NamespaceID, Renew: renew, Record: l})
}
