package conformance_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// pair is one client's way through replication: the clusters one and two are the primary and the secondary of a set, change
// places twice and part again.
type pair struct {
	name     string
	one, two *tour
}

// TestReplicationClients drives every path of replication with both clients, unchanged. A request goes to any node of its
// cluster, as behind a load balancer.
func TestReplicationClients(t *testing.T) {
	t.Parallel()
	one := harness.NewCluster(t, 3, harness.Options{Prefix: "p", StorageConfig: patient})
	two := harness.NewCluster(t, 2, harness.Options{Prefix: "s", StorageConfig: patient})
	var ids [2][]string
	for _, kind := range []struct {
		name string
		make func(*testing.T, *harness.Cluster) client
	}{{"bao", newBao}, {"vault", newVault}} {
		t.Run(kind.name, func(t *testing.T) {
			p := &pair{kind.name, &tour{one, kind.name, kind.make(t, one)}, &tour{two, kind.name, kind.make(t, two)}}
			for _, stage := range []struct {
				name string
				run  func(*testing.T)
			}{
				{"disabled", p.disabled},
				{"primary", p.enablePrimary},
				{"without a token", p.unauthenticated},
				{"outside the root namespace", p.outsideRoot},
				{"activation token", p.activationToken},
				{"public key", p.publicKey},
				{"filter of one to come", p.filterFirst},
				{"secondary", p.enableSecondary},
				{"status of both", p.statusOfBoth},
				{"health", p.health},
				{"filters", p.filters},
				{"what a secondary refuses", p.refusedBySecondary},
				{"forwarded", p.forwarded},
				{"repairs", p.repairs},
				{"switch over and back", p.switchOver},
				{"another address", p.otherAddress},
				{"nobody's secondary", p.blankToken},
				{"revoke", p.revoke},
				{"disable", p.disable},
			} {
				if !t.Run(stage.name, stage.run) {
					t.Fatalf("stage %q failed: the others need it", stage.name)
				}
			}
		})
		for i, c := range []*harness.Cluster{one, two} {
			ids[i] = append(ids[i], idOf(t, c))
		}
	}
	for i := range ids {
		if ids[i][0] == ids[i][1] {
			t.Errorf("cluster %d was in two sets and had the id %s in both", i+1, ids[i][0])
		}
	}
}

// idOf returns the id that a cluster has in sys/health.
func idOf(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	h, err := c.Leader().Client("").Sys().Health()
	noErr(t, err)
	return h.ClusterID
}

const perf = "sys/replication/performance/"

// aliases are the two names of an operation.
func aliases(path string) []string { return []string{perf + path, "sys/replication/" + path} }

// warned wants a write that worked and says something to the operator.
func warned(t *testing.T, words ...string) func(*api.Secret, error) *api.Secret {
	return func(s *api.Secret, err error) *api.Secret {
		t.Helper()
		noErr(t, err)
		if s == nil || len(s.Warnings) == 0 {
			t.Fatalf("no warnings: %+v", s)
		}
		for _, w := range words {
			if !strings.Contains(strings.Join(s.Warnings, "\n"), w) {
				t.Errorf("warnings %q do not say %q", s.Warnings, w)
			}
		}
		return s
	}
}

// operations are all paths but the status, as methods and acceptable bodies.
var operations = []struct {
	method, path string
	body         map[string]any
	sudo         bool
}{
	{"POST", "primary/enable", nil, false},
	{"POST", "primary/demote", nil, false},
	{"POST", "primary/disable", nil, false},
	{"POST", "primary/secondary-token", map[string]any{"id": "somebody"}, true},
	{"POST", "primary/revoke-secondary", map[string]any{"id": "somebody"}, false},
	{"POST", "primary/paths-filter/somebody", map[string]any{"mode": "deny"}, false},
	{"GET", "primary/paths-filter/somebody", nil, false},
	{"DELETE", "primary/paths-filter/somebody", nil, false},
	{"GET", "primary/dynamic-filter/somebody", nil, false},
	{"GET", "secondary/dynamic-filter/somebody", nil, false},
	{"POST", "secondary/generate-public-key", nil, false},
	{"POST", "secondary/enable", map[string]any{"token": "a.b.c"}, false},
	{"POST", "secondary/promote", nil, false},
	{"POST", "secondary/disable", nil, false},
	{"POST", "secondary/update-primary", map[string]any{"token": ""}, false},
}

