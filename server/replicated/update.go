package replicated

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// UpdatePrimary gives a secondary another primary of the same set, by a token or by addresses; without both it forgets the
// one that it has. Data is never wiped.
func (s *Store) UpdatePrimary(ctx context.Context, a registry.Activation, addrs []string) error {
	token := strings.TrimSpace(a.Token.Reveal())
	if token != "" && len(addrs) > 0 {
		return engines.Invalid("fields \"token\" and \"update_primary_addrs\" are mutually exclusive: give one of them")
	}
	r, err := s.Current(ctx)
	if err != nil {
		return err
	}
	if err := following(&r); err != nil {
		return err
	}
	switch {
	case token != "":
		return s.updateByToken(ctx, &r, a)
	case len(addrs) > 0:
		return s.updateByAddrs(ctx, &r, addrs)
	}
	_, err = storage.Update(ctx, s.store, func(tx *storage.Txn) error {
		r, err := roles.Read(ctx, tx)
		if err != nil {
			return err
		}
		forgetUpstream(tx)
		return following(&r)
	})
	return err
}

// following refuses clusters that cannot have a primary.
func following(r *roles.Role) error {
	switch {
	case r.Mode != roles.Secondary:
		return notSecondary(r, "given another primary")
	case r.Wiping:
		return errWiping
	}
	return nil
}

func errOtherSet(field string) error {
	return engines.Invalid("field %q: leads to another replication set: to join it, disable replication here and use secondary/enable, which removes all data of this cluster", field)
}

func (s *Store) updateByToken(ctx context.Context, r *roles.Role, a registry.Activation) error {
	if r.Demoted { // before it follows anybody
		if err := s.writeEnd(ctx, r); err != nil {
			return err
		}
	}
	// A token of another set is not used up.
	if claims, err := enrol.Parse(strings.TrimSpace(a.Token.Reveal())); err == nil && claims.SetID != r.SetID {
		return errOtherSet("token")
	}
	bundle, err := s.registry.Activate(ctx, a)
	if err != nil {
		return err
	}
	if bundle.SetID != r.SetID {
		return errOtherSet("token")
	}
	csr, key, err := s.csr(ctx)
	if err != nil {
		return err
	}
	latest, err := s.others.Latest(ctx, r)
	if err != nil {
		return err
	}
	up, reply, err := s.enrolWith(ctx, bundle, r.ClusterID, latest, csr, key)
	if err != nil {
		return err
	}
	if epoch := reply.Lineage.Epoch(); epoch < latest.Number {
		return olderEpoch("token", epoch, &latest)
	}
	return s.follow(ctx, up)
}

// csr makes a certificate request with the key that this secondary has, if it has one: so it proves to a primary that
// knows it that it is the same cluster.
func (s *Store) csr(ctx context.Context) (csr, key []byte, err error) {
	up, err := traffic.ReadUpstream(ctx, s.store)
	switch {
	case err != nil:
		return nil, nil, err
	case up == nil || len(up.Key) == 0:
		return enrol.NewCSR()
	}
	csr, err = enrol.CSRFor(up.Key)
	return csr, up.Key, err
}

func olderEpoch(field string, epoch uint32, latest *replication.OtherPrimary) error {
	return engines.Invalid("field %q: leads to a cluster that was the primary in epoch %d, and there was a later one (%s): give the address or a token of that", field, epoch, latest.Describe())
}

// follow makes up what this secondary follows.
func (s *Store) follow(ctx context.Context, up *traffic.Upstream) error {
	_, err := s.change(ctx, func(tx *storage.Txn, r *roles.Role) error {
		if err := following(r); err != nil {
			return err
		}
		if up.SetID != r.SetID {
			return errOtherSet("token")
		}
		r.Demoted = false
		forgetUpstream(tx)
		tx.Put(traffic.UpstreamKey, entry.Encode(up))
		return nil
	})
	return err
}

// Limits of the addresses in one request, and of the time that each gets.
const (
	maxAddrs    = 32
	pingTimeout = 5 * time.Second
)

// updateByAddrs asks one address after the other. The first that proves that it is of the same set is the primary from now
// on: its certificate is of the set's CA, or the question fails.
func (s *Store) updateByAddrs(ctx context.Context, r *roles.Role, addrs []string) error {
	if len(addrs) > maxAddrs {
		return engines.Invalid("field \"update_primary_addrs\": has more than %d elements", maxAddrs)
	}
	for i, addr := range addrs {
		addrs[i] = strings.TrimSpace(addr)
		if err := checkAddr("update_primary_addrs", addrs[i]); err != nil || addrs[i] == "" {
			return engines.Invalid("field \"update_primary_addrs\": each must be host:port of a cluster port, without a scheme")
		}
	}
	up, err := traffic.ReadUpstream(ctx, s.store)
	if err != nil {
		return err
	}
	if up == nil {
		return engines.Invalid("this secondary has no certificate of a primary to prove itself with: give it a token")
	}
	var failures []string
	for _, addr := range addrs {
		reply, err := s.ping(ctx, addr, r, up)
		if err != nil {
			failures = append(failures, fmt.Sprintf("%s: %s", addr, TextOf(err)))
			continue
		}
		up.PrimaryID, up.Since = reply.ClusterID, time.Now().UTC()
		up.Addrs = append([]string{addr}, slices.DeleteFunc(slices.Clone(reply.Addrs), func(a string) bool { return a == addr })...)
		return s.follow(ctx, up)
	}
	return engines.Invalid("none of update_primary_addrs is a primary that this secondary can follow: %s", strings.Join(failures, "; "))
}

// ping asks one address who it is.
func (s *Store) ping(ctx context.Context, addr string, r *roles.Role, up *traffic.Upstream) (replication.ActiveReply, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	reply, err := s.link.WhoIsActive(ctx, addr, *up)
	switch {
	case err != nil:
		return reply, err
	case reply.SetID != r.SetID:
		return reply, engines.Invalid("it is of another replication set")
	case reply.ClusterID == r.ClusterID:
		return reply, engines.Invalid("it is this cluster itself")
	case reply.Epoch < r.Lineage.Epoch():
		return reply, engines.Invalid("it was the primary in epoch %d, and there was a later one", reply.Epoch)
	}
	return reply, nil
}

// firstOf returns the first list that is not empty.
func firstOf(lists ...[]string) []string {
	for _, l := range lists {
		if len(l) > 0 {
			return l
		}
	}
	return nil
}
