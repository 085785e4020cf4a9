package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// member is one cluster, as far as invitations are concerned.
type member struct {
	*testing.T
	store *storage.Memory
	reg   *Registry
	clock atomic.Int64 // added to the time
	mu    sync.Mutex
	wraps map[string]json.RawMessage // by wrapping token
	reads atomic.Int64
	addrs []string // of its nodes
	addr  string   // of its API
}

// counted counts the reads of a store.
type counted struct {
	storage.Store
	n *atomic.Int64
}

func (c counted) Get(ctx context.Context, k storage.Key) (storage.Entry, error) {
	c.n.Add(1)
	return c.Store.Get(ctx, k)
}

func (c counted) Scan(ctx context.Context, p, a storage.Key, n int) ([]storage.Entry, error) {
	c.n.Add(1)
	return c.Store.Scan(ctx, p, a, n)
}

func newMember(t *testing.T, role roles.Role) *member {
	m := &member{T: t, store: new(storage.Memory), wraps: map[string]json.RawMessage{}, addr: "https://p.example:8200", addrs: []string{"p1.example:8201", "p2.example:8201"}}
	m.reg = New(Options{Store: counted{m.store, &m.reads}, Cluster: m, Secrets: m, Primaries: m})
	m.reg.now = m.now
	m.store.OnChange(m.reg.Changed)
	m.become(role)
	return m
}

func (m *member) Addrs() []string { return m.addrs }
func (m *member) APIAddr() string { return m.addr }

func (m *member) Wrap(_ context.Context, _ string, ttl time.Duration, data any) (*engines.WrapInfo, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	token := "hvs." + randomText(20)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wraps[token] = text
	return &engines.WrapInfo{Token: token, Accessor: "acc", TTL: int64(ttl / time.Second), CreationTime: "2030-01-01T00:00:00Z"}, nil
}

func (m *member) Parted(context.Context, *storage.Txn) error { return nil }

func (m *member) FollowsNow(context.Context, *storage.Txn, string) error { return nil }

func (m *member) now() time.Time { return time.Now().Add(time.Duration(m.clock.Load())) }

func (m *member) pass(d time.Duration) { m.clock.Add(int64(d)) }

// become writes a role, and a new CA if it is a primary.
func (m *member) become(role roles.Role) {
	m.Helper()
	role.Format = 1
	_, err := storage.Update(m.Context(), m.store, func(txn *storage.Txn) error {
		txn.Put(roles.RoleKey, entry.Encode(role))
		if role.Mode != roles.Primary {
			return nil
		}
		ca, err := enrol.NewCA(m.now())
		if err != nil {
			return err
		}
		PutCA(txn, ca)
		return nil
	})
	if err != nil {
		m.Fatal(err)
	}
}

func primary() roles.Role {
	return roles.Role{Mode: roles.Primary, ClusterID: "primary-cluster", SetID: "set", Lineage: storage.Lineage{{Epoch: 1, ClusterID: "primary-cluster", Base: 1}}}
}

func newPrimary(t *testing.T) *member { return newMember(t, primary()) }

// invite issues a secret.
func (m *member) invite(id string) string {
	m.Helper()
	inv, err := m.reg.issue(m.Context(), id, time.Hour)
	if err != nil {
		m.Fatal(err)
	}
	return inv.secret
}

func request(t testing.TB, id, cluster, secret string) (replication.EnrolRequest, []byte) {
	t.Helper()
	csr, key, err := enrol.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	return replication.EnrolRequest{SetID: "set", ClusterID: cluster, SecondaryID: id, Secret: secret, CSR: csr}, key
}

// enrolled lets a secondary in.
func (m *member) enrolled(id, cluster string) *x509.Certificate {
	m.Helper()
	req, _ := request(m, id, cluster, m.invite(id))
	reply, err := m.reg.Enrol(m.Context(), req)
	if err != nil {
		m.Fatal(err)
	}
	return certOf(m, reply.Cert)
}

