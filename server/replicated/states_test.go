package replicated_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// TestStateTable has a row for each operation in each mode: what it leads to, or why it is refused.
func TestStateTable(t *testing.T) {
	const disabled, primary, secondary, demoted = "disabled", "primary", "secondary", "demoted"
	tests := []struct {
		from, op, body string
		want           roles.Mode
		refused        string // part of the 400
	}{
		{disabled, "primary/enable", "{}", roles.Primary, ""},
		{disabled, "primary/demote", "{}", "", "not a replication primary"},
		{disabled, "primary/disable", "{}", "", "not a replication primary"},
		{disabled, "primary/secondary-token", `{"id":"x"}`, "", "not a primary"},
		{disabled, "primary/revoke-secondary", `{"id":"x"}`, "", "not a primary"},
		{disabled, "primary/paths-filter/x", "{}", "", "not a replication primary"},
		{disabled, "secondary/promote", "{}", "", "not a replication secondary"},
		{disabled, "secondary/promote", `{"force":true}`, "", "not a replication secondary"},
		{disabled, "secondary/disable", "{}", "", "not a replication secondary"},
		{disabled, "secondary/update-primary", `{"token":""}`, "", "not a replication secondary"},
		{disabled, "secondary/generate-public-key", "{}", roles.Disabled, ""},

		{primary, "primary/enable", "{}", "", "already a replication primary"},
		{primary, "primary/demote", "{}", roles.Secondary, ""},
		{primary, "primary/disable", "{}", roles.Disabled, ""},
		{primary, "secondary/enable", `{"token":"x"}`, "", "demote it and use update-primary"},
		{primary, "secondary/promote", `{"force":true}`, "", "already the replication primary"},
		{primary, "secondary/disable", "{}", "", "not a replication secondary"},
		{primary, "secondary/update-primary", `{"token":""}`, "", "not a replication secondary"},
		{primary, "secondary/generate-public-key", "{}", "", "is a primary"},

		{secondary, "primary/enable", "{}", "", "secondary/promote"},
		{secondary, "primary/demote", "{}", "", "not a replication primary"},
		{secondary, "primary/disable", "{}", "", "not a replication primary"},
		{secondary, "primary/secondary-token", `{"id":"x"}`, "", "not a primary"},
		{secondary, "secondary/enable", `{"token":"x"}`, "", "already a replication secondary"},
		{secondary, "secondary/promote", "{}", roles.Primary, ""},
		{secondary, "secondary/disable", "{}", roles.Disabled, ""},
		{secondary, "secondary/update-primary", `{"token":""}`, roles.Secondary, ""},

		{demoted, "primary/enable", "{}", "", "secondary/promote"},
		{demoted, "primary/demote", "{}", "", "not a replication primary"},
		{demoted, "secondary/promote", "{}", roles.Primary, ""},
		{demoted, "secondary/disable", "{}", roles.Disabled, ""},
		{demoted, "secondary/update-primary", `{"token":" "}`, roles.Secondary, ""},
		{demoted, "secondary/update-primary", `{"update_primary_addrs":"p.example:8201"}`, "", "give it a token"},
	}
	for _, tt := range tests {
		t.Run(tt.from+" "+tt.op, func(t *testing.T) {
			net := network{}
			c := newCluster(t, net, "one")
			switch tt.from {
			case primary, demoted:
				c.mustPost("primary/enable", "{}")
				if tt.from == demoted {
					c.mustPost("primary/demote", "{}")
				}
			case secondary:
				p := newCluster(t, net, "p")
				p.mustPost("primary/enable", "{}")
				p.join(c, "c")
				c.link.set(func(l *fakeLink) { l.down = true })
				c.link.final()
			}
			before := c.role()
			err := c.post(tt.op, tt.body)
			after := c.role()
			if tt.refused != "" {
				refused(t, tt.op, err, engines.KindInvalid, tt.refused)
				if before.Version != after.Version {
					t.Errorf("%s was refused, and changed the role", tt.op)
				}
				return
			}
			if err != nil || after.Mode != tt.want {
				t.Fatalf("%s: %v, mode %s, want %s", tt.op, err, after.Mode, tt.want)
			}
		})
	}
}

