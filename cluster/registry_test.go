package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/port"
	"github.com/coffer-project/coffer/cluster/transport"
	"github.com/coffer-project/coffer/storage"
)

const (
	trustRecord storage.Key = "l/cluster/trust"
	caRecord    storage.Key = "l/cluster/ca"
)

// records are the Records of a member, in plain.
type records struct {
	m    *member
	node atomic.Pointer[Node]
}

func (r *records) Trust(ctx context.Context) ([]byte, error) {
	e, err := r.m.machine.Get(ctx, trustRecord)
	return e.Value, err
}

func (r *records) CA(ctx context.Context) (ca CA, err error) {
	e, err := r.m.machine.Get(ctx, caRecord)
	if err != nil {
		return ca, err
	}
	return ca, json.Unmarshal(e.Value, &ca)
}

func (r *records) Store(ctx context.Context, trust []byte, ca *CA) error {
	b := storage.Batch{Puts: []storage.Put{{Key: trustRecord, Value: trust}}}
	if ca != nil {
		text, err := json.Marshal(ca)
		if err != nil {
			return err
		}
		b.Puts = append(b.Puts, storage.Put{Key: caRecord, Value: text})
	}
	n := r.node.Load()
	if n == nil {
		return storage.ErrUnavailable
	}
	_, err := n.Commit(ctx, b)
	return err
}

// startRegistered opens a node of a cluster that keeps a register.
func startRegistered(t testing.TB, id string, change ...func(*Options)) *member {
	t.Helper()
	o := testOptions(t, id)
	patient(&o)
	o.CA = CA{}
	for _, c := range change {
		c(&o)
	}
	m := &member{opts: o, t: t}
	m.opts.Records = &records{m: m}
	m.openRegistered()
	t.Cleanup(m.stop)
	return m
}

func (m *member) openRegistered() {
	m.t.Helper()
	m.open()
	m.opts.Trust = nil // from now on the state tells
	n := m.Node
	m.opts.Records.(*records).node.Store(n)
	m.machine.OnChange(func(ch storage.Change) {
		if ch.Touches(trustRecord) {
			n.TrustChanged()
		}
	})
	n.TrustChanged()
}

// founder starts a cluster of one, with this CA.
func founder(t testing.TB, ca CA, change ...func(*Options)) *member {
	t.Helper()
	key, _, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	a := startRegistered(t, "a", append(change, func(o *Options) { o.CA, o.Key = ca, key })...)
	if err := a.Bootstrap(testContext(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "leadership", a.IsLeader)
	text, err := json.Marshal(ca)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Commit(testContext(t), storage.Batch{Puts: []storage.Put{{Key: caRecord, Value: text}}}); err != nil {
		t.Fatal(err)
	}
	return a
}

// admit lets a new node join through the leader. It votes when admit returns.
func (m *member) admit(id string) *member {
	t := m.t
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	key, public, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := m.Admit(testContext(t), Joiner{ID: NodeID(id), ClusterAddr: addr, PublicKey: public, Formats: Formats, Rejoin: true})
	if err != nil {
		t.Fatal(err)
	}
	joined := startRegistered(t, id, func(o *Options) { o.Key, o.Trust, o.ListenAddr = key, trust, addr })
	until(t, "the new member to vote", func() bool {
		for _, s := range m.raft.Servers() {
			if s.ID == raft.ServerID(id) {
				return s.Suffrage == raft.Voter
			}
		}
		return false
	})
	return joined
}

func registeredThree(t testing.TB) (a, b, c *member) {
	t.Helper()
	a = founder(t, testCA())
	b, c = a.admit("b"), a.admit("c")
	return a, b, c
}

// thief sends Raft's messages to a member with the certificate of another.
func thief(t testing.TB, identity *port.Identity) *transport.Inbound {
	t.Helper()
	s := transport.NewStreams(port.NewInbox(&net.TCPAddr{}), identity)
	network := transport.NewInbound(s, 5*time.Second, raft.NetworkTransportConfig{
		Logger: transport.NewLog(slog.New(slog.DiscardHandler)), MaxPool: 1, Timeout: 5 * time.Second, MsgpackUseNewTimeFormat: true,
	})
	t.Cleanup(func() { s.Cut(); network.Close() })
	return network
}

// usurp sends an append of a high term, in the name of a node. An error: it was not heard.
func usurp(t testing.TB, identity *port.Identity, name NodeID, victim *member) error {
	t.Helper()
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(name), Addr: []byte("127.0.0.1:1")}
	to := transport.Target(raft.ServerID(victim.opts.ID), raft.ServerAddress(victim.addr))
	id := raft.ServerID(victim.opts.ID)
	network := thief(t, identity)
	const term = 1000
	if err := network.AppendEntries(id, to, &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: 1, PrevLogTerm: 1}, &raft.AppendEntriesResponse{}); err == nil {
		return nil
	}
	if err := network.AppendEntries(id, to, &raft.AppendEntriesRequest{RPCHeader: header, Term: term}, &raft.AppendEntriesResponse{}); err == nil { // a heartbeat
		return nil
	}
	if err := network.RequestVote(id, to, &raft.RequestVoteRequest{RPCHeader: header, Term: term, LeadershipTransfer: true}, &raft.RequestVoteResponse{}); err == nil {
		return nil
	}
	snapshot := &raft.InstallSnapshotRequest{RPCHeader: header, Term: term, SnapshotVersion: 1, Size: 3, Configuration: raft.EncodeConfiguration(raft.Configuration{})}
	if err := network.InstallSnapshot(id, to, snapshot, &raft.InstallSnapshotResponse{}, bytes.NewReader([]byte("abc"))); err == nil {
		return nil
	}
	return network.TimeoutNow(id, to, &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
}

