package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	vault "github.com/hashicorp/vault/api"
	"github.com/openbao/openbao/api/v2"
)

// client is what the family's two Go clients have in common. The types are those of the one; what the other says is
// carried over field by field. Each request goes to a random node of the cluster, and the client's own way to read
// what it has written keeps the nodes' answers in order.
type client interface {
	as(token string) client
	in(namespace string) client
	wrapped(ttl string) client
	with(header, value string) client

	read(path string) (*api.Secret, error)
	query(path string, values url.Values) (*api.Secret, error)
	list(path string) (*api.Secret, error)
	write(path string, data map[string]any) (*api.Secret, error)
	patch(path string, data map[string]any) (*api.Secret, error)
	remove(path string) (*api.Secret, error)
	unwrap(token string) (*api.Secret, error)

	create(api.TokenCreateRequest) (*api.Secret, error)
	createOrphan(api.TokenCreateRequest) (*api.Secret, error)
	createByRole(api.TokenCreateRequest, string) (*api.Secret, error)
	lookup(token string) (*api.Secret, error)
	lookupSelf() (*api.Secret, error)
	lookupAccessor(accessor string) (*api.Secret, error)
	renew(token string, seconds int) (*api.Secret, error)
	renewSelf(seconds int) (*api.Secret, error)
	revokeTree(token string) error
	revokeOrphan(token string) error
	revokeAccessor(accessor string) error

	mount(path string, in api.MountInput) error
	unmount(path string) error
	mounts() (map[string]*api.MountOutput, error)
	mountConfig(path string) (*api.MountConfigOutput, error)
	tune(path string, in api.MountConfigInput) error
	enableAuth(path, kind string) error
	disableAuth(path string) error
	auths() (map[string]*api.AuthMount, error)
	startRemount(from, to string) (*api.MountMigrationOutput, error)
	remountStatus(id string) (*api.MountMigrationStatusOutput, error)

	putPolicy(name, rules string) error
	policies() ([]string, error)
	capabilities(token, path string) ([]string, error)
	capabilitiesSelf(path string) ([]string, error)
	mfaValidate(id string, payload map[string]any) (*api.Secret, error)

	lease(id string) (*api.Secret, error)
	renewLease(id string, seconds int) (*api.Secret, error)
	revokeLease(id string) error
	revokePrefix(prefix string) error
	revokeForce(prefix string) error

	enableAudit(path string, o api.EnableAuditOptions) error
	disableAudit(path string) error
	audits() (map[string]*api.Audit, error)
	auditHash(path, text string) (string, error)

	cors() (*api.CORSResponse, error)
	setCORS(api.CORSRequest) error
	disableCORS() error

	replication(kind string) (*vault.ReplicationStatusGenericResponse, error)
	health() (*api.HealthResponse, error)
	sealStatus() (*api.SealStatusResponse, error)
	keyStatus() (*api.KeyStatus, error)
	rotate() error
	rootInit(otp string) (*api.GenerateRootStatusResponse, error)
	rootStatus() (*api.GenerateRootStatusResponse, error)
	rootUpdate(share, nonce string) (*api.GenerateRootStatusResponse, error)
	rootCancel() error
	rekeyInit(api.RekeyInitRequest) (*api.RekeyStatusResponse, error)
	rekeyStatus() (*api.RekeyStatusResponse, error)
	rekeyUpdate(share, nonce string) (*api.RekeyUpdateResponse, error)
	rekeyCancel() error
	rekeyVerify(share, nonce string) (*api.RekeyVerificationUpdateResponse, error)
}

