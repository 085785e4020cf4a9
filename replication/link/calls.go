package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/transport"
	"github.com/coffer-project/coffer/replication/wire"
	"github.com/coffer-project/coffer/storage"
)

// patience is how long a Call waits for a connection to the primary.
const patience = 5 * time.Second

// Call has something done by the primary that this cluster follows; the answer's position is to be waited for with
// AwaitCursor. storage.ErrUnavailable: nothing was done; storage.ErrOutcomeUnknown: it may have been, or may be later;
// *Refusal: the primary's answer.
func (l *Link) Call(ctx context.Context, kind string, payload []byte) (answer []byte, at storage.Position, err error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var reply *pb.CallReply
		again, err := l.upstream(ctx, func(ctx context.Context, c *transport.Client) error {
			var err error
			reply, err = c.Call(ctx, &pb.CallRequest{Kind: kind, Payload: payload})
			return err
		})
		if err == nil {
			var d wire.Decoder
			return reply.GetAnswer(), d.Position(reply.GetAt()), d.Err
		}
		if again == nil || !errors.Is(err, storage.ErrUnavailable) {
			return nil, storage.Position{}, err
		}
		select {
		case <-again:
		case <-time.After(l.o.timing.tick):
		case <-waiting.Done():
			return nil, storage.Position{}, err
		}
	}
}

// Enrol trades a one-time secret and a certificate request for a certificate, at the first address that answers. A
// *Refusal is the primary's answer.
func (l *Link) Enrol(ctx context.Context, addrs []string, ca []byte, req replication.EnrolRequest) (replication.EnrolReply, error) {
	id, err := transport.NewIdentity(ca, nil, nil)
	if err != nil {
		return replication.EnrolReply{}, err
	}
	var reply *pb.EnrolReply
	err = transport.AnyOf(ctx, addrs, id, func(ctx context.Context, c *transport.Client) error {
		var err error
		reply, err = c.Enrol(ctx, &pb.EnrolRequest{
			SetId: req.SetID, ClusterId: req.ClusterID, SecondaryId: req.SecondaryID, Secret: req.Secret, Csr: req.CSR,
			Latest: wire.EncodeOtherPrimary(req.Latest),
		})
		return err
	})
	if err != nil {
		return replication.EnrolReply{}, fmt.Errorf("enrolling at the primary: %w", err)
	}
	var d wire.Decoder
	out := replication.EnrolReply{
		Cert: reply.GetCert(), SetID: d.ID(reply.GetSetId()), PrimaryID: d.ID(reply.GetPrimaryId()), Lineage: d.Lineage(reply.GetLineage()),
		Addrs: d.Addrs(reply.GetAddrs()), APIAddr: reply.GetApiAddr(),
	}
	return out, d.Err
}

// WhoIsActive asks one address of a primary, with the certificate of up: any node of it answers.
func (l *Link) WhoIsActive(ctx context.Context, addr string, up replication.Upstream) (replication.ActiveReply, error) {
	id, err := transport.NewIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		return replication.ActiveReply{}, err
	}
	c, err := id.Dial(addr)
	if err != nil {
		return replication.ActiveReply{}, err
	}
	defer c.Close()
	var reply *pb.WhoIsActiveReply
	err = transport.Unary(ctx, func(ctx context.Context) error {
		var err error
		reply, err = c.WhoIsActive(ctx, &pb.WhoIsActiveRequest{})
		return err
	})
	if err != nil {
		return replication.ActiveReply{}, err
	}
	var d wire.Decoder
	out := replication.ActiveReply{
		SetID: d.ID(reply.GetSetId()), ClusterID: d.ID(reply.GetClusterId()), Epoch: reply.GetEpoch(), Active: reply.GetActive(),
		ActiveAddr: reply.GetActiveAddr(), Addrs: d.Addrs(reply.GetAddrs()),
	}
	return out, d.Err
}

// Announce tells a former primary of a later one of its set. The certificate of up may have expired.
func (l *Link) Announce(ctx context.Context, up replication.Upstream, a replication.Announcement) (replication.AnnounceReply, error) {
	id, err := transport.NewIdentity(up.CA, up.Cert, up.Key)
	if err != nil {
		return replication.AnnounceReply{}, err
	}
	var reply *pb.AnnounceReply
	err = transport.AnyOf(ctx, up.Addrs, id, func(ctx context.Context, c *transport.Client) error {
		var err error
		reply, err = c.Announce(ctx, &pb.AnnounceRequest{SetId: a.SetID, Primary: wire.EncodeOtherPrimary(a.OtherPrimary), Claim: a.Claim})
		return err
	})
	if err != nil {
		return replication.AnnounceReply{}, err
	}
	var d wire.Decoder
	out := replication.AnnounceReply{EpochID: d.OtherPrimary(reply.GetSelf()).EpochID, Primary: reply.GetPrimary(), Fenced: reply.GetFenced()}
	for _, o := range reply.GetOthers() {
		out.Others = append(out.Others, d.OtherPrimary(o))
	}
	return out, d.Err
}