// send does an operation, by its short or its long name.
func send(c client, method, path string, body map[string]any) (*api.Secret, error) {
	switch method {
	case "GET":
		return c.read(path)
	case "DELETE":
		return c.remove(path)
	}
	return c.write(path, body)
}

func (p *pair) disabled(t *testing.T) {
	for _, c := range []*tour{p.one, p.two} {
		nobody := c.root.as("")
		same(t, "status", data(t)(nobody.read(perf+"status")), map[string]any{"mode": "disabled"})
		same(t, "combined status", data(t)(nobody.read("sys/replication/status")),
			map[string]any{"performance": map[string]any{"mode": "disabled"}, "dr": map[string]any{"mode": "disabled"}})
		for _, kind := range []string{"", "performance", "dr"} {
			st, err := nobody.replication(kind)
			noErr(t, err)
			same(t, kind+" mode", st.Mode, "disabled")
		}
		h, err := nobody.health()
		noErr(t, err)
		same(t, "modes", []string{h.ReplicationPerformanceMode, h.ReplicationDRMode}, []string{"disabled", "disabled"})
	}
	for _, op := range operations {
		if op.path == "primary/enable" || op.path == "secondary/generate-public-key" {
			continue
		}
		for _, path := range aliases(op.path) {
			_, err := send(p.one.root, op.method, path, op.body)
			refused(t, err, 400)
		}
	}
	same(t, "mode after what was refused", data(t)(p.one.root.read(perf+"status")), map[string]any{"mode": "disabled"})
}

// enablePrimary sends what "write -f" of the command line does: no fields at all.
func (p *pair) enablePrimary(t *testing.T) {
	for _, addr := range []string{"https://p.example:8201", "p.example", ":8201", "p.example:0"} {
		_, err := p.one.root.write(perf+"primary/enable", map[string]any{"primary_cluster_addr": addr})
		says(t, err, 400, "primary_cluster_addr", "host:port")
	}
	s := warned(t, "primary")(p.one.root.write(aliases("primary/enable")[map[string]int{"bao": 0, "vault": 1}[p.name]], nil))
	same(t, "data", s.Data, map[string]any(nil))
	for _, path := range aliases("primary/enable") {
		_, err := p.one.root.write(path, map[string]any{})
		says(t, err, 400, "already")
	}
	harness.Await(t, "a digest", patience, func() error {
		if st, err := p.one.root.replication("performance"); err != nil || st.MerkleRoot == "" {
			return fmt.Errorf("%+v, %v", st, err)
		}
		return nil
	})
	for range 4 { // any node
		st, err := p.one.root.as("").replication("performance")
		noErr(t, err)
		same(t, "mode, state", []string{st.Mode, st.State}, []string{"primary", "running"})
		same(t, "primary_cluster_addr", st.PrimaryClusterAddr, "")
		if st.ClusterID == "" || st.MerkleRoot == "" || st.LastWAL == 0 || st.LastReindexEpoch == "" {
			t.Errorf("status of a primary: %+v", st)
		}
	}
	d := data(t)(p.one.root.as("").read(perf + "status"))
	same(t, "known_secondaries, secondaries", []any{d["known_secondaries"], d["secondaries"]}, []any{[]any{}, []any{}})
}

// unauthenticated: only the status answers without a token, and a token needs a policy; secondary-token needs sudo, too.
func (p *pair) unauthenticated(t *testing.T) {
	rules := `path "sys/replication/*" { capabilities = ["create", "read", "update", "delete", "list"] }`
	nothing, nosudo := p.one.policy(t, p.one.root, "nothing", `path "x" { capabilities = ["read"] }`), p.one.policy(t, p.one.root, "no-sudo", rules)
	for _, op := range operations {
		for _, path := range aliases(op.path) {
			for _, c := range []client{p.one.root.as(""), p.one.root.as("hvs.wrong"), nothing} {
				_, err := send(c, op.method, path, op.body)
				refused(t, err, 403)
			}
			if op.sudo {
				_, err := send(nosudo, op.method, path, op.body)
				refused(t, err, 403)
			}
		}
	}
	for _, path := range []string{"recover", "reindex", "merkle-check"} {
		_, err := nosudo.write("sys/replication/"+path, nil)
		refused(t, err, 403)
	}
	for _, c := range []client{p.one.root.as("hvs.wrong"), nothing} {
		same(t, "mode", data(t)(c.read(perf + "status"))["mode"], any("primary"))
	}
	sudo := p.one.policy(t, p.one.root, "sudo", `path "sys/replication/performance/primary/secondary-token" { capabilities = ["update", "sudo"] }`)
	done(t)(sudo.write(perf+"primary/secondary-token", map[string]any{"id": p.one.my("by-sudo")}))
	done(t)(p.one.root.write(perf+"primary/revoke-secondary", map[string]any{"id": p.one.my("by-sudo")}))
}

