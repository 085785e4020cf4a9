package cluster

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

// Records are where the cluster keeps its register of members and its CA: in the replicated state, encrypted. Each
// returns storage.ErrNotFound if there is no such record, and storage.ErrSealed while the state cannot be read.
type Records interface {
	Trust(ctx context.Context) ([]byte, error)
	CA(ctx context.Context) (CA, error)
	// Store replaces both at once; a nil CA stays as it is. It waits until this node has applied it.
	Store(ctx context.Context, trust []byte, ca *CA) error
}

// registry is what the node keeps for the register of members.
type registry struct {
	changed chan struct{} // capacity 1: the record may have changed

	joining sync.Mutex // held while the leader admits a node, or raises the formats that all members read
	// The latest rejection of a joiner that was logged, and when. Guarded by joining.
	rejection  string
	rejectedAt time.Time

	mu     sync.Mutex // held while the leader changes the register
	seenMu sync.Mutex
	seen   map[NodeID][]byte // keys of members that are not registered, as they showed them
}

func (r *registry) init() {
	r.changed = make(chan struct{}, 1)
	r.seen = map[NodeID][]byte{}
}

// openIdentity returns this node's identity by what it has been given and what the state holds.
func openIdentity(o Options) (*identity, error) {
	ctx := context.Background()
	authority := func() (CA, error) {
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
	return newIdentity(o.ID, o.Key, trust, authority)
}

func firstTrust(ctx context.Context, o Options, authority func() (CA, error)) (*Trust, error) {
	if o.Trust != nil {
		return decodeTrust(o.Trust)
	}
	if o.Records != nil {
		text, err := o.Records.Trust(ctx)
		switch {
		case err == nil:
			return decodeTrust(text)
		case !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrSealed):
			return nil, err
		}
	}
	ca, err := authority()
	if err != nil {
		return nil, fmt.Errorf("the cluster CA: %w", err)
	}
	return newTrust(ca)
}

// isMember reports whether the node is in Raft's latest configuration, as this node knows it.
func (n *Node) isMember(id NodeID) bool {
	return slices.ContainsFunc(n.raft().GetConfiguration().Configuration().Servers, func(s raft.Server) bool { return NodeID(s.ID) == id })
}

// TrustChanged says that the record of the register may have changed. It does not wait.
func (n *Node) TrustChanged() {
	select {
	case n.registry.changed <- struct{}{}:
	default:
	}
}

// followTrust goes by each register that arrives.
func (n *Node) followTrust() {
	if n.opts.Records == nil {
		return
	}
	for {
		if stored, err := n.storedTrust(n.ctx); err == nil && stored != nil && n.who.adopt(stored) {
			n.log.Debug("the register of members has changed", "generation", stored.Generation, "members", len(stored.Members))
		}
		select {
		case <-n.registry.changed:
		case <-n.ctx.Done():
			return
		}
	}
}

// storedTrust reads the record; nil: there is none.
func (n *Node) storedTrust(ctx context.Context) (*Trust, error) {
	text, err := n.opts.Records.Trust(ctx)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeTrust(text)
}

