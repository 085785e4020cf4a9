package saml_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

type object = map[string]any

const (
	entityID = "https://coffer.example.com/saml"
	verifier = "what the client keeps to itself"
)

// alice is a user whom the role "dev" admits.
var alice = samltest.User{
	Subject:    "alice@example.com",
	Attributes: map[string][]string{"groups": {"staff", "admins"}, "department": {"engineering"}},
}

// method is a SAML method of a cluster, and the identity provider that it trusts.
type method struct {
	t    *testing.T
	c    *harness.Cluster
	node *harness.Node // which requests go to, unless another is said
	name string
	acs  string
	idp  *samltest.IdP
}

// alone returns a cluster of one node.
func alone(t *testing.T, prefix, config string) *harness.Cluster {
	t.Helper()
	return harness.NewCluster(t, 1, harness.Options{Prefix: prefix, Config: config})
}

// enable mounts the method, without a configuration.
func enable(t *testing.T, c *harness.Cluster, name string) *method {
	t.Helper()
	n := c.Leader()
	m := &method{t: t, c: c, node: n, name: name, acs: n.URL + "/v1/auth/" + name + "/callback", idp: samltest.New(t)}
	n.MustDo("POST", "/v1/sys/auth/"+name, object{"type": "saml"})
	return m
}

// ready mounts the method and configures it, with the role "dev" for the staff.
func ready(t *testing.T, c *harness.Cluster, name string, config ...object) *method {
	t.Helper()
	m := enable(t, c, name)
	m.configure(config...)
	m.role("dev", nil)
	return m
}

// in is the same method in a subtest.
func (m *method) in(t *testing.T) *method {
	sub := *m
	sub.t, sub.idp = t, samltest.New(t)
	return &sub
}

// settings are a whole configuration.
func (m *method) settings(more ...object) object {
	all := object{
		"idp_sso_url": m.idp.SSOURL, "idp_entity_id": m.idp.EntityID, "idp_cert": m.idp.CertificatePEM(),
		"entity_id": entityID, "acs_urls": []string{m.acs}, "name_id_format": "unspecified",
	}
	for _, o := range more {
		maps.Copy(all, o)
	}
	return all
}

func (m *method) configure(more ...object) harness.Answer {
	m.t.Helper()
	return m.node.MustDo("POST", "/v1/auth/"+m.name+"/config", m.settings(more...))
}

// role writes a role for the staff, unless it says something else.
func (m *method) role(name string, more object) harness.Answer {
	m.t.Helper()
	all := object{"bound_attributes": object{"groups": "staff"}, "token_policies": "dev", "confirm": "never"}
	maps.Copy(all, more)
	return m.node.MustDo("POST", "/v1/auth/"+m.name+"/role/"+name, all)
}

// send sends a request to the method on a node. What was written through any node is seen.
func (m *method) send(n *harness.Node, verb, path, token string, body any, header ...string) harness.Answer {
	m.t.Helper()
	return send(m.t, n, verb, "auth/"+m.name+"/"+path, token, body, header...)
}

func send(t *testing.T, n *harness.Node, verb, path, token string, body any, header ...string) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, err := n.Do(ctx, verb, "/v1/"+path, token, body, append(header, "X-Vault-Consistency", "linearizable")...)
	if err != nil {
		t.Fatalf("%s %s on %s: %v", verb, path, n.ID, err)
	}
	return a
}

// try posts without a token. The status is 0 when there is no answer. It can be used from any goroutine.
func try(n *harness.Node, path string, body any, header ...string) harness.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, err := n.Do(ctx, "POST", "/v1/"+path, "", body, header...)
	if err != nil {
		return harness.Answer{}
	}
	return a
}

// admin sends a request of the operator.
func (m *method) admin(verb, path string, body any) harness.Answer {
	m.t.Helper()
	return m.send(m.node, verb, path, m.c.RootToken, body)
}

// read returns the data of a path of the method, as the operator reads it.
func (m *method) read(path string) object {
	m.t.Helper()
	return dataOf(m.t, m.admin("GET", path, nil))
}

func dataOf(t *testing.T, a harness.Answer) object {
	t.Helper()
	var out struct{ Data object }
	if a.Status != 200 {
		t.Fatalf("status %d: %.400s", a.Status, a.Body)
	}
	a.Decode(t, &out)
	return out.Data
}

func challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// startBody is a good request for a login, with other fields.
func (m *method) startBody(more object) object {
	all := object{"role": "dev", "client_challenge": challenge(verifier), "client_type": "cli", "acs_url": m.acs}
	maps.Copy(all, more)
	return all
}

// started is a login that a client waits for.
type started struct{ url, poll string }

func (m *method) start(n *harness.Node, more object) started {
	m.t.Helper()
	return startedOf(m.t, m.send(n, "POST", "sso_service_url", "", m.startBody(more)))
}

