package security_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// TestPathConfusion spells the path of a secret in ways that a policy could read differently from an engine.
func TestPathConfusion(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/namespaces/team", nil)
	root.must("POST", "sys/mounts/kv", fields{"type": "kv", "options": fields{"version": "2"}})
	root.must("POST", "sys/mounts/flat", fields{"type": "kv"})
	root.must("POST", "kv/data/theirs/x", fields{"data": fields{"secret": hidden}})
	root.must("POST", "flat/theirs/x", fields{"secret": hidden})
	all := `capabilities = ["create", "read", "update", "patch", "delete", "list"]`
	root.policy("mine", fmt.Sprintf(`
		path "kv/data/mine/*" { %[1]s }
		path "flat/mine/*" { %[1]s }
		path "team/*" { %[1]s }`, all))
	root.policy("all-but-theirs", fmt.Sprintf(`
		path "kv/*" { %[1]s }
		path "flat/*" { %[1]s }
		path "kv/data/theirs/*" { capabilities = ["deny"] }
		path "kv/metadata/theirs/*" { capabilities = ["deny"] }
		path "kv/subkeys/theirs/*" { capabilities = ["deny"] }
		path "flat/theirs/*" { capabilities = ["deny"] }`, all))
	spellings := []string{
		"theirs/x", "/theirs/x", "//theirs/x", "./theirs/x", "theirs//x", "theirs/./x", "theirs/x/", "theirs/x//", "theirs/x/.",
		"mine/../theirs/x", "mine/%2e%2e/theirs/x", "mine/%2E%2e/theirs/x", "mine/.%2e/theirs/x", "mine/..%2ftheirs/x", "mine%2f..%2ftheirs%2fx",
		"mine/%252e%252e/theirs/x", "mine/..;/theirs/x", "mine/..\\theirs/x", "mine/..%5ctheirs/x", "%74heirs/x", "theirs%2fx", "theirs%2Fx",
		"theirs/x%00", "theirs/x%00.txt", "theirs/x%20", "%20theirs/x", "theirs/x;", "theirs/x;a=b", "theirs/x?list=true", "theirs/x?", "theirs/x%3f",
		"theirs/x%23", "THEIRS/X", "Theirs/x", "theirs%c0%afx", "theirs%ef%bc%8fx", "mine/..%c0%aftheirs/x", "theirs/%78", "theirs/x?help=1",
		"mine/x?path=theirs/x", "mine/x?name=theirs/x", "+/x", "*", "theirs/*", "theirs/+", "{{path}}",
	}
	fronts := []string{"kv/data/", "kv/metadata/", "kv/subkeys/", "kv//data/", "kv/./data/", "KV/data/", "/kv/data/", "v1/kv/data/", "team/../kv/data/", "team/%2e%2e/kv/data/", "team//../kv/data/", "flat/", "flat//", "Flat/"}
	for _, policy := range []string{"mine", "all-but-theirs"} {
		somebody := root.having(policy)
		for _, front := range fronts {
			for _, spelling := range spellings {
				path := front + spelling
				for _, method := range []string{"GET", "LIST", "DELETE"} {
					what := policy + " " + method + " " + path
					a := somebody.do(method, path, nil)
					switch {
					case strings.Contains(string(a.Body), hidden):
						t.Errorf("%s: status %d shows the secret", what, a.Status)
					case a.Status >= 500 || a.Status >= 300 && a.Status < 400:
						t.Errorf("%s: status %d: %.200s", what, a.Status, a.Body)
					}
				}
				body := encode(t, fields{"data": fields{"secret": "taken"}, "secret": "taken", "path": "theirs/x", "name": "theirs/x"})
				if a := somebody.do("POST", path, body); a.Status >= 500 {
					t.Errorf("%s POST %s: status %d: %.200s", policy, path, a.Status, a.Body)
				}
			}
		}
	}
	for _, path := range []string{"kv/data/theirs/x", "flat/theirs/x"} {
		if a := root.do("GET", path, nil); a.Status != 200 || !strings.Contains(string(a.Body), hidden) {
			t.Errorf("afterwards %s answers %d: %.200s", path, a.Status, a.Body)
		}
	}
}

