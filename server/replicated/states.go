package replicated

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/primaries"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/scopes"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
	"github.com/google/uuid"
)

// The changes of role. Each is one commit: who reads the role sees all of one or nothing of it. What has to follow, on the
// link and in what is stored beside the role, is repeated by Run until it is done, so that a crash after the commit loses
// nothing.

// checkAddr refuses what is not host:port.
func checkAddr(field, addr string) error {
	if addr == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 || strings.ContainsAny(host, "/ @") {
		return engines.Invalid("field %q: must be host:port of the cluster port, such as \"coffer.example.com:8201\", without a scheme", field)
	}
	return nil
}

// newClusterID returns the id of a cluster that joins or makes a set: its own at first, and another one after replication
// was disabled.
func (s *Store) newClusterID(r *roles.Role) string {
	if id := s.opts.Node.ClusterID(); id != "" && !r.WasUsed {
		return id
	}
	return uuid.NewString()
}

// EnablePrimary makes a cluster without replication the first primary of a new set.
func (s *Store) EnablePrimary(ctx context.Context, addr string) error {
	if err := checkAddr("primary_cluster_addr", addr); err != nil {
		return err
	}
	disabled := func(r *roles.Role) error {
		switch r.Mode {
		case roles.Primary:
			return engines.Invalid("this cluster is already a replication primary")
		case roles.Secondary:
			return engines.Invalid("this cluster is a replication secondary: make it the primary with secondary/promote")
		}
		return nil
	}
	if err := s.ready(ctx, disabled); err != nil {
		return err
	}
	if err := s.forgetSecondaries(ctx); err != nil {
		return err
	}
	ca, err := enrol.NewCA(time.Now())
	if err != nil {
		return err
	}
	_, err = s.change(ctx, func(tx *storage.Txn, r *roles.Role) error {
		if err := disabled(r); err != nil {
			return err
		}
		id := s.newClusterID(r)
		*r = roles.Role{
			Mode: roles.Primary, ClusterID: id, SetID: uuid.NewString(), Addr: addr, Since: time.Now().UTC(),
			// Values that came from an earlier set have positions of its epochs: this one's are others. All that was written
			// here counts to it.
			Lineage: storage.Lineage{{Epoch: r.LastEpoch + 1, ClusterID: id, Base: 1}},
		}
		registry.PutCA(tx, ca)
		forgetUpstream(tx)
		return nil
	})
	return err
}

// ready reports early what would be refused in the transaction.
func (s *Store) ready(ctx context.Context, check func(*roles.Role) error) error {
	r, err := s.Current(ctx)
	if err != nil {
		return err
	}
	return check(&r)
}

// forgetSecondaries removes the registry, the filters and what was seen of secondaries: before a cluster becomes a primary, and after it was one.
func (s *Store) forgetSecondaries(ctx context.Context) error {
	if err := s.registry.Empty(ctx); err != nil {
		return err
	}
	if err := storage.DeletePrefix(ctx, s.store, seenKeys); err != nil {
		return err
	}
	return storage.DeletePrefix(ctx, s.store, filter.Prefix)
}

// forgetUpstream removes what a cluster knows of a primary.
func forgetUpstream(tx *storage.Txn) {
	tx.Delete(traffic.UpstreamKey)
	tx.Delete(scopes.GivenKey)
	tx.Delete(registry.InviteKey)
}

