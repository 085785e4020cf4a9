package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// bench collects rows.
type bench struct {
	options
	rows  []row
	syncs float64 // the last raw rate of the disk
}

const readConns = 64

var writeConns = []int{1, 16, 64}

// secretBody is a typical small secret; writeBody carries 1 KiB.
const secretBody = `{"data":{"username":"app-user-17","password":"correct-horse-battery-staple-0123456789"}}`

var writeBody = `{"data":{"v":"` + strings.Repeat("x", 1024) + `"}}`

const policyText = `path "bench/*" { capabilities = ["create", "read", "update", "delete", "list"] }
path "auth/token/create" { capabilities = ["create", "update"] }`

func (b *bench) run() error {
	defer harness.RemoveBinary()
	for _, group := range []struct {
		name string
		do   func(*scope)
	}{
		{"core", b.commits}, {"leases", b.manyLeases}, {"one node", b.oneNode},
		{"pipeline", b.pipeline}, {"SAML logins", b.samlLogins}, {"cloud credentials", b.cloudCredentials},
		{"secret sync", b.secretSync},
		{"three nodes", b.threeNodes},
		{"replication", b.replication}, {"resync", b.resync}, {"cost of replication", b.replicationCost},
		{"failover", b.failover}, {"dev server", b.devServer}, {"restart", b.restart},
	} {
		if b.only != nil && !b.only.MatchString(group.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring: %s\n", group.name)
		if err := inScope(group.do); err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
	}
	return nil
}

// load runs the load generator in a process of its own.
func (b *bench) load(s *scope, w work) outcome {
	if w.Time == 0 {
		w.Time = b.seconds
	}
	self, err := os.Executable()
	s.check(err)
	in, err := json.Marshal(w)
	s.check(err)
	cmd := exec.Command(self, "load")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	text, err := cmd.Output()
	s.check(err)
	var out outcome
	s.check(json.Unmarshal(text, &out))
	if out.Errors > 0 {
		s.Fatalf("%s %s: %d of %d requests failed, first with %s", w.Method, w.Path, out.Errors, out.Requests, out.Sample)
	}
	return out
}

// startBare starts the yardstick server and returns its address.
func (b *bench) startBare(s *scope, answer string) string {
	return b.startServer(s, answer, "bare", "-dir="+s.TempDir())
}

// startServer starts a server that is this program, and returns its address.
func (b *bench) startServer(s *scope, input string, args ...string) string {
	self, err := os.Executable()
	s.check(err)
	cmd := exec.Command(self, args...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	s.check(err)
	s.check(cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	s.check(err)
	return strings.TrimSpace(line)
}

// versus runs two loads in turn, a few times, so that what else the machine does falls on both. It returns the
// median of each.
func (b *bench) versus(s *scope, bare, own work) (yardstick, result outcome) {
	rounds := 3
	if b.smoke {
		rounds = 1
	}
	var yardsticks, results []outcome
	for i := range rounds {
		bare.Time, own.Time = b.seconds/time.Duration(rounds), b.seconds/time.Duration(rounds)
		own.First = int64(i) * 100_000_000 // other keys than the round before
		yardsticks = append(yardsticks, b.load(s, bare))
		results = append(results, b.load(s, own))
	}
	return middle(yardsticks), middle(results)
}

func middle(all []outcome) outcome {
	slices.SortFunc(all, func(a, b outcome) int { return cmp.Compare(a.rate(), b.rate()) })
	return all[len(all)/2]
}

// syncRow measures the disk alone.
func (b *bench) syncRow(s *scope) {
	var all []float64
	for range 3 {
		rate, err := syncRate(s.TempDir(), b.seconds/6)
		s.check(err)
		all = append(all, rate)
	}
	slices.Sort(all)
	b.syncs = all[1]
	b.add(row{name: "raw fdatasync of one 4 KiB block", value: b.syncs, unit: "/s"})
}

// bareAnswer is as long as what Coffer answers to a read of secretBody.
var bareAnswer = `{"request_id":"00000000-0000-0000-0000-000000000000","lease_id":"","renewable":false,"lease_duration":0,"data":{"data":` +
	strings.TrimSuffix(strings.TrimPrefix(secretBody, `{"data":`), "}") +
	`,"metadata":{"created_time":"2026-01-01T00:00:00.123456789Z","custom_metadata":null,"deletion_time":"","destroyed":false,"version":1}},"wrap_info":null,"warnings":null,"auth":null,"mount_type":"kv"}` + "\n"

// dummyToken makes requests to the bare server as long as those to Coffer.
var dummyToken = strings.Repeat("t", 100)

// prepare mounts bench/ and returns a token with an ordinary policy beside the default one.
func prepare(s *scope, n *harness.Node) string {
	n.MustDo("POST", "/v1/sys/mounts/bench", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	n.MustDo("POST", "/v1/sys/policies/acl/bench", map[string]any{"policy": policyText})
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"bench"}, "ttl": "24h"}).Decode(s, &out)
	return out.Auth.Token
}

func addr(n *harness.Node) string { return strings.TrimPrefix(n.URL, "http://") }

// reads are reads of secrets that exist, or the same bytes from the bare server.
func reads(addr, token string) work {
	return work{Addr: addr, Method: "GET", Path: "/v1/bench/data/k%d", Numbers: 1000, Conns: readConns, Token: token}
}

// writes are writes of new secrets, or of the same bytes to the bare server.
func writes(addr, token, prefix string, conns int) work {
	return work{Addr: addr, Method: "POST", Path: fmt.Sprintf("/v1/bench/data/%s%d-%%d", prefix, conns), Body: writeBody, Conns: conns, Token: token}
}

// readable writes the secrets that reads wants.
func (b *bench) readable(s *scope, addr, token string) {
	b.load(s, work{Addr: addr, Method: "POST", Path: "/v1/bench/data/k%d", Body: secretBody, Conns: 32, Count: 1000, Token: token})
}

func (b *bench) oneNode(s *scope) {
	bare := b.startBare(s, bareAnswer)
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	n := addr(c.Nodes[0])
	token := prepare(s, c.Nodes[0])
	b.readable(s, n, token)
	yard, o := b.versus(s, reads(bare, dummyToken), reads(n, token))
	b.addLoad("bare net/http, GET of the same bytes, 64 connections", yard, row{})
	b.addLoad("KV read, linearizable, ordinary token, 64 connections", o, row{yardstick: yard.rate(), beside: "bare GET", target: 0.6})
	yard, o = b.versus(s, reads(bare, dummyToken), work{Addr: n, Method: "GET", Path: "/v1/auth/token/lookup-self", Conns: readConns, Token: token})
	b.addLoad("token lookup-self, 64 connections", o, row{yardstick: yard.rate(), beside: "bare GET"})
	b.syncRow(s)
	for _, conns := range writeConns {
		yard, o = b.versus(s, writes(bare, dummyToken, "b", conns), writes(n, token, "one", conns))
		b.addLoad(fmt.Sprintf("bare net/http, group commit to a file, 1 KiB, %d clients", conns), yard, row{})
		r := row{yardstick: yard.rate(), beside: "bare commit"}
		if conns == 64 {
			r.target = 0.5
		}
		b.addLoad(fmt.Sprintf("KV write, 1 KiB, one node, %d clients", conns), o, r)
	}
	b.again(row{yardstick: b.syncs, beside: "fdatasync"})
	o = b.load(s, work{Addr: n, Method: "POST", Path: "/v1/auth/token/create", Body: `{"ttl":"1h"}`, Conns: readConns, Token: token})
	b.addLoad("token create, 64 clients", o, row{})
}

func (b *bench) threeNodes(s *scope) {
	bare := b.startBare(s, bareAnswer)
	c := harness.NewCluster(s, 3, harness.Options{Plain: true})
	leader := c.Leader()
	token := prepare(s, leader)
	b.syncRow(s)
	for _, conns := range writeConns {
		o := b.load(s, writes(addr(leader), token, "leader", conns))
		b.addLoad(fmt.Sprintf("KV write, 1 KiB, three nodes on one disk, through the leader, %d clients", conns), o, row{})
	}
	b.again(row{yardstick: b.syncs, beside: "fdatasync"})
	standby := addr(c.Standbys()[0])
	for _, conns := range writeConns {
		o := b.load(s, writes(standby, token, "standby", conns))
		b.addLoad(fmt.Sprintf("KV write, 1 KiB, three nodes on one disk, through a standby, %d clients", conns), o, row{})
	}
	b.readable(s, addr(leader), token)
	yard, o := b.versus(s, reads(bare, dummyToken), reads(addr(leader), token))
	b.addLoad("KV read, linearizable, three nodes, on the leader, 64 connections", o, row{yardstick: yard.rate(), beside: "bare GET"})
	yard, o = b.versus(s, reads(bare, dummyToken), reads(standby, token))
	b.addLoad("KV read, on a standby, 64 connections", o, row{yardstick: yard.rate(), beside: "bare GET"})
}

// failover kills the leader while a writer is busy and takes the time to the first accepted write.
func (b *bench) failover(s *scope) {
	c := harness.NewCluster(s, 3, harness.Options{Plain: true})
	token := prepare(s, c.Leader())
	var took []time.Duration
	for i := range b.kills {
		leader := c.Leader()
		var survivors []*harness.Node
		for _, n := range c.Nodes {
			if n != leader {
				survivors = append(survivors, n)
			}
		}
		begin := time.Now()
		leader.Kill9()
		accepted := make(chan time.Time, len(survivors))
		for _, n := range survivors {
			go func() { accepted <- firstWrite(n, token, fmt.Sprintf("failover-%d-%s", i, n.ID)) }()
		}
		took = append(took, (<-accepted).Sub(begin))
		<-accepted
		leader.Start()
		c.WaitServing()
		c.WaitVoters(3)
	}
	slices.Sort(took)
	b.add(row{name: fmt.Sprintf("failover: first write after kill -9 of the leader, median of %d", len(took)), value: took[len(took)/2].Seconds(), unit: " s", target: 2, below: true})
	b.add(row{name: "failover, worst", value: took[len(took)-1].Seconds(), unit: " s", target: 4, below: true})
	b.silentLeaders(s)
}

// silentLeaders takes the longest time without an acknowledged write when the leader falls silent or steps down, while
// linearizable reads are under way at all nodes.
func (b *bench) silentLeaders(s *scope) {
	c := harness.NewCluster(s, 3, harness.Options{Plain: true, Network: true})
	token := prepare(s, c.Leader())
	for _, fault := range []struct {
		name        string
		times       int
		inflict     func(leader *harness.Node) (repair func())
		median, p99 float64 // targets
	}{
		{"SIGSTOP of the leader", b.kills, func(l *harness.Node) func() { l.Pause(); return l.Resume }, 2, 3},
		{"the leader is cut off", b.kills, func(l *harness.Node) func() {
			c.Network.Isolate(l.ID, "n1", "n2", "n3")
			return c.Network.Heal
		}, 2, 3},
		{"step-down", 5 * b.kills, func(l *harness.Node) func() {
			l.MustDo("PUT", "/v1/sys/step-down", nil)
			return func() {}
		}, 0.3, 0.3},
	} {
		var took []time.Duration
		for range fault.times {
			leader := c.Leader()
			outage := harness.NewOutage(token, "/v1/bench/data/outage", secretBody)
			outage.Write(slices.DeleteFunc(slices.Clone(c.Nodes), func(n *harness.Node) bool { return n == leader }))
			outage.Read(c.Nodes)
			outage.AwaitAck(s, time.Now())
			begin := time.Now()
			repair := fault.inflict(leader)
			outage.AwaitAck(s, time.Now().Add(time.Second))
			repair()
			c.WaitServing()
			c.WaitVoters(3)
			took = append(took, outage.Gap(begin, begin.Add(time.Second)))
			outage.Stop()
		}
		name := "no acknowledged write under linearizable reads, " + fault.name
		b.add(row{name: fmt.Sprintf("%s, median of %d", name, len(took)), value: harness.Quantile(took, 0.5).Seconds(), unit: " s", target: fault.median, below: true})
		b.add(row{name: name + ", p99", value: harness.Quantile(took, 0.99).Seconds(), unit: " s", target: fault.p99, below: true})
	}
}

func firstWrite(n *harness.Node, token, key string) time.Time {
	client := &http.Client{Timeout: 5 * time.Second}
	for {
		req, err := http.NewRequest(http.MethodPost, n.URL+"/v1/bench/data/"+key, strings.NewReader(secretBody))
		if err != nil {
			return time.Time{}
		}
		req.Header.Set("X-Vault-Token", token)
		res, err := client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return time.Now()
			}
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (b *bench) devServer(s *scope) {
	binary := harness.Binary(s)
	var took []time.Duration
	var resident float64
	for range 3 {
		cmd := exec.Command(binary, "server", "-dev", "-dev-listen-address=127.0.0.1:0", "-dev-no-store-token")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StderrPipe()
		s.check(err)
		begin := time.Now()
		s.check(cmd.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "coffer: ready at") {
		}
		took = append(took, time.Since(begin))
		resident = max(resident, residentMiB(s, cmd.Process.Pid))
		_ = cmd.Process.Signal(syscall.SIGTERM)
		go func() { _, _ = io.Copy(io.Discard, out) }()
		_ = cmd.Wait()
	}
	slices.Sort(took)
	b.add(row{name: "dev server, start to ready, median of 3", value: took[1].Seconds(), unit: " s", target: 2, below: true})
	b.add(row{name: "dev server, resident memory", value: resident, unit: " MiB", target: 80, below: true})
}

func (b *bench) restart(s *scope) {
	c := harness.NewCluster(s, 1, harness.Options{Plain: true, ReadyIn: 5 * time.Minute})
	n := c.Nodes[0]
	token := prepare(s, n)
	b.load(s, work{Addr: addr(n), Method: "POST", Path: "/v1/bench/data/r/%d", Body: secretBody, Conns: 64, Count: int64(b.secrets), Token: token})
	n.Stop()
	begin := time.Now()
	n.Start()
	n.WaitHealth(200)
	took := time.Since(begin)
	b.add(row{name: fmt.Sprintf("restart to active and unsealed with %d secrets", b.secrets), value: took.Seconds(), unit: " s", target: 3, below: true})
	b.add(row{name: "resident memory afterwards", value: residentMiB(s, n.PID()), unit: " MiB", target: 500, below: true})
}

// residentMiB returns the resident memory of a process.
func residentMiB(s *scope, pid int) float64 {
	size, err := statusMiB(strconv.Itoa(pid), "VmRSS:")
	s.check(err)
	return size
}
