// Package registry keeps the register of members, which says whose keys and which CA the nodes of a cluster go by: it follows the
// record in the replicated state, and on the leader changes it, as a whole and under a higher generation each time.
//
// It promises that a member which was removed has no certificate any more, that the CA which it knew is replaced, and that an older
// register, of a restored snapshot, brings no one back. Start reading at Registry.
package registry

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/consensus"
	"github.com/coffer-project/coffer/cluster/port"
	"github.com/coffer-project/coffer/storage"
)

// Records are where the cluster keeps its register of members and its CA: in the replicated state, encrypted. Each
// returns storage.ErrNotFound if there is no such record, and storage.ErrSealed while the state cannot be read.
type Records interface {
	Trust(ctx context.Context) ([]byte, error)
	CA(ctx context.Context) (certs.CA, error)
	// Store replaces both at once; a nil CA stays as it is. It waits until this node has applied it.
	Store(ctx context.Context, trust []byte, ca *certs.CA) error
}

// Options are the options of openRegistry. ID, Raft, Logger and one of CA, Trust and Records are required.
type Options struct {
	ID      certs.NodeID
	Key     []byte   // of the node; nil: a new one
	CA      certs.CA // of a cluster that has no register yet
	Trust   []byte   // what the node was given when it was admitted; nil: Records tell
	Records Records  // nil: the cluster keeps no register, CA's certificates count
	Raft    *consensus.Runner
	Logger  *slog.Logger
}

// Registry keeps the register of members. Safe for concurrent use.
type Registry struct {
	opts     Options
	raft     *consensus.Runner
	log      *slog.Logger
	identity *port.Identity

	changed chan struct{} // capacity 1: the record may have changed

	Joining sync.Mutex // held while the leader admits a node, or raises the formats that all members read

	mu     sync.Mutex // held while the leader changes the register
	seenMu sync.Mutex
	seen   map[certs.NodeID][]byte // keys of members that are not registered, as they showed them
}

// Open returns the registry, and this node's identity by what it has been given and what the state holds.
func Open(o Options) (*Registry, *port.Identity, error) {
	identity, err := openIdentity(o)
	if err != nil {
		return nil, nil, err
	}
	return &Registry{opts: o, raft: o.Raft, log: o.Logger, identity: identity, changed: make(chan struct{}, 1), seen: map[certs.NodeID][]byte{}}, identity, nil
}

// openIdentity returns this node's identity by what it has been given and what the state holds.
func openIdentity(o Options) (*port.Identity, error) {
	ctx := context.Background()
	authority := func() (certs.CA, error) {
		if o.Records != nil {
			if ca, err := o.Records.CA(ctx); err == nil || len(o.CA.Key) == 0 {
				return ca, err
			}
		}
		return o.CA, nil
	}
	trust, err := firstTrust(ctx, o, authority)
	if err != nil {
		return nil, err
	}
	return port.NewIdentity(o.ID, o.Key, trust, authority)
}

func firstTrust(ctx context.Context, o Options, authority func() (certs.CA, error)) (*certs.Trust, error) {
	if o.Trust != nil {
		return certs.DecodeTrust(o.Trust)
	}
	if o.Records != nil {
		text, err := o.Records.Trust(ctx)
		switch {
		case err == nil:
			return certs.DecodeTrust(text)
		case !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrSealed):
			return nil, err
		}
	}
	ca, err := authority()
	if err != nil {
		return nil, fmt.Errorf("the cluster CA: %w", err)
	}
	return certs.NewTrust(ca)
}

// Changed says that the record of the register may have changed. It does not wait.
func (n *Registry) Changed() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Follow goes by each register that arrives.
func (n *Registry) Follow() {
	if n.opts.Records == nil {
		return
	}
	for {
		if stored, err := n.Stored(n.raft.Context()); err == nil && stored != nil && n.identity.Adopt(stored) {
			n.log.Debug("the register of members has changed", "generation", stored.Generation, "members", len(stored.Members))
		}
		select {
		case <-n.changed:
		case <-n.raft.Context().Done():
			return
		}
	}
}