func startedOf(t *testing.T, a harness.Answer) (s started) {
	t.Helper()
	d := dataOf(t, a)
	s.url, _ = d["sso_service_url"].(string)
	s.poll, _ = d["token_poll_id"].(string)
	return s
}

// post sends a form to the callback, as a browser does.
func (m *method) post(n *harness.Node, form url.Values) harness.Answer {
	m.t.Helper()
	return m.send(n, "POST", "callback", "", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
}

func (m *method) confirm(n *harness.Node, s started, u samltest.User) {
	m.t.Helper()
	a := m.post(n, m.idp.Answer(s.url, u))
	if value := samltest.Confirmation(a.Body); value != "" { // the user says yes
		a = m.post(n, url.Values{"confirmation": {value}, "decision": {"confirm"}})
	}
	if a.Status != 200 {
		m.t.Fatalf("the callback answered %d: %.300s", a.Status, a.Body)
	}
}

func (m *method) redeem(n *harness.Node, poll string) harness.Answer {
	m.t.Helper()
	return m.send(n, "POST", "token", "", object{"client_verifier": verifier, "token_poll_id": poll})
}

// token is what a login answers.
type token struct {
	Token         string `json:"client_token"`
	Accessor      string
	Policies      []string
	TokenPolicies []string `json:"token_policies"`
	Identity      []string `json:"identity_policies"`
	TTL           int      `json:"lease_duration"`
	Renewable     bool
	EntityID      string `json:"entity_id"`
	Type          string `json:"token_type"`
	Orphan        bool
	NumUses       int `json:"num_uses"`
	Metadata      map[string]string
}

func tokenOf(t *testing.T, a harness.Answer) token {
	t.Helper()
	var out struct{ Auth *token }
	if a.Status == 200 {
		a.Decode(t, &out)
	}
	if out.Auth == nil || out.Auth.Token == "" {
		t.Fatalf("status %d, no token: %.400s", a.Status, a.Body)
	}
	return *out.Auth
}

// login goes the whole way with a role.
func (m *method) login(role string, u samltest.User) token {
	m.t.Helper()
	s := m.start(m.node, object{"role": role})
	m.confirm(m.node, s, u)
	return tokenOf(m.t, m.redeem(m.node, s.poll))
}

// admits reports whether a role lets a user in. If not, that shows at the callback and where the client waits.
func (m *method) admits(role string, u samltest.User) bool {
	m.t.Helper()
	s := m.start(m.node, object{"role": role})
	a := m.post(m.node, m.idp.Answer(s.url, u))
	b := m.redeem(m.node, s.poll)
	if a.Status != b.Status || a.Status != 200 && a.Status != 403 {
		m.t.Errorf("the callback answered %d, the token %d: %.300s", a.Status, b.Status, b.Body)
	}
	return b.Status == 200
}

// lookup returns what a token says of itself, nil if it is no good.
func (m *method) lookup(n *harness.Node, token string) object {
	m.t.Helper()
	a := send(m.t, n, "GET", "auth/token/lookup-self", token, nil)
	if a.Status == 403 {
		return nil
	}
	return dataOf(m.t, a)
}

func (m *method) renew(token string, seconds int) harness.Answer {
	m.t.Helper()
	return send(m.t, m.node, "POST", "auth/token/renew-self", token, object{"increment": seconds})
}

// from does something with the requests to a node coming from another address of this machine.
func from(n *harness.Node, address string, do func()) {
	was := n.HTTP
	other := *was
	transport := was.Transport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	other.Transport = transport
	n.HTTP = &other
	defer func() {
		n.HTTP = was
		transport.CloseIdleConnections()
	}()
	do()
}

// wantStatus wants an answer with a status, whose body has all the words.
func wantStatus(t *testing.T, what string, a harness.Answer, status int, words ...string) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: status %d: %.400s, want %d", what, a.Status, a.Body, status)
		return
	}
	body := string(a.Body)
	if texts := a.Errors(); texts != nil {
		body = strings.Join(texts, "\n")
	}
	for _, w := range words {
		if !strings.Contains(body, w) {
			t.Errorf("%s: %q does not say %q", what, body, w)
		}
	}
}

// wantData compares some fields as they are printed: numbers and lists look the same, however they were decoded.
func wantData(t *testing.T, got, want object) {
	t.Helper()
	for name, w := range want {
		if fmt.Sprint(got[name]) != fmt.Sprint(w) {
			t.Errorf("%s = %v, want %v", name, got[name], w)
		}
	}
}

// has wants a body to hold a text, or not to.
func has(t *testing.T, what, text, part string, want bool) {
	t.Helper()
	if strings.Contains(text, part) != want {
		t.Errorf("%s: %q is there: %v, want %v", what, part, !want, want)
	}
}