func TestEnablePrimary(t *testing.T) {
	c := newCluster(t, network{}, "one")
	if r := c.role(); r.Mode != roles.Disabled || r.Version != 0 || !r.TakesWrites() {
		t.Fatalf("a new cluster's role is %+v", r)
	}
	for _, bad := range []string{"x", "http://x:8201", "x:", ":8201", "x:0", "x:99999", "x:8201/y", "a b:1"} {
		refused(t, bad, c.post("primary/enable", fmt.Sprintf(`{"primary_cluster_addr":%q}`, bad)), engines.KindInvalid, "primary_cluster_addr", "host:port")
	}
	resp := c.mustPost("primary/enable", `{"primary_cluster_addr":"lb.example:8201"}`)
	if len(resp.Warnings) == 0 || !strings.Contains(resp.Warnings[0], "becoming a replication primary") {
		t.Errorf("warnings: %q", resp.Warnings)
	}
	r := c.role()
	if r.ClusterID != "one" || r.SetID == "" || r.Lineage.Epoch() != 1 || !r.TakesWrites() || r.Version == 0 {
		t.Errorf("role: %+v", r)
	}
	if p := r.Lineage.Resolve(r.ClusterID, storage.Position{Index: 1}); p != (storage.Position{Epoch: 1, Index: 1}) {
		t.Errorf("what was written before is at %v", p)
	}
	if got := c.Addrs(); !slices.Equal(got, []string{"lb.example:8201"}) {
		t.Errorf("secondaries are given %q", got)
	}
	if cert, pool, err := c.ServerTLS(t.Context()); cert == nil || pool == nil || err != nil {
		t.Errorf("ServerTLS: %v, %v, %v", cert, pool, err)
	}
	if mode, set, id, lineage := c.Self(); mode != roles.Primary || set != r.SetID || id != "one" || len(lineage) != 1 {
		t.Errorf("Self: %v %v %v %v", mode, set, id, lineage)
	}
}

// TestDisableChangesTheClusterID: enabled again, a cluster is another one, in another set, with positions of its own.
func TestDisableChangesTheClusterID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, network{}, "one")
		defer c.run()()
		c.mustPost("primary/enable", "{}")
		c.mustPost("primary/secondary-token", fmt.Sprintf(`{"id":"b","secondary_public_key":%q}`, publicKey(t)))
		c.mustPost("primary/paths-filter/b", `{"paths":["secret/"]}`)
		first := c.role()
		resp := c.mustPost("primary/disable", "{}")
		if len(resp.Warnings) == 0 {
			t.Error("disable has no warning")
		}
		synctest.Wait()
		if keys := c.keys(); keys != nil {
			t.Errorf("disable left %q", keys)
		}
		if r := c.role(); r.Mode != roles.Disabled || !r.WasUsed || !r.TakesWrites() {
			t.Errorf("disabled role: %+v", r)
		}
		if cert, _, err := c.ServerTLS(t.Context()); cert != nil || err != nil {
			t.Errorf("a disabled cluster still serves secondaries: %v", err)
		}
		if got := c.mustGet("status"); len(got) != 1 || got["mode"] != "disabled" {
			t.Errorf("status: %v", got)
		}
		c.mustPost("primary/enable", "{}")
		second := c.role()
		if second.ClusterID == first.ClusterID || second.SetID == first.SetID || second.Lineage.Epoch() != first.Lineage.Epoch()+1 {
			t.Errorf("enabled again: %+v, before: %+v", second, first)
		}
		_, err := c.get("primary/paths-filter/b")
		refused(t, "the filter of the first set", err, engines.KindNotFound)
	})
}

// publicKey is one of a cluster that does nothing else.
func publicKey(t testing.TB) string {
	return newCluster(t, network{}, "other").mustPost("secondary/generate-public-key", "{}").Data.(map[string]any)["secondary_public_key"].(string)
}

