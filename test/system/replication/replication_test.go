package replication

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const performance = "/v1/sys/replication/performance/"

// pair is a primary and its secondary.
type pair struct {
	*testing.T
	primary, secondary *harness.Cluster
	secrets            map[string]string // path below /v1/, for a v1 mount, and what is in it
}

// object is the body of a request.
type object = map[string]any

// TestReplication is the life of a pair of clusters of three nodes each.
func TestReplication(t *testing.T) {
	t.Parallel()
	p := &pair{T: t, secrets: map[string]string{}}
	p.primary = harness.NewCluster(t, 3, harness.Options{Prefix: "p"})
	p.secondary = harness.NewCluster(t, 3, harness.Options{Prefix: "s"})
	steps := []struct {
		name string
		do   func(*testing.T)
	}{
		{"hostile tokens wipe nothing", p.hostileTokens},
		{"first copy", p.firstCopy},
		{"logins", p.logins},
		{"forwarded writes", p.forwardedWrites},
		{"local mounts", p.localMounts},
		{"KV upgrade", p.upgrade},
		{"batch tokens", p.batchTokens},
		{"namespaces", p.namespaces},
		{"filters", p.filters},
		{"killed leaders", p.killedLeaders},
		{"primary away", p.primaryAway},
		{"same everywhere", p.sameEverywhere},
		{"what a filter keeps never arrives", p.keptBack},
		{"switch-over", p.switchOver},
		{"revoked", p.revoked},
	}
	for _, step := range steps {
		p.T = t
		if !t.Run(step.name, func(t *testing.T) { p.T = t; step.do(t) }) {
			return // what follows builds on it
		}
	}
}

// request sends a request with the cluster's token to a node and returns status, data and the whole answer.
func request(t *testing.T, c *harness.Cluster, n *harness.Node, method, path string, body any, header ...string) (int, object, harness.Answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := n.Do(ctx, method, "/v1/"+path, c.RootToken, body, header...)
	if err != nil {
		t.Fatalf("%s %s on %s: %v", method, path, n.ID, err)
	}
	var out struct{ Data object }
	if len(a.Body) > 0 {
		_ = json.Unmarshal(a.Body, &out) // of an error there is no data
	}
	return a.Status, out.Data, a
}

// must is request for one that has to succeed.
func must(t *testing.T, c *harness.Cluster, n *harness.Node, method, path string, body any, header ...string) object {
	t.Helper()
	status, data, a := request(t, c, n, method, path, body, header...)
	if status >= 300 {
		t.Fatalf("%s %s on %s: status %d: %.300s", method, path, n.ID, status, a.Body)
	}
	return data
}

// reader reads many secrets on the active node of a cluster.
type reader struct {
	*harness.Cluster
	leader *harness.Node // as far as is known
}