// like carries a value over to a type with the same fields. A nil pointer stays nil.
func like[T any](v any, err error) (T, error) {
	var out T
	if err != nil {
		return out, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return out, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return out, d.Decode(&out)
}

// must is like for values that are known to fit.
func must[T any](v any) T {
	out, err := like[T](v, nil)
	if err != nil {
		panic(err)
	}
	return out
}

// answerOf returns the status and the texts of an error answer of either client.
func answerOf(err error) (status int, texts []string, ok bool) {
	var b *api.ResponseError
	var v *vault.ResponseError
	switch {
	case errors.As(err, &b):
		return b.StatusCode, b.Errors, true
	case errors.As(err, &v):
		return v.StatusCode, v.Errors, true
	}
	return 0, nil, false
}

// refused wants an error answer with one of the statuses, whatever it says.
func refused(t *testing.T, err error, want ...int) {
	t.Helper()
	got, texts, ok := answerOf(err)
	if !ok {
		t.Fatalf("error %v, want an answer with status %d", err, want)
	}
	for _, w := range want {
		if got == w {
			return
		}
	}
	t.Fatalf("status %d (%v), want %d", got, texts, want)
}

// says wants an error answer with this status, whose text has the words.
func says(t *testing.T, err error, want int, words ...string) {
	t.Helper()
	refused(t, err, want)
	_, texts, _ := answerOf(err)
	for _, w := range words {
		if !strings.Contains(strings.Join(texts, "\n"), w) {
			t.Errorf("errors %q do not say %q", texts, w)
		}
	}
}

// tour is one client's way through everything that the core services offer. What it makes has its name, so that the
// other's does not meet it.
type tour struct {
	*harness.Cluster
	name string
	root client
}

func (x *tour) my(name string) string { return name + "-" + x.name }

func (x *tour) node() *harness.Node { return x.Nodes[rand.IntN(len(x.Nodes))] }

// raw is for what the clients do not show: status codes, headers and paths without the envelope.
func (x *tour) raw(t *testing.T, n *harness.Node, method, path, token string, body any, header ...string) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, err := n.Do(ctx, method, path, token, body, append(header, "X-Vault-Consistency", "linearizable")...)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return a
}

// auth wants an answer with an auth part.
func auth(t *testing.T) func(*api.Secret, error) *api.SecretAuth {
	return func(s *api.Secret, err error) *api.SecretAuth {
		t.Helper()
		noErr(t, err)
		if s == nil || s.Auth == nil {
			t.Fatalf("the answer has no auth: %+v", s)
		}
		return s.Auth
	}
}

// data wants an answer with data.
func data(t *testing.T) func(*api.Secret, error) map[string]any {
	return func(s *api.Secret, err error) map[string]any {
		t.Helper()
		noErr(t, err)
		if s == nil || s.Data == nil {
			t.Fatalf("the answer has no data: %+v", s)
		}
		return s.Data
	}
}

// absent wants a read that finds nothing: the clients make nothing of status 404. Others may be allowed as well.
func absent(t *testing.T, others ...int) func(*api.Secret, error) {
	return func(s *api.Secret, err error) {
		t.Helper()
		if err != nil {
			refused(t, err, append(others, 404)...)
		} else if s != nil {
			t.Fatalf("found %+v, want nothing", s.Data)
		}
	}
}

// done wants a write that worked, whatever it answered.
func done(t *testing.T) func(*api.Secret, error) {
	return func(_ *api.Secret, err error) {
		t.Helper()
		noErr(t, err)
	}
}

// fields compares some fields of data; numbers are given as int.
func fields(t *testing.T, got map[string]any, want map[string]any) {
	t.Helper()
	for name, w := range want {
		g := got[name]
		switch w := w.(type) {
		case int:
			same(t, name, number(t, g), int64(w))
		case []string:
			list := texts(g)
			if list == nil {
				list = []string{}
			}
			same(t, name, list, w)
		default:
			same(t, name, g, w)
		}
	}
}

// policy writes a policy and returns a client whose token has nothing but it.
func (x *tour) policy(t *testing.T, c client, name, rules string) client {
	t.Helper()
	noErr(t, c.putPolicy(x.my(name), rules))
	return c.as(auth(t)(c.create(api.TokenCreateRequest{Policies: []string{x.my(name)}, NoDefaultPolicy: true})).ClientToken)
}