// TestDemote: keeps its ids, connects to no primary, stops shared writes at one index, and stands at that index.
func TestDemote(t *testing.T) {
	c := newCluster(t, network{}, "one")
	c.mustPost("primary/enable", "{}")
	before := c.role()
	c.mustPost("primary/demote", "{}")
	after := c.role()
	if after.ClusterID != before.ClusterID || after.SetID != before.SetID || !slices.Equal(after.Lineage, before.Lineage) || !after.Demoted || after.TakesWrites() {
		t.Errorf("demoted: %+v, before: %+v", after, before)
	}
	write := storage.Batch{
		Reads: []storage.Read{{Key: roles.RoleKey, Version: before.Version}}, Puts: []storage.Put{{Key: "s/sys/root/policies/x", Value: []byte("x")}},
	}
	if _, err := c.store.Commit(t.Context(), write); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("a write that began as the primary's: %v, want a conflict", err)
	}
	if at, _ := c.link.Cursor(t.Context()); at != (storage.Position{Epoch: 1, Index: after.Version}) {
		t.Errorf("cursor %v, role at %d", at, after.Version)
	}
	if units, _ := c.link.Units(t.Context()); !units["mount/"+uuidOf(2)] || !units["ns/root"] || !units["global"] || units["mount/"+uuidOf(3)] {
		t.Errorf("units of the demoted cluster: %v", units)
	}
	if cert, _, err := c.ServerTLS(t.Context()); cert == nil || err != nil {
		t.Errorf("a demoted cluster does not let its secondaries have the rest: %v", err)
	}
}

// TestDemotedStaysWhereItIs: whatever is asked of a demoted cluster, the end of its time as the primary stays the same.
func TestDemotedStaysWhereItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, network{}, "one")
		c.mustPost("primary/enable", "{}")
		defer c.run()()
		c.mustPost("primary/demote", "{}")
		end := storage.Position{Epoch: 1, Index: c.role().Version}
		c.mustPost("secondary/update-primary", `{"token":""}`)
		c.Fence(t.Context(), storage.EpochID{Number: 7, ClusterID: "x"})
		synctest.Wait()
		if at, _ := c.link.Cursor(t.Context()); at != end || c.role().Version != end.Index {
			t.Errorf("cursor %v, role at %d, want %v", at, c.role().Version, end)
		}
		if c.link.set(func(l *fakeLink) {}); c.link.cursors != 1 {
			t.Errorf("the cursor was written %d times", c.link.cursors)
		}
	})
}

// TestDemoteFinishes: a crash between the role and the cursor is mended by the next active node.
func TestDemoteFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, network{}, "one")
		c.mustPost("primary/enable", "{}")
		r := c.role()
		r.Mode, r.Demoted = roles.Secondary, true
		c.setRole(r)
		defer c.run()()
		synctest.Wait()
		if at, _ := c.link.Cursor(t.Context()); at != (storage.Position{Epoch: 1, Index: c.role().Version}) {
			t.Errorf("cursor %v, role at %d", at, c.role().Version)
		}
	})
}