// TestBodyDoesNotMoveTheRequest: what the path says, and the policy has seen, the body cannot change.
func TestBodyDoesNotMoveTheRequest(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "none")
	root.people("eve", "eve")
	root.policy("eve", `path "auth/people/users/eve/password" { capabilities = ["update"] }
		path "sys/policies/acl/eve" { capabilities = ["update"] }
		path "identity/entity/name/eve" { capabilities = ["create", "update"] }
		path "identity/entity/id/*" { capabilities = ["read"] }`)
	eve := root.with(root.login("eve").Token)
	bob := root.login("bob")
	eve.do("POST", "auth/people/users/eve/password", fields{"username": "bob", "name": "bob", "password": "eve-password-2"})
	eve.do("POST", "auth/people/users/eve/password?username=bob", fields{"password": "eve-password-2"})
	root.login("bob") // with the old password
	eve.do("POST", "sys/policies/acl/eve", fields{"name": "default", "policy": everything})
	if text := string(root.must("GET", "sys/policies/acl/default", nil).Body); strings.Contains(text, "sudo") {
		t.Error("the name in the body decided which policy was written")
	}
	eve.do("POST", "identity/entity/name/eve", fields{"id": bob.Entity, "name": "bob", "disabled": true, "policies": "eve"})
	if e := dataOf(t, root.must("GET", "identity/entity/id/"+bob.Entity, nil)); e["disabled"] == true {
		t.Error("the id in the body decided which entity was written")
	}
}

// TestFieldNameFolding: parameter rules and engines must read the same fields, however they are spelled.
func TestFieldNameFolding(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.policy("maker", `path "auth/token/create" { capabilities = ["create", "update", "sudo"] denied_parameters = { "policies" = [], "period" = [], "id" = [] } }
		path "kv/data/*" { capabilities = ["read"] denied_parameters = { "version" = ["1"] } }`)
	maker := root.having("maker")
	for _, name := range []string{"policies", "Policies", "POLICIES", "policie\u017f", "pol\u0131cies", "policies ", "policies\u0000", "\\u0070olicies"} {
		raw := []byte(`{"` + name + `": ["stolen"]}`)
		if !strings.HasPrefix(name, `\u`) {
			raw = encode(t, fields{name: []string{"stolen"}})
		}
		a := maker.do("POST", "auth/token/create", raw)
		if a.Status < 300 && strings.Contains(strings.Join(authOf(t, a).Policies, " "), "stolen") {
			t.Errorf("field %q went past denied_parameters", name)
		}
		maker.refused("twice", "POST", "auth/token/create", []byte(`{"`+name+`": ["stolen"], "`+name+`": []}`))
	}
	a := maker.do("POST", "auth/token/create?policies=stolen", nil)
	if a.Status < 300 && strings.Contains(strings.Join(authOf(t, a).Policies, " "), "stolen") {
		t.Error("a query went past denied_parameters")
	}
}

