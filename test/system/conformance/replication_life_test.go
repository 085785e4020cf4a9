package conformance_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// The stages of TestReplicationClients with two clusters that are a set.

// health: the codes are those of any cluster, the fields name the mode.
func (p *pair) health(t *testing.T) {
	for mode, x := range map[string]*tour{"primary": p.one, "secondary": p.two} {
		leader := x.Leader()
		for _, n := range x.Nodes {
			want := 429
			if n == leader {
				want = 200
			}
			a := x.raw(t, n, "GET", "/v1/sys/health", "", nil)
			same(t, n.ID+" answers", a.Status, want)
			var h struct {
				api.HealthResponse
				Canary *int64 `json:"replication_primary_canary_age_ms"`
				Skew   *int64 `json:"clock_skew_ms"`
			}
			a.Decode(t, &h)
			same(t, "modes", []string{h.ReplicationPerformanceMode, h.ReplicationDRMode}, []string{mode, "disabled"})
			same(t, "performance_standby, standby", []bool{h.PerformanceStandby, h.Standby}, []bool{false, n != leader})
			if h.Canary == nil || h.Skew == nil {
				t.Errorf("%s has no %s", n.ID, "replication_primary_canary_age_ms or clock_skew_ms")
			}
			st, err := x.root.replication("performance")
			noErr(t, err)
			same(t, "cluster_id", h.ClusterID, st.ClusterID)
			a = x.raw(t, n, "GET", "/v1/sys/health?performancestandbycode=299&drsecondarycode=298&perfstandbyok=true&standbyok=true&activecode=231", "", nil)
			same(t, n.ID+" with other codes", a.Status, 231)
		}
	}
}

// filters: by the cluster id of the secondary as by the id of its token.
func (p *pair) filters(t *testing.T) {
	absent(t, 403)(p.two.root.read(p.one.my("closed") + "/x"))
	same(t, "open", data(t)(p.two.root.read(p.one.my("open")+"/x")), map[string]any{"value": "open"})
	st, err := p.two.root.replication("performance")
	noErr(t, err)
	for _, id := range []string{st.ClusterID, p.secondaryID()} {
		fields(t, data(t)(p.one.root.read(perf+"primary/paths-filter/"+id)), map[string]any{"mode": "deny"})
		same(t, "namespaces", texts(data(t)(p.one.root.read(perf + "primary/dynamic-filter/" + id))["dynamic_filtered_namespaces"]), []string{p.one.my("ns") + "/"})
		for _, path := range aliases("secondary/dynamic-filter/" + id) {
			d := data(t)(p.two.root.read(path))
			same(t, "mounts", texts(d["dynamic_filtered_mounts"]), []string{p.one.my("closed") + "/"})
			same(t, "namespaces", texts(d["dynamic_filtered_namespaces"]), []string{p.one.my("ns") + "/"})
		}
	}
	absent(t)(p.two.root.read(perf + "secondary/dynamic-filter/somebody"))
	done(t)(p.one.root.remove(perf + "primary/paths-filter/" + st.ClusterID))
	harness.Await(t, "what was kept back", patience, func() error {
		s, err := p.two.root.read(p.one.my("closed") + "/x")
		if err != nil || s == nil {
			return fmt.Errorf("%v, %v", s, err)
		}
		return nil
	})
	for _, id := range []string{st.ClusterID, p.secondaryID()} {
		absent(t)(p.one.root.read(perf + "primary/paths-filter/" + id))
		absent(t)(p.one.root.read(perf + "primary/dynamic-filter/" + id))
	}
	harness.Await(t, "the end of the filter on the secondary", patience, func() error {
		s, err := p.two.root.read(perf + "secondary/dynamic-filter/" + st.ClusterID)
		if status, _, ok := answerOf(err); ok && status == 404 || err == nil && s == nil {
			return nil
		}
		return fmt.Errorf("%v, %v", s, err)
	})
}