// TestSecondaryEnable: nothing changes before the primary has enrolled the cluster; then one commit, then the wipe.
func TestSecondaryEnable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		defer c.run()()
		token := p.tokenFor(c, "second")

		for _, bad := range []struct{ body, part string }{
			{`{}`, "token"}, {`{"token":""}`, "token"}, {`{"token":"hvs.x"}`, "token"}, {`{"token":"a.b.c"}`, "token"},
			{fmt.Sprintf(`{"token":%q}`, token[:len(token)-4]), "token"},
		} {
			refused(t, bad.body, c.post("secondary/enable", bad.body), engines.KindInvalid, bad.part)
		}
		c.link.set(func(l *fakeLink) { l.down = true })
		refused(t, "without a way to the primary", c.post("secondary/enable", fmt.Sprintf(`{"token":%q}`, token)), engines.KindInvalid, p.addr, "no route")
		c.link.set(func(l *fakeLink) { l.down = false })
		synctest.Wait()
		if r := c.role(); r.Mode != roles.Disabled || c.wiped != 0 {
			t.Fatalf("refused, and yet: %+v, wiped %d times", r, c.wiped)
		}

		conflict := replicated.ProgressPrefix + "conflict-value/0000000000000000"
		c.put(conflict, "what only this cluster had in another set")
		var broken atomic.Bool
		broken.Store(true)
		c.wipe = func() error {
			if broken.Load() {
				return errors.New("disk")
			}
			return nil
		}
		resp := c.mustPost("secondary/enable", fmt.Sprintf(`{"token":%q}`, token))
		if len(resp.Warnings) == 0 {
			t.Error("no warning")
		}
		synctest.Wait()
		if r := c.role(); !r.Wiping || r.Mode != roles.Secondary || c.link.running != 0 {
			t.Fatalf("while the wipe fails: %+v, following %d", r, c.link.running)
		}
		refused(t, "promote while wiping", c.post("secondary/promote", `{"force":true}`), engines.KindInvalid, "still being removed")
		refused(t, "disable while wiping", c.post("secondary/disable", ""), engines.KindInvalid, "still being removed")
		if got := c.mustGet("status")["phase"]; got != "wiping" {
			t.Errorf("phase %v", got)
		}
		broken.Store(false)
		time.Sleep(5 * time.Second) // in the bubble: the next try
		synctest.Wait()
		r := c.role()
		if r.Wiping || c.wiped < 2 || r.SetID != p.role().SetID || r.ClusterID != "c" || r.TakesWrites() {
			t.Errorf("after the wipe: %+v, wiped %d times", r, c.wiped)
		}
		if _, err := c.store.Get(t.Context(), conflict); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("a copy of what the cluster held before: %v", err)
		}
		if got := <-c.link.follows; got != "p" || c.link.running != 1 {
			t.Errorf("follows %q, %d at once", got, c.link.running)
		}
		if got := p.mustGet("status")["known_secondaries"]; fmt.Sprint(got) != "[second]" {
			t.Errorf("known_secondaries: %v", got)
		}
		if keys := c.keys(); slices.Contains(keys, "invite") {
			t.Errorf("the private key was used, and is still there: %q", keys)
		}
	})
}

// TestReenabledSecondary: a cluster that was in a set before joins another one with a new id.
func TestReenabledSecondary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		defer c.run()()
		p.join(c, "second")
		first := c.role().ClusterID
		c.mustPost("secondary/disable", "{}")
		synctest.Wait()
		if keys := c.keys(); keys != nil {
			t.Errorf("disable left %q", keys)
		}
		p.join(c, "again")
		if second := c.role().ClusterID; second == first {
			t.Errorf("the cluster id is still %s", second)
		}
	})
}

