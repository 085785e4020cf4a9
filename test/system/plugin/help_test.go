package plugin_test

import (
	"fmt"
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
	ask := func(n *harness.Node, path, token string, want int) (harness.Answer, error) {
		a, err := n.Do(t.Context(), "GET", "/v1/"+path, token, nil)
		if err == nil && a.Status != want {
			err = fmt.Errorf("%s through %s: status %d, want %d: %.300s", path, n.ID, a.Status, want, a.Body)
		}
		return a, err
	}
	// answers awaits a status, also while another node becomes the active one, and returns the help of the response.
	answers := func(n *harness.Node, path, token string, want int) string {
		t.Helper()
		var out struct{ Help string }
		harness.Await(t, path, patience, func() error {
			a, err := ask(n, path, token, want)
			if err == nil && want == 200 {
				a.Decode(t, &out)
			}
			return err
		})
		return out.Help
	}
	for _, n := range c.Nodes {
		if text := answers(n, "p?help=1", root, 200); !strings.Contains(text, "A plugin for tests.") {
			t.Errorf("help of the mount through %s: %s", n.ID, text)
		}
		if text := answers(n, "p/data/a?help=1", root, 200); !strings.Contains(text, "value (string)") {
			t.Errorf("help of a path through %s: %s", n.ID, text)
		}
		answers(n, "p/nothing?help=1", root, 404)
		answers(n, "p?help=1", "", 403)
		harness.Await(t, "the document of "+n.ID, patience, func() error {
			a, err := ask(n, "sys/internal/specs/openapi", root, 200)
			if err != nil {
				return err
			}
			var doc document
			a.Decode(t, &doc)
			for path, method := range map[string]string{"/p/data/{path}": "post", "/p/creds": "get", "/auth/door/login": "post", "/kv/{path}": "get", "/sys/mounts": "get", "/sys/seal": "post"} {
				if _, ok := doc.Paths[path][method]; !ok {
					return fmt.Errorf("%s %s is missing", method, path)
				}
			}
			for path := range doc.Paths {
				if strings.HasPrefix(path, "/odd") {
					t.Errorf("the document of %s has %s", n.ID, path)
				}
			}
			if !doc.Paths["/auth/door/login"]["post"].Unauthenticated || !strings.HasSuffix(doc.Info.Description, ": odd/") {
				return fmt.Errorf("it says %q", doc.Info.Description)
			}
			return nil
		})
	}
	for path, want := range map[string]int{"large": 503, "number": 503, "crash": 503, "nothing": 404, "hang": 503} {
		answers(c.Nodes[0], "odd/"+path+"?help=1", root, want)
	}
	n := c.Nodes[0]
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	harness.Await(t, "the login", patience, func() error {
		a, err := n.Do(t.Context(), "POST", "/v1/auth/door/login", "", map[string]any{"user": "ann"})
		if err == nil && a.Status != 200 {
			err = fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		if err == nil {
			a.Decode(t, &out)
		}
		return err
	})
	answers(n, "p?help=1", out.Auth.Token, 200)
	answers(n, "odd?help=1", out.Auth.Token, 403)
	for _, n := range c.Nodes {
		harness.Await(t, "the document of "+n.ID+" without plugins", patience, func() error {
			for _, node := range c.Nodes {
				for _, pid := range processes(t, node) {
					if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
						return err
					}
				}
			}
			a, err := ask(n, "sys/internal/specs/openapi", root, 200)
			if err != nil {
				return err
			}
			var doc document
			if a.Decode(t, &doc); doc.Paths["/p/creds"] != nil || doc.Paths["/kv/{path}"] == nil || !strings.HasSuffix(doc.Info.Description, ": auth/door/, odd/, p/") {
				return fmt.Errorf("it says %q", doc.Info.Description)
			}
			return nil
		})
	}
}