// kv mounts a KV version 1 for the rest of a test.
func (x *tour) kv(t *testing.T, c client, path string) {
	t.Helper()
	noErr(t, c.mount(path, api.MountInput{Type: "kv"}))
	t.Cleanup(func() {
		if err := c.unmount(path); err != nil {
			t.Errorf("disabling %s: %v", path, err)
		}
	})
}

// method enables an auth method for the rest of a test and returns its accessor.
func (x *tour) method(t *testing.T, c client, path, kind string) (accessor string) {
	t.Helper()
	noErr(t, c.enableAuth(path, kind))
	t.Cleanup(func() {
		if err := c.disableAuth(path); err != nil {
			t.Errorf("disabling auth/%s: %v", path, err)
		}
	})
	all, err := c.auths()
	noErr(t, err)
	if all[path+"/"] == nil || all[path+"/"].Accessor == "" {
		t.Fatalf("auth/%s has no accessor: %v", path, all)
	}
	return all[path+"/"].Accessor
}

// alive reports whether a token can look itself up.
func (x *tour) alive(t *testing.T, c client) bool {
	t.Helper()
	_, err := c.lookupSelf()
	if err != nil {
		refused(t, err, 403)
	}
	return err == nil
}

// TestClients drives everything above the storage with both clients, unchanged, each on three nodes of its own.
func TestClients(t *testing.T) {
	t.Parallel()
	for _, client := range []struct {
		name string
		new  func(*testing.T, *harness.Cluster) client
		own  func(*testing.T, *harness.Cluster)
	}{
		{"bao", newBao, func(t *testing.T, c *harness.Cluster) {
			t.Run("namespaces", func(t *testing.T) { baoNamespaces(t, c) })
			baoAlone(t, c)
		}},
		{"vault", newVault, vaultAlone},
	} {
		t.Run(client.name, func(t *testing.T) {
			t.Parallel()
			snapshots := t.TempDir()
			c := harness.NewCluster(t, 3, harness.Options{
				Shamir: true, Described: client.name == "bao", StorageConfig: patient, Config: fmt.Sprintf("snapshots {\n  local_root = %q\n}", snapshots),
			})
			x := &tour{Cluster: c, name: client.name, root: client.new(t, c)}
			for _, stage := range []struct {
				name string
				run  func(*testing.T)
			}{
				{"namespaces", x.namespaces},
				{"identity", x.identity},
				{"groups", x.groups},
				{"userpass", x.userpass},
				{"approle", x.approle},
				{"saml", x.saml},
				{"cloud", x.cloud},
				{"methods", x.methods},
				{"token roles", x.tokenRoles},
				{"token kinds", x.tokenKinds},
				{"mfa", x.mfa},
				{"wrapping", x.wrapping},
				{"leases", x.leases},
				{"audit", x.audit},
				{"quotas", x.quotas},
				{"remount", x.remount},
				{"passwords", x.passwords},
				{"operations", x.operations},
				{"family", x.family},
				{"terraform", x.terraform},
				{"snapshots", func(t *testing.T) { x.snapshots(t, snapshots) }},
				{"seals", x.seals},
			} {
				t.Run(stage.name, stage.run)
			}
			t.Run("its own", func(t *testing.T) { client.own(t, c) })
			if n := c.Compared(); client.name == "bao" && n < 120 && !t.Failed() {
				t.Errorf("only %d operations had responses that could be compared with their descriptions", n)
			}
		})
	}
}

// transport sends each request to a random node, as a load balancer in front of the cluster does.
type transport struct {
	nodes []*harness.Node
	http.RoundTripper
}

func (b *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = strings.TrimPrefix(b.nodes[rand.IntN(len(b.nodes))].URL, "https://")
	r.Host = r.URL.Host
	return b.RoundTripper.RoundTrip(r)
}