// Demote makes the primary a secondary that follows no primary. The CA and the secondaries stay, so that these get what was
// written last.
func (s *Store) Demote(ctx context.Context) error {
	r, err := s.change(ctx, func(tx *storage.Txn, r *roles.Role) error {
		if r.Mode != roles.Primary {
			return notPrimary(r, "demoted")
		}
		r.Mode, r.Demoted, r.Since = roles.Secondary, true, time.Now().UTC()
		r.Fenced, r.FencedBy, r.FencedAPI = 0, "", ""
		forgetUpstream(tx)
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.writeEnd(ctx, &r); err != nil {
		s.log.Warn("the cursor of a demoted cluster is not set yet", "err", err) // Run does it
	}
	return nil
}

func notPrimary(r *roles.Role, what string) error {
	return engines.Invalid("this cluster is not a replication primary (mode: %s): only a primary can be %s", r.Mode, what)
}

func notSecondary(r *roles.Role, what string) error {
	return engines.Invalid("this cluster is not a replication secondary (mode: %s): only a secondary can be %s", r.Mode, what)
}

// writeEnd makes the cursor of a demoted cluster say how far it is: it holds all that the set had when it ceased to be
// the primary, and every shared write before the entry of its role.
func (s *Store) writeEnd(ctx context.Context, r *roles.Role) error {
	// The request that demotes and Run would both write it, and one of them would meet a conflict.
	s.cursorMu.Lock()
	defer s.cursorMu.Unlock()
	if at, err := s.link.Cursor(ctx); err != nil || at == r.End() {
		return err
	}
	scope, err := s.Resolve(ctx)
	if err != nil {
		return err
	}
	units := slices.Sorted(maps.Keys(scope.Units))
	return s.link.SetCursor(ctx, r.End(), r.Lineage, units)
}

// DisablePrimary and DisableSecondary end replication for this cluster. The data stays. What they leave behind is removed by
// Run, which first stops following.
func (s *Store) DisablePrimary(ctx context.Context) error { return s.disable(ctx, roles.Primary) }

// DisableSecondary is as DisablePrimary, of a secondary.
func (s *Store) DisableSecondary(ctx context.Context) error { return s.disable(ctx, roles.Secondary) }

func (s *Store) disable(ctx context.Context, mode roles.Mode) error {
	_, err := s.change(ctx, func(tx *storage.Txn, r *roles.Role) error {
		switch {
		case r.Mode != mode && mode == roles.Primary:
			return notPrimary(r, "disabled here")
		case r.Mode != mode:
			return notSecondary(r, "disabled here")
		case r.Wiping:
			return errWiping
		}
		*r = roles.Role{
			Mode: roles.Disabled, ClusterID: r.ClusterID, WasUsed: true, LastEpoch: max(r.LastEpoch, r.Lineage.Epoch()), Since: time.Now().UTC(),
		}
		tx.Delete(registry.CAKey)
		tx.Delete(primaries.MetKey)
		forgetUpstream(tx)
		return s.opts.Secrets.Parted(ctx, tx)
	})
	return err
}

var errWiping = engines.Invalid("what this cluster held before it became a secondary is still being removed: try again in a moment")

// cleanUp removes what a cluster without replication does not need. It may be repeated.
func (s *Store) cleanUp(ctx context.Context) error {
	if err := s.forgetSecondaries(ctx); err != nil {
		return err
	}
	if err := storage.DeletePrefix(ctx, s.store, primaries.FormerKeys); err != nil {
		return err
	}
	return s.link.Reset(ctx)
}

// EnableSecondary makes a cluster without replication a secondary. Nothing changes before the token has proved good and the
// primary has enrolled this cluster; then everything that the cluster holds is removed.
func (s *Store) EnableSecondary(ctx context.Context, a registry.Activation) error {
	disabled := func(r *roles.Role) error {
		switch r.Mode {
		case roles.Primary:
			return engines.Invalid("this cluster is a replication primary: to follow another cluster of the same set, demote it and use update-primary; to join another set, disable it first")
		case roles.Secondary:
			return engines.Invalid("this cluster is already a replication secondary: give it another primary with update-primary, or disable it first to join another set")
		}
		return nil
	}
	r, err := s.Current(ctx)
	if err != nil {
		return err
	}
	if err := disabled(&r); err != nil {
		return err
	}
	bundle, err := s.registry.Activate(ctx, a)
	if err != nil {
		return err
	}
	id := s.newClusterID(&r)
	csr, key, err := enrol.NewCSR()
	if err != nil {
		return err
	}
	up, reply, err := s.enrolWith(ctx, bundle, id, replication.OtherPrimary{}, csr, key)
	if err != nil {
		return err
	}
	_, err = s.change(ctx, func(tx *storage.Txn, now *roles.Role) error {
		if err := disabled(now); err != nil {
			return err
		}
		*now = roles.Role{
			Mode: roles.Secondary, ClusterID: id, SetID: up.SetID, Lineage: reply.Lineage, Wiping: true, Since: time.Now().UTC(),
		}
		forgetUpstream(tx)
		tx.Delete(registry.CAKey)
		tx.Put(traffic.UpstreamKey, entry.Encode(up))
		return nil
	})
	return err
}

// enrolWith trades the secret of a bundle for a certificate, of the key that csr is signed with.
func (s *Store) enrolWith(ctx context.Context, bundle enrol.Bundle, clusterID string, latest replication.OtherPrimary, csr, key []byte) (*traffic.Upstream, *replication.EnrolReply, error) {
	reply, err := s.link.Enrol(ctx, bundle.Addrs, bundle.CA, replication.EnrolRequest{
		SetID: bundle.SetID, ClusterID: clusterID, SecondaryID: bundle.SecondaryID, Secret: bundle.Secret, CSR: csr, Latest: latest,
	})
	if err != nil {
		return nil, nil, refusedBy("enrolling with the primary at "+strings.Join(bundle.Addrs, ", "), err)
	}
	switch {
	case reply.SetID != bundle.SetID:
		return nil, nil, engines.Invalid("the primary that has answered is of another replication set than the token")
	case reply.PrimaryID == clusterID:
		return nil, nil, engines.Invalid("a cluster cannot follow itself: the token is one of its own")
	case len(reply.Lineage) == 0 || len(reply.Cert) == 0:
		return nil, nil, engines.Invalid("the primary's answer is incomplete: its version may be too old")
	}
	return &traffic.Upstream{
		Format: 1, SecondaryID: bundle.SecondaryID, SetID: bundle.SetID, PrimaryID: reply.PrimaryID, CA: bundle.CA, Cert: reply.Cert, Key: key,
		Addrs: firstOf(reply.Addrs, bundle.Addrs), APIAddr: cmp.Or(reply.APIAddr, bundle.APIAddr), Since: time.Now().UTC(),
	}, &reply, nil
}

// refusedBy makes a 400 of what went wrong with another cluster: it is the operator's input that led there.
func refusedBy(doing string, err error) error {
	return &engines.Error{Kind: engines.KindInvalid, Detail: fmt.Sprintf("%s: %s", doing, TextOf(err)), Err: err}
}

// TextOf returns what a client may see of an error about another cluster: everything. Nothing of ours is in it.
func TextOf(err error) string {
	if e, ok := err.(*engines.Error); ok { //nolint:errorlint // the outermost has the text
		return e.Detail
	}
	return Plain(err.Error())
}

// Plain takes out of a text which kind of error it is: what went wrong stays.
func Plain(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, storage.ErrUnavailable.Error()+": ", ""), "\n", "; ")
}

// finishWipe removes what the cluster held before it became a secondary. It may be repeated.
func (s *Store) finishWipe(ctx context.Context) error {
	start := time.Now()
	if err := s.opts.Data.Wipe(ctx); err != nil {
		return fmt.Errorf("removing what the cluster held: %w", err)
	}
	// What repairs in another set have replaced was this cluster's, too.
	err := storage.DeletePrefix(ctx, s.store, ProgressPrefix)
	if err == nil {
		err = s.cleanUp(ctx)
	}
	if err != nil {
		return fmt.Errorf("removing what was left of replication: %w", err)
	}
	_, err = s.change(ctx, func(_ *storage.Txn, r *roles.Role) error {
		if r.Mode == roles.Secondary {
			r.Wiping = false
		}
		return nil
	})
	if err == nil {
		s.log.Info("everything that the cluster held was removed: it begins as a secondary", "took", time.Since(start))
	}
	return err
}
