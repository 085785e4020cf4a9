// Package security_test attacks real servers as an attacker would, one test for each class of attack, and shows
// that it gets nowhere. docs/security-model.md lists the classes, what stops them and the test; TestDocumentedTests
// keeps that list true. Start reading there.
package security_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

type fields = map[string]any

// everything is a policy that allows all that a policy can allow.
const everything = `path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }`

// hidden is in every secret that only its owner may see.
const hidden = "hIdDeN-fRoM-eVeRyBoDy"

// user is somebody with a token, on a node, looking from a namespace.
type user struct {
	t     *testing.T
	n     *harness.Node
	token string
	ns    string
}

// single starts one node and returns its operator.
func single(t *testing.T, opts harness.Options) (*harness.Cluster, user) {
	t.Helper()
	c := harness.NewCluster(t, 1, opts)
	return c, user{t, c.Nodes[0], c.RootToken, ""}
}

func (u user) in(ns string) user       { u.ns = ns; return u }
func (u user) with(token string) user  { u.token = token; return u }
func (u user) at(n *harness.Node) user { u.n = n; return u }
func (u user) nobody() user            { u.token = ""; return u }
func (u user) child(body fields) user  { u.t.Helper(); return u.with(u.newToken(body).Token) }
func (u user) having(policy string) user {
	u.t.Helper()
	return u.child(fields{"policies": []string{policy}, "no_parent": true})
}

// do sends a request below /v1/. header holds names and values in turn.
func (u user) do(method, path string, body any, header ...string) harness.Answer {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if u.ns != "" {
		header = append([]string{"X-Vault-Namespace", u.ns}, header...)
	}
	a, err := u.n.Do(ctx, method, "/v1/"+path, u.token, body, header...)
	if err != nil {
		u.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (u user) must(method, path string, body any, header ...string) harness.Answer {
	u.t.Helper()
	a := u.do(method, path, body, header...)
	if a.Status >= 300 {
		u.t.Fatalf("%s %s in %q: status %d: %.300s", method, path, u.ns, a.Status, a.Body)
	}
	return a
}

// refused wants a client error that tells nothing hidden.
func (u user) refused(what, method, path string, body any, header ...string) harness.Answer {
	u.t.Helper()
	a := u.do(method, path, body, header...)
	if a.Status < 400 || a.Status >= 500 {
		u.t.Errorf("%s: %s %.80s in %q: status %d, want a refusal: %.300s", what, method, path, u.ns, a.Status, a.Body)
	}
	if strings.Contains(string(a.Body), hidden) {
		u.t.Errorf("%s: %s %.80s in %q: status %d shows what is hidden", what, method, path, u.ns, a.Status)
	}
	return a
}

func (u user) policy(name, text string) {
	u.t.Helper()
	u.must("POST", "sys/policies/acl/"+name, fields{"policy": text})
}

// auth is the auth part of an answer.
type auth struct {
	Token    string   `json:"client_token"`
	Accessor string   `json:"accessor"`
	Entity   string   `json:"entity_id"`
	Policies []string `json:"policies"`
}

func (u user) newToken(body fields) auth {
	u.t.Helper()
	return authOf(u.t, u.must("POST", "auth/token/create", body))
}

func authOf(t *testing.T, a harness.Answer) auth {
	t.Helper()
	var out struct{ Auth auth }
	a.Decode(t, &out)
	return out.Auth
}

// dataOf returns the data of an answer.
func dataOf(t *testing.T, a harness.Answer) map[string]any {
	t.Helper()
	var out struct{ Data map[string]any }
	a.Decode(t, &out)
	return out.Data
}

// people enables userpass in the namespace and adds a user with policies.
func (u user) people(name string, policies ...string) {
	u.t.Helper()
	if a := u.do("POST", "sys/auth/people", fields{"type": "userpass"}); a.Status >= 300 && !strings.Contains(string(a.Body), "in use") {
		u.t.Fatalf("enabling userpass: status %d: %.300s", a.Status, a.Body)
	}
	u.must("POST", "auth/people/users/"+name, fields{"password": name + "-password-1", "token_policies": policies})
}

func (u user) login(name string) auth {
	u.t.Helper()
	return authOf(u.t, u.nobody().must("POST", "auth/people/login/"+name, fields{"password": name + "-password-1"}))
}

// wrapped returns a wrapping token that holds something hidden.
func (u user) wrapped() string {
	u.t.Helper()
	var out struct {
		Info struct{ Token string } `json:"wrap_info"`
	}
	u.must("POST", "sys/wrapping/wrap", fields{"secret": hidden}, "X-Vault-Wrap-TTL", "10m").Decode(u.t, &out)
	return out.Info.Token
}

// valid reports whether a token is.
func (u user) valid() bool {
	u.t.Helper()
	switch a := u.do("GET", "auth/token/lookup-self", nil); a.Status {
	case http.StatusOK:
		return true
	case http.StatusForbidden:
		return false
	default:
		u.t.Fatalf("lookup-self: status %d: %.300s", a.Status, a.Body)
		return false
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
