package replicated_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// setOf returns a primary "p" and secondaries of it, all up to date, whose networks are cut.
func setOf(t *testing.T, ids ...string) (*cluster, []*cluster) {
	t.Helper()
	net := network{}
	p := newCluster(t, net, "p")
	p.mustPost("primary/enable", "{}")
	var all []*cluster
	for _, id := range ids {
		c := newCluster(t, net, id)
		p.join(c, id)
		c.link.set(func(l *fakeLink) { l.down = true })
		all = append(all, c)
	}
	return p, all
}

func (c *cluster) reach(is bool) { c.link.set(func(l *fakeLink) { l.down = !is }) }

// TestPromoteUnreachable: a primary that cannot be reached may take writes that are lost by a promotion. That takes force,
// and is said, in what the audit log holds too.
func TestPromoteUnreachable(t *testing.T) {
	_, all := setOf(t, "c")
	c := all[0]
	heard := time.Now().Add(-90 * time.Second)
	c.link.set(func(l *fakeLink) { l.status.LastHeard, l.status.EqualAt = heard, heard.Add(-time.Second) })
	refused(t, "promote", c.post("secondary/promote", "{}"), engines.KindUnavailable, "final word", heard.UTC().Format(time.RFC3339), "1:400", "force=true")
	if c.role().Mode != roles.Secondary {
		t.Fatal("promoted all the same")
	}
	resp := c.mustPost("secondary/promote", `{"force":true}`)
	text := strings.Join(resp.Warnings, "\n")
	for _, part := range []string{"last heard: " + heard.UTC().Format(time.RFC3339), "position then: 1:400", "equal: " + heard.Add(-time.Second).UTC().Format(time.RFC3339), "epoch 2", "final word"} {
		if !strings.Contains(text, part) {
			t.Errorf("the warnings do not say %q: %s", part, text)
		}
	}
	data, err := resp.EncodedData()
	if err != nil || !strings.Contains(string(data), `"primary_position":"1:400"`) || !strings.Contains(string(data), `"forced":true`) {
		t.Errorf("data %s, %v", data, err)
	}
}

// TestFormerPrimaryIsFenced: in a set of two, the cluster that was promoted by force announces itself to the former primary
// until that takes no shared writes any more, also when another node becomes active meanwhile.
func TestFormerPrimaryIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, all := setOf(t, "c")
		c := all[0]
		c.mustPost("secondary/promote", `{"force":true}`)
		stop := c.run()
		time.Sleep(time.Minute)
		former := c.mustGet("status")["former_primaries"].([]any)
		if len(former) != 1 || former[0].(map[string]any)["cluster_id"] != "p" || !strings.Contains(fmt.Sprint(former[0]), "no route to host") && !strings.Contains(fmt.Sprint(former[0]), "no response from") {
			t.Fatalf("former primaries: %v", former)
		}
		if got := c.Numbers()["replication_former_primaries"]; got != 1 {
			t.Errorf("gauge %v", got)
		}
		if r := p.role(); r.Fenced != 0 {
			t.Fatalf("fenced by nobody: %+v", r)
		}
		stop() // another node takes its place
		c.reach(true)
		defer c.run()()
		synctest.Wait()
		r := p.role()
		if r.Fenced != 2 || r.FencedBy != "c" || r.TakesWrites() {
			t.Fatalf("the former primary: %+v", r)
		}
		for _, part := range []string{"cluster c", "https://c.example:8200", "epoch 2"} {
			if !strings.Contains(r.WhyFenced(), part) {
				t.Errorf("%q does not say %q", r.WhyFenced(), part)
			}
		}
		got := p.mustGet("status")
		if got["phase"] != "fenced" || got["fenced_by"].(map[string]any)["cluster_id"] != "c" || !strings.Contains(got["reason"].(string), "c.example") {
			t.Errorf("status of the former primary: %v", got)
		}
		refused(t, "a token of a fenced primary", p.post("primary/secondary-token", `{"id":"x"}`), engines.KindInvalid, "cluster c")
		got = c.mustGet("status")
		if len(got["former_primaries"].([]any)) != 0 || len(got["other_primaries"].([]any)) != 0 || got["epoch_cluster_id"] != "c" {
			t.Errorf("status of the new one: %v", got)
		}
		// Demoted it follows the new one.
		p.mustPost("primary/demote", "{}")
		p.mustPost("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, c.tokenFor(p, "former")))
		if r := p.role(); r.Mode != roles.Secondary || r.Demoted {
			t.Errorf("rejoined: %+v", r)
		}
	})
}

