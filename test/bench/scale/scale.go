// Package scale measures what many of a kind cost one node: how fast they are made, what memory, disk and start each takes, and
// what they do to reads of others, at a hundredth, a tenth and all of the number that is asked for. Where a row of the last is worse
// than that of the first, it grows faster than their number.
package scale

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// kind is what there is to be many of.
type kind struct {
	name    string
	path    string // "%d" is its number
	body    string
	conns   int // that make them at once
	prepare func(n *harness.Node)
}

const readPolicy = `{"policy":"path \"scale/*\" { capabilities = [\"create\", \"update\", \"read\"] }"}`

var kinds = []kind{
	{name: "secrets of 1 KiB", path: "/v1/scale/data/s/%d", body: `{"data":{"v":"` + strings.Repeat("x", 1024) + `"}}`, conns: 64},
	{name: "mounts", path: "/v1/sys/mounts/m%d", body: `{"type":"kv"}`, conns: 16},
	{name: "namespaces", path: "/v1/sys/namespaces/n%d", body: `{}`, conns: 16},
	{name: "policies", path: "/v1/sys/policies/acl/p%d", body: `{"policy":"path \"elsewhere/*\" { capabilities = [\"read\", \"list\"] }"}`, conns: 16},
	{
		name: "entities with a templated policy", path: "/v1/identity/entity/name/e%d", body: `{"policies":["own"]}`, conns: 16,
		prepare: func(n *harness.Node) {
			n.MustDo("POST", "/v1/sys/policies/acl/own", map[string]any{"policy": `path "scale/data/{{identity.entity.id}}/*" { capabilities = ["read"] }`})
		},
	},
}

// Scale measures each kind on a node of its own.
func Scale(b *run.Bench, s *run.Scope) {
	for _, k := range kinds {
		s.Check(run.InScope(func(s *run.Scope) { many(b, s, k) }))
	}
	s.Check(run.InScope(func(s *run.Scope) { policiesOfToken(b, s) }))
	s.Check(run.InScope(func(s *run.Scope) { members(b, s) }))
	s.Check(run.InScope(func(s *run.Scope) { connections(b, s) }))
}

// node is a server with secrets to read and a token that may.
type node struct {
	*harness.Node
	root, token string
}

