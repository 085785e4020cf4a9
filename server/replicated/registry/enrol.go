package registry

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// maxClusterIDBytes limits what a secondary may call itself.
const maxClusterIDBytes = 128

// Enrol answers link.Admission: it redeems a one-time secret, exactly once, and issues the first certificate.
func (r *Registry) Enrol(ctx context.Context, req replication.EnrolRequest) (replication.EnrolReply, error) {
	if req.ClusterID == "" || len(req.ClusterID) > maxClusterIDBytes || !utf8.ValidString(req.ClusterID) {
		return replication.EnrolReply{}, engines.Invalid("the secondary's cluster id is empty, too long or malformed")
	}
	if checkID(req.SecondaryID) != nil {
		return replication.EnrolReply{}, errForeign
	}
	// A request that cannot be signed must not use the secret up.
	key, err := enrol.RequestKey(req.CSR)
	if err != nil {
		return replication.EnrolReply{}, engines.Invalid("%v", err)
	}
	now := r.now().UTC()
	enrolment := randomText(16)
	var reply replication.EnrolReply
	_, err = storage.Update(ctx, r.opts.Store, func(txn *storage.Txn) error {
		role, err := roles.PrimaryRole(ctx, txn)
		if err != nil {
			return err
		}
		ca, err := entry.Fetch[storedCA](ctx, txn, CAKey)
		if err != nil {
			return fmt.Errorf("the replication CA is missing: %w", err)
		}
		rec, err := r.redeemable(ctx, txn, role, req, now)
		if err != nil {
			return err
		}
		if role.YieldsTo(req.Latest.EpochID) && req.Latest.ClusterID != req.ClusterID {
			return &engines.Error{Kind: engines.KindInvalid, Err: ErrLaterPrimary, Detail: "the secondary knows of a later primary, " +
				req.Latest.Describe() + ": give it a token of that"}
		}
		if err := r.claim(ctx, txn, req, key, now); err != nil {
			return err
		}
		if err := r.opts.Primaries.FollowsNow(ctx, txn, req.ClusterID); err != nil {
			return err
		}
		cert, err := ca.SignCSR(req.CSR, enrol.Subject{ID: rec.ID, ClusterID: req.ClusterID, Enrolment: enrolment}, now)
		if err != nil {
			return err
		}
		rec.State, rec.ClusterID, rec.Enrolment, rec.EnrolledAt = Active, req.ClusterID, enrolment, now
		txn.Put(secondaryKey(rec.ID), entry.Encode(rec))
		reply = replication.EnrolReply{Cert: cert, SetID: role.SetID, PrimaryID: role.ClusterID, Lineage: role.Lineage}
		txn.Put(enrolledKey(req.ClusterID), entry.Encode(enrolled{Format: 1, ID: rec.ID, Key: key}))
		return nil
	})
	if err != nil {
		return replication.EnrolReply{}, err
	}
	reply.Addrs, reply.APIAddr = r.opts.Cluster.Addrs(), r.opts.Cluster.APIAddr()
	r.log.Info("a secondary has enrolled", "secondary", req.SecondaryID, "cluster", req.ClusterID)
	return reply, nil
}

// ErrLaterPrimary says that a cluster with a good token knows of a later primary.
var ErrLaterPrimary = errors.New("there is a later primary")

// errForeign is the one answer to who does not know a secret of ours.
var errForeign = engines.Invalid("the activation token is not one of this primary, or was replaced by a later one for the same id")

// redeemable returns the record that a secret is good for. Only who knows the secret is told what became of it.
func (r *Registry) redeemable(ctx context.Context, txn *storage.Txn, role roles.Role, req replication.EnrolRequest, now time.Time) (record, error) {
	rec, err := entry.Fetch[record](ctx, txn, secondaryKey(req.SecondaryID))
	unknown := errors.Is(err, storage.ErrNotFound)
	if err != nil && !unknown {
		return record{}, err
	}
	same := subtle.ConstantTimeCompare(rec.SecretHash, hashSecret(req.Secret)) == 1
	if unknown || !same {
		return record{}, errForeign
	}
	switch {
	case req.SetID != role.SetID:
		return record{}, engines.Invalid("the activation token is of another replication set")
	case rec.State == Active:
		return record{}, engines.Invalid("the activation token was already used: revoke the secondary on the primary and get a new one")
	case rec.State == Revoked:
		return record{}, engines.Invalid("the secondary was revoked: get a new activation token")
	case rec.State != Issued:
		return record{}, fmt.Errorf("secondary %q has the unknown state %q", rec.ID, rec.State)
	case !now.Before(rec.ExpiresAt):
		return record{}, engines.Invalid("the activation token has expired: get a new one")
	case req.ClusterID == role.ClusterID:
		return record{}, engines.Invalid("a cluster cannot be its own secondary")
	}
	return rec, nil
}

// claim looks that the cluster's id is the sender's. Cluster ids are no secrets, and filters go by them: a cluster that was
// invited must not get what another cluster may have, by using its id. An id is free until a cluster has enrolled with it.
// From then on it is for who comes with the same opaque id, because the primary's operator has invited that again, or
// with the same key: that one may have another opaque id, and the enrolment before ends.
func (r *Registry) claim(ctx context.Context, txn *storage.Txn, req replication.EnrolRequest, key string, now time.Time) error {
	if req.ClusterID != req.SecondaryID {
		switch _, err := txn.Get(ctx, secondaryKey(req.ClusterID)); {
		case err == nil:
			return engines.Invalid("the cluster's id is the opaque id of another secondary, which should be revoked and get another")
		case !errors.Is(err, storage.ErrNotFound):
			return err
		}
	}
	last, err := entry.Fetch[enrolled](ctx, txn, enrolledKey(req.ClusterID))
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return nil
	case err != nil:
		return err
	case last.ID == req.SecondaryID:
		return nil
	case last.Key != key:
		return engines.Invalid("the cluster is known as secondary %q and does not have the key of that: revoke that one on the primary and get a token for the same id", last.ID)
	}
	if err := filter.Inherit(ctx, txn, last.ID, req.SecondaryID); err != nil {
		return err
	}
	before, err := entry.Fetch[record](ctx, txn, secondaryKey(last.ID))
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return nil
	case err != nil:
		return err
	case before.State == Active && before.ClusterID == req.ClusterID:
		before.State, before.RevokedAt = Revoked, now
		txn.Put(secondaryKey(before.ID), entry.Encode(before))
	}
	return nil
}

// Renew answers link.Admission: it issues another certificate of the same enrolment.
func (r *Registry) Renew(ctx context.Context, p roles.Peer, csr []byte) ([]byte, error) {
	if _, err := roles.PrimaryRole(ctx, r.opts.Store); err != nil {
		return nil, err
	}
	t, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	rec, ok := t.secondaries[p.ID]
	switch {
	case !ok || rec.ClusterID != p.ClusterID:
		return nil, ErrStranger
	case rec.State != Active:
		return nil, ErrRevoked
	case t.ca == nil:
		return nil, errNoCA
	}
	cert, err := t.ca.SignCSR(csr, enrol.Subject{ID: rec.ID, ClusterID: rec.ClusterID, Enrolment: rec.Enrolment}, r.now())
	if errors.Is(err, enrol.ErrRequest) {
		return nil, engines.Invalid("%v", err)
	}
	return cert, err
}