// TestFormerPrimaryJoins: one that follows the new primary before it was told needs not be told any more.
func TestFormerPrimaryJoins(t *testing.T) {
	p, all := setOf(t, "c")
	c := all[0]
	c.mustPost("secondary/promote", `{"force":true}`)
	p.mustPost("primary/demote", "{}")
	p.mustPost("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, c.tokenFor(p, "former")))
	if got := c.mustGet("status")["former_primaries"].([]any); len(got) != 0 {
		t.Errorf("former primaries: %v", got)
	}
}

// TestSiblings: of two clusters that are promoted by force from one epoch, without knowing of each other, the former primary
// tells. Both sides agree which is the later one.
func TestSiblings(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, all := setOf(t, "b", "c")
				for _, x := range all {
					x.mustPost("secondary/promote", `{"force":true}`)
					defer x.run()()
				}
				for _, i := range order {
					all[i].reach(true)
					time.Sleep(2 * time.Minute)
				}
				b, c := all[0], all[1]
				if r := p.role(); r.FencedBy != "c" || r.Fenced != 2 {
					t.Errorf("the former primary is fenced by %v, want the later one", r.FencedBy)
				}
				if r := c.role(); !r.TakesWrites() {
					t.Error("the later one takes no writes")
				}
				// Whichever came last, b has heard of c: a former primary that has confirmed is asked again.
				if r := b.role(); r.TakesWrites() || !strings.Contains(r.WhyFenced(), "https://c.example:8200") {
					t.Errorf("the earlier one goes on: %+v", r)
				}
				if got := b.Numbers()["replication_former_primaries"]; got != 0 {
					t.Errorf("former primaries of the earlier one: %v", got)
				}
				if order[0] == 1 {
					return
				}
				if got := fmt.Sprint(c.mustGet("status")["other_primaries"]); !strings.Contains(got, "cluster_id:b") || !strings.Contains(got, "b.example") {
					t.Errorf("c does not know of b: %s", got)
				}
				if got := c.Numbers()["replication_other_primaries"]; got != 1 {
					t.Errorf("gauge %v", got)
				}
				// Once b follows c there is nothing left to do, at any of them.
				for i, x := range []*cluster{b, p} {
					x.mustPost("primary/demote", "{}")
					x.mustPost("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, c.tokenFor(x, fmt.Sprint("former", i))))
				}
				time.Sleep(2 * time.Minute)
				for _, x := range []*cluster{p, b, c} {
					if got := x.mustGet("status")["other_primaries"].([]any); len(got) != 0 || x.Numbers()["replication_other_primaries"] != 0 {
						t.Errorf("other primaries of %s: %v", x.role().ClusterID, got)
					}
				}
			})
		})
	}
}

// TestSiblingsNotTold: a cluster that has not heard of its later sibling learns of it when a cluster that has is to follow it,
// and does not get that.
func TestSiblingsNotTold(t *testing.T) {
	p, all := setOf(t, "b", "c")
	b, c := all[0], all[1]
	for _, x := range all {
		x.mustPost("secondary/promote", `{"force":true}`)
	}
	if _, err := p.Announced(t.Context(), roles.Peer{ID: "c"}, replication.Announcement{
		SetID: p.role().SetID, OtherPrimary: replication.OtherPrimary{EpochID: c.role().Lineage.Last()},
	}); err != nil {
		t.Fatal(err)
	}
	p.mustPost("primary/demote", "{}")
	err := p.post("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, b.tokenFor(p, "former")))
	refused(t, "following the earlier one", err, engines.KindInvalid, "later primary", "cluster c")
	if r := b.role(); r.FencedBy != "c" {
		t.Errorf("the earlier one does not know after that: %+v", r)
	}
	p.mustPost("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, c.tokenFor(p, "former")))
}

// TestFinalWordIsForOne: on the final word of a primary one cluster is promoted without force, which may be that primary
// itself if no other cluster has it.
func TestFinalWordIsForOne(t *testing.T) {
	p, all := setOf(t, "b", "c")
	p.mustPost("primary/demote", "{}")
	for _, x := range all {
		x.reach(true)
		x.link.final()
	}
	b, c := all[0], all[1]
	refused(t, "the former primary", p.post("secondary/promote", "{}"), engines.KindUnavailable, `"b"`, `"c"`, "force=true")
	b.mustPost("secondary/promote", "{}")
	if got := b.mustGet("status")["former_primaries"].([]any); len(got) != 0 {
		t.Errorf("the one that has agreed is told again: %v", got)
	}
	refused(t, "another one", c.post("secondary/promote", "{}"), engines.KindUnavailable, "cluster b at https://b.example:8200")
	refused(t, "the former primary", p.post("secondary/promote", "{}"), engines.KindUnavailable, "cluster b at https://b.example:8200")

	// By force it takes an epoch of its own.
	resp := p.mustPost("secondary/promote", `{"force":true}`)
	if e := p.role().Lineage.Last(); e != (storage.EpochID{Number: 3, ClusterID: "p"}) || !strings.Contains(strings.Join(resp.Warnings, " "), "cluster b") {
		t.Errorf("in epoch %v: %q", e, resp.Warnings)
	}
	if got := fmt.Sprint(p.mustGet("status")["known_secondaries"]); got != "[b c]" {
		t.Errorf("a demoted primary has forgotten its secondaries: %s", got)
	}
	refused(t, "a primary that takes writes again", c.post("secondary/promote", "{}"), engines.KindUnavailable, "takes writes again", "epoch 3")
}

// TestFinalWordOfOneThatIsGone: it is enough, and the cluster that has said it learns of the promotion later.
func TestFinalWordOfOneThatIsGone(t *testing.T) {
	_, all := setOf(t, "c")
	c := all[0]
	c.link.final()
	resp := c.mustPost("secondary/promote", "{}")
	if !strings.Contains(strings.Join(resp.Warnings, " "), "could not be asked") {
		t.Errorf("warnings: %q", resp.Warnings)
	}
	if got := c.mustGet("status")["former_primaries"].([]any); len(got) != 1 {
		t.Errorf("former primaries: %v", got)
	}
}

// TestAnnounceOfAnotherSet changes nothing.
func TestAnnounceOfAnotherSet(t *testing.T) {
	p, _ := setOf(t)
	_, err := p.Announced(t.Context(), roles.Peer{ID: "x"}, replication.Announcement{
		SetID: "other", OtherPrimary: replication.OtherPrimary{EpochID: storage.EpochID{Number: 9, ClusterID: "x"}},
	})
	refused(t, "announce", err, engines.KindInvalid, "another replication set")
	if r := p.role(); r.Fenced != 0 {
		t.Errorf("fenced: %+v", r)
	}
}