func (p *pair) outsideRoot(t *testing.T) {
	ns := p.one.my("outside")
	p.one.namespace(t, p.one.root, ns)
	before := data(t)(p.one.root.read(perf + "status"))
	for _, op := range operations {
		for _, path := range aliases(op.path) {
			absent(t, 400, 403)(send(p.one.root.in(ns), op.method, path, op.body))
			absent(t, 400, 403)(send(p.one.root, op.method, ns+"/"+path, op.body))
		}
	}
	for _, path := range []string{perf + "status", "sys/replication/status"} {
		data(t)(p.one.root.as("").in(ns).read(path))
		data(t)(p.one.root.as("").read(ns + "/" + path))
	}
	after := data(t)(p.one.root.read(perf + "status"))
	for _, name := range []string{"mode", "cluster_id", "set_id", "epoch", "role_since", "known_secondaries"} {
		same(t, name, after[name], before[name])
	}
}

func (p *pair) secondaryID() string { return p.one.my("eu") }

func (p *pair) activationToken(t *testing.T) {
	for field, body := range map[string]map[string]any{
		"id":                   {},
		"ttl":                  {"id": "x", "ttl": "soon"},
		"secondary_public_key": {"id": "x", "secondary_public_key": "bm8="},
	} {
		_, err := p.one.root.write(perf+"primary/secondary-token", body)
		says(t, err, 400, `"`+field+`"`)
	}
	for _, path := range aliases("primary/secondary-token") {
		for ttl, want := range map[string]int{"": 1800, "90s": 90, "2h": 7200, "600": 600} {
			body := map[string]any{"id": p.secondaryID()}
			if ttl != "" {
				body["ttl"] = ttl
			}
			s, err := p.one.root.write(path, body)
			noErr(t, err)
			w := s.WrapInfo
			if w == nil || s.Data != nil || w.TTL != want || w.Accessor == "" || w.CreationTime.IsZero() || w.WrappedAccessor != "" || w.CreationPath != perf+"primary/secondary-token" {
				t.Fatalf("ttl %q: data %v, wrap_info %+v", ttl, s.Data, w)
			}
			parts := strings.Split(w.Token, ".")
			same(t, "parts of the token", len(parts), 3)
			payload, err := base64.RawURLEncoding.DecodeString(parts[1])
			noErr(t, err)
			var claims struct{ Exp int64 }
			noErr(t, json.Unmarshal(payload, &claims))
			if off := claims.Exp - w.CreationTime.Unix() - int64(want); off < -2 || off > 2 {
				t.Errorf("ttl %q: exp is %d s off", ttl, off)
			}
		}
	}
	st, err := p.one.root.replication("performance")
	noErr(t, err)
	same(t, "known_secondaries", st.KnownSecondaries, []string{p.secondaryID()})
	same(t, "secondaries", len(st.Secondaries), 0)
}

// publicKey: the token is encrypted instead of wrapped. Nothing of the primary's answer is of use to anybody else.
func (p *pair) publicKey(t *testing.T) {
	for _, path := range aliases("secondary/generate-public-key") {
		key, _ := data(t)(p.two.root.write(path, nil))["secondary_public_key"].(string)
		if raw, err := base64.StdEncoding.DecodeString(key); err != nil || len(raw) < 32 {
			t.Fatalf("secondary_public_key is %q: %v", key, err)
		}
		s, err := p.one.root.write(perf+"primary/secondary-token", map[string]any{"id": p.one.my("encrypted"), "secondary_public_key": key})
		noErr(t, err)
		if token, _ := s.Data["token"].(string); s.WrapInfo != nil || token == "" {
			t.Fatalf("with a public key: data %v, wrap_info %+v", s.Data, s.WrapInfo)
		}
	}
	done(t)(p.one.root.write("sys/replication/primary/revoke-secondary", map[string]any{"id": p.one.my("encrypted")}))
}

