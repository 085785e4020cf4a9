package servers

import (
	"fmt"
	"os"

	"github.com/coffer-project/coffer/test/bench/peer"
	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// Peer measures one node beside one of another server of the family, in turn with the same load.
func Peer(b *run.Bench, s *run.Scope) {
	if b.Peer == "" {
		fmt.Fprintln(os.Stderr, "  left out: -peer names no program")
		return
	}
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	own := addr(c.Nodes[0])
	token := prepare(s, c.Nodes[0])
	p := peer.Start(s, b.Peer, policyText)
	readable(b, s, own, token)
	readable(b, s, p.Addr, p.Token)
	for _, w := range []struct {
		name string
		of   func(addr, token string) run.Work
	}{
		{"KV read, 64 clients", reads},
		{"token lookup-self, 64 clients", func(addr, token string) run.Work {
			return run.Work{Addr: addr, Method: "GET", Path: "/v1/auth/token/lookup-self", Conns: readConns, Token: token}
		}},
		{"KV write, 1 KiB, 1 client", func(addr, token string) run.Work { return writes(addr, token, "p", 1) }},
		{"KV write, 1 KiB, 64 clients", func(addr, token string) run.Work { return writes(addr, token, "p", 64) }},
		{"token create, 64 clients", func(addr, token string) run.Work {
			return run.Work{Addr: addr, Method: "POST", Path: "/v1/auth/token/create", Body: `{"ttl":"1h"}`, Conns: readConns, Token: token}
		}},
	} {
		yard, o := b.Versus(s, w.of(p.Addr, p.Token), w.of(own, token))
		b.AddLoad(p.Name+": "+w.name, yard, run.Row{})
		b.AddLoad("Coffer beside it: "+w.name, o, run.Row{Yardstick: yard.Rate(), Beside: p.Name})
	}
}