// forged is an identity under any name, by a CA whose key was stolen. It accepts every server.
func forged(t testing.TB, id NodeID, ca CA) *port.Identity {
	t.Helper()
	trust, err := certs.NewTrust(ca)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := port.NewIdentity(id, nil, trust, func() (CA, error) { return ca, nil })
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// accepted reports whether a member says anything to one who shows this certificate.
func accepted(t testing.TB, identity *port.Identity, m *member) bool {
	t.Helper()
	config := identity.Client(m.opts.ID, port.Forward)
	config.VerifyConnection = nil
	c, err := tls.Dial("tcp", m.addr, config)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = c.Read(make([]byte, 1))
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Error("neither accepted nor rejected")
	}
	return err == nil
}

// TestRemovedMemberIsNoPeer: with its certificate, and with the CA's key that it could read, a removed node says nothing to
// any member, under no name; its connections end; it learns of it.
func TestRemovedMemberIsNoPeer(t *testing.T) {
	t.Parallel()
	a, b, c := registeredThree(t)
	ca, err := a.opts.Records.CA(t.Context()) // as c could read it
	if err != nil {
		t.Fatal(err)
	}
	if !accepted(t, c.identity, a) {
		t.Fatal("a member is not accepted")
	}
	open, err := c.identity.Dial(t.Context(), "b", b.addr, port.Raft)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.RemovePeer(testContext(t), "c"); err != nil {
		t.Fatal(err)
	}
	open.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = open.Read(make([]byte, 1))
	if ne, ok := errors.AsType[net.Error](err); err == nil || ok && ne.Timeout() {
		t.Errorf("the removed node's connection stays open: %v", err)
	}
	until(t, "c to know", c.Removed)
	_, term := a.raft.Leads()
	before := a.raft.Raft().CurrentTerm()
	for _, m := range []*member{a, b} {
		if accepted(t, c.identity, m) {
			t.Errorf("%s accepts the removed node's certificate", m.opts.ID)
		}
		if usurp(t, c.identity, "c", m) == nil {
			t.Errorf("%s hears the removed node", m.opts.ID)
		}
		for _, id := range []NodeID{"a", "b", "c", "d"} {
			if accepted(t, forged(t, id, ca), m) {
				t.Errorf("%s accepts a certificate for %s by the CA that the removed node knew", m.opts.ID, id)
			}
		}
	}
	if _, now := a.raft.Leads(); now != term || a.raft.Raft().CurrentTerm() != before || b.raft.Raft().CurrentTerm() != before {
		t.Error("the removed node has changed who leads")
	}
	mustCommit(t, a, "k", "v")
}

// TestRegisteredKeyDecides: with the present CA's key, but not a member's own, nothing speaks in that member's name.
func TestRegisteredKeyDecides(t *testing.T) {
	t.Parallel()
	a, b, _ := registeredThree(t)
	ca, err := a.opts.Records.CA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "b to go by the newest register", func() bool { return b.identity.Trust().Generation == a.identity.Trust().Generation })
	term := a.raft.Raft().CurrentTerm()
	for _, m := range []*member{a, b} {
		for _, id := range []NodeID{"a", "b", "c"} {
			identity := forged(t, id, ca)
			if accepted(t, identity, m) {
				t.Errorf("%s accepts another key for %s by the present CA", m.opts.ID, id)
			}
			if usurp(t, identity, id, m) == nil {
				t.Errorf("%s hears another key in the name of %s", m.opts.ID, id)
			}
		}
	}
	if a.raft.Raft().CurrentTerm() != term || !a.IsLeader() {
		t.Error("the leader has changed")
	}
}

