package replicated_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// clientStatus has the types of the clients' fields. test/system/conformance reads the status with the clients themselves.
type clientStatus struct {
	Mode                     string          `json:"mode"`
	ClusterID                string          `json:"cluster_id"`
	State                    string          `json:"state"`
	MerkleRoot               string          `json:"merkle_root"`
	LastReindexEpoch         string          `json:"last_reindex_epoch"`
	LastWAL                  uint64          `json:"last_wal"`
	LastPerformanceWAL       uint64          `json:"last_performance_wal"`
	LastRemoteWAL            uint64          `json:"last_remote_wal"`
	SecondaryID              string          `json:"secondary_id"`
	PrimaryClusterAddr       string          `json:"primary_cluster_addr"`
	KnownPrimaryClusterAddrs []string        `json:"known_primary_cluster_addrs"`
	KnownSecondaries         []string        `json:"known_secondaries"`
	Primaries                []clientCluster `json:"primaries"`
	Secondaries              []clientCluster `json:"secondaries"`
}

type clientCluster struct {
	NodeID                            string `json:"node_id"`
	APIAddr                           string `json:"api_address"`
	ClusterAddress                    string `json:"cluster_address"`
	ConnectionStatus                  string `json:"connection_status"`
	LastHeartBeat                     string `json:"last_heartbeat"`
	LastHeartBeatDurationMillis       string `json:"last_heartbeat_duration_ms"`
	ClockSkewMillis                   string `json:"clock_skew_ms"`
	ReplicationPrimaryCanaryAgeMillis string `json:"replication_primary_canary_age_ms"`
}

