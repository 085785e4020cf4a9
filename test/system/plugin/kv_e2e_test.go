//go:build e2e

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/plugin"
	"github.com/coffer-project/coffer/server/plugin/backend"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/kvplugin"
)

// TestForeignKV has the kv plugin of Vault do what the built-in kv does, and compares what clients get.
func TestForeignKV(t *testing.T) {
	directory := t.TempDir()
	sum, err := kvplugin.Build(directory)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("engine", func(t *testing.T) { kvEngine(t, directory, sum) })
	c := harness.NewCluster(t, 1, harness.Options{Config: fmt.Sprintf("\nplugin_directory = %q\n", directory)})
	n, root := c.Nodes[0], c.RootToken
	n.MustDo("PUT", "/v1/sys/plugins/catalog/secret/foreign", map[string]any{"sha256": sum, "command": kvplugin.Program})
	for kind, path := range map[string]string{"kv": "own", "foreign": "foreign"} {
		for _, version := range []string{"1", "2"} {
			n.MustDo("POST", "/v1/sys/mounts/"+path+version, map[string]any{"type": kind, "options": map[string]string{"version": version}})
		}
	}
	harness.Await(t, "the plugin's data in versions", patience, func() error {
		a, err := n.Do(t.Context(), "GET", "/v1/foreign2/config", root, nil)
		if err == nil && a.Status != 200 {
			err = fmt.Errorf("status %d: %s", a.Status, a.Body)
		}
		return err
	})
	type object = map[string]any
	for _, step := range []struct {
		version, method, path string
		body                  any
	}{
		{"1", "POST", "a", object{"x": "1"}},
		{"1", "GET", "a", nil},
		{"1", "POST", "a", object{"x": "2", "n": 17}},
		{"1", "GET", "a", nil},
		{"1", "GET", "none", nil},
		{"1", "POST", "b/c", object{"x": "3"}},
		{"1", "LIST", "", nil},
		{"1", "LIST", "b", nil},
		{"1", "LIST", "none", nil},
		{"1", "DELETE", "a", nil},
		{"1", "GET", "a", nil},
		{"2", "POST", "data/a", object{"data": object{"x": "1", "y": "1"}}},
		{"2", "GET", "data/a", nil},
		{"2", "POST", "data/a", object{"data": object{"x": "2"}, "options": object{"cas": 0}}},
		{"2", "POST", "data/a", object{"data": object{"x": "2"}, "options": object{"cas": 1}}},
		{"2", "GET", "data/a", nil},
		{"2", "GET", "data/a?version=1", nil},
		{"2", "GET", "data/a?version=7", nil},
		{"2", "PATCH", "data/a", object{"data": object{"z": "3"}}},
		{"2", "GET", "data/a", nil},
		{"2", "PATCH", "data/none", object{"data": object{"z": "3"}}},
		{"2", "POST", "metadata/a", object{"max_versions": 2, "custom_metadata": object{"owner": "us"}}},
		{"2", "GET", "metadata/a", nil},
		{"2", "POST", "delete/a", object{"versions": []int{2}}},
		{"2", "GET", "data/a?version=2", nil},
		{"2", "POST", "undelete/a", object{"versions": []int{2}}},
		{"2", "GET", "data/a?version=2", nil},
		{"2", "POST", "destroy/a", object{"versions": []int{2}}},
		{"2", "GET", "data/a?version=2", nil},
		{"2", "DELETE", "data/a", nil},
		{"2", "GET", "data/a", nil},
		{"2", "POST", "data/b/c", object{"data": object{"x": "1"}}},
		{"2", "LIST", "metadata/", nil},
		{"2", "LIST", "metadata/b", nil},
		{"2", "GET", "subkeys/b/c", nil},
		{"2", "DELETE", "metadata/a", nil},
		{"2", "GET", "metadata/a", nil},
		{"2", "POST", "config", object{"max_versions": 5, "cas_required": true}},
		{"2", "GET", "config", nil},
		{"2", "POST", "data/b/c", object{"data": object{"x": "2"}}},
	} {
		send := func(mount string) string {
			headers := []string{}
			if step.method == "PATCH" {
				headers = []string{"Content-Type", "application/merge-patch+json"}
			}
			a, err := n.Do(t.Context(), step.method, "/v1/"+mount+step.version+"/"+step.path, root, step.body, headers...)
			if err != nil {
				t.Fatal(err)
			}
			var out struct {
				Data any `json:"data"`
			}
			json.Unmarshal(a.Body, &out)                                                                //nolint:errcheck // no data, then
			text, err := json.Marshal(without(out.Data, "created_by", "deleted_by", "last_updated_by")) // which the built-in kv has not
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(a.Status, " ", moments.ReplaceAllString(string(text), `"T"`))
		}
		if own, foreign := send("own"), send("foreign"); own != foreign {
			t.Errorf("%s %s of version %s:\nbuilt-in %s\nplugin   %s", step.method, step.path, step.version, own, foreign)
		}
	}
}

// without removes fields wherever they are.
func without(data any, names ...string) any {
	object, ok := data.(map[string]any)
	if !ok {
		return data
	}
	for _, name := range names {
		delete(object, name)
	}
	for _, value := range object {
		without(value, names...)
	}
	return object
}

var moments = regexp.MustCompile(`"20\d\d-[^"]*Z"`)

// kvEngine runs the conformance suite of engines on the plugin.
func kvEngine(t *testing.T, directory, sum string) {
	tempDir, err := os.MkdirTemp("", "plugin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tempDir) })
	host := plugin.New(plugin.Options{
		Store: &storage.Memory{}, Directory: directory, TempDir: tempDir, Node: alone{}, System: func(engines.Mount) backend.System { return alone{} },
		Shipped: []*plugin.Plugin{{Type: "secret", Name: "foreign", Command: kvplugin.Program, SHA256: sum}},
	})
	t.Cleanup(host.Stop)
	m := enginetest.New(t, host.Factory(false, "foreign", ""), enginetest.Options{Type: "foreign"})
	m.Must(engines.Update, "a", map[string]any{"x": "1"})
	if got := m.Data(m.Must(engines.Read, "a", nil)); got["x"] != "1" {
		t.Errorf("it reads %v", got)
	}
	if !m.Exists("a") || m.Exists("b") {
		t.Error("it does not tell creates from updates")
	}
	m.Fails(engines.KindNotFound, engines.Read, "b", nil)
	m.Engine = declared{m.Engine}
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}

// declared is an engine whose routes are those of a path.
type declared struct{ engines.Engine }

func (d declared) Router() *engines.Router { return d.Engine.Router().Delegate("a") }

// alone is a node and a system in which nothing else is.
type alone struct{}

func (alone) Active() bool               { return true }
func (alone) Secondary() bool            { return false }
func (alone) Local() bool                { return false }
func (alone) Cluster() (_, _ string)     { return "test", "test" }
func (alone) TTLs() (_, _ time.Duration) { return time.Hour, 24 * time.Hour }

func (alone) LeaseAtPrimary(context.Context, engines.Mount, engines.LeaseRecord, bool) (engines.Lease, error) {
	return engines.Lease{}, errors.ErrUnsupported
}

func (alone) Entity(context.Context, string) (*backend.Entity, error) { return nil, nil }

func (alone) Password(context.Context, string) (string, error) { return "", errors.ErrUnsupported }

func (alone) Wrap(context.Context, json.RawMessage, time.Duration) (*engines.WrapInfo, error) {
	return nil, errors.ErrUnsupported
}