// TestMessagesAreInTheNameOfTheirSender: a member speaks for itself only.
func TestMessagesAreInTheNameOfTheirSender(t *testing.T) {
	t.Parallel()
	a, b, c := registeredThree(t)
	before := a.raft.Raft().CurrentTerm()
	for _, m := range []*member{a, b} {
		for _, name := range []NodeID{"a", "b", "x", ""} {
			if usurp(t, c.identity, name, m) == nil {
				t.Errorf("%s hears c in the name of %q", m.opts.ID, name)
			}
		}
	}
	if a.raft.Raft().CurrentTerm() != before || !a.IsLeader() {
		t.Error("the leader has changed")
	}
	// And under its own name it is heard.
	resp := &raft.RequestPreVoteResponse{}
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("c"), Addr: []byte(c.addr)}
	if err := thief(t, c.identity).RequestPreVote("b", transport.Target("b", raft.ServerAddress(b.addr)), &raft.RequestPreVoteRequest{RPCHeader: header, Term: 1}, resp); err != nil {
		t.Errorf("a member's own message: %v", err)
	}
}

// TestHalfRemovedMember: the leader that removed a member stopped before it had ended the certificate.
func TestHalfRemovedMember(t *testing.T) {
	t.Parallel()
	a, b, c := registeredThree(t)
	for _, id := range []NodeID{"b", "c"} {
		a.registry.Joining.Lock() // keeps the leader from noticing
		err := a.raft.Change(testContext(t), func(r *raft.Raft, t time.Duration) raft.Future { return r.RemoveServer(raft.ServerID(id), 0, t) })
		if id == "b" {
			err = errors.Join(err, a.RemovePeer(testContext(t), id)) // the operator tries again
			if _, known := a.identity.Trust().Members[id]; known {
				t.Error("the removed member is still registered")
			}
		}
		a.registry.Joining.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	until(t, "both to know", func() bool { return b.Removed() && c.Removed() })
}

// TestLaggingMemberFindsItsLeader: a member that was away while all others were replaced, one of them by a node of the same
// name, and the CA several times, follows a leader that it has never heard of.
func TestLaggingMemberFindsItsLeader(t *testing.T) {
	t.Parallel()
	a, b, c := registeredThree(t)
	c.stop()
	d := a.admit("d")
	if err := errors.Join(a.RotateCA(testContext(t)), a.RemovePeer(testContext(t), "b")); err != nil {
		t.Fatal(err)
	}
	b.kill()
	b = a.admit("b")
	if err := a.RotateCA(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for a.IsLeader() || !b.IsLeader() && !d.IsLeader() {
		if a.IsLeader() {
			if err := a.TransferLeadership(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	var leader *member
	until(t, "a to be removed", func() bool { // leadership may change meanwhile
		leader = leaderOf(t, []*member{b, d})
		return leader.RemovePeer(testContext(t), "a") == nil
	})
	until(t, "a to know", a.Removed)
	a.stop() // the one that c knows must not help
	mustCommit(t, leader, "k", "v")
	c.openRegistered()
	until(t, "c to have what its new leader wrote", func() bool { return c.value("k") == "v" })
	until(t, "c to go by the newest register", func() bool { return c.identity.Trust().Generation == leader.identity.Trust().Generation })
	if c.Removed() {
		t.Error("c takes itself for removed")
	}
}

// TestRestoreRevivesNoRemovedMember: an older state names a removed member and a CA whose key it knows, and lacks a newer one.
func TestRestoreRevivesNoRemovedMember(t *testing.T) {
	t.Parallel()
	a, b, c := registeredThree(t)
	old, err := a.opts.Records.CA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := a.machine.WriteSnapshot(testContext(t), &backup); err != nil {
		t.Fatal(err)
	}
	if err := a.RemovePeer(testContext(t), "c"); err != nil {
		t.Fatal(err)
	}
	d := a.admit("d")
	generation := a.identity.Trust().Generation
	mustCommit(t, a, "k", "before") // Raft restores nothing before it has applied its configuration
	if err := a.RestoreSnapshot(testContext(t), bytes.NewReader(backup.Bytes())); err != nil {
		t.Fatal(err)
	}
	until(t, "the register to be written again", func() bool {
		stored, err := a.registry.Stored(t.Context())
		return err == nil && stored != nil && stored.Generation > generation
	})
	mustCommit(t, a, "k", "v")
	for _, m := range []*member{b, d} {
		until(t, "the others to follow", func() bool {
			return m.value("k") == "v" && m.identity.Trust().Generation == a.identity.Trust().Generation
		})
	}
	for _, m := range []*member{a, b, d} {
		if accepted(t, c.identity, m) || accepted(t, forged(t, "x", old), m) {
			t.Errorf("%s accepts what the restored state would", m.opts.ID)
		}
	}
	// The register is good for a restart of all.
	for _, m := range []*member{a, b, d} {
		m.stop()
	}
	for _, m := range []*member{a, b, d} {
		m.openRegistered()
	}
	leader := leaderOf(t, []*member{a, b, d})
	mustCommit(t, leader, "k2", "v")
	for _, m := range []*member{a, b, d} {
		until(t, "all to follow after a restart", func() bool { return m.value("k2") == "v" })
	}
}

// TestCAIsReplacedByItself: one that ends soon, and one of a version that gave it to every node, whose members had no
// keys of their own.
func TestCAIsReplacedByItself(t *testing.T) {
	t.Parallel()
	for what, lifetime := range map[string]time.Duration{"soon": certs.CARenewal - time.Hour, "earlier": 30 * certs.CALifetime} {
		ca, err := certs.NewCAFor(lifetime)
		if err != nil {
			t.Fatal(err)
		}
		a := founder(t, ca)
		until(t, what+": a new CA", func() bool { return !a.identity.Trust().IsOf(ca) })
		ends, _, nodes := a.Certificates()
		if time.Until(ends) < certs.CALifetime-time.Hour || len(nodes) != 1 || !nodes[0].Current {
			t.Errorf("%s: the CA ends %v, certificates %+v", what, ends, nodes)
		}
	}
}

// TestNodesGetKeysOfTheirOwn: members of an earlier version had certificates by the CA that all knew; as they come back
// with keys of their own they are registered, and with the last one the CA goes.
func TestNodesGetKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	ca, err := certs.NewCAFor(30 * certs.CALifetime)
	if err != nil {
		t.Fatal(err)
	}
	all := three(t, func(o *Options) { o.CA = ca })
	text, err := json.Marshal(ca)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].Commit(testContext(t), storage.Batch{Puts: []storage.Put{{Key: caRecord, Value: text}}}); err != nil {
		t.Fatal(err)
	}
	for i, m := range all {
		until(t, "all to vote", func() bool { return leaderOf(t, all).raft.OtherVoters() == 2 })
		m.stop()
		if m.opts.Key, _, err = NewKey(); err != nil {
			t.Fatal(err)
		}
		m.opts.Records, m.opts.CA = &records{m: m}, CA{}
		m.openRegistered()
		mustCommit(t, leaderOf(t, all), "k", fmt.Sprint(i))
		until(t, "it to follow", func() bool { return m.value("k") == fmt.Sprint(i) })
		if i == 1 {
			leader := leaderOf(t, all)
			if err := leader.RotateCA(testContext(t)); leader.opts.Records != nil {
				if _, ok := errors.AsType[RejectedError](err); !ok {
					t.Errorf("replacing the CA that a member needs: %v", err)
				}
			}
		}
	}
	for _, m := range all {
		until(t, "three keys and a new CA", func() bool {
			trust := m.identity.Trust()
			return len(trust.Members) == 3 && !trust.IsOf(ca)
		})
		if accepted(t, forged(t, "a", ca), m) || accepted(t, forged(t, "x", ca), m) {
			t.Errorf("%s accepts a certificate of the CA that every node had", m.opts.ID)
		}
	}
}

// TestAMembersSeatIsTaken: no node becomes a member under the id of one that answers.
func TestAMembersSeatIsTaken(t *testing.T) {
	t.Parallel()
	a := founder(t, testCA(), func(o *Options) { o.EchoInterval = time.Second }) // b is heard of, also on a busy machine
	b := a.admit("b")
	_, public, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{b.addr, "127.0.0.1:1"} {
		_, err := a.Admit(testContext(t), Joiner{ID: "b", ClusterAddr: addr, PublicKey: public, Formats: Formats, Rejoin: true})
		if _, ok := errors.AsType[RejectedError](err); !ok {
			t.Errorf("another node as b at %s: %v", addr, err)
		}
	}
	if _, err := a.Admit(testContext(t), Joiner{ID: "a", ClusterAddr: "127.0.0.1:1", PublicKey: public, Formats: Formats, Rejoin: true}); err == nil {
		t.Error("another node took the leader's id")
	}
	if _, err := a.Admit(testContext(t), Joiner{ID: "x", ClusterAddr: "127.0.0.1:1", Formats: Formats, Rejoin: true}); err == nil {
		t.Error("a node without a key was admitted")
	}
	mustCommit(t, a, "k", "v")
	until(t, "b to follow", func() bool { return b.value("k") == "v" })
}
