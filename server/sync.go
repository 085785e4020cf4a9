package server

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// SecretSync is what serves sys/sync.
type SecretSync interface {
	Routes(r *engines.Router)
	// Changed takes every applied change, on every node.
	Changed(ch storage.Change)
	// Run works until ctx ends. The active node calls it.
	Run(ctx context.Context)
	// RoleChanged tells that Host.Owner may answer otherwise now.
	RoleChanged()
	// MountGone and NamespaceGone are called before the data of a mount, or of a namespace, is deleted. Their error keeps it.
	MountGone(ctx context.Context, uuid string) error
	NamespaceGone(ctx context.Context, id string) error
	Numbers() map[string]float64
}

// host is what secret sync sees of the server.
type host struct{ s *Server }

func (h host) Store() storage.Store { return h.s.barrier }

func (h host) Owner() bool { return !h.s.Secondary() }

// FormatsAgreed implements engines.Host.
func (h host) FormatsAgreed() bool {
	c := h.s.node.Cluster()
	return c != nil && c.FormatsAgreed()
}

func (h host) MountAt(ctx context.Context, ns, path string) (*engines.Mounted, error) {
	m, err := h.s.mounts.Get(ctx, ns, strings.TrimSuffix(path, "/")+"/")
	if m == nil && err == nil {
		m, err = h.s.mounts.ByAccessor(ctx, ns, path)
	}
	return mountedOf(m), err
}

func (h host) MountOf(ctx context.Context, uuid string) (*engines.Mounted, error) {
	m, err := h.s.mounts.ByUUID(ctx, uuid)
	return mountedOf(m), err
}

func mountedOf(m *mount.Mounted) *engines.Mounted {
	if m == nil || m.Deleting || m.Engine == nil {
		return nil
	}
	return &engines.Mounted{Mount: m.Mount, Engine: m.Engine}
}

func (h host) Namespaces(ctx context.Context) ([]string, error) {
	all, err := h.s.namespaces.Everything(ctx)
	slices.SortFunc(all, func(a, b *namespace.Namespace) int { return strings.Compare(a.Path, b.Path) })
	ids := make([]string, len(all))
	for i, n := range all {
		ids[i] = n.ID
	}
	return ids, err
}

func (h host) NamespacePath(id string) string { return h.s.namespaces.Path(id) }

// MayRead implements engines.Host: a token with the policies and the entity would be allowed to.
func (h host) MayRead(ctx context.Context, who engines.Principal, ns, path string) (bool, error) {
	acl, err := h.s.rights.In(ctx, &token.Entry{Namespace: who.NamespaceID, Policies: who.Policies, EntityID: who.EntityID}, ns)
	var e *engines.Error
	switch {
	case errors.As(err, &e) && e.Kind == engines.KindDenied:
		return false, nil
	case err != nil:
		return false, err
	}
	return acl.Allowed(engines.Read, path), nil
}

// IdentityToken implements engines.Host.
func (h host) IdentityToken(ctx context.Context, ns, subject, audience string, ttl time.Duration) (engines.Sensitive, error) {
	return h.s.issuer.Token(ctx, ns, subject, audience, ttl)
}

// Record implements engines.Host: both audit records, with an id of their own.
func (h host) Record(ctx context.Context, e engines.Event) error {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return err
	}
	r := &record.Record{
		Auth: &record.Auth{DisplayName: e.Who.DisplayName, EntityID: e.Who.EntityID, TokenPolicies: e.Who.Policies, Policies: e.Who.Policies},
		Request: record.Request{
			ID: uuid.NewString(), Operation: string(e.Operation), MountType: "system", MountPoint: "sys/", MountClass: "system",
			NamespaceID: e.NamespaceID, NamespacePath: h.s.namespaces.Path(e.NamespaceID), Path: e.Path, Data: data,
		},
		Error: e.Error,
	}
	if err := h.s.audit.Broker().Request(ctx, r); err != nil {
		return err
	}
	return h.s.audit.Broker().Response(ctx, r)
}
