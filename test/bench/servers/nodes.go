package servers

import (
	"fmt"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// What a node is to reach beside the bare server.
const (
	readTarget   = 0.75
	lookupTarget = 0.7
	createTarget = 0.5
)

var writeTargets = map[int]float64{1: 0.7, 64: 0.6} // by clients

// OneNode measures reads, writes and tokens on one node, beside the bare server.
func OneNode(b *run.Bench, s *run.Scope) {
	bare, _ := b.StartBare(s, bareAnswer)
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	n := addr(c.Nodes[0])
	token := prepare(s, c.Nodes[0])
	readable(b, s, n, token)
	yard, o := b.Versus(s, reads(bare, dummyToken), reads(n, token))
	b.AddLoad("bare net/http, GET of the same bytes, 64 connections", yard, run.Row{})
	b.AddLoad("KV read, linearizable, ordinary token, 64 connections", o, run.Row{Yardstick: yard.Rate(), Beside: "bare GET", Target: readTarget})
	yard, o = b.Versus(s, reads(bare, dummyToken), run.Work{Addr: n, Method: "GET", Path: "/v1/auth/token/lookup-self", Conns: readConns, Token: token})
	b.AddLoad("token lookup-self, 64 connections", o, run.Row{Yardstick: yard.Rate(), Beside: "bare GET", Target: lookupTarget})
	b.MeasureDisk(s)
	for _, conns := range writeConns {
		yard, o = b.Versus(s, writes(bare, dummyToken, "b", conns), writes(n, token, "one", conns))
		b.AddLoad(fmt.Sprintf("bare net/http, group commit to a file, 1 KiB, %d clients", conns), yard, run.Row{})
		r := run.Row{Yardstick: yard.Rate(), Beside: "bare commit", Target: writeTargets[conns]}
		b.AddLoad(fmt.Sprintf("KV write, 1 KiB, one node, %d clients", conns), o, r)
	}
	b.Again(run.Row{Yardstick: b.FsyncRate, Beside: "fdatasync"})
	created := run.Work{Addr: n, Method: "POST", Path: "/v1/auth/token/create", Body: `{"ttl":"1h"}`, Conns: readConns, Token: token}
	yard, o = b.Versus(s, writes(bare, dummyToken, "b", readConns), created)
	b.AddLoad("token create, 64 clients", o, run.Row{Yardstick: yard.Rate(), Beside: "bare commit", Target: createTarget})
}

// ThreeNodes measures reads and writes on three nodes, through the leader and through a standby.
func ThreeNodes(b *run.Bench, s *run.Scope) {
	bare, _ := b.StartBare(s, bareAnswer)
	c := harness.NewCluster(s, 3, harness.Options{Plain: true})
	leader := c.Leader()
	token := prepare(s, leader)
	alone := b.RaftAlone(s, 64)
	b.Add(alone)
	b.MeasureDisk(s)
	for _, conns := range writeConns {
		o := b.Load(s, writes(addr(leader), token, "leader", conns))
		b.AddLoad(fmt.Sprintf("KV write, 1 KiB, three nodes on one disk, through the leader, %d clients", conns), o, run.Row{})
	}
	b.Again(run.Row{Yardstick: b.FsyncRate, Beside: "fdatasync"})
	b.Again(run.Row{Yardstick: alone.Value, Beside: "Raft alone", Target: 0.75})
	standby := addr(c.Standbys()[0])
	for _, conns := range writeConns {
		o := b.Load(s, writes(standby, token, "standby", conns))
		b.AddLoad(fmt.Sprintf("KV write, 1 KiB, three nodes on one disk, through a standby, %d clients", conns), o, run.Row{})
	}
	readable(b, s, addr(leader), token)
	yard, o := b.Versus(s, reads(bare, dummyToken), reads(addr(leader), token))
	b.AddLoad("KV read, linearizable, three nodes, on the leader, 64 connections", o, run.Row{Yardstick: yard.Rate(), Beside: "bare GET"})
	yard, o = b.Versus(s, reads(bare, dummyToken), reads(standby, token))
	b.AddLoad("KV read, on a standby, 64 connections", o, run.Row{Yardstick: yard.Rate(), Beside: "bare GET", Target: readTarget})
}
