package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

func TestPlugins(t *testing.T) {
	c, err := load(t, node+`
plugin_directory    = "/usr/lib/coffer/plugins"
plugin_user         = "plugins"
plugin_memory_limit = "1GiB"
plugin "secret" "transit" {
  command = "transit-1"
  sha256  = "abc"
  version = "v1.2.3"
  args    = ["-a"]
  env     = ["A=b"]
}`)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Plugins{Directory: "/usr/lib/coffer/plugins", User: "plugins", MemoryLimit: 1 << 30, Registered: []config.Plugin{
		{Type: "secret", Name: "transit", Version: "v1.2.3", Command: "transit-1", SHA256: "abc", Args: []string{"-a"}, Env: []string{"A=b"}},
	}}
	if !reflect.DeepEqual(c.Plugins, want) {
		t.Errorf("%+v", c.Plugins)
	}
	for text, want := range map[string]string{
		`plugin_directory = "plugins"`:        "must be an absolute path",
		`plugin "transit" { sha256 = "abc" }`: "a type and a name",
		`plugin "secret" "a" { sum = "abc" }`: "sum",
	} {
		c, err := load(t, node+"\n"+text)
		if err == nil {
			err = c.Complete()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