func certOf(t testing.TB, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// refused asserts a 400 (or another kind) whose text has a part.
func refused(t testing.TB, what string, err error, kind engines.Kind, part string) {
	t.Helper()
	var e *engines.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(e.Detail, part) {
		t.Errorf("%s: %v, want an error of kind %d with %q", what, err, kind, part)
	}
}

func (m *member) state(id string) State {
	m.Helper()
	list, err := m.reg.List(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	for _, s := range list {
		if s.ID == id {
			return s.State
		}
	}
	return ""
}

// TestEnrol: a secret becomes a certificate of this primary's CA, and the secondary is known from then on.
func TestEnrol(t *testing.T) {
	m := newPrimary(t)
	secret := m.invite("berlin")
	if m.state("berlin") != Issued {
		t.Errorf("state %q before", m.state("berlin"))
	}
	req, key := request(t, "berlin", "c1", secret)
	reply, err := m.reg.Enrol(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if reply.SetID != "set" || reply.PrimaryID != "primary-cluster" || len(reply.Lineage) != 1 || len(reply.Addrs) != 2 || reply.APIAddr != m.addr {
		t.Errorf("reply %+v", reply)
	}
	if _, err := tls.X509KeyPair(reply.Cert, key); err != nil {
		t.Errorf("the certificate is not for the secondary's key: %v", err)
	}
	_, pool, err := m.reg.ServerTLS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cert := certOf(t, reply.Cert)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("the certificate is not of the CA: %v", err)
	}
	if p, err := m.reg.Admit(t.Context(), cert); err != nil || p != (roles.Peer{ID: "berlin", ClusterID: "c1"}) {
		t.Errorf("Admit = %+v, %v", p, err)
	}
	list, err := m.reg.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != Active || list[0].ClusterID != "c1" || list[0].EnrolledAt.IsZero() || !list[0].RevokedAt.IsZero() {
		t.Errorf("List = %+v, %v", list, err)
	}
	stored, err := m.store.Scan(t.Context(), "l/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range stored {
		if bytes.Contains(e.Value, []byte(secret)) || bytes.Contains(e.Value, []byte(hex.EncodeToString([]byte(secret)))) {
			t.Errorf("%s holds the secret", e.Key)
		}
	}
}

// TestEnrolOnce: of many who come with one secret at the same time, one gets in.
func TestEnrolOnce(t *testing.T) {
	m := newPrimary(t)
	secret := m.invite("berlin")
	var wg sync.WaitGroup
	var in atomic.Int32
	for i := range 10 {
		req, _ := request(t, "berlin", fmt.Sprintf("c%d", i), secret)
		wg.Go(func() {
			if _, err := m.reg.Enrol(t.Context(), req); err == nil {
				in.Add(1)
			} else {
				refused(t, "the same secret", err, engines.KindInvalid, "already used")
			}
		})
	}
	wg.Wait()
	if in.Load() != 1 {
		t.Errorf("%d secondaries got in", in.Load())
	}
}

// TestEnrolRefused is the table of everything that does not get in, and what it is told. What became of a secret is told
// only to who knows it.
func TestEnrolRefused(t *testing.T) {
	tests := []struct {
		name string
		prep func(m *member, req *replication.EnrolRequest)
		part string
	}{
		{"another secret", func(_ *member, r *replication.EnrolRequest) { r.Secret = "x" }, "not one of this primary"},
		{"no secret", func(_ *member, r *replication.EnrolRequest) { r.Secret = "" }, "not one of this primary"},
		{"unknown id", func(_ *member, r *replication.EnrolRequest) { r.SecondaryID = "paris" }, "not one of this primary"},
		{"id that cannot be", func(_ *member, r *replication.EnrolRequest) { r.SecondaryID = strings.Repeat("x", 5000) }, "not one of this primary"},
		{"another set", func(_ *member, r *replication.EnrolRequest) { r.SetID = "other" }, "another replication set"},
		{"expired", func(m *member, _ *replication.EnrolRequest) { m.pass(time.Hour) }, "expired"},
		{"expired and wrong", func(m *member, r *replication.EnrolRequest) { m.pass(time.Hour); r.Secret = "x" }, "not one of this primary"},
		{"revoked", func(m *member, _ *replication.EnrolRequest) { m.revoke("berlin") }, "revoked"},
		{"revoked and wrong", func(m *member, r *replication.EnrolRequest) { m.revoke("berlin"); r.Secret = "x" }, "not one of this primary"},
		{"replaced by a later token", func(m *member, _ *replication.EnrolRequest) { m.invite("berlin") }, "replaced by a later one"},
		{"no cluster id", func(_ *member, r *replication.EnrolRequest) { r.ClusterID = "" }, "cluster id"},
		{"long cluster id", func(_ *member, r *replication.EnrolRequest) { r.ClusterID = strings.Repeat("c", 129) }, "cluster id"},
		{"the primary itself", func(_ *member, r *replication.EnrolRequest) { r.ClusterID = "primary-cluster" }, "its own secondary"},
		{"a cluster that is enrolled", func(m *member, _ *replication.EnrolRequest) { m.enrolled("rome", "c1") }, `"rome"`},
		{"a cluster id that is somebody's id", func(m *member, _ *replication.EnrolRequest) { m.invite("c1") }, "opaque id of another secondary"},
		{"no request", func(_ *member, r *replication.EnrolRequest) { r.CSR = nil }, "certificate request"},
		{"not a primary", func(m *member, _ *replication.EnrolRequest) {
			m.become(roles.Role{Mode: roles.Secondary, Demoted: true})
		}, "not a primary"},
		{"disabled", func(m *member, _ *replication.EnrolRequest) { m.become(roles.Role{Mode: roles.Disabled}) }, "not a primary"},
		{"fenced", func(m *member, _ *replication.EnrolRequest) { r := primary(); r.Fenced = 2; m.become(r) }, "epoch 2"},
		{"emptied", func(m *member, _ *replication.EnrolRequest) {
			if err := m.reg.Empty(m.Context()); err != nil {
				m.Fatal(err)
			}
		}, "not one of this primary"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newPrimary(t)
			req, _ := request(t, "berlin", "c1", m.invite("berlin"))
			test.prep(m, &req)
			_, err := m.reg.Enrol(t.Context(), req)
			refused(t, test.name, err, engines.KindInvalid, test.part)
			if s := m.state("berlin"); s == Active {
				t.Error("it is active now")
			}
		})
	}
}

// TestBadRequestKeepsTheSecret: what fails before the certificate is made can be tried again.
func TestBadRequestKeepsTheSecret(t *testing.T) {
	m := newPrimary(t)
	req, _ := request(t, "berlin", "c1", m.invite("berlin"))
	bad := req
	bad.CSR = []byte("noise")
	if _, err := m.reg.Enrol(t.Context(), bad); err == nil {
		t.Fatal("noise was signed")
	}
	if _, err := m.reg.Enrol(t.Context(), req); err != nil {
		t.Errorf("the good request: %v", err)
	}
}

func (m *member) revoke(id string) {
	m.Helper()
	if err := m.reg.Revoke(m.Context(), id); err != nil {
		m.Fatal(err)
	}
}

// TestDuplicateID: an active id is refused; one that was not used, has expired or was revoked is issued again.
func TestDuplicateID(t *testing.T) {
	m := newPrimary(t)
	first := m.invite("berlin")
	second := m.invite("berlin") // unused
	m.pass(2 * time.Hour)
	if m.state("berlin") != Expired {
		t.Errorf("state %q after its time", m.state("berlin"))
	}
	third := m.invite("berlin") // expired
	for _, secret := range []string{first, second} {
		req, _ := request(t, "berlin", "c1", secret)
		_, err := m.reg.Enrol(t.Context(), req)
		refused(t, "a replaced secret", err, engines.KindInvalid, "replaced")
	}
	req, _ := request(t, "berlin", "c1", third)
	reply, err := m.reg.Enrol(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.reg.issue(t.Context(), "berlin", time.Hour)
	refused(t, "an active id", err, engines.KindInvalid, "revoke-secondary")
	_, err = m.reg.issue(t.Context(), "c1", time.Hour)
	refused(t, "the cluster id of another", err, engines.KindInvalid, "cluster id")

	m.revoke("berlin")
	again := m.enrolled("berlin", "c1") // the same cluster comes back
	if _, err := m.reg.Admit(t.Context(), again); err != nil {
		t.Errorf("the new certificate: %v", err)
	}
	if _, err := m.reg.Admit(t.Context(), certOf(t, reply.Cert)); !errors.Is(err, ErrRevoked) {
		t.Errorf("the certificate from before the revocation: %v", err)
	}
}

func TestOpaqueIDs(t *testing.T) {
	m := newPrimary(t)
	for _, id := range []string{"", strings.Repeat("x", 257), "a\nb", "a\x00", "\xff", "a\u200bb"} {
		_, err := m.reg.issue(t.Context(), id, time.Hour)
		refused(t, fmt.Sprintf("id %q", id), err, engines.KindInvalid, `"id"`)
	}
	for i, id := range []string{"a", "a/b c", "Zürich", strings.Repeat("é", 128), strings.Repeat("x", 256)} {
		cert := m.enrolled(id, fmt.Sprint("c", i))
		if p, err := m.reg.Admit(t.Context(), cert); err != nil || p.ID != id {
			t.Errorf("Admit of %q = %q, %v", id, p.ID, err)
		}
	}
}

// TestRevoke: it counts on every node as soon as the change is applied there, and ends an unused token too.
func TestRevoke(t *testing.T) {
	m := newPrimary(t)
	berlin, paris := m.enrolled("berlin", "c1"), m.enrolled("paris", "c2")
	// Another node, which has everything in memory.
	other := New(Options{Store: m.store})
	m.store.OnChange(other.Changed)
	if _, err := other.Admit(t.Context(), berlin); err != nil {
		t.Fatal(err)
	}
	m.revoke("berlin")
	for name, reg := range map[string]*Registry{"this node": m.reg, "another": other} {
		if _, err := reg.Admit(t.Context(), berlin); !errors.Is(err, ErrRevoked) {
			t.Errorf("%s: Admit = %v", name, err)
		}
		if _, err := reg.Admit(t.Context(), paris); err != nil {
			t.Errorf("%s: the other secondary: %v", name, err)
		}
	}
	req, _ := request(t, "", "", "")
	if _, err := m.reg.Renew(t.Context(), roles.Peer{ID: "berlin", ClusterID: "c1"}, req.CSR); !errors.Is(err, ErrRevoked) {
		t.Errorf("Renew = %v", err)
	}
	m.revoke("berlin") // again
	m.revoke("c2")     // by the cluster's id
	if m.state("paris") != Revoked {
		t.Errorf("paris is %s", m.state("paris"))
	}
	m.invite("rome")
	m.revoke("rome")
	if m.state("rome") != Revoked {
		t.Errorf("rome is %s", m.state("rome"))
	}
	refused(t, "an unknown id", m.reg.Revoke(t.Context(), "oslo"), engines.KindNotFound, "known_secondaries")
	m.become(roles.Role{Mode: roles.Disabled})
	refused(t, "on no primary", m.reg.Revoke(t.Context(), "berlin"), engines.KindInvalid, "not a primary")
}

// TestAdmitReadsNothing: who is known is known from memory.
func TestAdmitReadsNothing(t *testing.T) {
	m := newPrimary(t)
	cert := m.enrolled("berlin", "c1")
	if _, err := m.reg.Admit(t.Context(), cert); err != nil {
		t.Fatal(err)
	}
	before := m.reads.Load()
	for range 100 {
		if _, err := m.reg.Admit(t.Context(), cert); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.reads.Load() - before; n != 0 {
		t.Errorf("%d reads for 100 calls", n)
	}
	m.reg.Clear()
	if _, err := m.reg.Admit(t.Context(), cert); err != nil {
		t.Errorf("after Clear: %v", err)
	}
}

// TestAdmitRefused: strangers, and certificates that are not of secondaries.
func TestAdmitRefused(t *testing.T) {
	m, foreign := newPrimary(t), newPrimary(t)
	server, _, err := m.reg.ServerTLS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := m.enrolled("berlin", "c1")
	// A secondary of another primary, whose registry has the same ids. TLS would refuse it already.
	twin := foreign.enrolled("berlin", "c1")
	for name, test := range map[string]struct {
		cert *x509.Certificate
		want error
	}{
		"a stranger":             {foreign.enrolled("paris", "c2"), ErrStranger},
		"our server":             {server.Leaf, ErrStranger},
		"another enrolment":      {twin, ErrRevoked},
		"nothing in particular":  {&x509.Certificate{}, ErrStranger},
		"the one that is let in": {known, nil},
	} {
		if _, err := m.reg.Admit(t.Context(), test.cert); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func TestRenew(t *testing.T) {
	m := newPrimary(t)
	first := m.enrolled("berlin", "c1")
	req, key := request(t, "", "", "")
	m.pass(5 * 24 * time.Hour)
	text, err := m.reg.Renew(t.Context(), roles.Peer{ID: "berlin", ClusterID: "c1"}, req.CSR)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(text, key); err != nil {
		t.Error(err)
	}
	second := certOf(t, text)
	if !second.NotAfter.After(first.NotAfter.Add(4 * 24 * time.Hour)) {
		t.Errorf("renewed from %v to %v", first.NotAfter, second.NotAfter)
	}
	for _, cert := range []*x509.Certificate{first, second} { // both: the change happens in the middle of a stream
		if _, err := m.reg.Admit(t.Context(), cert); err != nil {
			t.Error(err)
		}
	}
	_, err = m.reg.Renew(t.Context(), roles.Peer{ID: "berlin", ClusterID: "c1"}, nil)
	refused(t, "no request", err, engines.KindInvalid, "certificate request")
	for _, p := range []roles.Peer{{ID: "berlin", ClusterID: "c2"}, {ID: "paris", ClusterID: "c1"}, {}} {
		if _, err := m.reg.Renew(t.Context(), p, req.CSR); !errors.Is(err, ErrStranger) {
			t.Errorf("Renew of %+v = %v", p, err)
		}
	}
	m.become(roles.Role{Mode: roles.Secondary, Demoted: true})
	_, err = m.reg.Renew(t.Context(), roles.Peer{ID: "berlin", ClusterID: "c1"}, req.CSR)
	refused(t, "on no primary", err, engines.KindInvalid, "not a primary")
}

// TestServerTLS: nothing while the cluster is not a primary; one certificate as long as it lasts; another with a new CA.
func TestServerTLS(t *testing.T) {
	m := newMember(t, roles.Role{Mode: roles.Disabled})
	get := func() *tls.Certificate {
		t.Helper()
		cert, pool, err := m.reg.ServerTLS(t.Context())
		if err != nil || (cert == nil) != (pool == nil) {
			t.Fatalf("ServerTLS: %v", err)
		}
		return cert
	}
	if get() != nil {
		t.Error("a disabled cluster has a certificate")
	}
	m.become(primary())
	first := get()
	if get() != first {
		t.Error("each call makes a certificate")
	}
	m.pass(4 * 24 * time.Hour)
	second := get()
	if second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Error("the certificate is not renewed in time")
	}
	m.become(primary()) // promoted again: a new CA
	third := get()
	_, pool, err := m.reg.ServerTLS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := third.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: enrol.ServerName, CurrentTime: m.now()}); err != nil {
		t.Errorf("after a new CA: %v", err)
	}
	m.become(roles.Role{Mode: roles.Secondary, Demoted: true})
	if get() == nil {
		t.Error("a demoted cluster does not let its secondaries have the rest")
	}
	m.become(roles.Role{Mode: roles.Secondary})
	if get() != nil {
		t.Error("a secondary that follows another cluster has a certificate")
	}
	// A secondary's certificate of the CA before is refused by TLS with the new pool.
	if _, err := second.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: m.now()}); err == nil {
		t.Error("a certificate of the CA before is still good")
	}
}