// TestPromotePlanned: the primary is demoted, its secondary has everything and is promoted, and the former one rejoins: no
// wipe, one history.
func TestPromotePlanned(t *testing.T) {
	net := network{}
	a, b := newCluster(t, net, "a"), newCluster(t, net, "b")
	a.mustPost("primary/enable", "{}")
	a.join(b, "b")
	b.link.set(func(l *fakeLink) { l.status.Connected = a.addr })
	refused(t, "promote under a primary", b.post("secondary/promote", "{}"), engines.KindUnavailable, "not demoted", "force=true")

	a.mustPost("primary/demote", "{}")
	end := a.role().Version
	final := storage.Position{Epoch: 1, Index: end}
	b.link.caughtUp(final)
	b.link.set(func(l *fakeLink) {
		// The former primary goes on with what is its own.
		l.status.Connected, l.status.Final, l.status.Head.Index, l.status.LagEntries = a.addr, true, end+20, 20
	})
	if got := b.mustGet("status"); got["lag_entries"] != 0.0 {
		t.Errorf("with everything that there is, a secondary is %v entries behind", got["lag_entries"])
	}
	b.mustPost("secondary/promote", `{"primary_cluster_addr":"b-lb.example:8201"}`)
	r := b.role()
	want := storage.Lineage{a.role().Lineage[0], {Epoch: 2, ClusterID: "b", From: final, Base: r.Version}}
	if r.Mode != roles.Primary || r.ClusterID != "b" || !slices.Equal(r.Lineage, want) || r.Addr != "b-lb.example:8201" {
		t.Errorf("promoted: %+v, want the history %v", r, want)
	}
	if p := r.Lineage.Resolve("b", storage.Position{Index: r.Version + 1}); p.Epoch != 2 {
		t.Errorf("the first write is at %v", p)
	}
	if keys := b.keys(); !slices.Equal(keys, []string{"ca"}) {
		t.Errorf("after the promotion there is %q", keys)
	}
	if !r.Lineage.Contains(final) {
		t.Errorf("the demoted cluster's cursor %v is not part of %v", final, r.Lineage)
	}

	net["b-lb.example:8201"] = b
	a.mustPost("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, b.tokenFor(a, "a")))
	if r := a.role(); r.Demoted || r.Mode != roles.Secondary || r.ClusterID != "a" || a.wiped != 0 {
		t.Errorf("rejoined: %+v, wiped %d times", r, a.wiped)
	}
	if at, _ := a.link.Cursor(t.Context()); at != final {
		t.Errorf("cursor %v, want %v as before", at, final)
	}
}

// TestPromoteBack: who was demoted by mistake is promoted again.
func TestPromoteBack(t *testing.T) {
	c := newCluster(t, network{}, "one")
	c.mustPost("primary/enable", "{}")
	c.mustPost("primary/demote", "{}")
	end := c.role().Version
	c.mustPost("secondary/promote", "{}")
	r := c.role()
	if r.Lineage.Epoch() != 2 || r.Lineage[1].From != (storage.Position{Epoch: 1, Index: end}) || r.Demoted || !r.TakesWrites() {
		t.Errorf("promoted again: %+v", r)
	}
}

// TestPromoteChecks: each check is named, all of them at once, and force overrides them.
func TestPromoteChecks(t *testing.T) {
	at := func(i storage.Index) storage.Position { return storage.Position{Epoch: 1, Index: i} }
	tests := []struct {
		name  string
		upset func(c *cluster, l *fakeLink)
		part  string
	}{
		{"the primary is there", func(_ *cluster, l *fakeLink) { l.status.Connected, l.status.Final = "p.example:8201", false }, "demote it first"},
		{"behind", func(_ *cluster, l *fakeLink) { l.status.Head, l.status.LagEntries, l.status.Final = at(450), 50, false }, "50 entries behind"},
		{"the primary is away", func(_ *cluster, l *fakeLink) { l.status.Final = false }, "has not said its final word: it was last heard at 2"},
		{"nothing heard at all", func(_ *cluster, l *fakeLink) { l.status = traffic.FollowStatus{} }, "has not heard from the primary"},
		{"not exact", func(_ *cluster, l *fakeLink) { l.units["ns/root"] = false }, "1 of 2 parts of the copy are not complete"},
		{"never complete", func(_ *cluster, l *fakeLink) { l.units = nil }, "never had a complete copy"},
		{"repairing", func(_ *cluster, l *fakeLink) {
			l.status.Repair = &traffic.RepairStatus{Cause: "operator", Running: true}
		}, "a repair is running"},
		{"filtered", func(c *cluster, _ *fakeLink) {
			c.put("l/replication/given-filter", map[string]any{"format": 1, "mode": "deny", "paths": []string{"x/"}})
		}, "paths filter (mode deny)"},
		{"sick", func(c *cluster, _ *fakeLink) { c.sick = errors.New("no space left") }, "no space left"},
	}
	setUp := func(t *testing.T) *cluster {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		p.join(c, "c")
		c.link.set(func(l *fakeLink) { l.down = true })
		c.link.final()
		return c
	}
	apart := map[string]bool{"never complete": true, "nothing heard at all": true, "the primary is away": true}
	all := setUp(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := setUp(t)
			tt.upset(c, c.link)
			err := c.post("secondary/promote", "{}")
			refused(t, "promote", err, engines.KindUnavailable, tt.part, "force=true")
			if c.role().Mode != roles.Secondary {
				t.Fatal("promoted all the same")
			}
			resp := c.mustPost("secondary/promote", `{"force":true}`)
			if c.role().Mode != roles.Primary || !strings.Contains(strings.Join(resp.Warnings, "\n"), tt.part) {
				t.Errorf("forced: mode %s, warnings %q", c.role().Mode, resp.Warnings)
			}
		})
		if !apart[tt.name] {
			tt.upset(all, all.link)
		}
	}
	var parts []string
	for _, tt := range tests {
		if !apart[tt.name] {
			parts = append(parts, tt.part)
		}
	}
	refused(t, "everything at once", all.post("secondary/promote", "{}"), engines.KindUnavailable, parts...)
}