// changeTrust changes the register, on the leader. change gets what the node goes by, and the CA with its key; it
// returns a new CA, or nil. If it returns errUnchanged nothing happens.
func (n *Node) changeTrust(ctx context.Context, change func(*Trust, CA) (*CA, error)) error {
	if n.opts.Records == nil {
		return nil
	}
	n.registry.mu.Lock()
	defer n.registry.mu.Unlock()
	stored, err := n.storedTrust(ctx)
	if err != nil {
		return fmt.Errorf("reading the register of members: %w", err)
	}
	if stored != nil {
		n.who.adopt(stored) // it may be newer than what followTrust has seen
	}
	ca, err := n.opts.Records.CA(ctx)
	if err != nil {
		return fmt.Errorf("reading the cluster's CA: %w", err)
	}
	t := n.who.goBy().clone()
	if len(t.Members) > 0 && !t.has(n.opts.ID, n.who.public) {
		// It leads, so the register is of other nodes: the state of another cluster was restored.
		t.Members, t.Removed = map[NodeID]Member{}, nil
	}
	var fresh *CA
	if !t.isOf(ca) {
		// An older state was restored. Nodes that were removed since then may know its CA.
		next, err := t.rotate(ca)
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
	text, err := t.encode()
	if err != nil {
		return err
	}
	if err := n.opts.Records.Store(ctx, text, fresh); err != nil {
		return fmt.Errorf("storing the register of members: %w", err)
	}
	n.who.adopt(t)
	return nil
}

var errUnchanged = errors.New("nothing to change")

// allRegistered reports whether every member has a key of its own. Until then it is the CA by which members of an
// earlier version are known, so it must not change.
func (n *Node) allRegistered(t *Trust) bool {
	for _, s := range n.servers() {
		if _, ok := t.Members[NodeID(s.ID)]; !ok {
			return false
		}
	}
	return true
}

// RotateCA replaces the cluster's CA and every member's certificate, on the leader. No connection ends.
func (n *Node) RotateCA(ctx context.Context) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	if n.opts.Records == nil {
		return errors.New("this cluster keeps no register of its members")
	}
	return n.changeTrust(ctx, func(t *Trust, ca CA) (*CA, error) {
		if err := n.registerSeen(t, ca); err != nil {
			return nil, err
		}
		if !n.allRegistered(t) {
			return nil, RejectedError("the CA cannot be replaced until every member has been heard of with this version: start those that are down, or remove them")
		}
		next, err := t.rotate(ca)
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

// endMembership takes a node that is no member any more out of the register, and replaces the CA that it knew.
func (n *Node) endMembership(ctx context.Context, id NodeID) error {
	return n.changeTrust(ctx, func(t *Trust, ca CA) (*CA, error) {
		t.remove(id)
		if !n.allRegistered(t) {
			n.log.Warn("a removed node may know the CA, which is kept until every member runs this version", "node", string(id))
			return nil, nil
		}
		next, err := t.rotate(ca)
		return &next, err
	})
}

// Joiner is a node that asks to become a member.
type Joiner struct {
	ID          NodeID
	ClusterAddr string // host:port that members dial
	PublicKey   []byte // of its own key, PKIX
	Formats     uint32 // newest generation of formats that it reads; 0 from builds before they were numbered
	NonVoter    bool
	Rejoin      bool // it holds no data; see Join
}

// Admit makes a node a member, on the leader: it registers the node's key, then adds it to Raft's configuration. It
// returns what the node is to go by until it has the state. See Join for the rest. A node that is registered with
// another key and still heard of is not replaced.
func (n *Node) Admit(ctx context.Context, j Joiner) (trust []byte, err error) {
	id, clusterAddr, public, nonVoter, rejoin := j.ID, j.ClusterAddr, j.PublicKey, j.NonVoter, j.Rejoin
	if err := n.mustLead(); err != nil {
		return nil, err
	}
	n.registry.joining.Lock()
	defer n.registry.joining.Unlock()
	defer func() {
		if r := &n.registry; err != nil && (err.Error() != r.rejection || time.Since(r.rejectedAt) > time.Minute) {
			r.rejection, r.rejectedAt = err.Error(), time.Now() // it tries again each second
			n.log.Warn("a node that wants to join is rejected", "node", string(j.ID), "address", j.ClusterAddr, "err", err)
		}
	}()
	if err := n.canRead(ctx, j); err != nil {
		return nil, err
	}
	if n.opts.Records == nil {
		return nil, n.Join(ctx, id, clusterAddr, nonVoter, rejoin)
	}
	if _, err := x509.ParsePKIXPublicKey(public); err != nil {
		return nil, RejectedError("the node that joins sent no public key: it may run an earlier version")
	}
	if err := checkMember(id, clusterAddr); err != nil {
		return nil, err
	}
	if id == n.opts.ID {
		return nil, fmt.Errorf("%q leads: it cannot join", id)
	}
	if known, ok := n.who.goBy().Members[id]; ok && !slices.Equal(known.Key, public) {
		if silent := n.health.info(id).LastContact; n.isMember(id) && silent >= 0 && silent < 3*n.opts.EchoInterval {
			return nil, RejectedError(fmt.Sprintf("node %q is a member and answers: give this node another id, or remove that one first", id))
		}
		rejoin = true // what has another key is another node
	}
	if rejoin && n.isMember(id) {
		if err := n.RemovePeer(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := n.changeTrust(ctx, func(t *Trust, ca CA) (*CA, error) {
		if err := t.register(ca, n.opts.ID, n.who.public); err != nil {
			return nil, err
		}
		return nil, t.register(ca, id, public)
	}); err != nil {
		return nil, err
	}
	if err := n.Join(ctx, id, clusterAddr, nonVoter, rejoin); err != nil {
		return nil, err
	}
	return n.who.goBy().encode()
}

// sawKey notes the key of a member that is not registered, to register it.
func (n *Node) sawKey(cert *x509.Certificate) {
	id, key := nodeOf(cert), cert.RawSubjectPublicKeyInfo
	if n.opts.Records == nil || cert.Subject.CommonName != lastingName || n.who.goBy().has(id, key) {
		return
	}
	n.registry.seenMu.Lock()
	defer n.registry.seenMu.Unlock()
	n.registry.seen[id] = key
}

// registerSeen registers the members that showed a key of their own.
func (n *Node) registerSeen(t *Trust, ca CA) error {
	n.registry.seenMu.Lock()
	seen := n.registry.seen
	n.registry.seen = map[NodeID][]byte{}
	n.registry.seenMu.Unlock()
	seen[n.opts.ID] = n.who.public
	for id, key := range seen {
		if _, known := t.Members[id]; known || !n.isMember(id) {
			continue
		}
		if err := t.register(ca, id, key); err != nil {
			return err
		}
	}
	return nil
}

// tendTrust keeps the register in order, on the leader: members that it does not know yet, nodes that are no members
// any more, certificates and a CA that end.
func (n *Node) tendTrust() {
	if n.opts.Records == nil || !n.registry.joining.TryLock() { // a node that joins is registered before it is a member
		return
	}
	defer n.registry.joining.Unlock()
	err := n.changeTrust(n.ctx, func(t *Trust, ca CA) (*CA, error) {
		before, err := json.Marshal(t.Members)
		if err != nil {
			return nil, err
		}
		if err := n.registerSeen(t, ca); err != nil {
			return nil, err
		}
		for id := range t.Members {
			if !n.isMember(id) {
				t.remove(id) // leadership changed while it was removed, or joined
			}
		}
		if n.allRegistered(t) && n.caDue(t) {
			next, err := t.rotate(ca)
			if err == nil {
				n.log.Info("the cluster's CA is replaced", "generation", t.Generation+1)
			}
			return &next, err
		}
		renewed, err := t.renew(ca)
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
	if err != nil && !starting && !errors.Is(err, errUnchanged) && n.ctx.Err() == nil {
		n.log.Warn("looking after the register of members", "err", err)
	}
}

// caDue reports whether the CA is to be replaced: it ends soon, a node that was removed knew it, or it is of a version
// that gave it to every node.
func (n *Node) caDue(t *Trust) bool {
	left := time.Until(t.ca.NotAfter)
	return left < caRenewal || left > caLifetime || len(t.Removed) > 0
}

// Certificate is what Certificates tells of one member.
type Certificate struct {
	Node    NodeID
	Ends    time.Time
	Current bool // issued by the present CA
}

// Certificates returns when the CA and each member's certificate ends.
func (n *Node) Certificates() (caEnds time.Time, generation uint64, members []Certificate) {
	t := n.who.goBy()
	for _, s := range n.servers() {
		c := Certificate{Node: NodeID(s.ID)}
		if cert, err := x509.ParseCertificate(t.Members[c.Node].Certificate); err == nil {
			c.Ends, c.Current = cert.NotAfter, cert.CheckSignatureFrom(t.ca) == nil
		}
		members = append(members, c)
	}
	return t.ca.NotAfter, t.Generation, members
}