// read asks again, after looking for the active node, if the answer is not as wanted. On a busy machine there may be none for a moment.
func (r *reader) read(t *testing.T, path string, is func(status int, data object) bool) (status int, data object) {
	t.Helper()
	if r.leader != nil {
		if status, data, _ = request(t, r.Cluster, r.leader, "GET", path, nil); is(status, data) {
			return status, data
		}
	}
	harness.Await(t, "an answer about "+path, time.Minute, func() error {
		r.leader = r.Leader()
		if status, data, _ = request(t, r.Cluster, r.leader, "GET", path, nil); status >= 500 {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	return status, data
}

// eventually waits for a node to answer a read as wanted: standbys and secondaries may be a moment behind.
func eventually(t *testing.T, c *harness.Cluster, n *harness.Node, path string, is func(status int, data object) bool) {
	t.Helper()
	harness.Await(t, path+" on "+n.ID, time.Minute, func() error {
		status, data, a := request(t, c, n, "GET", path, nil)
		if !is(status, data) {
			return fmt.Errorf("status %d: %.300s", status, a.Body)
		}
		return nil
	})
}

// gone is 404: 403 would be that of a token which has ended.
func gone(status int, _ object) bool { return status == 404 }

func holds(value string) func(int, object) bool {
	return func(status int, data object) bool { return status == 200 && data["value"] == value }
}

// put writes a secret through a node and remembers it. On a busy machine a cluster may lose its leader for a moment.
func (p *pair) put(c *harness.Cluster, n *harness.Node, path, value string) {
	p.Helper()
	harness.Await(p.T, "a write of "+path, 30*time.Second, func() error {
		status, _, a := request(p.T, c, n, "POST", path, object{"value": value})
		switch {
		case status >= 500:
			return fmt.Errorf("status %d: %.200s", status, a.Body)
		case status >= 300:
			p.Fatalf("POST %s on %s: status %d: %.300s", path, n.ID, status, a.Body)
		}
		return nil
	})
	p.secrets[path] = value
}

// settled sends a request to the active node until its outcome is known: on a busy machine the leader may be lost meanwhile.
func (p *pair) settled(c *harness.Cluster, method string, path func() string, body any) (status int, data object, a harness.Answer) {
	p.Helper()
	harness.Await(p.T, "an outcome", time.Minute, func() error {
		if status, data, a = request(p.T, c, c.Leader(), method, path(), body); status >= 500 {
			return fmt.Errorf("status %d: %.200s", status, a.Body)
		}
		return nil
	})
	return status, data, a
}

// everywhere checks that each node of the cluster has every secret below the mounts.
func (p *pair) everywhere(c *harness.Cluster, mounts ...string) {
	p.Helper()
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		for path, value := range p.secrets {
			if len(mounts) > 0 && !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(path, m) }) {
				continue
			}
			eventually(p.T, c, n, path, holds(value))
		}
	}
}