// Stored reads the record; nil: there is none.
func (n *Registry) Stored(ctx context.Context) (*certs.Trust, error) {
	text, err := n.opts.Records.Trust(ctx)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return certs.DecodeTrust(text)
}

// changeTrust changes the register, on the leader. change gets what the node goes by, and the CA with its key; it
// returns a new CA, or nil. If it returns errUnchanged nothing happens.
func (n *Registry) changeTrust(ctx context.Context, change func(*certs.Trust, certs.CA) (*certs.CA, error)) error {
	if n.opts.Records == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	stored, err := n.Stored(ctx)
	if err != nil {
		return fmt.Errorf("reading the register of members: %w", err)
	}
	if stored != nil {
		n.identity.Adopt(stored) // it may be newer than what Follow has seen
	}
	ca, err := n.opts.Records.CA(ctx)
	if err != nil {
		return fmt.Errorf("reading the cluster's CA: %w", err)
	}
	t := n.identity.Trust().Clone()
	if len(t.Members) > 0 && !t.Has(n.opts.ID, n.identity.Public) {
		// It leads, so the register is of other nodes: the state of another cluster was restored.
		t.Members, t.Removed = map[certs.NodeID]certs.Member{}, nil
	}
	var fresh *certs.CA
	if !t.IsOf(ca) {
		// An older state was restored. Nodes that were removed since then may know its CA.
		next, err := t.Rotate(ca)
		if err != nil {
			return err
		}
		ca, fresh = next, &next
	}
	next, err := change(t, ca)
	if err != nil && !(errors.Is(err, errUnchanged) && (fresh != nil || stored == nil || stored.Generation < t.Generation)) {
		return err
	}
	if next != nil {
		fresh = next
	}
	t.Generation++
	text, err := t.Encode()
	if err != nil {
		return err
	}
	if err := n.opts.Records.Store(ctx, text, fresh); err != nil {
		return fmt.Errorf("storing the register of members: %w", err)
	}
	n.identity.Adopt(t)
	return nil
}

var errUnchanged = errors.New("nothing to change")

// allRegistered reports whether every member has a key of its own. Until then it is the CA by which members of an
// earlier version are known, so it must not change.
func (n *Registry) allRegistered(t *certs.Trust) bool {
	for _, s := range n.raft.Servers() {
		if _, ok := t.Members[certs.NodeID(s.ID)]; !ok {
			return false
		}
	}
	return true
}

// RotateCA replaces the cluster's CA and every member's certificate, on the leader. No connection ends.
func (n *Registry) RotateCA(ctx context.Context) error {
	if err := n.raft.MustLead(); err != nil {
		return err
	}
	if n.opts.Records == nil {
		return errors.New("this cluster keeps no register of its members")
	}
	return n.changeTrust(ctx, func(t *certs.Trust, ca certs.CA) (*certs.CA, error) {
		if err := n.registerSeen(t, ca); err != nil {
			return nil, err
		}
		if !n.allRegistered(t) {
			return nil, RejectedError("the CA cannot be replaced until every member has been heard of with this version: start those that are down, or remove them")
		}
		next, err := t.Rotate(ca)
		if err == nil {
			n.log.Info("the cluster's CA is replaced", "generation", t.Generation+1)
		}
		return &next, err
	})
}

// RejectedError says why the leader does not do something; nothing has changed.
type RejectedError string

// Error implements error.
func (e RejectedError) Error() string { return string(e) }

// Remove takes a node that is no member any more out of the register, and replaces the CA that it knew.
func (n *Registry) Remove(ctx context.Context, id certs.NodeID) error {
	return n.changeTrust(ctx, func(t *certs.Trust, ca certs.CA) (*certs.CA, error) {
		t.Remove(id)
		if !n.allRegistered(t) {
			n.log.Warn("a removed node may know the CA, which is kept until every member runs this version", "node", string(id))
			return nil, nil
		}
		next, err := t.Rotate(ca)
		return &next, err
	})
}