// readStatus reads the status at a path as clients do, from JSON.
func readStatus[T any](t testing.TB, c *cluster, path string) (out T) {
	t.Helper()
	resp, err := c.call(engines.Read, path, "")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(resp.Data)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// combinedStatus is the status of both kinds of replication.
type combinedStatus struct {
	DR          clientStatus `json:"dr"`
	Performance clientStatus `json:"performance"`
}

func TestStatusForClients(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	if off := readStatus[combinedStatus](t, p, "status"); off.Performance.Mode != "disabled" || off.DR.Mode != "disabled" {
		t.Fatalf("disabled: %+v", off)
	}
	p.mustPost("primary/enable", "{}")
	p.join(c, "second")
	heard := time.Now().Add(-3 * time.Second)
	p.link.set(func(l *fakeLink) {
		l.sessions = []traffic.SessionStatus{{
			Peer: roles.Peer{ID: "second", ClusterID: "c"}, APIAddr: "https://c.example:8200", ClusterAddr: c.addr,
			LastHeartbeat: heard, EqualAt: heard, ClockSkew: -7 * time.Millisecond, LagSeconds: 0.25, LagEntries: 12,
		}}
	})
	c.link.set(func(l *fakeLink) {
		l.status.State, l.status.Connected, l.status.LastHeard = "streaming", p.addr, heard
		l.status.Units = map[string]string{"ns/root": "whole", "global": "quarantined"}
	})

	for _, combined := range []bool{false, true} {
		read := func(c *cluster) clientStatus {
			t.Helper()
			if combined {
				return readStatus[combinedStatus](t, c, "status").Performance
			}
			return readStatus[clientStatus](t, c, "performance/status")
		}
		got := read(p)
		if got.Mode != "primary" || got.ClusterID != "p" || got.State != "running" || got.LastWAL != 420 || got.LastPerformanceWAL != 417 || got.MerkleRoot == "" ||
			!slices.Equal(got.KnownSecondaries, []string{"second"}) || len(got.Secondaries) != 1 {
			t.Fatalf("primary: %+v", got)
		}
		s := got.Secondaries[0]
		if s.NodeID != "second" || s.APIAddr != "https://c.example:8200" || s.ClusterAddress != c.addr || s.ConnectionStatus != "connected" ||
			s.ClockSkewMillis != "-7" || s.ReplicationPrimaryCanaryAgeMillis != "250" || s.LastHeartBeatDurationMillis == "" || s.LastHeartBeat == "" {
			t.Errorf("its secondary: %+v", s)
		}
		got = read(c)
		if got.Mode != "secondary" || got.ClusterID != "c" || got.State != "stream-wals" || got.LastRemoteWAL != 400 || got.SecondaryID != "second" || got.MerkleRoot == "" ||
			got.PrimaryClusterAddr != p.addr || !slices.Equal(got.KnownPrimaryClusterAddrs, []string{p.addr}) || len(got.Primaries) != 1 {
			t.Fatalf("secondary: %+v", got)
		}
		if x := got.Primaries[0]; x.ConnectionStatus != "connected" || x.APIAddr != "https://p.example:8200" || x.ClusterAddress != p.addr {
			t.Errorf("its primary: %+v", x)
		}
	}

	// What the family's types do not have.
	got := c.mustGet("status")
	for name, want := range map[string]any{
		"connection_state": "ready", "phase": "streaming", "exact": true, "units_quarantined": 1.0, "corrupted_merkle_tree": true, "position": "1:400",
		"set_id": p.role().SetID, "epoch": 1.0, "last_repair": nil, "reason": "",
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if _, isText := got["last_reindex_epoch"].(string); !isText {
		t.Errorf("last_reindex_epoch is %v, clients want a text", got["last_reindex_epoch"])
	}
	if got := p.mustGet("status"); got["wal_oldest_index"] != 17.0 || got["position"] != "1:420" || got["secondaries"].([]any)[0].(map[string]any)["cluster_id"] != "c" {
		t.Errorf("primary: %v", got)
	}
}

// TestStatusTells is a row for each condition of a secondary.
func TestStatusTells(t *testing.T) {
	tests := []struct {
		name                     string
		status                   traffic.FollowStatus
		state, connection, phase string
	}{
		{"before anything", traffic.FollowStatus{}, "idle", "transient_failure", "disconnected"},
		{"connecting", traffic.FollowStatus{State: "connecting"}, "idle", "connecting", "connecting"},
		{"backfill", traffic.FollowStatus{State: "backfill", Connected: "p:1"}, "merkle-sync", "ready", "backfill"},
		{"behind", traffic.FollowStatus{State: "catching-up", Connected: "p:1"}, "stream-wals", "ready", "catching-up"},
		{"comparing", traffic.FollowStatus{State: "repairing", Connected: "p:1", Repair: &traffic.RepairStatus{Running: true}}, "merkle-diff", "ready", "repairing"},
		{"repairing", traffic.FollowStatus{State: "repairing", Connected: "p:1", Repair: &traffic.RepairStatus{Keys: 1}}, "merkle-sync", "ready", "repairing"},
		{"revoked", traffic.FollowStatus{State: "disconnected", Terminal: "revoked"}, "idle", "shutdown", "revoked"},
	}
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mustPost("primary/enable", "{}")
	p.join(c, "c")
	for _, tt := range tests {
		c.link.set(func(l *fakeLink) { l.status = tt.status })
		got := c.mustGet("status")
		if got["state"] != tt.state || got["connection_state"] != tt.connection || got["phase"] != tt.phase {
			t.Errorf("%s: %v, %v, %v", tt.name, got["state"], got["connection_state"], got["phase"])
		}
	}
	p.mustPost("primary/demote", "{}")
	if got := p.mustGet("status"); got["phase"] != "demoted" || got["connection_state"] != "idle" || got["exact"] != true || !strings.Contains(got["reason"].(string), "update-primary") {
		t.Errorf("demoted: %v", got)
	}
}

// TestStatusIsPublic: nothing in it is secret, and no path of a mount.
func TestStatusIsPublic(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mustPost("primary/enable", "{}")
	p.mustPost("primary/paths-filter/second", `{"paths":["secret/"],"mode":"deny"}`)
	p.join(c, "second")
	c.link.set(func(l *fakeLink) { l.status.Units = map[string]string{"mount/" + uuidOf(2): "adding"} })
	up := c.upstream()
	for _, cluster := range []*cluster{p, c} {
		text := fmt.Sprint(cluster.mustGet("status"))
		for _, hidden := range []string{"secret", uuidOf(2), "BEGIN", string(up.Key), string(up.Cert)} {
			if strings.Contains(text, hidden) {
				t.Errorf("the status holds %.20q", hidden)
			}
		}
	}
}

// TestRouteFlags: everything but the status is restricted to the root namespace, and what SPEC says needs sudo does.
func TestRouteFlags(t *testing.T) {
	c := newCluster(t, network{}, "one")
	sudo := []string{"secondary-token", "recover", "reindex", "merkle-check", "conflicts"}
	seen := 0
	for _, r := range c.router.Routes() {
		seen++
		last := r.Pattern[strings.LastIndex(r.Pattern, "/")+1:]
		if last == "status" {
			if !r.Flags.Has(engines.Unauthenticated|engines.WorksSealed) || r.Flags.Has(engines.RootNamespace) {
				t.Errorf("%s: flags %b", r.Pattern, r.Flags)
			}
			continue
		}
		if !r.Flags.Has(engines.RootNamespace|engines.ClusterLocal|engines.Active) || r.Flags.Has(engines.Unauthenticated) || r.Flags.Has(engines.WorksSealed) {
			t.Errorf("%s %s: flags %b", r.Op, r.Pattern, r.Flags)
		}
		if r.Flags.Has(engines.Sudo) != slices.Contains(sudo, last) {
			t.Errorf("%s: sudo is %v", r.Pattern, r.Flags.Has(engines.Sudo))
		}
	}
	if seen < 30 {
		t.Errorf("only %d routes", seen)
	}
	for _, alias := range []string{"replication/primary/enable", "replication/secondary/enable", "replication/primary/paths-filter/x"} {
		if _, _, err := c.router.Match(engines.Update, alias); err != nil {
			t.Errorf("%s: %v", alias, err)
		}
	}
}

func TestRepairAndCheck(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	_, err := p.call(engines.Update, "reindex", "{}")
	refused(t, "reindex without replication", err, engines.KindInvalid, "disabled")
	p.mustPost("primary/enable", "{}")
	p.join(c, "c")
	for _, path := range []string{"recover", "reindex"} {
		for _, cluster := range []*cluster{p, c} {
			resp, err := cluster.call(engines.Update, path, `{"diff":true,"force":"false","skip_flush":true}`)
			if err != nil || len(resp.Warnings) != 1 {
				t.Errorf("%s: %v, %v", path, resp, err)
			}
		}
		if c.link.repaired != path || p.link.repaired != "" {
			t.Errorf("%s began repairs %q and %q", path, c.link.repaired, p.link.repaired)
		}
	}
	resp, err := c.call(engines.Update, "merkle-check", "")
	if err != nil || !strings.Contains(fmt.Sprint(resp.Data), "merkle_corruption_report") {
		t.Errorf("merkle-check: %v, %v", resp, err)
	}
}

// TestConflicts: values only to who asks for a key.
func TestConflicts(t *testing.T) {
	c := newCluster(t, network{}, "one")
	if got := c.mustGet("conflicts"); fmt.Sprint(got) != "map[conflicts:[]]" {
		t.Errorf("none: %v", got)
	}
	c.link.conflicts = []traffic.Conflict{{
		Key: "s/sys/root/policies/x", Value: []byte("precious"), Mine: storage.Position{Epoch: 1, Index: 9}, At: time.Unix(1e9, 0),
	}}
	kv := storage.Key("s/" + uuidOf(2))
	c.mounts[1].Type = "kv"
	c.mounts = append(c.mounts, filter.Mount{NamespaceID: "aB3", NamespacePath: "team/", Path: "cloud/", UUID: uuidOf(7), Type: "cloud"})
	c.namespaces = append(c.namespaces, filter.Namespace{ID: "aB3", Path: "team/"})
	named := map[storage.Key]string{
		kv + "/d/zombie": "secret/zombie", kv + "/m/a/b": "secret/a/b metadata", kv + "/v/0000000c/a/b": "secret/a/b version 12", kv + "/config": "secret/config",
		storage.Key("s/" + uuidOf(7) + "/role/x"): "team/cloud/role/x", storage.Key("s/sys/root/mounts/" + uuidOf(2)): "secret/ mount",
		storage.Key("s/" + uuidOf(9) + "/d/x"): "s/" + uuidOf(9) + "/d/x of a mount that is gone", "s/sys/aB3/policies/y": "team/sys/policies/y",
		"s/identity/aB3/entity/1": "team/identity/entity/1", "s/namespace/aB3": "team/ namespace", "s/sys/audit/file": "sys/audit/file",
		"s/sys/nobody/policies/y": "s/sys/nobody/policies/y",
	}
	for key := range named {
		c.link.conflicts = append(c.link.conflicts, traffic.Conflict{Key: key})
	}
	c.link.conflicts = append(c.link.conflicts, traffic.Conflict{Key: "s/sys/set/canary"})
	listed := c.mustGet("conflicts")["conflicts"].([]any)
	if len(listed) != len(named)+1 {
		t.Errorf("%d conflicts, want %d: %v", len(listed), len(named)+1, listed)
	}
	for _, e := range listed[1:] {
		m := e.(map[string]any)
		part, _ := m["part"].(string)
		if got := strings.TrimSpace(m["path"].(string) + " " + part); got != named[storage.Key(m["key"].(string))] {
			t.Errorf("%v is called %q", m["key"], got)
		}
	}
	got := listed[0].(map[string]any)
	if got["key"] != "s/sys/root/policies/x" || got["mine"] != "1:9" || got["theirs"] != "0:0" || got["at"] != "2001-09-09T01:46:40Z" || got["value"] != nil {
		t.Errorf("listed: %v", got)
	}
	ask := func(key string) (*engines.Response, error) {
		return c.router.Handle(context.Background(), &engines.Request{
			Op: engines.Read, Path: "replication/performance/conflicts", Query: map[string][]string{"key": {key}},
		})
	}
	resp, err := ask("s/sys/root/policies/x")
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := resp.EncodedData(); !strings.Contains(string(text), `"value":"cHJlY2lvdXM="`) {
		t.Errorf("with a key: %s", text)
	}
	if resp, err := ask("sys/policies/x"); err != nil || fmt.Sprint(resp.Data.(map[string]any)["value"]) == "[]" {
		t.Errorf("by its path: %v, %v", resp, err)
	}
	_, err = ask("s/other")
	refused(t, "an unknown key", err, engines.KindNotFound)
}

// TestCanary: a primary with an active secondary writes it, fenced ones and those without do not.
func TestCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		defer p.run()()
		written := func() storage.Index {
			e, err := p.store.Get(t.Context(), "s/sys/set/canary")
			if err != nil {
				return 0
			}
			return e.Version
		}
		time.Sleep(time.Minute)
		if written() != 0 {
			t.Error("a canary sings to nobody")
		}
		p.join(c, "c")
		time.Sleep(11 * time.Second)
		first := written()
		time.Sleep(10 * time.Second)
		if first == 0 || written() == first {
			t.Errorf("canary written at %d, then at %d", first, written())
		}
		if unit, ok := filter.Unit("s/sys/set/canary"); !ok || unit != "global" {
			t.Error("the canary does not replicate")
		}
		e, err := p.store.Get(t.Context(), "s/sys/set/canary")
		if err != nil {
			t.Fatal(err)
		}
		c.put("s/sys/set/canary", json.RawMessage(e.Value))
		time.Sleep(1500 * time.Millisecond)
		age := c.mustGet("status")["primaries"].([]any)[0].(map[string]any)["replication_primary_canary_age_ms"]
		if ms, ok := age.(string); !ok || len(ms) != 4 {
			t.Errorf("age of the canary: %v", age)
		}
		if age, ok := c.CanaryAge(t.Context()); !ok || age < time.Second || age > 11*time.Second {
			t.Errorf("CanaryAge: %v, %v", age, ok)
		}
		if _, ok := p.CanaryAge(t.Context()); ok {
			t.Error("a primary waits for its own canary")
		}
		p.Fence(t.Context(), storage.EpochID{Number: 5, ClusterID: "x"})
		last := written()
		time.Sleep(time.Minute)
		if written() != last {
			t.Error("a fenced primary writes shared data")
		}
	})
}

