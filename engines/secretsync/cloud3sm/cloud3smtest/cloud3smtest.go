// Package cloud3smtest is GCP Secret Manager for tests: its gRPC service for one project and the token service beside it, both
// on loopback with TLS. Requests and answers are the vendor's protobuf messages; what the messages cannot say (limits,
// states, etags, checksums, permissions) is in rules.go and service.go, each limit with the vendor's words, which a test
// looks up in the discovery document.
//
// It takes no request that the service would not take, and is stricter in two respects: every call must have a deadline, and
// the header by which calls are routed. It has no rate limits of its own. The service is consistent in the end, except that a
// version is there at once by its number; this one is so at once, but see Stale.
package cloud3smtest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// The project and the service account that there are.
const (
	Project = "coffer-tests"
	Number  = "123456789012" // of the project, which answers name instead of its id
	Email   = "sync@coffer-tests.iam.gserviceaccount.com"
	keyID   = "0123456789abcdef0123456789abcdef01234567"
)

// Server is the service. Safe for concurrent use.
type Server struct {
	secretmanagerpb.UnimplementedSecretManagerServiceServer

	t      testing.TB
	issuer *httptest.Server
	url    string
	conns  *listener

	mu        sync.Mutex
	secrets   map[string]*secret
	tokens    map[string]time.Time // and when they end
	issued    int
	federated string   // the last token of a federated identity
	reject    bool     // the key has been disabled
	granted   []string // permissions
	made      int64    // secrets, etags and tokens so far
	calls     []string
	hooks     map[string]func(ctx context.Context, req any) error
	fault     desttest.Fault
	pages     int // most secrets of a page
}

type secret struct {
	made     int64
	record   *secretmanagerpb.Secret
	versions []*version // version n is versions[n-1]
	stale    int        // the version that "latest" answers with, 0: the one made last
}

type version struct {
	record *secretmanagerpb.SecretVersion
	data   []byte
	sum    int64
}

// key is the service account's, the same in all tests: making one takes long.
var key = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// New starts a service with an empty project. It stops with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		t: t, secrets: map[string]*secret{}, tokens: map[string]time.Time{}, pages: 50,
		granted: slices.Clone(Permissions), hooks: map[string]func(context.Context, any) error{},
	}
	s.issuer = httptest.NewTLSServer(http.HandlerFunc(s.issue))
	t.Cleanup(s.issuer.Close)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.conns = &listener{Listener: raw, open: map[string]net.Conn{}}
	s.url = "https://" + raw.Addr().String()
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: s.issuer.TLS.Certificates, MinVersion: tls.VersionTLS12})),
		grpc.UnaryInterceptor(s.intercept),
	)
	secretmanagerpb.RegisterSecretManagerServiceServer(server, s)
	done := make(chan struct{}) // closed when the service has stopped
	go func() {
		defer close(done)
		_ = server.Serve(s.conns)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return s
}

// Env is how to reach the service.
func (s *Server) Env() destination.Env {
	roots := x509.NewCertPool()
	roots.AddCert(s.issuer.Certificate())
	return destination.Env{
		Client: s.issuer.Client(),
		Dial:   new(net.Dialer).DialContext,
		TLS:    &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		URL:    s.url, TokenURL: s.issuer.URL + "/token",
		Getenv: func(string) string { return "" },
	}
}

