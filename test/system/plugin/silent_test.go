package plugin_test

import (
	"errors"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

var errNone = errors.New("there is none")

// TestSilentPlugin enables a plugin that says nothing when it starts. What others do is done before that has failed.
func TestSilentPlugin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, harness.Options{Prefix: "silent"})
	n, root := c.Nodes[0], c.RootToken
	register(n, "secret", "silent", "silent")
	failed := make(chan int, 1)
	go func() {
		a, err := n.Do(t.Context(), "POST", "/v1/sys/mounts/silent", root, map[string]any{"type": "silent"})
		if err != nil {
			t.Error(err)
		}
		failed <- a.Status
	}()
	harness.Await(t, "the process of the silent plugin", patience, func() error {
		if len(processes(t, n)) == 0 {
			return errNone
		}
		return nil
	})
	for _, step := range []struct {
		status       int
		method, path string
		body         any
	}{
		{200, "GET", "sys/metrics?format=prometheus", nil},
		{200, "GET", "sys/plugins/catalog", nil},
		{200, "GET", "sys/mounts", nil},
		{204, "POST", "sys/mounts/p", map[string]any{"type": "thing"}},
		{200, "POST", "p/data/a", map[string]any{"value": "1"}},
		{204, "POST", "sys/auth/door", map[string]any{"type": "door"}},
		{204, "POST", "sys/mounts/kv", map[string]any{"type": "kv"}},
		{204, "POST", "kv/a", map[string]any{"value": "1"}},
		{204, "POST", "sys/mounts/kv/tune", map[string]any{"description": "tuned"}},
		{204, "DELETE", "sys/mounts/kv", nil},
		{204, "PUT", "sys/plugins/reload/secret/thing", nil},
	} {
		do(t, n, step.status, step.method, step.path, root, step.body)
		select {
		case status := <-failed:
			t.Fatalf("%s %s was done after the silent plugin had failed with status %d", step.method, step.path, status)
		default:
		}
	}
	if status := <-failed; status != 400 {
		t.Errorf("enabling the silent plugin: status %d", status)
	}
}