// TestRepeatedHeaders: of two tokens or namespaces, none is taken. The same through a raw connection, with spellings
// that a Go client does not send.
func TestRepeatedHeaders(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{})
	root.must("POST", "sys/namespaces/team", nil)
	low := root.having("none")
	send := func(lines ...string) (status int, body string) {
		t.Helper()
		pool := x509.NewCertPool()
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			t.Fatal(err)
		}
		pool.AppendCertsFromPEM(pem)
		conn, err := tls.Dial("tcp", strings.TrimPrefix(root.n.URL, "https://"), &tls.Config{RootCAs: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(conn, "%s\r\nHost: x\r\nConnection: close\r\n\r\n", strings.Join(lines, "\r\n"))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, "" // it hung up
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	get := "GET /v1/sys/audit HTTP/1.1"
	rootToken, lowToken := "X-Vault-Token: "+root.token, "X-Vault-Token: "+low.token
	if status, body := send(get, rootToken); status != 200 {
		t.Fatalf("the request itself: status %d: %.200s", status, body)
	}
	for name, lines := range map[string][]string{
		"two tokens":                  {get, lowToken, rootToken},
		"two tokens, the other way":   {get, rootToken, lowToken},
		"an empty one first":          {get, "X-Vault-Token:", rootToken},
		"two namespaces":              {get, rootToken, "X-Vault-Namespace: team", "X-Vault-Namespace: root"},
		"two namespaces, other order": {get, rootToken, "X-Vault-Namespace: root", "X-Vault-Namespace: team"},
		"names of another case":       {get, strings.ToLower(lowToken[:13]) + lowToken[13:], rootToken},
		"a folded line":               {get, lowToken, " " + root.token},
		"a space before the colon":    {get, "X-Vault-Token : " + root.token, lowToken},
		"a name with an underscore":   {get, "X_Vault_Token: " + root.token, lowToken},
		"two lengths":                 {"POST /v1/sys/audit-hash/x HTTP/1.1", rootToken, "Content-Length: 2", "Content-Length: 3"},
		"a length and chunks":         {"POST /v1/sys/audit-hash/x HTTP/1.1", lowToken, "Content-Length: 2", "Transfer-Encoding: xchunked"},
		"an absolute path elsewhere":  {"GET /v1/sys/audit\thttp://x HTTP/1.1", rootToken},
		"two bearers":                 {get, "Authorization: Bearer " + low.token, "Authorization: Bearer " + root.token},
	} {
		if status, body := send(lines...); status >= 200 && status < 400 || status >= 500 && status != 501 {
			t.Errorf("%s: status %d: %.200s", name, status, body)
		}
	}
}

// TestNamesHaveNoCase: where an engine takes a name in any case, a rule about it holds for every spelling.
func TestNamesHaveNoCase(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("kim", "default")
	root.must("POST", "sys/auth/machines", fields{"type": "approle"})
	root.must("POST", "auth/machines/role/kim", fields{"token_policies": "default"})
	root.must("POST", "identity/entity/name/kim", fields{"metadata": fields{"is": hidden}})
	root.must("POST", "identity/group/name/kim", fields{"metadata": fields{"is": hidden}})
	root.policy("kim", `path "x" { capabilities = ["deny"] } # `+hidden)
	var rules strings.Builder
	paths := []string{"auth/people/users/kim", "auth/machines/role/kim", "identity/entity/name/kim", "identity/group/name/kim", "sys/policies/acl/kim", "sys/policy/kim"}
	for _, path := range paths {
		front := strings.TrimSuffix(path, "kim")
		fmt.Fprintf(&rules, "path %q { capabilities = [\"create\", \"read\", \"update\", \"delete\", \"list\"] }\n", front+"*")
		fmt.Fprintf(&rules, "path %q { capabilities = [\"deny\"] }\npath %q { capabilities = [\"deny\"] }\n", path, path+"/*")
	}
	root.policy("all-but-kim", rules.String())
	u := root.having("all-but-kim")
	for _, path := range paths {
		front := strings.TrimSuffix(path, "kim")
		for _, name := range []string{"kim", "KIM", "Kim", "kIM", "%4bim", "\u212aim", "%E2%84%AAim", "kim%20", "%20kim", "kim/", "kim%2f"} {
			before := string(dataText(t, root, path))
			for _, request := range [][2]string{{"GET", name}, {"POST", name}, {"DELETE", name}, {"POST", name + "/policies"}, {"POST", name + "/password"}, {"POST", name + "/token-ttl"}} {
				a := u.do(request[0], front+request[1], fields{"password": "taken-over-1", "policies": "default", "policy": "", "token_ttl": 77, "metadata": fields{"is": "taken"}})
				if strings.Contains(string(a.Body), hidden) {
					t.Errorf("%s %s%s shows what is denied", request[0], front, request[1])
				}
			}
			if now := string(dataText(t, root, path)); now != before {
				t.Errorf("as %q, %s was changed:\n%s\nwas\n%s", name, path, now, before)
			}
		}
	}
	root.login("kim") // with the old password
}

func dataText(t *testing.T, u user, path string) []byte {
	t.Helper()
	return encode(t, dataOf(t, u.must("GET", path, nil)))
}
