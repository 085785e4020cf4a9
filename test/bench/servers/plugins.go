package servers

import (
	"fmt"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/kvplugin"
)

// Plugins measures kv as a plugin beside the built-in kv, on one node.
func Plugins(b *run.Bench, s *run.Scope) {
	directory := s.TempDir()
	sum, err := kvplugin.Build(directory)
	s.Check(err)
	c := harness.NewCluster(s, 1, harness.Options{Plain: true, Config: fmt.Sprintf("\nplugin_directory = %q\n", directory)})
	n := c.Nodes[0]
	n.MustDo("PUT", "/v1/sys/plugins/catalog/secret/foreign-kv", map[string]any{"sha256": sum, "command": kvplugin.Program})
	mounts := map[string]string{"kv": "own", "foreign-kv": "foreign"}
	for kind, path := range mounts {
		n.MustDo("POST", "/v1/sys/mounts/"+path, map[string]any{"type": kind, "options": map[string]string{"version": "2"}})
		b.Load(s, run.Work{Addr: addr(n), Method: "POST", Path: "/v1/" + path + "/data/k%d", Body: secretBody, Conns: 32, Count: 1000, Token: c.RootToken})
	}
	for _, conns := range []int{1, 16, readConns} {
		at := func(path string) run.Work {
			return run.Work{Addr: addr(n), Method: "GET", Path: "/v1/" + path + "/data/k%d", Numbers: 1000, Conns: conns, Token: c.RootToken}
		}
		own, foreign := b.Versus(s, at("own"), at("foreign"))
		b.AddLoad(fmt.Sprintf("kv read through a plugin, %d clients", conns), foreign, run.Row{Yardstick: own.Rate(), Beside: "built-in kv"})
	}
	for _, conns := range writeConns {
		at := func(path string) run.Work {
			return run.Work{Addr: addr(n), Method: "POST", Path: "/v1/" + path + "/data/w%d", Body: writeBody, Conns: conns, Token: c.RootToken}
		}
		own, foreign := b.Versus(s, at("own"), at("foreign"))
		b.AddLoad(fmt.Sprintf("kv write of 1 KiB through a plugin, %d clients", conns), foreign, run.Row{Yardstick: own.Rate(), Beside: "built-in kv"})
	}
}