// filterFirst is as the UI does it: the filter is saved right after the token was made, before the secondary exists.
func (p *pair) filterFirst(t *testing.T) {
	for _, mount := range []string{"open", "closed"} {
		noErr(t, p.one.root.mount(p.one.my(mount), api.MountInput{Type: "kv"}))
		done(t)(p.one.root.write(p.one.my(mount)+"/x", map[string]any{"value": mount}))
	}
	done(t)(p.one.root.write("sys/namespaces/"+p.one.my("ns"), nil))
	id := "/" + p.secondaryID()
	absent(t)(p.one.root.read(perf + "primary/paths-filter" + id))
	absent(t)(p.one.root.read(perf + "primary/dynamic-filter" + id))
	for _, bad := range []map[string]any{
		{"mode": "Deny", "paths": []string{"a/"}}, {"mode": "none"}, {"mode": ""}, {"paths": []string{"/"}}, {"paths": []string{"a//b"}}, {"mode": "deny", "paths": []string{"sys/"}},
	} {
		_, err := p.one.root.write(perf+"primary/paths-filter"+id, bad)
		refused(t, err, 400)
	}
	for _, path := range aliases("primary/paths-filter" + id) {
		s, err := p.one.root.write(path, map[string]any{"mode": "deny", "paths": []string{"/" + p.one.my("closed"), p.one.my("ns")}})
		noErr(t, err)
		if s != nil && s.Data != nil {
			t.Errorf("a write of a filter answered %v", s.Data)
		}
		fields(t, data(t)(p.one.root.read(path)), map[string]any{"mode": "deny", "paths": []string{p.one.my("closed") + "/", p.one.my("ns") + "/"}})
		done(t)(p.one.root.remove(path))
		absent(t)(p.one.root.read(path))
		done(t)(p.one.root.write(path, nil))
		fields(t, data(t)(p.one.root.read(path)), map[string]any{"mode": "allow", "paths": []string{}})
		done(t)(p.one.root.write(path, map[string]any{"mode": "deny", "paths": p.one.my("closed") + "," + p.one.my("ns")}))
		fields(t, data(t)(p.one.root.read(path)), map[string]any{"mode": "deny", "paths": []string{p.one.my("closed") + "/", p.one.my("ns") + "/"}})
	}
	excluded := data(t)(p.one.root.read(perf + "primary/dynamic-filter" + id))
	same(t, "namespaces", texts(excluded["dynamic_filtered_namespaces"]), []string{p.one.my("ns") + "/"})
	contains(t, "mounts", texts(excluded["dynamic_filtered_mounts"]), p.one.my("closed")+"/")
	same(t, "by the other name", data(t)(p.one.root.read("sys/replication/primary/dynamic-filter"+id)), excluded)
}

func (p *pair) token(t *testing.T, from *tour, id string) string {
	t.Helper()
	s, err := from.root.write(perf+"primary/secondary-token", map[string]any{"id": id})
	noErr(t, err)
	return s.WrapInfo.Token
}

// enableSecondary also checks that what the cluster had is gone.
func (p *pair) enableSecondary(t *testing.T) {
	noErr(t, p.two.root.mount("old", api.MountInput{Type: "kv"}))
	done(t)(p.two.root.write("old/x", map[string]any{"value": "mine"}))
	for _, body := range []map[string]any{{}, {"token": ""}, {"token": "hvs.x"}, {"token": "a.b.c"}} {
		_, err := p.two.root.write(perf+"secondary/enable", body)
		says(t, err, 400, `"token"`)
	}
	token := p.token(t, p.one, p.secondaryID())
	_, err := p.two.root.write(perf+"secondary/enable", map[string]any{"token": token}) // whose CA is not one of the system's
	says(t, err, 400, "ca_file")
	_, err = p.two.root.write(perf+"secondary/enable", map[string]any{"token": token, "ca_file": p.two.CAFile}) // another one's
	refused(t, err, 400)
	_, err = p.two.root.write(perf+"secondary/enable", map[string]any{"token": token, "ca_file": "/nowhere/ca.pem"})
	says(t, err, 400, "ca_file")
	_, err = p.two.root.write(perf+"secondary/enable", map[string]any{"token": token, "primary_api_addr": "not an address"})
	says(t, err, 400, "primary_api_addr")
	same(t, "kept", data(t)(p.two.root.read("old/x")), map[string]any{"value": "mine"})

	p.one.AddOperator()
	s := warned(t)(p.two.root.write(aliases("secondary/enable")[map[string]int{"bao": 0, "vault": 1}[p.name]], map[string]any{"token": token, "ca_file": p.one.CAFile}))
	same(t, "data", s.Data, map[string]any(nil))
	p.two.AwaitStreaming()
	p.two.Adopt(p.one.Cluster)
	p.logIn(t, p.two)
	absent(t, 403)(p.two.root.read("old/x"))
	_, err = p.two.root.write(perf+"secondary/enable", map[string]any{"token": token})
	says(t, err, 400, "already")
	_, err = p.one.root.write(perf+"primary/secondary-token", map[string]any{"id": p.secondaryID()})
	says(t, err, 400, `"id"`)
}