// TestRefresh: the link hears of filters, secondaries, mounts and namespaces, and not of every write.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, network{}, "one")
		c.mustPost("primary/enable", "{}")
		defer c.run()()
		synctest.Wait()
		heard := func() int {
			synctest.Wait()
			c.link.mu.Lock()
			defer c.link.mu.Unlock()
			n := c.link.refreshed
			c.link.refreshed = 0
			return n
		}
		heard()
		for _, key := range []storage.Key{
			"l/replication/filter/ab", "l/replication/secondary/ab", storage.Key("s/sys/root/mounts/" + uuidOf(9)), "s/namespace/aB3xYz", roles.RoleKey,
		} {
			c.put(key, map[string]any{"format": 1})
			if heard() == 0 {
				t.Errorf("a change of %s is not told", key)
			}
		}
		for _, key := range []storage.Key{"s/" + storage.Key(uuidOf(2)) + "/x", "l/token/id/x", cursorKey, "s/sys/root/policies/x"} {
			c.put(key, map[string]any{"format": 1})
			if n := heard(); n != 0 {
				t.Errorf("a change of %s is told %d times", key, n)
			}
		}
	})
}

func TestNumbers(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	if got := p.Numbers(); got["replication_primary"] != 0 || got["replication_secondary"] != 0 || len(got) != 3 {
		t.Errorf("disabled: %v", got)
	}
	d := newCluster(t, net, "d")
	p.mustPost("primary/enable", "{}")
	p.join(c, "c")
	p.join(d, "d")
	now := time.Now()
	p.link.set(func(l *fakeLink) {
		l.sessions = []traffic.SessionStatus{
			{Peer: roles.Peer{ID: "c", ClusterID: "c"}, LastHeartbeat: now, EqualAt: now, LagEntries: 3, LagSeconds: 1.5, RateOut: 2},
			{Peer: roles.Peer{ID: "d", ClusterID: "d"}, LastHeartbeat: now, EqualAt: now, LagEntries: 9, LagSeconds: 0.5, RateOut: 3},
			{Peer: roles.Peer{ID: "gone", ClusterID: "gone"}, EndedAt: now, LagSeconds: 1e6},
		}
	})
	c.link.set(func(l *fakeLink) {
		l.status.LagEntries, l.status.LagSeconds, l.status.EqualAt, l.status.Connected = 7, 0.5, now, "p:1"
	})
	for _, tt := range []struct {
		of   *cluster
		name string
		want float64
	}{
		{p, "replication_primary", 1}, {p, "replication_epoch", 1}, {p, "replication_fenced", 0}, {p, "replication_secondaries_known", 2},
		{p, "replication_secondaries_connected", 2}, {p, "replication_lag_entries", 9}, {p, "replication_lag_seconds", 1.5},
		{p, "replication_sent_entries_per_second", 5}, {p, "replication_head_index", 417}, {p, "replication_oldest_index", 17},
		{c, "replication_secondary", 1}, {c, "replication_connected", 1}, {c, "replication_exact", 1}, {c, "replication_lag_entries", 7},
		{c, "replication_lag_seconds", 0.5}, {c, "replication_cursor_index", 400}, {c, "replication_units_quarantined", 0},
	} {
		if got, ok := tt.of.Numbers()[tt.name]; !ok || got != tt.want {
			t.Errorf("%s = %v, %v, want %v", tt.name, got, ok, tt.want)
		}
	}
}
