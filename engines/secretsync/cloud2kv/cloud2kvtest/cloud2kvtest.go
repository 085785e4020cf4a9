// Package cloud2kvtest is Azure Key Vault for tests: a vault's secrets and the endpoint that issues tokens for it, both on
// loopback with TLS.
//
//	v := cloud2kvtest.New(t)
//	// v.Client() reaches v.URI and the vendor's own token endpoint by their real names, as production does
//
// It behaves as the vendor's does where that matters: a request without a token is answered with a challenge before it is
// looked at; every write makes a version; deleting and recovering go on after the response (see Lag); a deleted secret keeps
// its name; names, values and tags have their limits; lists come in pages, some of them empty, and the link to the next one
// names the port. Recordings of the vendor's own tests, replayed, hold it to that.
//
// Dates are whole seconds. Backups, purge protection and expiry are left out.
package cloud2kvtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// What the app registration is that may use the vault.
const (
	TenantID     = "11111111-2222-4333-8444-555555555555"
	ClientID     = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
	ClientSecret = "Qx8~not.a.real.secret-of.the.fake_vault1"
)

// Hosts that Client finds the fake at.
const (
	Host          = "example-vault.vault.azure.net"
	authorityHost = "login.microsoftonline.com"
	audience      = "https://vault.azure.net"
)

// Vault is the vault and the token endpoint. Safe for concurrent use.
type Vault struct {
	URI          string // by its own name: https://example-vault.vault.azure.net
	URL          string // on loopback
	AuthorityURL string // on loopback
	// Front, if set before the first request, stands in front of the vault.
	Front func(next http.Handler) http.Handler

	roots  *x509.CertPool
	routes map[string]string // from host and port to listener
	front  sync.Once
	served http.Handler

	mu          sync.Mutex
	secrets     map[string]*object // by folded name
	lag         int
	pageSize    int
	offset      time.Duration
	permissions map[string]bool
	tokens      map[string]bool // that are valid, and whether they are for a vault
	tenant      string          // of the challenge
	resource    string          // of the challenge
	before      func(method, path string)
	calls       []string
	issued      int
}

// object is a name.
type object struct {
	name     string
	versions []*version // the newest last
	deleted  time.Time
	// busy is what still goes on; it is done when it was looked at left times more, and for as many writes.
	busy    string // "", "deleting", "recovering"
	left    int
	rejects int
}

type version struct {
	id          string
	value       string
	contentType string
	tags        map[string]string
	enabled     bool
	created     time.Time
	updated     time.Time
	notBefore   int64
	expires     int64
	managed     bool
}

// New starts a vault that lives as long as the test.
func New(t testing.TB) *Vault {
	t.Helper()
	cert, roots := certificate(t)
	v := &Vault{
		URI: "https://" + Host, roots: roots, routes: map[string]string{},
		secrets: map[string]*object{}, pageSize: 25, tokens: map[string]bool{}, tenant: TenantID, resource: audience,
	}
	v.Allow("get", "list", "set", "delete", "recover", "purge")
	listen := func(host string, h http.Handler) string {
		s := httptest.NewUnstartedServer(h)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients without trust are part of the tests
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(s.Close)
		v.routes[host+":443"] = s.Listener.Addr().String()
		return s.URL
	}
	v.URL = listen(Host, http.HandlerFunc(v.serve))
	v.AuthorityURL = listen(authorityHost, http.HandlerFunc(v.authority))
	return v
}

// certificate returns one for the fake's hosts, and who is to be trusted with it.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a vault for tests"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{Host, authorityHost}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// Client returns a client that finds the vault and the token endpoint at their real names, and everything else nowhere.
func (v *Vault) Client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: v.roots, MinVersion: tls.VersionTLS12},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if to, ok := v.routes[address]; ok {
					address = to
				} else if !strings.HasPrefix(address, "127.0.0.1:") {
					return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}}
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			},
			MaxIdleConnsPerHost: 16, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// now is the vault's time.
func (v *Vault) now() time.Time { return time.Now().Add(v.offset).Truncate(time.Second) }

// Advance moves the vault's clock.
func (v *Vault) Advance(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.offset += d
}