// TestPromoteEmptiesTheRegistry: after a promotion, new tokens must be issued to the other secondaries.
func TestPromoteEmptiesTheRegistry(t *testing.T) {
	m := newPrimary(t)
	cert := m.enrolled("berlin", "c1")
	m.invite("paris")
	for range 2 {
		if err := m.reg.Empty(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := m.reg.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
	if _, err := m.reg.Admit(t.Context(), cert); !errors.Is(err, ErrStranger) {
		t.Errorf("Admit = %v", err)
	}
	m.enrolled("berlin", "c1")
}

// TestResolve: both ids mean the same secondary (filters and dynamic-filter depend on it).
func TestResolve(t *testing.T) {
	m := newPrimary(t)
	m.invite("paris")
	m.enrolled("berlin", "c1")
	for id, want := range map[string]string{"berlin": "berlin", "c1": "berlin", "paris": "paris", "": "", "oslo": ""} {
		got, ok, err := m.reg.Resolve(t.Context(), id)
		if err != nil || ok != (want != "") || got != want {
			t.Errorf("Resolve(%q) = %q, %v, %v", id, got, ok, err)
		}
	}
	m.revoke("berlin")
	if _, ok, _ := m.reg.Resolve(t.Context(), "c1"); ok {
		t.Error("the cluster of a revoked secondary is still known by its id")
	}
}

// TestClusterIDIsTheirs: the id of a cluster that has enrolled is not for another cluster, which was invited too, because
// filters go by it. It is for the same opaque id, and for the same key, which ends the enrolment before.
func TestClusterIDIsTheirs(t *testing.T) {
	m := newPrimary(t)
	enrolAs := func(id string, key []byte) (*x509.Certificate, []byte, error) {
		t.Helper()
		req, fresh := request(t, id, "c1", m.invite(id))
		if key != nil {
			var err error
			if req.CSR, err = enrol.CSRFor(key); err != nil {
				t.Fatal(err)
			}
			fresh = key
		}
		reply, err := m.reg.Enrol(t.Context(), req)
		if err != nil {
			return nil, nil, err
		}
		return certOf(t, reply.Cert), fresh, nil
	}
	first, key, err := enrolAs("berlin", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = enrolAs("mallory", nil)
	refused(t, "another key", err, engines.KindInvalid, `"berlin"`)
	if _, err := m.reg.Admit(t.Context(), first); err != nil {
		t.Errorf("berlin after somebody tried to take its place: %v", err)
	}
	second, _, err := enrolAs("berlin-2", key) // update-primary with a new token
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.reg.Admit(t.Context(), first); !errors.Is(err, ErrRevoked) {
		t.Errorf("the enrolment before: %v", err)
	}
	if p, err := m.reg.Admit(t.Context(), second); err != nil || p != (roles.Peer{ID: "berlin-2", ClusterID: "c1"}) {
		t.Errorf("Admit = %+v, %v", p, err)
	}
	if got, _, _ := m.reg.Resolve(t.Context(), "c1"); got != "berlin-2" || m.state("berlin") != Revoked {
		t.Errorf("c1 is %q, berlin is %s", got, m.state("berlin"))
	}
	m.revoke("berlin-2")
	_, _, err = enrolAs("mallory", nil)
	refused(t, "another key, after a revocation", err, engines.KindInvalid, `"berlin-2"`)
	if _, _, err := enrolAs("berlin-2", nil); err != nil { // invited again, with a new key
		t.Errorf("the same id: %v", err)
	}
	refused(t, "nobody", m.reg.Revoke(t.Context(), "c2"), engines.KindNotFound, "known_secondaries")

	// An operator may call a secondary by the id of its cluster.
	m.enrolled("c7", "c7")
	m.revoke("c7")
	m.enrolled("c7", "c7")
}

// TestUnreadableRecord: what cannot be read admits no secondary, and keeps no other out.
func TestUnreadableRecord(t *testing.T) {
	m := newPrimary(t)
	berlin, paris := m.enrolled("berlin", "c1"), m.enrolled("paris", "c2")
	e, err := m.store.Get(t.Context(), secondaryKey("berlin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range [][]byte{[]byte("{"), bytes.Replace(e.Value, []byte(`"format":1`), []byte(`"format":2`), 1), bytes.ReplaceAll(e.Value, []byte("berlin"), []byte("dublin"))} {
		if _, err := m.store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: secondaryKey("berlin"), Value: value}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.reg.Admit(t.Context(), berlin); !errors.Is(err, ErrStranger) {
			t.Errorf("Admit = %v", err)
		}
		if _, err := m.reg.Admit(t.Context(), paris); err != nil {
			t.Error(err)
		}
	}
	if list, _ := m.reg.List(t.Context()); !slices.ContainsFunc(list, func(r Registered) bool { return r.ID == "paris" }) || len(list) != 1 {
		t.Errorf("List = %+v", list)
	}
}
