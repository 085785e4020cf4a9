package plugin_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestHelp asks for the help of plugins and for the OpenAPI document with their paths, through each node of a cluster. What a plugin
// that is stopped, or describes itself with garbage, says is missing, and nothing else.
func TestHelp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, harness.Options{Prefix: "help"})
	leader, root := c.Leader(), c.RootToken
	register(leader, "secret", "odd", "odd-help")
	for path, kind := range map[string]string{"p": "thing", "odd": "odd", "kv": "kv"} {
		leader.MustDo("POST", "/v1/sys/mounts/"+path, map[string]any{"type": kind})
	}
	leader.MustDo("POST", "/v1/sys/auth/door", map[string]any{"type": "door"})
	leader.MustDo("PUT", "/v1/sys/policies/acl/tester", map[string]any{"policy": `path "p/data/*" { capabilities = ["read"] }`})
	type document struct {
		Info  struct{ Description string }
		Paths map[string]map[string]struct {
			Sudo            bool `json:"x-vault-sudo"`
			Unauthenticated bool `json:"x-vault-unauthenticated"`
		}
	}
	read := func(n *harness.Node) (doc document) {
		do(t, n, 200, "GET", "sys/internal/specs/openapi", root, nil).Decode(t, &doc)
		return doc
	}
	help := func(a harness.Answer) string {
		var out struct{ Help string }
		a.Decode(t, &out)
		return out.Help
	}
	for _, n := range c.Nodes {
		if text := help(do(t, n, 200, "GET", "p?help=1", root, nil)); !strings.Contains(text, "A plugin for tests.") {
			t.Errorf("help of the mount through %s: %s", n.ID, text)
		}
		if text := help(do(t, n, 200, "GET", "p/data/a?help=1", root, nil)); !strings.Contains(text, "value (string)") {
			t.Errorf("help of a path through %s: %s", n.ID, text)
		}
		do(t, n, 404, "GET", "p/nothing?help=1", root, nil)
		do(t, n, 403, "GET", "p?help=1", "", nil)
		doc := read(n)
		for path, method := range map[string]string{"/p/data/{path}": "post", "/p/creds": "get", "/auth/door/login": "post", "/kv/{path}": "get", "/sys/mounts": "get"} {
			if _, ok := doc.Paths[path][method]; !ok {
				t.Errorf("%s %s is missing in the document of %s", method, path, n.ID)
			}
		}
		if !doc.Paths["/auth/door/login"]["post"].Unauthenticated || doc.Paths["/sys/seal"] == nil || doc.Info.Description == "" {
			t.Errorf("the document of %s: %q", n.ID, doc.Info.Description)
		}
		for path := range doc.Paths {
			if strings.HasPrefix(path, "/odd") {
				t.Errorf("the document of %s has %s", n.ID, path)
			}
		}
	}
	for path, want := range map[string]int{"large": 503, "number": 503, "crash": 503, "nothing": 404, "hang": 503} {
		do(t, leader, want, "GET", "odd/"+path+"?help=1", root, nil)
	}
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	do(t, leader, 200, "POST", "auth/door/login", "", map[string]any{"user": "ann"}).Decode(t, &out)
	do(t, leader, 200, "GET", "p?help=1", out.Auth.Token, nil)
	do(t, leader, 403, "GET", "odd?help=1", out.Auth.Token, nil)
	for _, pid := range processes(t, leader) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	do(t, leader, 503, "GET", "p?help=1", root, nil)
	for _, n := range c.Nodes {
		doc := read(n)
		if doc.Paths["/p/creds"] != nil || doc.Paths["/kv/{path}"] == nil || !strings.HasSuffix(doc.Info.Description, ": auth/door/, odd/, p/") {
			t.Errorf("with plugins stopped, the document of %s: %s", n.ID, doc.Info.Description)
		}
	}
}
