package pipeline

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/server/remote"
	"github.com/coffer-project/coffer/server/replicated/roles"
)

// leaseOf revokes or renews at the engine of a shared mount what a lease of a secondary stands for: the engine writes shared data for it.
func (p *Pipeline) leaseOf(ctx context.Context, peer roles.Peer, scope remote.Scope, payload []byte) (*remote.LeaseAnswer, error) {
	var r remote.Lease
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, engines.Invalid("the lease of the secondary cannot be read")
	}
	path := "sys/leases/revoke-on-secondary"
	if r.Renew {
		path = "sys/leases/renew-on-secondary"
	}
	data, err := json.Marshal(map[string]string{"lease_id": r.Record.ID})
	if err != nil {
		return nil, err
	}
	done := &record.Record{Request: record.Request{
		ID: uuid.NewString(), Operation: string(engines.Update), Path: path, Data: data, ForwardedFrom: "secondary " + peer.ID,
		NamespaceID: r.NamespaceID, MountAccessor: r.Accessor, MountClass: "secret",
	}}
	if err := p.Audit.Request(ctx, done); err != nil {
		return nil, p.unrecorded("lease of a secondary refused: it could not be recorded", done.Request.ID, err)
	}
	terms, err := p.leaseAt(ctx, scope, r)
	done.Error = clientText(err)
	if err := p.Audit.Response(ctx, done); err != nil {
		return nil, p.unrecorded("lease of a secondary withheld: it could not be recorded", done.Request.ID, err)
	}
	if failure := remote.FailureOf(err); failure != nil {
		return &remote.LeaseAnswer{Failure: failure}, nil
	}
	return &remote.LeaseAnswer{Terms: terms}, err
}

func (p *Pipeline) leaseAt(ctx context.Context, scope remote.Scope, r remote.Lease) (terms engines.Lease, err error) {
	m, err := p.Mounts.ByAccessor(ctx, r.NamespaceID, r.Accessor)
	if err != nil {
		return terms, err
	}
	if m == nil || m.Mount.Local || m.UUID != r.MountUUID || !scope.Mount(m.UUID) || !scope.Namespace(r.NamespaceID) {
		return terms, engines.Denied(errors.New("the mount is not one of the secondary's"))
	}
	leaser, ok := m.Engine.(engines.Leaser)
	if !ok {
		return terms, engines.Invalid("the mount has no leases")
	}
	if err := m.Hold(); err != nil {
		return terms, err
	}
	defer m.Release()
	if r.Renew {
		return leaser.RenewLease(ctx, m.Mount, r.Record)
	}
	return terms, leaser.RevokeLease(ctx, m.Mount, r.Record)
}
