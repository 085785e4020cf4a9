// Package plugin_test mounts plugins on real servers: like any other engine, and like one that must not be trusted.
// Start reading at TestPlugins, then TestMisbehaviour.
package plugin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// programs is the plugin_directory of all clusters, sum the checksum of the test plugin in it.
var programs, sum string

func TestMain(m *testing.M) {
	harness.Main(m, func() { os.RemoveAll(programs) })
}

// build makes the test plugin, once. It is not what is tested, so it has no race detector.
var build = sync.OnceValue(func() (err error) {
	if programs, err = os.MkdirTemp("", "plugins"); err != nil {
		return err
	}
	program := filepath.Join(programs, "testplugin")
	out, err := exec.Command("go", "build", "-o", program, "github.com/coffer-project/coffer/test/testplugin").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(content)
	sum = hex.EncodeToString(digest[:])
	return nil
})

// newCluster starts one that knows the test plugin as a secrets engine "thing" and as an auth method "door".
func newCluster(t *testing.T, n int, o harness.Options) *harness.Cluster {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	o.Config += fmt.Sprintf("\nplugin_directory = %q\nplugin_memory_limit = \"256MiB\"\n", programs)
	c := harness.NewCluster(t, n, o)
	register(c.Leader(), "secret", "thing")
	register(c.Leader(), "auth", "door", "auth")
	return c
}

// register puts the test plugin into the catalogue under a name.
func register(n *harness.Node, kind, name string, args ...string) {
	n.MustDo("PUT", "/v1/sys/plugins/catalog/"+kind+"/"+name, map[string]any{"sha256": sum, "command": "testplugin", "args": args, "env": []string{"ONLY=this"}})
}

// client is the command line, for a node of a cluster.
func client(t *testing.T, c *harness.Cluster, n *harness.Node, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), harness.Binary(t), args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "COFFER_ADDR=" + n.URL, "COFFER_CACERT=" + c.CAFile, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// do sends a request, and fails the test unless the status is the wanted one.
func do(t *testing.T, n *harness.Node, want int, method, path, token string, body any) harness.Answer {
	t.Helper()
	a, err := n.Do(t.Context(), method, "/v1/"+path, token, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.Status != want {
		t.Fatalf("%s %s: status %d, want %d: %.300s", method, path, a.Status, want, a.Body)
	}
	return a
}

// field returns a field of the data of a response.
func field(t *testing.T, a harness.Answer, name string) string {
	t.Helper()
	var out struct{ Data map[string]any }
	a.Decode(t, &out)
	return strings.TrimSpace(fmt.Sprint(out.Data[name]))
}
