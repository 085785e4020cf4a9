//go:build e2e

package saml_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// cluster is what the tests are told of one.
type cluster struct {
	Nodes []string `json:"nodes"` // URLs, the active node's first
	Token string   `json:"token"` // of an operator
	CA    string   `json:"ca"`    // a file
}

// TestIdentityProviders brings up a cluster of three nodes and a secondary of it, for the tests in test/e2e/saml, which log in
// to them with identity providers that others wrote, in a real browser.
func TestIdentityProviders(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	us := harness.NewCluster(t, 3, harness.Options{Prefix: "us", Config: "ui = true"})
	eu := harness.NewCluster(t, 2, harness.Options{Prefix: "eu", Config: "ui = true"})
	harness.Replicate(us, eu, "eu")
	clusters, err := json.Marshal(map[string]cluster{"us": describe(us), "eu": describe(eu)})
	if err != nil {
		t.Fatal(err)
	}
	play := exec.Command("node", "--test-reporter=spec", "saml/saml.test.js")
	play.Dir = filepath.Join(root, "test", "e2e")
	play.Env = append(os.Environ(), "COFFER_CLUSTERS="+string(clusters), "COFFER_BIN="+harness.Binary(t))
	play.Stdout, play.Stderr = os.Stdout, os.Stderr
	play.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // no orphan when the test is killed
	if err := play.Run(); err != nil {
		t.Errorf("test/e2e/saml: %v", err)
	}
	for _, n := range append(us.Nodes, eu.Nodes...) {
		if strings.Contains(n.Log(), "hvs.") {
			t.Errorf("%s wrote a token to its log", n.ID)
		}
	}
}

func describe(c *harness.Cluster) cluster {
	out := cluster{Nodes: []string{c.Leader().URL}, Token: c.RootToken, CA: c.CAFile}
	for _, n := range c.Standbys() {
		out.Nodes = append(out.Nodes, n.URL)
	}
	return out
}