// TestPromoteIdle: what is before the cursor of a quiet primary needs no batch to be there.
func TestPromoteIdle(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mustPost("primary/enable", "{}")
	p.join(c, "c")
	c.link.set(func(l *fakeLink) { l.down, l.status.Head.Index, l.status.Final = true, 405, true }) // and no entry of it concerns c
	c.mustPost("secondary/promote", "{}")
}

// TestPromoteBranch: a secondary that has heard of an epoch but never reached it leaves the history before that.
func TestPromoteBranch(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mustPost("primary/enable", "{}")
	p.join(c, "c")
	r := c.role()
	r.Lineage = append(r.Lineage, storage.Branch{Epoch: 2, ClusterID: "q", From: storage.Position{Epoch: 1, Index: 900}, Base: 30})
	c.setRole(r)
	c.mustPost("secondary/promote", `{"force":true}`)
	got := c.role()
	want := append(r.Lineage, storage.Branch{Epoch: 3, ClusterID: "c", From: storage.Position{Epoch: 1, Index: 400}, Base: got.Version})
	if !slices.Equal(got.Lineage, want) {
		t.Errorf("history %v, want %v", got.Lineage, want)
	}
	for at, want := range map[storage.Position]bool{{Epoch: 1, Index: 400}: true, {Epoch: 1, Index: 401}: false, {Epoch: 2, Index: 31}: false, {Epoch: 3, Index: 1}: true} {
		if got.Lineage.Contains(at) != want {
			t.Errorf("%v is in the history: %v", at, !want)
		}
	}
}

// TestPromoteStopsBatches: a batch of the old primary that is under way when the role changes is not applied.
func TestPromoteStopsBatches(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mustPost("primary/enable", "{}")
	p.join(c, "c")
	cursor, err := c.store.Get(t.Context(), cursorKey)
	if err != nil {
		t.Fatal(err)
	}
	p.mustPost("primary/demote", "{}")
	c.link.final()
	c.mustPost("secondary/promote", "{}")
	batch := storage.Batch{
		Reads: []storage.Read{{Key: cursorKey, Version: cursor.Version}},
		Puts:  []storage.Put{{Key: cursorKey, Value: []byte(`{"epoch":1,"index":401}`)}, {Key: "s/sys/root/policies/late", Value: []byte("x")}},
	}
	if _, err := c.store.Commit(t.Context(), batch); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("a late batch: %v, want a conflict", err)
	}
}