// Lag is how often a secret has to be looked at until its deletion or recovery is done, and then how many writes are still
// rejected after a recovery. Negative: it is never done. 0, as at first: at once.
func (v *Vault) Lag(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lag = n
}

// PageSize is how many secrets are in a page of a list; 25 at first, which is the most.
func (v *Vault) PageSize(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pageSize = n
}

// Allow says which permissions there are, and no others: get, list, set, delete, recover, purge.
func (v *Vault) Allow(permissions ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.permissions = map[string]bool{}
	for _, p := range permissions {
		v.permissions[p] = true
	}
}

// Challenge says which tenant and resource the vault demands tokens of.
func (v *Vault) Challenge(tenant, resource string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tenant, v.resource = tenant, resource
}

// Revoke makes all tokens worthless.
func (v *Vault) Revoke() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.tokens)
}

// Issued returns how many tokens were issued.
func (v *Vault) Issued() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.issued
}

// Before has f called before each request that has been let in is carried out, for what happens at the same moment; nil ends it.
// f may call the Vault.
func (v *Vault) Before(f func(method, path string)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.before = f
}

// Calls returns the requests that were let in, the oldest first, as "PUT /secrets/name", and forgets them.
func (v *Vault) Calls() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	calls := v.calls
	v.calls = nil
	return calls
}

// Put writes a secret as another client does.
func (v *Vault) Put(name, value string, tags map[string]string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.add(name, &version{value: value, tags: tags, enabled: true})
}

// Certificate makes a secret that belongs to a certificate.
func (v *Vault) Certificate(name string, tags map[string]string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.add(name, &version{value: "PEM", tags: tags, enabled: true, managed: true})
}

// add makes a version the newest one of a name, whatever state the name is in.
func (v *Vault) add(name string, n *version) *object {
	o := v.secrets[strings.ToLower(name)]
	if o == nil {
		o = &object{name: name}
		v.secrets[strings.ToLower(name)] = o
	}
	o.deleted, o.busy = time.Time{}, ""
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	n.id, n.created, n.updated = hex.EncodeToString(id[:]), v.now(), v.now()
	o.versions = append(o.versions, n)
	return o
}

// Get returns what another client of the vault reads.
func (v *Vault) Get(name string) (value string, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.secrets[strings.ToLower(name)]
	if o == nil || !o.deleted.IsZero() || !o.newest().enabled {
		return "", false
	}
	return o.newest().value, true
}

// Tags returns the tags of the newest version.
func (v *Vault) Tags(name string) map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if o := v.secrets[strings.ToLower(name)]; o != nil {
		return maps.Clone(o.newest().tags)
	}
	return nil
}

// Values returns the values of all versions, the oldest first.
func (v *Vault) Values(name string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var values []string
	if o := v.secrets[strings.ToLower(name)]; o != nil {
		for _, n := range o.versions {
			values = append(values, n.value)
		}
	}
	return values
}

// Change changes what surrounds the newest version's value, as another client does: whether it is enabled, and its content type.
func (v *Vault) Change(name string, enabled bool, contentType string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.secrets[strings.ToLower(name)].newest()
	n.enabled, n.contentType, n.updated = enabled, contentType, v.now()
}

// ContentType returns that of the newest version.
func (v *Vault) ContentType(name string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.secrets[strings.ToLower(name)].newest().contentType
}

// Date says from when until when the newest version is to be used, in seconds since 1970, as another client does.
func (v *Vault) Date(name string, notBefore, expires int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.secrets[strings.ToLower(name)].newest()
	n.notBefore, n.expires = notBefore, expires
}

// Dates returns what Date has said.
func (v *Vault) Dates(name string) (notBefore, expires int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.secrets[strings.ToLower(name)].newest()
	return n.notBefore, n.expires
}

// Remove deletes a secret, as another client does, and that is done at once.
func (v *Vault) Remove(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.secrets[strings.ToLower(name)]
	o.deleted, o.busy, o.left = v.now(), "", 0
}

// Purge makes a name free.
func (v *Vault) Purge(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.secrets, strings.ToLower(name))
}

// Names returns the names that are there, sorted, those of deleted secrets too.
func (v *Vault) Names() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(v.secrets))
}

func (o *object) newest() *version { return o.versions[len(o.versions)-1] }