func (p *pair) refusedBySecondary(t *testing.T) {
	for _, op := range operations {
		if strings.HasPrefix(op.path, "primary/") && op.path != "primary/enable" {
			for _, path := range aliases(op.path) {
				_, err := send(p.two.root, op.method, path, op.body)
				says(t, err, 400, "primary")
			}
		}
		if strings.HasPrefix(op.path, "secondary/") {
			_, err := send(p.one.root, op.method, perf+op.path, op.body)
			refused(t, err, 400)
		}
	}
	_, err := p.two.root.write(perf+"primary/enable", nil)
	says(t, err, 400, "secondary/promote")
	_, err = p.two.root.write(perf+"secondary/promote", map[string]any{"primary_cluster_addr": "https://x:1"})
	says(t, err, 400, "primary_cluster_addr")
	_, err = p.two.root.write(perf+"secondary/promote", nil)
	says(t, err, 503, "demote", "force") // the primary is there
	_, err = p.two.root.write(perf+"secondary/update-primary", map[string]any{"token": "a.b.c", "update_primary_addrs": []string{"127.0.0.1:1"}})
	says(t, err, 400, "mutually exclusive")
	_, err = p.two.root.write(perf+"secondary/update-primary", nil)
	says(t, err, 400, `"token"`)
	_, err = p.two.root.write(perf+"secondary/update-primary", map[string]any{"update_primary_addrs": "https://127.0.0.1:1"})
	says(t, err, 400, "update_primary_addrs")
	_, err = p.two.root.write(perf+"secondary/update-primary", map[string]any{"update_primary_addrs": "127.0.0.1:1"})
	says(t, err, 400, "127.0.0.1:1")
}

// forwarded: what is written through the secondary is read there at once, and on the primary. The reads go to any node,
// which may be a standby that is a little behind: they ask for what is current.
func (p *pair) forwarded(t *testing.T) {
	current := p.one.root.with("X-Vault-Consistency", "linearizable")
	currentThere := p.two.root.with("X-Vault-Consistency", "linearizable")
	for i := range 10 {
		value := map[string]any{"value": fmt.Sprint(i)}
		done(t)(p.two.root.write(p.one.my("open")+"/forwarded", value))
		same(t, "on the secondary", data(t)(currentThere.read(p.one.my("open")+"/forwarded")), value)
		same(t, "on the primary", data(t)(current.read(p.one.my("open")+"/forwarded")), value)
	}
	noErr(t, p.two.root.putPolicy(p.one.my("forwarded"), `path "x" { capabilities = ["read"] }`))
	all, err := current.policies()
	noErr(t, err)
	contains(t, "policies of the primary", all, p.one.my("forwarded"))
	noErr(t, p.two.root.mount(p.one.my("own"), api.MountInput{Type: "kv", Local: true}))
	done(t)(p.two.root.write(p.one.my("own")+"/x", map[string]any{"value": "mine"}))
	absent(t, 403)(p.one.root.read(p.one.my("own") + "/x"))
	noErr(t, p.two.root.unmount(p.one.my("own")))
}

func (p *pair) repairs(t *testing.T) {
	for _, path := range []string{"recover", "reindex"} {
		warned(t)(p.one.root.write("sys/replication/"+path, nil))
		warned(t)(p.two.root.write("sys/replication/"+path, map[string]any{"force": true, "diff": true, "skip_flush": false}))
	}
	for _, x := range []*tour{p.one, p.two} {
		if report := data(t)(x.root.write("sys/replication/merkle-check", nil))["merkle_corruption_report"]; report == nil {
			t.Error("no merkle_corruption_report")
		}
	}
	p.two.AwaitReplication("the end of the repair", func(r harness.Replication) bool {
		return r.Phase == "streaming" && r.Exact && r.Repair != nil && (r.Repair.Cause == "recover" || r.Repair.Cause == "reindex") && !r.Repair.Running
	})
	same(t, "conflicts", data(t)(p.two.root.read(perf+"conflicts")), map[string]any{"conflicts": []any{}})
}

// promoted retries what is answered with 503, as one does while a secondary catches up.
func (p *pair) promoted(t *testing.T, x *tour) {
	t.Helper()
	harness.Await(t, "the promotion", patience, func() error {
		s, err := x.root.write(perf+"secondary/promote", nil)
		if status, _, ok := answerOf(err); ok && status != 503 {
			t.Fatalf("%v", err)
		}
		if err == nil && len(s.Warnings) == 0 {
			return errors.New("no warnings")
		}
		return err
	})
	st, err := x.root.replication("performance")
	noErr(t, err)
	same(t, "mode, state", []string{st.Mode, st.State}, []string{"primary", "running"})
}