// TestUpdatePrimaryRules are those of SPEC area C about update-primary.
func TestUpdatePrimaryRules(t *testing.T) {
	net := network{}
	p, c, other := newCluster(t, net, "p"), newCluster(t, net, "c"), newCluster(t, net, "other")
	p.mustPost("primary/enable", "{}")
	other.mustPost("primary/enable", "{}")
	p.join(c, "c")

	refused(t, "token and addresses", c.post("secondary/update-primary", `{"token":"x","update_primary_addrs":["p.example:8201"]}`), engines.KindInvalid, "mutually exclusive")
	refused(t, "nothing", c.post("secondary/update-primary", `{}`), engines.KindInvalid, "token", "required")
	refused(t, "null", c.post("secondary/update-primary", `{"token":null}`), engines.KindInvalid, "token", "required")
	refused(t, "not an address", c.post("secondary/update-primary", `{"update_primary_addrs":["https://p:8200"]}`), engines.KindInvalid, "update_primary_addrs", "host:port")
	refused(t, "an address of nobody", c.post("secondary/update-primary", `{"update_primary_addrs":["q.example:8201"]}`), engines.KindInvalid, "q.example:8201", "no route")
	refused(t, "another set", c.post("secondary/update-primary", `{"update_primary_addrs":["other.example:8201","q.example:8201"]}`),
		engines.KindInvalid, "other.example:8201: it is of another replication set", "q.example:8201: ")
	refused(t, "a token of another set", c.post("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, other.tokenFor(c, "c"))), engines.KindInvalid, "another replication set")
	if got := c.upstream(); got.PrimaryID != "p" {
		t.Fatalf("refused, and yet it follows %s", got.PrimaryID)
	}

	// The first that answers and proves the same set is the one.
	net["p2.example:8201"] = p
	c.mustPost("secondary/update-primary", `{"update_primary_addrs":"other.example:8201,p2.example:8201,p.example:8201"}`)
	if got := c.upstream(); got.PrimaryID != "p" || !slices.Equal(got.Addrs, []string{"p2.example:8201", "p.example:8201"}) || got.SecondaryID != "c" {
		t.Errorf("by addresses: %s %q", got.PrimaryID, got.Addrs)
	}
	if c.wiped != 0 || c.role().Wiping {
		t.Error("update-primary wipes")
	}

	// An older primary is none.
	r := c.role()
	r.Lineage = append(r.Lineage, storage.Branch{Epoch: 2, ClusterID: "q", From: storage.Position{Epoch: 1, Index: 300}, Base: 9})
	c.setRole(r)
	refused(t, "an earlier epoch", c.post("secondary/update-primary", `{"update_primary_addrs":["p.example:8201"]}`), engines.KindInvalid, "later one")

	// A blank token clears what is known.
	c.mustPost("secondary/update-primary", `{"token":""}`)
	if keys := c.keys(); slices.Contains(keys, "upstream") {
		t.Errorf("after a blank token there is %q", keys)
	}
	if got := c.mustGet("status"); got["secondary_id"] != "" || got["connection_state"] != "idle" {
		t.Errorf("status: %v", got)
	}
}

func (c *cluster) upstream() (up traffic.Upstream) {
	c.t.Helper()
	e, err := c.store.Get(context.Background(), "l/replication/upstream")
	if err == nil {
		err = json.Unmarshal(e.Value, &up)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return up
}

// TestFollows: who is followed changes with the role and the upstream, and with nothing else.
func TestFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		p.join(c, "c")
		stop := c.run()
		if got := <-c.link.follows; got != "p" {
			t.Fatalf("follows %q", got)
		}
		c.link.events.Learned(t.Context(), replication.Learned{
			Addrs: []string{"p3.example:8201"}, Cert: []byte("renewed"), Lineage: append(c.role().Lineage, storage.Branch{Epoch: 2, ClusterID: "p"}),
		})
		synctest.Wait()
		if up := c.upstream(); string(up.Cert) != "renewed" || up.Addrs[0] != "p3.example:8201" || up.PrimaryID != "p" || c.role().Lineage.Epoch() != 2 {
			t.Errorf("learned: %q %q %s, epoch %d", up.Cert, up.Addrs, up.PrimaryID, c.role().Lineage.Epoch())
		}
		time.Sleep(time.Minute)
		if len(c.link.follows) != 0 {
			t.Error("it began to follow anew although only the link has learned something")
		}
		r := p.role()
		r.Lineage = c.role().Lineage
		p.setRole(r)
		before := c.link.events
		time.Sleep(time.Second)
		c.mustPost("secondary/update-primary", `{"update_primary_addrs":["p.example:8201"]}`)
		if got := <-c.link.follows; got != "p" || c.link.running != 1 {
			t.Errorf("after update-primary it follows %q, %d times", got, c.link.running)
		}
		before.Learned(t.Context(), replication.Learned{Cert: []byte("of the one before"), PrimaryID: "another"})
		if up := c.upstream(); string(up.Cert) != "renewed" || up.PrimaryID != "p" {
			t.Errorf("what was heard of the primary of before: %q, %s", up.Cert, up.PrimaryID)
		}
		// What is heard counts although it cannot be stored at once: a promotion must know every epoch.
		r = c.role()
		c.put(roles.RoleKey, "damaged")
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.link.events.Learned(t.Context(), replication.Learned{Lineage: append(r.Lineage, storage.Branch{Epoch: 3, ClusterID: "p"})})
		}()
		time.Sleep(10 * time.Second)
		c.setRole(r)
		<-done
		if got := c.role().Lineage.Epoch(); got != 3 {
			t.Errorf("the role has epoch %d, and the primary was of 3", got)
		}
		stop()
		synctest.Wait()
		if c.link.running != 0 {
			t.Error("still following after the node ceased to be the active one")
		}
	})
}