// hostileTokens are refused before anything of the cluster is touched.
func (p *pair) hostileTokens(t *testing.T) {
	must(t, p.secondary, p.secondary.Leader(), "POST", "sys/mounts/own", object{"type": "kv"})
	must(t, p.secondary, p.secondary.Leader(), "POST", "own/kept", object{"value": "mine"})
	p.primary.EnablePrimary()
	good := func() string { return p.primary.SecondaryToken("hostile") }
	parts := func() []string { return strings.Split(good(), ".") }
	forged := parts()
	forged[2] = strings.Map(func(r rune) rune {
		if r == 'A' {
			return 'B'
		}
		return 'A'
	}, forged[2])
	cut := good()
	revoked := good()
	must(t, p.primary, p.primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": "hostile"})
	tests := []struct {
		name  string
		token object
	}{
		{"empty", object{"token": "", "ca_file": p.primary.CAFile}},
		{"no token", object{"token": "hvs.AAAA", "ca_file": p.primary.CAFile}},
		{"forged", object{"token": strings.Join(forged, "."), "ca_file": p.primary.CAFile}},
		{"cut", object{"token": cut[:len(cut)-10], "ca_file": p.primary.CAFile}},
		{"revoked", object{"token": revoked, "ca_file": p.primary.CAFile}},
		{"unknown CA", object{"token": good()}},
		{"no such CA", object{"token": good(), "ca_file": "/nowhere.pem"}},
		{"elsewhere", object{"token": good(), "ca_file": p.primary.CAFile, "primary_api_addr": p.secondary.Leader().URL}},
	}
	for _, tt := range tests {
		status, _, a := request(t, p.secondary, p.secondary.Leader(), "POST", "sys/replication/performance/secondary/enable", tt.token)
		if status != 400 || len(a.Errors()) == 0 {
			t.Errorf("%s: status %d: %.300s, want 400 and why", tt.name, status, a.Body)
		}
	}
	if _, data, _ := request(t, p.secondary, p.secondary.Leader(), "GET", "own/kept", nil); data["value"] != "mine" {
		t.Errorf("after refused tokens the cluster's own secret reads %v", data)
	}
	if r := p.secondary.Replication(); r.Mode != "disabled" {
		t.Errorf("after refused tokens the mode is %q", r.Mode)
	}
	must(t, p.primary, p.primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": "hostile"})
}

// firstCopy fills six mounts and two namespaces on the primary and lets the secondary have them.
func (p *pair) firstCopy(t *testing.T) {
	leader := p.primary.Leader()
	for _, m := range []string{"a", "b", "c", "payments"} {
		p.primary.Create("/v1/sys/mounts/"+m, object{"type": "kv"})
		for i := range 60 {
			p.put(p.primary, leader, fmt.Sprintf("%s/s%d", m, i), fmt.Sprintf("%s %d", m, i))
		}
	}
	p.primary.Create("/v1/sys/mounts/v2", object{"type": "kv", "options": object{"version": "2"}})
	p.primary.Create("/v1/sys/mounts/big", object{"type": "kv"})
	p.put(p.primary, leader, "big/one", strings.Repeat("x", 512<<10))
	for _, ns := range []string{"team-a", "team-b"} {
		p.primary.Create("/v1/sys/namespaces/"+ns, object{})
		p.primary.Create("/v1/sys/mounts/kv", object{"type": "kv"}, "X-Vault-Namespace", ns)
		p.put(p.primary, leader, ns+"/kv/x", ns)
	}
	harness.Replicate(p.primary, p.secondary, "eu")
	p.everywhere(p.secondary)
	if status, _, _ := request(t, p.secondary, p.secondary.Leader(), "GET", "own/kept", nil); !gone(status, nil) {
		t.Errorf("what the secondary had before answers %d", status)
	}
	r := p.primary.Replication()
	if !slices.Equal(r.KnownSecondaries, []string{"eu"}) {
		t.Errorf("the primary knows %v, want eu", r.KnownSecondaries)
	}
	if s := p.secondary.Replication(); s.SetID != r.SetID || s.ClusterID == r.ClusterID || s.ClusterID == "" {
		t.Errorf("the primary is %+v, the secondary %+v: want one set and two clusters", r, s)
	}
}

// logins work on the secondary, with what the primary knows of users; the tokens are the secondary's own.
func (p *pair) logins(t *testing.T) {
	old := p.secondary.RootToken
	p.secondary.LogIn()
	if p.secondary.RootToken == old {
		t.Error("a login gave the token of another one")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := p.primary.Leader().Do(ctx, "GET", "/v1/auth/token/lookup-self", p.secondary.RootToken, nil)
	if err != nil || a.Status != 403 {
		t.Errorf("a token of the secondary on the primary: status %d, %v; want 403", a.Status, err)
	}
	must(t, p.primary, p.primary.Leader(), "POST", "auth/operators/users/late", object{"password": "of the late one"})
	harness.Await(t, "a login of a new user", time.Minute, func() error {
		status, _, a := request(t, p.secondary, p.secondary.Nodes[2], "POST", "auth/operators/login/late", object{"password": "of the late one"})
		if status != 200 {
			return fmt.Errorf("status %d: %.200s", status, a.Body)
		}
		return nil
	})
	if status, _, _ := request(t, p.secondary, p.secondary.Leader(), "POST", "auth/operators/login/late", object{"password": "of somebody else"}); status != 400 && status != 403 {
		t.Errorf("a wrong password on the secondary: status %d", status)
	}
}

// forwardedWrites go through each node of the secondary, and are read there at once. A node that lags by seconds, on a machine that is
// too slow, responds before it has what was written; then a linearizable read finds it.
func (p *pair) forwardedWrites(t *testing.T) {
	late := 0
	readBack := func(n *harness.Node, path, value string) {
		t.Helper()
		if _, data, _ := request(t, p.secondary, n, "GET", path, nil); data["value"] == value {
			return
		}
		late++
		if _, data, a := request(t, p.secondary, n, "GET", path, nil, "X-Vault-Consistency", "linearizable"); data["value"] != value {
			t.Errorf("%s, right after it was written there, on %s: status %d: %.200s", path, n.ID, a.Status, a.Body)
		}
	}
	for i, n := range p.secondary.Nodes {
		path, value := fmt.Sprintf("a/from-%d", i), "by way of "+n.ID
		p.put(p.secondary, n, path, value)
		readBack(n, path, value)
		if _, data, _ := request(t, p.primary, p.primary.Leader(), "GET", path, nil); data["value"] != value {
			t.Errorf("%s on the primary reads %v", path, data)
		}
	}
	for i := range 20 {
		p.put(p.secondary, p.secondary.Leader(), "b/again", fmt.Sprint(i))
		readBack(p.secondary.Leader(), "b/again", fmt.Sprint(i))
	}
	if late > 3 {
		t.Errorf("%d times a node of the secondary did not have what was written through it", late)
	}
	// Versioned secrets answer what the engine made of the write.
	path, tries := "", 0
	status, data, a := p.settled(p.secondary, "POST", func() string {
		path = fmt.Sprintf("v2/data/app%d", tries) // the one before may have its first version
		tries++
		return path
	}, object{"data": object{"value": "1"}})
	if data["version"] != float64(1) {
		t.Errorf("a forwarded write of a versioned secret answered %d %.200s", status, a.Body)
	}
	same := func(path string) func() string { return func() string { return path } }
	status, _, a = p.settled(p.secondary, "POST", same(path), object{"data": object{"value": "2"}, "options": object{"cas": 7}})
	if status != 400 {
		t.Errorf("a wrong check-and-set over the secondary: status %d: %.200s", status, a.Body)
	}
	p.secondary.Create("/v1/sys/mounts/made-there", object{"type": "kv"})
	p.put(p.secondary, p.secondary.Leader(), "made-there/x", "made on the primary")
	p.everywhere(p.primary, "made-there")
	if status, _, a := p.settled(p.secondary, "DELETE", same("sys/mounts/made-there"), nil); status >= 300 {
		t.Fatalf("unmounting over the secondary: status %d: %.200s", status, a.Body)
	}
	delete(p.secrets, "made-there/x")
	for _, c := range []*harness.Cluster{p.primary, p.secondary} {
		eventually(t, c, c.Leader(), "made-there/x", gone)
	}
}

// localMounts are each cluster's own, under the same path, too.
func (p *pair) localMounts(t *testing.T) {
	for name, c := range map[string]*harness.Cluster{"primary": p.primary, "secondary": p.secondary} {
		must(t, c, c.Leader(), "POST", "sys/mounts/here-"+name, object{"type": "kv", "local": true})
		must(t, c, c.Leader(), "POST", "here-"+name+"/x", object{"value": name})
	}
	p.secondary.AwaitHead(p.primary)
	if status, _, _ := request(t, p.secondary, p.secondary.Leader(), "GET", "here-primary/x", nil); !gone(status, nil) {
		t.Errorf("the primary's local secret on the secondary: status %d", status)
	}
	if status, _, _ := request(t, p.primary, p.primary.Leader(), "GET", "here-secondary/x", nil); !gone(status, nil) {
		t.Errorf("the secondary's local secret on the primary: status %d", status)
	}
	eventually(t, p.secondary, p.secondary.Leader(), "here-secondary/x", holds("secondary"))
}

// upgrade turns a mount of KV version 1 into version 2, asked for at the secondary; each cluster reads and writes it meanwhile.
func (p *pair) upgrade(t *testing.T) {
	p1, s1, s2 := p.primary.Leader(), p.secondary.Leader(), p.secondary.Nodes[1]
	must(t, p.primary, p1, "POST", "sys/mounts/old", object{"type": "kv", "options": object{"version": "1"}})
	const secrets = 200
	for i := range secrets {
		path := fmt.Sprintf("old/%03d", i)
		p.put(p.primary, p1, path, strconv.Itoa(i))
		delete(p.secrets, path) // it will have another one
	}
	eventually(t, p.secondary, s2, fmt.Sprintf("old/%03d", secrets-1), holds(strconv.Itoa(secrets-1)))
	must(t, p.secondary, s1, "POST", "sys/mounts/old/tune", object{"options": object{"version": "2"}})
	inVersion2 := func(version int, value string) func(int, object) bool {
		return func(status int, data object) bool {
			in, _ := data["data"].(object)
			about, _ := data["metadata"].(object)
			return status == 200 && in["value"] == value && about["version"] == float64(version)
		}
	}
	for _, n := range []*harness.Node{s1, s2} {
		eventually(t, p.secondary, n, "old/data/007", inVersion2(1, "7"))
	}
	must(t, p.secondary, s2, "POST", "old/data/007", object{"data": object{"value": "seven"}})
	for c, n := range map[*harness.Cluster]*harness.Node{p.primary: p1, p.secondary: s2} {
		eventually(t, c, n, "old/data/007", inVersion2(2, "seven"))
		eventually(t, c, n, "old/metadata?list=true", func(status int, data object) bool {
			keys, _ := data["keys"].([]any)
			return status == 200 && len(keys) == secrets
		})
		for i := range secrets {
			if i != 7 {
				eventually(t, c, n, fmt.Sprintf("old/data/%03d", i), inVersion2(1, strconv.Itoa(i)))
			}
		}
	}
}

// batchTokens without a parent are good on every cluster of the set.
func (p *pair) batchTokens(t *testing.T) {
	for _, from := range []*harness.Cluster{p.primary, p.secondary} {
		_, _, a := request(t, from, from.Leader(), "POST", "auth/token/create-orphan", object{"type": "batch", "policies": "operators", "ttl": "1h"})
		var out struct {
			Auth struct {
				Token string `json:"client_token"`
			}
		}
		a.Decode(t, &out)
		for _, c := range []*harness.Cluster{p.primary, p.secondary} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			got, err := c.Leader().Do(ctx, "GET", "/v1/a/s1", out.Auth.Token, nil)
			cancel()
			if err != nil || got.Status != 200 {
				t.Errorf("an orphan batch token of %s on %s: status %d, %v", from.Nodes[0].ID, c.Nodes[0].ID, got.Status, err)
			}
		}
	}
}

// namespaces that are made, and deleted, later.
func (p *pair) namespaces(t *testing.T) {
	leader := p.primary.Leader()
	must(t, p.primary, leader, "POST", "sys/namespaces/short", object{})
	must(t, p.primary, leader, "POST", "sys/mounts/kv", object{"type": "kv"}, "X-Vault-Namespace", "short")
	p.put(p.primary, leader, "short/kv/x", "for a while")
	p.everywhere(p.secondary, "short/")
	delete(p.secrets, "short/kv/x")
	must(t, p.primary, leader, "DELETE", "sys/namespaces/short", nil)
	eventually(t, p.secondary, p.secondary.Leader(), "short/kv/x", gone)
}

// filters take mounts and namespaces away and give them back.
func (p *pair) filters(t *testing.T) {
	path := "sys/replication/performance/primary/paths-filter/eu"
	set := func(mode string, paths ...string) {
		must(t, p.primary, p.primary.Leader(), "POST", path, object{"mode": mode, "paths": paths})
	}
	set("deny", "payments/", "team-b/")
	for _, n := range p.secondary.Nodes {
		eventually(t, p.secondary, n, "payments/s1", gone)
		eventually(t, p.secondary, n, "team-b/kv/x", gone)
	}
	p.everywhere(p.secondary, "a/", "team-a/")
	filtered := must(t, p.primary, p.primary.Leader(), "GET", "sys/replication/performance/primary/dynamic-filter/eu", nil)
	if fmt.Sprint(filtered["dynamic_filtered_namespaces"]) != "[team-b/]" || !strings.Contains(fmt.Sprint(filtered["dynamic_filtered_mounts"]), "payments/") {
		t.Errorf("the dynamic filter is %v", filtered)
	}
	p.put(p.primary, p.primary.Leader(), "payments/new", "while it was denied")
	set("allow", "payments/", "auth/operators/") // without the auth method the tokens of its users would end
	for _, n := range p.secondary.Nodes {
		eventually(t, p.secondary, n, "a/s1", gone)
	}
	p.everywhere(p.secondary, "payments/")
	// A write of the secondary to what it does not have is refused, not handed on.
	if status, _, a := request(t, p.secondary, p.secondary.Leader(), "POST", "a/s1", object{"value": "by the back door"}); status < 400 {
		t.Errorf("writing what the filter keeps: status %d: %.200s", status, a.Body)
	}
	must(t, p.primary, p.primary.Leader(), "DELETE", path, nil)
	p.everywhere(p.secondary)
	p.secondary.AwaitHead(p.primary)
}

// killedLeaders on either side lose nothing.
func (p *pair) killedLeaders(t *testing.T) {
	for i, c := range []*harness.Cluster{p.secondary, p.primary, p.secondary} {
		leader := c.Leader()
		leader.Kill9()
		path := fmt.Sprintf("c/after-%d", i)
		harness.Await(t, "a write on the primary", time.Minute, func() error {
			status, _, a := request(t, p.primary, p.primary.Leader(), "POST", path, object{"value": "written"})
			if status >= 300 {
				return fmt.Errorf("status %d: %.200s", status, a.Body)
			}
			return nil
		})
		p.secrets[path] = "written"
		p.everywhere(p.secondary, path)
		leader.Start()
		c.WaitServing()
	}
	p.secondary.AwaitHead(p.primary)
}

// primaryAway: reads go on, shared writes say that they cannot be done, local ones can.
func (p *pair) primaryAway(t *testing.T) {
	for _, n := range p.primary.Nodes {
		n.Kill9()
	}
	p.everywhere(p.secondary, "a/s1")
	status, _, a := request(t, p.secondary, p.secondary.Leader(), "POST", "a/nobody", object{"value": "x"})
	if status != 503 {
		t.Errorf("a shared write without a primary: status %d: %.300s, want 503", status, a.Body)
	}
	must(t, p.secondary, p.secondary.Leader(), "POST", "here-secondary/alone", object{"value": "x"})
	p.secondary.LogIn()
	p.secondary.AwaitReplication("to notice", func(r harness.Replication) bool { return r.Connection != "ready" })
	for _, n := range p.primary.Nodes {
		n.Start()
	}
	p.primary.WaitServing()
	p.secondary.AwaitStreaming()
	p.put(p.secondary, p.secondary.Leader(), "a/again", "somebody")
	p.everywhere(p.secondary, "a/again")
}

// canary is written by the primary every ten seconds, so also between the looks at the one cluster and the other.
const canary = "s/sys/set/canary"

// compare stops one node of each cluster and compares what they have.
func compare(t *testing.T, primary, secondary *harness.Cluster, inScope func(string) bool) {
	t.Helper()
	secondary.AwaitHead(primary)
	states := make([]*State, 2)
	for i, c := range []*harness.Cluster{primary, secondary} {
		leader := c.Leader()
		at, err := leader.AppliedIndex()
		if err != nil {
			t.Fatal(err)
		}
		node := c.Nodes[0]
		if node == leader && len(c.Nodes) > 1 {
			node = c.Nodes[1]
		}
		harness.Await(t, node.ID+" to have everything", time.Minute, func() error {
			if got, err := node.AppliedIndex(); err != nil || got < at {
				return fmt.Errorf("it is at %d of %d, %v", got, at, err)
			}
			return nil
		})
		node.Stop()
		if states[i], err = ReadState(t.Context(), node.Dir, c.SealKey()); err != nil {
			t.Fatalf("reading %s: %v", node.ID, err)
		}
		delete(states[i].Values, canary)
		node.Start()
		node.WaitHealth(200, 429)
	}
	if diff := Differences(states[0], states[1], inScope, 10); diff != nil {
		t.Errorf("the clusters differ:\n%s", strings.Join(diff, "\n"))
	}
	t.Logf("%d keys compared, %d and %d are not shared", len(states[0].Values), states[0].Local, states[1].Local)
}

func (p *pair) sameEverywhere(t *testing.T) { compare(t, p.primary, p.secondary, nil) }

// keptBack adds a secondary that may not have a mount, from the beginning: nothing of it is ever in its files.
func (p *pair) keptBack(t *testing.T) {
	mounts := must(t, p.primary, p.primary.Leader(), "GET", "sys/mounts", nil)
	denied, _ := mounts["payments/"].(object)
	uuid := fmt.Sprint(denied["uuid"])
	if len(uuid) != 36 {
		t.Fatalf("the mount's uuid is %q", uuid)
	}
	third := harness.NewCluster(t, 1, harness.Options{Prefix: "t"})
	token := p.primary.SecondaryToken("third")
	must(t, p.primary, p.primary.Leader(), "POST", "sys/replication/performance/primary/paths-filter/third", object{"mode": "deny", "paths": []string{"payments/"}})
	third.EnableSecondary(p.primary, token)
	third.AwaitStreaming()
	third.Adopt(p.primary)
	third.LogIn()
	p.put(p.primary, p.primary.Leader(), "payments/later", "not for the third")
	p.put(p.primary, p.primary.Leader(), "a/later", "for the third")
	p.everywhere(third, "a/")
	eventually(t, third, third.Leader(), "payments/s1", gone)
	compare(t, p.primary, third, func(unit string) bool { return unit != "mount/"+uuid })
	if files := containing(t, third.Nodes[0].Dir, uuid); len(files) > 0 {
		t.Errorf("files of the secondary name the mount that was kept from it: %q", files)
	}
	if files := containing(t, p.secondary.Nodes[0].Dir, uuid); len(files) == 0 {
		t.Error("no file of the unfiltered secondary names the mount: the search finds nothing")
	}
	// The token was for one use.
	if status, _, a := request(t, third, third.Leader(), "POST", "sys/replication/performance/secondary/update-primary", object{"token": token, "ca_file": p.primary.CAFile}); status != 400 {
		t.Errorf("a used token: status %d: %.300s", status, a.Body)
	}
	must(t, p.primary, p.primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": "third"})
	third.AwaitReplication("to be shut out", func(r harness.Replication) bool { return r.Connection != "ready" })
	for _, n := range third.Nodes {
		n.Stop()
	}
}

// containing returns the files below dir with this text in them.
func containing(t *testing.T, dir, text string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(raw), text) {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// switchOver makes the secondary the primary, and lets the old one and a third cluster follow it. Nothing is copied again.
func (p *pair) switchOver(t *testing.T) {
	third := harness.NewCluster(t, 1, harness.Options{Prefix: "u"})
	harness.Replicate(p.primary, third, "sibling")
	p.put(p.primary, p.primary.Leader(), "a/last", "of the old primary")

	must(t, p.primary, p.primary.Leader(), "POST", "sys/replication/performance/primary/demote", nil)
	if status, _, a := request(t, p.primary, p.primary.Leader(), "POST", "a/late", object{"value": "x"}); status != 503 {
		t.Errorf("a write to a demoted primary: status %d: %.200s, want 503", status, a.Body)
	}
	harness.Await(t, "the promotion", time.Minute, func() error {
		status, _, a := request(t, p.secondary, p.secondary.Leader(), "POST", "sys/replication/performance/secondary/promote", nil)
		if status != 200 {
			return fmt.Errorf("status %d: %.300s", status, a.Body)
		}
		return nil
	})
	p.primary, p.secondary = p.secondary, p.primary
	p.primary.AwaitReplication("to be the primary", func(r harness.Replication) bool { return r.Mode == "primary" && r.Epoch == 2 })
	p.put(p.primary, p.primary.Leader(), "a/first", "of the new primary")

	p.secondary.UpdatePrimary(p.primary, p.primary.SecondaryToken("former"))
	third.UpdatePrimary(p.primary, p.primary.SecondaryToken("sibling"))
	for _, c := range []*harness.Cluster{p.secondary, third} {
		c.AwaitStreaming()
		c.AwaitHead(p.primary)
		p.everywhere(c, "a/last", "a/first")
		if r := c.Replication(); r.Repair != nil && r.Repair.Keys > 0 {
			t.Errorf("%s had to fetch %+v to follow the new primary", c.Nodes[0].ID, *r.Repair)
		}
	}
	p.put(p.secondary, p.secondary.Leader(), "b/back", "through the former primary")
	p.everywhere(p.primary, "b/back")
	compare(t, p.primary, third, nil)
	compare(t, p.primary, p.secondary, nil)
	for _, n := range third.Nodes {
		n.Stop()
	}
}

// revoked secondaries are disconnected at once and stay out.
func (p *pair) revoked(t *testing.T) {
	must(t, p.primary, p.primary.Leader(), "POST", "sys/replication/performance/primary/revoke-secondary", object{"id": "former"})
	p.secondary.AwaitReplication("to be shut out", func(r harness.Replication) bool { return r.Connection != "ready" })
	if r := p.primary.Replication(); slices.Contains(r.KnownSecondaries, "former") {
		t.Errorf("the primary still knows %v", r.KnownSecondaries)
	}
	p.put(p.primary, p.primary.Leader(), "a/without", "the revoked one")
	p.everywhere(p.secondary, "a/first")
	for _, n := range p.secondary.Nodes {
		if status, _, _ := request(t, p.secondary, n, "GET", "a/without", nil); !gone(status, nil) {
			t.Errorf("%s has what was written after it was revoked: status %d", n.ID, status)
		}
	}
}
