package plugin_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestPluginUser has plugins run as another user, which only a server of root can do; any other says so when it starts.
func TestPluginUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		config := filepath.Join(t.TempDir(), "plugins.hcl")
		if err := os.WriteFile(config, []byte("plugin_user = \"root\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		listen := fmt.Sprintf("-dev-listen-address=127.0.0.1:%d", harness.FreePort(t))
		out, err := exec.CommandContext(t.Context(), harness.Binary(t), "server", "-dev", listen, "-config="+config).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "plugin_user") {
			t.Errorf("the server started, or does not say why not: %v: %s", err, out)
		}
		return
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 1, harness.Options{Prefix: "user", Config: "plugin_user = \"nobody\"\n"})
	n := c.Nodes[0]
	n.MustDo("POST", "/v1/sys/mounts/p", map[string]any{"type": "thing"})
	do(t, n, 200, "POST", "p/data/a", c.RootToken, map[string]any{"value": "1"})
	a := do(t, n, 200, "GET", "p/public/x", "", nil)
	if uid, gid, groups := field(t, a, "uid"), field(t, a, "gid"), field(t, a, "groups"); uid != nobody.Uid || gid != nobody.Gid || groups != "<nil>" {
		t.Errorf("it runs as %s:%s with groups %s, want %s:%s and none", uid, gid, groups, nobody.Uid, nobody.Gid)
	}
}