// TestDisableFinishes: what a crash left of replication goes when the node is the active one again.
func TestDisableFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, network{}, "one")
		for _, key := range []storage.Key{"l/replication/secondary/ab", "l/replication/enrolled/ab", "l/replication/filter/ab", cursorKey} {
			c.put(key, map[string]any{"format": 1})
		}
		c.setRole(roles.Role{Format: 1, Mode: roles.Disabled, ClusterID: "one", WasUsed: true})
		defer c.run()()
		synctest.Wait()
		if keys := c.keys(); keys != nil {
			t.Errorf("there is still %q", keys)
		}
	})
}

// TestFilterIsKnown: a secondary knows that it has a filter before it needs to, and does not become a primary that lacks
// what the filter excluded.
func TestFilterIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := network{}
		p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
		p.mustPost("primary/enable", "{}")
		p.join(c, "c")
		defer c.run()()
		p.mustPost("primary/paths-filter/c", `{"mode":"deny","paths":["secret/"]}`)
		time.Sleep(11 * time.Second)
		c.link.set(func(l *fakeLink) { l.down = true })
		refused(t, "promote", c.post("secondary/promote", "{}"), engines.KindUnavailable, "paths filter (mode deny)")
		c.link.set(func(l *fakeLink) { l.down = false })
		if _, err := p.call(engines.Delete, "performance/primary/paths-filter/c", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		c.link.set(func(l *fakeLink) { l.down, l.status.Final = true, true })
		c.mustPost("secondary/promote", "{}")
	})
}

// TestFence: a primary that has met a later epoch takes no more writes, and can be demoted.
func TestFence(t *testing.T) {
	c := newCluster(t, network{}, "one")
	c.Fence(t.Context(), storage.EpochID{Number: 9, ClusterID: "two"})
	if r := c.role(); r.Version != 0 {
		t.Errorf("a cluster without replication was fenced: %+v", r)
	}
	c.mustPost("primary/enable", "{}")
	c.Fence(t.Context(), storage.EpochID{Number: 1, ClusterID: "one"})
	before := c.role()
	if before.Fenced != 0 || !before.TakesWrites() {
		t.Errorf("fenced by its own epoch: %+v", before)
	}
	c.Fence(t.Context(), storage.EpochID{Number: 2, ClusterID: "two"})
	r := c.role()
	if r.Fenced != 2 || r.TakesWrites() || r.Version == before.Version {
		t.Errorf("not fenced: %+v", r)
	}
	if got := c.mustGet("status"); got["fenced"] != 2.0 || got["phase"] != "fenced" || got["mode"] != "primary" {
		t.Errorf("status: %v", got)
	}
	c.mustPost("primary/demote", "{}")
	if r := c.role(); r.Fenced != 0 || !r.Demoted {
		t.Errorf("demoted: %+v", r)
	}
}

// TestFenceOfTheVersionBefore: a role that was fenced before epochs had the id of their cluster is read, and a later one is
// met as before.
func TestFenceOfTheVersionBefore(t *testing.T) {
	c := newCluster(t, network{}, "one")
	c.mustPost("primary/enable", "{}")
	r := c.role()
	c.put(roles.RoleKey, map[string]any{
		"format": 1, "mode": "primary", "cluster_id": "one", "set_id": r.SetID, "lineage": r.Lineage, "fenced": 2, "since": r.Since,
	})
	before := c.role()
	if before.Fenced != 2 || before.TakesWrites() || !strings.Contains(before.WhyFenced(), "a cluster of epoch 2") {
		t.Errorf("read: %+v, %q", before, before.WhyFenced())
	}
	c.Fence(t.Context(), storage.EpochID{Number: 2, ClusterID: "two"})
	if r := c.role(); r.FencedBy != "two" {
		t.Errorf("met again, with its id: %+v", r)
	}
}

// TestCurrentReadsOnce: the role is in memory until it changes.
func TestCurrentReadsOnce(t *testing.T) {
	c := newCluster(t, network{}, "one")
	c.mustPost("primary/enable", "{}")
	c.role()
	if n := testing.AllocsPerRun(100, func() { c.role() }); n != 0 {
		t.Errorf("the role costs %v allocations", n)
	}
	c.mustPost("primary/demote", "{}")
	if c.role().Mode != roles.Secondary {
		t.Error("an old role")
	}
	c.Clear()
	if c.role().Mode != roles.Secondary {
		t.Error("the role is lost by sealing")
	}
}