func (p *pair) switchOver(t *testing.T) {
	before := [2]string{idOf(t, p.one.Cluster), idOf(t, p.two.Cluster)}
	for i, turn := range [][2]*tour{{p.one, p.two}, {p.two, p.one}} {
		from, to := turn[0], turn[1]
		warned(t, "update-primary")(from.root.write(perf+"primary/demote", nil))
		d := data(t)(from.root.read(perf + "status"))
		fields(t, d, map[string]any{"mode": "secondary", "state": "idle", "connection_state": "idle"})
		_, err := from.root.write(p.one.my("open")+"/late", map[string]any{"value": "x"})
		refused(t, err, 503)
		p.promoted(t, to)
		_, err = to.root.write(perf+"secondary/promote", nil)
		says(t, err, 400, "already")
		id := p.one.my(fmt.Sprint("turn", i))
		warned(t)(from.root.write(perf+"secondary/update-primary", map[string]any{"token": p.token(t, to, id), "ca_file": to.CAFile}))
		from.AwaitStreaming()
		done(t)(to.root.write(p.one.my("open")+"/turn", map[string]any{"value": id}))
		from.AwaitHead(to.Cluster)
		same(t, "after turn "+id, data(t)(from.root.with("X-Vault-Consistency", "linearizable").read(p.one.my("open")+"/turn")), map[string]any{"value": id})
		alive := data(t)(from.root.lookupSelf())
		same(t, "tokens of a cluster that was demoted live on", alive["id"] != nil, true)
	}
	same(t, "cluster ids", [2]string{idOf(t, p.one.Cluster), idOf(t, p.two.Cluster)}, before)
}

// otherAddress: the first address that answers is taken.
func (p *pair) otherAddress(t *testing.T) {
	addr := p.one.Leader().ClusterAddr()
	warned(t)(p.two.root.write("sys/replication/secondary/update-primary", map[string]any{"update_primary_addrs": []string{"127.0.0.1:1", addr}}))
	p.two.AwaitStreaming()
	st, err := p.two.root.replication("performance")
	noErr(t, err)
	contains(t, "known_primary_cluster_addrs", st.KnownPrimaryClusterAddrs, addr)
}

func (p *pair) blankToken(t *testing.T) {
	warned(t)(p.two.root.write(perf+"secondary/update-primary", map[string]any{"token": ""}))
	st, err := p.two.root.replication("performance")
	noErr(t, err)
	same(t, "mode, addresses, id", []any{st.Mode, st.PrimaryClusterAddr, len(st.KnownPrimaryClusterAddrs), st.SecondaryID}, []any{"secondary", "", 0, ""})
	_, err = p.two.root.write(perf+"secondary/update-primary", map[string]any{"update_primary_addrs": p.one.Leader().ClusterAddr()})
	says(t, err, 400, "token")
	same(t, "reads go on", data(t)(p.two.root.read(p.one.my("open")+"/x")), map[string]any{"value": "open"})
	// It is to be told that it is the same cluster: the id that it was enrolled with is free again after a revocation.
	done(t)(p.one.root.write(perf+"primary/revoke-secondary", map[string]any{"id": p.one.my("turn1")}))
	warned(t)(p.two.root.write(perf+"secondary/update-primary", map[string]any{"token": p.token(t, p.one, p.one.my("turn1")), "ca_file": p.one.CAFile}))
	p.two.AwaitStreaming()
}

func (p *pair) revoke(t *testing.T) {
	for _, path := range aliases("primary/revoke-secondary") {
		_, err := p.one.root.write(path, nil)
		says(t, err, 400, `"id"`)
		absent(t)(p.one.root.write(path, map[string]any{"id": "nobody"}))
	}
	done(t)(p.one.root.write(perf+"primary/revoke-secondary", map[string]any{"id": p.one.my("turn1")}))
	st, err := p.one.root.replication("performance")
	noErr(t, err)
	same(t, "known_secondaries, secondaries", []int{len(st.KnownSecondaries), len(st.Secondaries)}, []int{0, 0})
	p.two.AwaitReplication("to be shut out", func(r harness.Replication) bool { return r.Connection != "ready" })
	warned(t)(p.two.root.write(perf+"secondary/update-primary", map[string]any{"token": p.token(t, p.one, p.one.my("turn1")), "ca_file": p.one.CAFile}))
	p.two.AwaitStreaming()
}

func (p *pair) disable(t *testing.T) {
	for _, path := range aliases("primary/disable") {
		_, err := p.two.root.write(path, nil)
		refused(t, err, 400)
	}
	i := map[string]int{"bao": 0, "vault": 1}[p.name]
	warned(t, "disabled")(p.one.root.write(aliases("primary/disable")[i], nil))
	p.two.AwaitReplication("to be alone", func(r harness.Replication) bool { return r.Connection != "ready" })
	warned(t, "disabled")(p.two.root.write(aliases("secondary/disable")[i], nil))
	for _, x := range []*tour{p.one, p.two} {
		same(t, "status", data(t)(x.root.read(perf+"status")), map[string]any{"mode": "disabled"})
		same(t, "the data stays", data(t)(x.root.read(p.one.my("open")+"/x")), map[string]any{"value": "open"})
		done(t)(x.root.write(p.one.my("open")+"/x", map[string]any{"value": "its own"}))
	}
}