// PrivateKey is the PEM of the service account's key.
func PrivateKey() string {
	der, err := x509.MarshalPKCS8PrivateKey(key())
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// Credentials is the JSON key of the service account, with other values for some of its fields; one that is nil is left out.
func Credentials(other map[string]any) string {
	fields := map[string]any{
		"type": "service_account", "project_id": Project, "private_key_id": keyID, "private_key": PrivateKey(), "client_email": Email,
		"client_id": "100000000000000000001", "auth_uri": "https://accounts.google.com/o/oauth2/auth", "token_uri": audience,
		"universe_domain": "googleapis.com",
	}
	for name, value := range other {
		if fields[name] = value; value == nil {
			delete(fields, name)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Put adds a version as another client, to a new secret if there is none.
func (s *Server) Put(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets[name] == nil {
		s.add(name, &secretmanagerpb.Secret{Replication: &secretmanagerpb.Replication{
			Replication: &secretmanagerpb.Replication_Automatic_{Automatic: &secretmanagerpb.Replication_Automatic{}},
		}})
	}
	s.addVersion(name, []byte(value), false)
}

// Get returns the latest version, as another client reads it.
func (s *Server) Get(name string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sec := s.secrets[name]
	if sec == nil || len(sec.versions) == 0 {
		return "", false
	}
	v := sec.versions[len(sec.versions)-1]
	return string(v.data), v.record.State == secretmanagerpb.SecretVersion_ENABLED
}

// Remove deletes a secret as another client.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.secrets, name)
}

// Edit changes a secret's labels and annotations as another client.
func (s *Server) Edit(name string, change func(labels, annotations map[string]string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sec := s.secrets[name]
	if sec.record.Labels == nil {
		sec.record.Labels = map[string]string{}
	}
	if sec.record.Annotations == nil {
		sec.record.Annotations = map[string]string{}
	}
	change(sec.record.Labels, sec.record.Annotations)
	sec.record.Etag = s.etag()
}

// Disable disables a version as another client.
func (s *Server) Disable(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[name].versions[n-1].record.State = secretmanagerpb.SecretVersion_DISABLED
}

// Stale has "latest" of a secret stay at version n, as it does for a while at the service; 0 ends that.
func (s *Server) Stale(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[name].stale = n
}

// Labels, Annotations, Versions and Replication say how a secret is. A version that came with a checksum ends in "+".
func (s *Server) Labels(name string) map[string]string { return s.record(name).Labels }

// Annotations is documented at Labels.
func (s *Server) Annotations(name string) map[string]string { return s.record(name).Annotations }

// Replication is documented at Labels.
func (s *Server) Replication(name string) *secretmanagerpb.Replication {
	return s.record(name).Replication
}

func (s *Server) record(name string) *secretmanagerpb.Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sec := s.secrets[name]; sec != nil {
		return copied(sec.record)
	}
	return &secretmanagerpb.Secret{}
}

// Versions is documented at Labels: the state of each version, in order of their numbers.
func (s *Server) Versions(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []string
	if sec := s.secrets[name]; sec != nil {
		for _, v := range sec.versions {
			state := v.record.State.String()
			if v.record.ClientSpecifiedPayloadChecksum {
				state += "+"
			}
			states = append(states, state)
		}
	}
	return states
}

// Pages says how many secrets a page of the list has at most; 50 at first.
func (s *Server) Pages(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = n
}

// Grant says which permissions the service account has.
func (s *Server) Grant(permissions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted = permissions
}

// DisableKey has the token service reject the service account's key. Tokens that it has issued stay good.
func (s *Server) DisableKey() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reject = true
}

// EndTokens ends all tokens that were issued.
func (s *Server) EndTokens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// Tokens returns the tokens that are good.
func (s *Server) Tokens() (texts []string, issued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text := range s.tokens {
		texts = append(texts, text)
	}
	return texts, s.issued
}

// Calls returns the calls since it was asked last, by method.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Hook has f called before each call of a method that is let in; an error of it is the response. nil ends that. f may use the
// Server.
func (s *Server) Hook(method string, f func(ctx context.Context, req any) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[method] = f
}

// Fail is desttest.Fake's.
func (s *Server) Fail(f desttest.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// add, addVersion, etag and next need the mutex held.
func (s *Server) add(name string, record *secretmanagerpb.Secret) *secret {
	record.Name = "projects/" + Number + "/secrets/" + name
	sec := &secret{made: s.next(), record: record}
	record.CreateTime = s.now()
	record.Etag = s.etag()
	s.secrets[name] = sec
	return sec
}

func (s *Server) addVersion(name string, data []byte, checked bool) *version {
	sec := s.secrets[name]
	v := &version{data: data, sum: *checksum(data), record: &secretmanagerpb.SecretVersion{
		Name:       sec.record.Name + "/versions/" + strconv.Itoa(len(sec.versions)+1),
		CreateTime: s.now(), State: secretmanagerpb.SecretVersion_ENABLED, Etag: s.etag(), ClientSpecifiedPayloadChecksum: checked,
	}}
	sec.versions = append(sec.versions, v)
	return v
}

func (s *Server) next() int64 { s.made++; return s.made }

// now is never the same twice.
func (s *Server) now() *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(s.next()) * time.Microsecond))
}

// etag returns a new one. The quotes belong to it.
func (s *Server) etag() string { return strconv.Quote(strconv.FormatInt(0x16211dd5a0a9c+s.next(), 16)) }

// listener keeps connections by their far ends, so that they can be broken.
type listener struct {
	net.Listener
	mu   sync.Mutex
	open map[string]net.Conn
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open[c.RemoteAddr().String()] = c
	}
	return c, err
}

func (l *listener) sever(from string) {
	l.mu.Lock()
	c := l.open[from]
	delete(l.open, from)
	l.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// Damage changes what is stored of the latest version, and not its checksum.
func (s *Server) Damage(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sec := s.secrets[name]
	sec.versions[len(sec.versions)-1].data[0] ^= 1
}