// Admit registers this node, if it is not registered yet, and one that joins.
func (n *Registry) Admit(ctx context.Context, id certs.NodeID, public []byte) error {
	return n.changeTrust(ctx, func(t *certs.Trust, ca certs.CA) (*certs.CA, error) {
		if err := t.Register(ca, n.opts.ID, n.identity.Public); err != nil {
			return nil, err
		}
		return nil, t.Register(ca, id, public)
	})
}

// Trust returns what a node that joins is to go by until it has the state.
func (n *Registry) Trust() ([]byte, error) { return n.identity.Trust().Encode() }

// NoteCertificate notes the key of a member that is not registered, to register it.
func (n *Registry) NoteCertificate(cert *x509.Certificate) {
	id, key := certs.NodeOf(cert), cert.RawSubjectPublicKeyInfo
	if n.opts.Records == nil || cert.Subject.CommonName != certs.LastingName || n.identity.Trust().Has(id, key) {
		return
	}
	n.seenMu.Lock()
	defer n.seenMu.Unlock()
	n.seen[id] = key
}

// registerSeen registers the members that showed a key of their own.
func (n *Registry) registerSeen(t *certs.Trust, ca certs.CA) error {
	n.seenMu.Lock()
	seen := n.seen
	n.seen = map[certs.NodeID][]byte{}
	n.seenMu.Unlock()
	seen[n.opts.ID] = n.identity.Public
	for id, key := range seen {
		if _, known := t.Members[id]; known || !n.raft.IsMember(id) {
			continue
		}
		if err := t.Register(ca, id, key); err != nil {
			return err
		}
	}
	return nil
}

// Tend keeps the register in order, on the leader: members that it does not know yet, nodes that are no members
// any more, certificates and a CA that end.
func (n *Registry) Tend() {
	if n.opts.Records == nil || !n.Joining.TryLock() { // a node that joins is registered before it is a member
		return
	}
	defer n.Joining.Unlock()
	err := n.changeTrust(n.raft.Context(), func(t *certs.Trust, ca certs.CA) (*certs.CA, error) {
		before, err := json.Marshal(t.Members)
		if err != nil {
			return nil, err
		}
		if err := n.registerSeen(t, ca); err != nil {
			return nil, err
		}
		for id := range t.Members {
			if !n.raft.IsMember(id) {
				t.Remove(id) // leadership changed while it was removed, or joined
			}
		}
		if n.allRegistered(t) && n.caDue(t) {
			next, err := t.Rotate(ca)
			if err == nil {
				n.log.Info("the cluster's CA is replaced", "generation", t.Generation+1)
			}
			return &next, err
		}
		renewed, err := t.Renew(ca)
		if err != nil {
			return nil, err
		}
		after, err := json.Marshal(t.Members)
		if err == nil && !renewed && slices.Equal(before, after) {
			err = errUnchanged
		}
		return nil, err
	})
	starting := errors.Is(err, storage.ErrSealed) || errors.Is(err, storage.ErrNotFound) // there is no state yet
	if err != nil && !starting && !errors.Is(err, errUnchanged) && n.raft.Context().Err() == nil {
		n.log.Warn("looking after the register of members", "err", err)
	}
}

// caDue reports whether the CA is to be replaced: it ends soon, a node that was removed knew it, or it is of a version
// that gave it to every node.
func (n *Registry) caDue(t *certs.Trust) bool {
	left := time.Until(t.Authority().NotAfter)
	return left < certs.CARenewal || left > certs.CALifetime || len(t.Removed) > 0
}

// Certificate is what Certificates tells of one member.
type Certificate struct {
	Node    certs.NodeID
	Ends    time.Time
	Current bool // issued by the present CA
}

// Certificates returns when the CA and each member's certificate ends.
func (n *Registry) Certificates() (caEnds time.Time, generation uint64, members []Certificate) {
	t := n.identity.Trust()
	for _, s := range n.raft.Servers() {
		c := Certificate{Node: certs.NodeID(s.ID)}
		if cert, err := x509.ParseCertificate(t.Members[c.Node].Certificate); err == nil {
			c.Ends, c.Current = cert.NotAfter, cert.CheckSignatureFrom(t.Authority()) == nil
		}
		members = append(members, c)
	}
	return t.Authority().NotAfter, t.Generation, members
}