func start(b *run.Bench, s *run.Scope, options harness.Options) node {
	options.Plain, options.ReadyIn = true, 10*time.Minute
	c := harness.NewCluster(s, 1, options)
	n := node{Node: c.Nodes[0], root: c.RootToken}
	n.MustDo("POST", "/v1/sys/mounts/scale", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	n.do(b, s, "/v1/sys/policies/acl/scale", readPolicy)
	n.token = n.tokenOf(s, "scale")
	b.Load(s, run.Work{Addr: n.addr(), Method: "POST", Path: "/v1/scale/data/k%d", Body: `{"data":{"v":"x"}}`, Conns: 16, Count: 1000, Token: n.root})
	return n
}

func (n node) addr() string { return strings.TrimPrefix(n.URL, "http://") }

// do sends one request as root.
func (n node) do(b *run.Bench, s *run.Scope, path, body string) {
	b.Load(s, run.Work{Addr: n.addr(), Method: "POST", Path: path, Body: body, Conns: 1, Count: 1, Token: n.root})
}

func (n node) tokenOf(s *run.Scope, policies ...string) string {
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": policies, "ttl": "24h"}).Decode(s, &out)
	return out.Auth.Token
}

// reads is the rate at which the secrets of start are read with a token.
func (n node) reads(b *run.Bench, s *run.Scope, token string) run.Outcome {
	return b.Load(s, run.Work{Addr: n.addr(), Path: "/v1/scale/data/k%d", Method: "GET", Numbers: 1000, Conns: 64, Time: b.Seconds / 3, Token: token})
}

// use is what a node takes: memory in use after a garbage collection and its files, in bytes.
func (n node) use(s *run.Scope) (heap, disk float64) {
	return run.HeapBytes(s, n.MustDo("GET", "/v1/sys/pprof/heap?gc=true&debug=1", nil).Body), run.DiskUse(s, n.Dir)
}

func many(b *run.Bench, s *run.Scope, k kind) {
	n := start(b, s, harness.Options{})
	if k.prepare != nil {
		k.prepare(n.Node)
	}
	empty := n.reads(b, s, n.token)
	heap, disk := n.use(s)
	made := 0
	for _, upTo := range []int{b.Scale / 100, b.Scale / 10, b.Scale} {
		name := fmt.Sprintf("%d %s", upTo, k.name)
		o := b.Load(s, run.Work{
			Addr: n.addr(), Method: "POST", Path: k.path, Body: k.body, Conns: k.conns, First: int64(made), Count: int64(upTo - made), Token: n.root,
		})
		b.AddLoad(name+": making them", o, run.Row{})
		made = upTo
		newHeap, newDisk := n.use(s)
		b.Add(run.Row{Name: name + ": memory in use added for each", Value: max(0, newHeap-heap) / float64(upTo), Unit: " bytes"})
		b.Add(run.Row{Name: name + ": files added for each", Value: max(0, newDisk-disk) / float64(upTo), Unit: " bytes"})
		b.AddLoad(name+": KV read of others", n.reads(b, s, n.token), run.Row{Yardstick: empty.Rate(), Beside: "without"})
		n.Stop()
		begin := time.Now()
		n.Start()
		n.WaitHealth(200)
		b.Add(run.Row{Name: name + ": restart to active and unsealed", Value: time.Since(begin).Seconds(), Unit: " s"})
	}
}

// most is how many policies a token has at most here; it may have 1,024.
const most = 1000

// policiesOfToken measures reads with a token that has many policies.
func policiesOfToken(b *run.Bench, s *run.Scope) {
	n := start(b, s, harness.Options{})
	one := n.reads(b, s, n.token)
	names, bodies := []string{"scale"}, []string(nil)
	for i := range min(b.Scale, most) - 1 {
		names = append(names, fmt.Sprintf("p%d", i))
		bodies = append(bodies, fmt.Sprintf(`{"policy":"path \"p%d/*\" { capabilities = [\"read\"] }"}`, i))
	}
	b.Load(s, run.Work{Addr: n.addr(), Method: "POST", Path: "/v1/sys/policies/acl/p%d", Bodies: bodies, Conns: 16, Token: n.root})
	b.AddLoad(fmt.Sprintf("KV read, token with %d policies", len(names)), n.reads(b, s, n.tokenOf(s, names...)), run.Row{Yardstick: one.Rate(), Beside: "with 1"})
}

// members measures writing and reading a large group, beside a group of one.
func members(b *run.Bench, s *run.Scope) {
	n := start(b, s, harness.Options{})
	count := min(b.Scale, 10_000)
	o := b.Load(s, run.Work{
		Addr: n.addr(), Method: "POST", Path: "/v1/identity/entity/name/e%d", Body: `{}`, Conns: 16, Count: int64(count), Token: n.root,
	})
	b.AddLoad(fmt.Sprintf("%d entities: making them", count), o, run.Row{})
	var list struct {
		Data struct{ Keys []string }
	}
	n.MustDo("LIST", "/v1/identity/entity/id", nil).Decode(s, &list)
	var took [2]time.Duration
	for i, ids := range [][]string{list.Data.Keys[:1], list.Data.Keys} {
		begin := time.Now()
		n.MustDo("POST", fmt.Sprintf("/v1/identity/group/name/g%d", i), map[string]any{"member_entity_ids": ids})
		took[i] = time.Since(begin)
	}
	b.Add(run.Row{Name: fmt.Sprintf("a group of %d members: writing it", len(list.Data.Keys)), Value: took[1].Seconds() * 1000, Unit: " ms"})
	for i := range took {
		begin := time.Now()
		const times = 100
		for range times {
			n.MustDo("GET", fmt.Sprintf("/v1/identity/group/name/g%d", i), nil)
		}
		took[i] = time.Since(begin) / times
	}
	b.Add(run.Row{
		Name: fmt.Sprintf("a group of %d members: reading it", len(list.Data.Keys)), Value: took[1].Seconds() * 1000, Unit: " ms",
		Yardstick: took[0].Seconds() * 1000, Beside: "a group of 1",
	})
}

// connections measures clients that keep a connection and ask nothing.
func connections(b *run.Bench, s *run.Scope) {
	count := min(b.Scale, 10_000)
	n := start(b, s, harness.Options{ListenerConfig: fmt.Sprintf("max_connections = %d\nmax_connections_per_address = %d", count+200, count+200)})
	empty := n.reads(b, s, n.token)
	before, err := run.StatusMiB(strconv.Itoa(n.PID()), "RssAnon:")
	s.Check(err)
	for range count {
		conn, err := net.Dial("tcp", n.addr())
		s.Check(err)
		s.Cleanup(func() { conn.Close() })
		_, err = fmt.Fprintf(conn, "GET /v1/sys/health HTTP/1.1\r\nHost: %s\r\n\r\n", n.addr())
		s.Check(err)
		answer, err := bufio.NewReaderSize(conn, 16).ReadBytes(' ')
		if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1")) {
			s.Fatalf("a connection was not answered: %q, %v", answer, err)
		}
	}
	after, err := run.StatusMiB(strconv.Itoa(n.PID()), "RssAnon:")
	s.Check(err)
	name := fmt.Sprintf("%d idle connections", count)
	b.Add(run.Row{Name: name + ": resident memory of the node's own added for each", Value: max(0, after-before) * 1024 / float64(count), Unit: " KiB"})
	b.AddLoad(name+": KV read", n.reads(b, s, n.token), run.Row{Yardstick: empty.Rate(), Beside: "without"})
}