// logIn makes a token of the operator the client's, and checks that the one it had is dead.
func (p *pair) logIn(t *testing.T, x *tour) {
	t.Helper()
	old := x.root
	x.LogIn()
	_, err := old.lookupSelf()
	refused(t, err, 403)
	x.root = x.root.as(x.RootToken)
}

func (p *pair) statusOfBoth(t *testing.T) {
	p.two.AwaitHead(p.one.Cluster)
	harness.Await(t, "a canary", patience, func() error {
		if st, err := p.two.root.replication("performance"); err != nil || len(st.Primaries) != 1 || st.Primaries[0].ReplicationPrimaryCanaryAgeMillis == "" {
			return fmt.Errorf("%+v, %v", st, err)
		}
		return nil
	})
	for _, kind := range []string{"", "performance"} {
		first, err := p.one.root.as("").replication(kind)
		noErr(t, err)
		second, err := p.two.root.as("").replication(kind)
		noErr(t, err)
		same(t, "modes", []string{first.Mode, second.Mode}, []string{"primary", "secondary"})
		same(t, "states", []string{first.State, second.State}, []string{"running", "stream-wals"})
		same(t, "ids", []any{first.KnownSecondaries, second.SecondaryID}, []any{[]string{p.secondaryID()}, p.secondaryID()})
		if second.LastRemoteWAL == 0 || first.ClusterID == "" || first.ClusterID == second.ClusterID || second.MerkleRoot == "" || second.LastReindexEpoch == "" {
			t.Errorf("primary %+v, secondary %+v", first, second)
		}
		same(t, "secondaries, primaries", []int{len(first.Secondaries), len(second.Primaries)}, []int{1, 1})
		s, up := first.Secondaries[0], second.Primaries[0]
		same(t, "node_id", s.NodeID, p.secondaryID())
		for side, c := range map[string]struct{ api, cluster, connection, heard, ago, skew, age string }{
			"secondary": {s.APIAddr, s.ClusterAddress, s.ConnectionStatus, s.LastHeartBeat, s.LastHeartBeatDurationMillis, s.ClockSkewMillis, s.ReplicationPrimaryCanaryAgeMillis},
			"primary":   {up.APIAddr, up.ClusterAddress, up.ConnectionStatus, up.LastHeartBeat, up.LastHeartBeatDurationMillis, up.ClockSkewMillis, up.ReplicationPrimaryCanaryAgeMillis},
		} {
			if c.connection != "connected" || !strings.HasPrefix(c.api, "https://127.0.0.1:") || !strings.HasPrefix(c.cluster, "127.0.0.1:") || c.heard == "" || c.ago == "" || c.skew == "" || c.age == "" {
				t.Errorf("the %s as the other sees it: %+v", side, c)
			}
		}
		if !slices.Contains(second.KnownPrimaryClusterAddrs, second.PrimaryClusterAddr) || len(second.KnownPrimaryClusterAddrs) != len(p.one.Nodes) {
			t.Errorf("primary_cluster_addr %q, known_primary_cluster_addrs %q", second.PrimaryClusterAddr, second.KnownPrimaryClusterAddrs)
		}
	}
	for range 4 { // every node knows what the active one knows
		d := data(t)(p.two.root.as("").read(perf + "status"))
		same(t, "connection_state", d["connection_state"], any("ready"))
		fields(t, d, map[string]any{"corrupted_merkle_tree": false, "last_corruption_check_epoch": d["last_reindex_epoch"]})
		number(t, d["ssct_generation_counter"])
		d = data(t)(p.one.root.as("").read(perf + "status"))
		secondaries, _ := d["secondaries"].([]any)
		same(t, "secondaries", len(secondaries), 1)
		fields(t, secondaries[0].(map[string]any), map[string]any{"connection_status": "connected", "node_id": p.secondaryID()})
	}
}
