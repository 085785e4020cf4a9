package saml_test

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// patience is for what an election takes on a busy machine.
const patience = time.Minute

// TestSAMLCluster logs in at three nodes at once, and goes on when those that have taken part are killed.
func TestSAMLCluster(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Prefix: "trio"})
	m := ready(t, c, "saml")
	t.Run("each step on another node", func(t *testing.T) {
		m := m.in(t)
		n := c.Nodes
		for _, order := range [][3]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {1, 1, 2}} {
			s := m.start(n[order[0]], nil)
			wantStatus(t, "before", m.redeem(n[order[2]], s.poll), 401)
			m.confirm(n[order[1]], s, alice)
			got := tokenOf(t, m.redeem(n[order[2]], s.poll))
			for _, node := range n {
				if m.lookup(node, got.Token) == nil {
					t.Errorf("%s does not know the token", node.ID)
				}
			}
		}
	})
	t.Run("one answer and one redemption on all nodes", func(t *testing.T) { onlyOnce(t, m.in(t)) })
	t.Run("the leader is killed after the start", func(t *testing.T) {
		m := m.in(t)
		s := m.start(c.Leader(), nil)
		form := m.idp.Answer(s.url, alice)
		restart := killLeader(t, c)
		m.eventually("callback", func(n *harness.Node) harness.Answer { return m.tryPost(n, form) }, 200)
		tokenOf(t, m.eventually("token", func(n *harness.Node) harness.Answer { return m.tryRedeem(n, s.poll) }, 200))
		restart()
	})
	t.Run("the leader is killed after the callback", func(t *testing.T) {
		m := m.in(t)
		s := m.start(c.Standbys()[0], nil)
		form := m.idp.Answer(s.url, alice)
		wantStatus(t, "callback", m.post(c.Standbys()[1], form), 200)
		restart := killLeader(t, c)
		got := tokenOf(t, m.eventually("token", func(n *harness.Node) harness.Answer { return m.tryRedeem(n, s.poll) }, 200))
		restart()
		// What is spent stays spent: on every node, also on the one that was away.
		r, err := samltest.ParseRequest(m.start(c.Leader(), nil).url)
		if err != nil {
			t.Fatal(err)
		}
		again := url.Values{"SAMLResponse": form["SAMLResponse"], "RelayState": {r.RelayState}}
		for _, n := range c.Nodes {
			wantStatus(t, "the poll id again on "+n.ID, m.redeem(n, s.poll), 400)
			wantStatus(t, "the answer again on "+n.ID, m.post(n, form), 400)
			wantStatus(t, "the answer for another login on "+n.ID, m.post(n, again), 400)
			if m.lookup(n, got.Token) == nil {
				t.Errorf("%s does not know the token", n.ID)
			}
		}
	})
}

// onlyOnce posts an answer to all nodes at once, and redeems on all at once.
func onlyOnce(t *testing.T, m *method) {
	s := m.start(m.c.Leader(), nil)
	form := m.idp.Answer(s.url, alice)
	atOnce := func(what string, do func(n *harness.Node) harness.Answer) {
		var won atomic.Int64
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if a := do(m.c.Nodes[i%3]); a.Status == 200 {
					won.Add(1)
				} else if a.Status != 400 {
					t.Errorf("%s: status %d: %.200s", what, a.Status, a.Body)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Errorf("%s: %d of them were accepted", what, won.Load())
		}
	}
	atOnce("callback", func(n *harness.Node) harness.Answer { return m.tryPost(n, form) })
	atOnce("token", func(n *harness.Node) harness.Answer { return m.tryRedeem(n, s.poll) })
}

// killLeader kills the active node and waits for another one; the function that it returns brings the node back.
func killLeader(t *testing.T, c *harness.Cluster) (restart func()) {
	t.Helper()
	leader := c.Leader()
	leader.Kill9()
	c.Leader()
	return func() {
		t.Helper()
		leader.Start()
		c.WaitServing()
		c.WaitVoters(len(c.Nodes))
	}
}

// tryPost and tryRedeem answer status 0 when there is no answer, and can be used from any goroutine.
func (m *method) tryPost(n *harness.Node, form url.Values) harness.Answer {
	return try(n, "auth/"+m.name+"/callback", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
}

func (m *method) tryRedeem(n *harness.Node, poll string) harness.Answer {
	return try(n, "auth/"+m.name+"/token", object{"client_verifier": verifier, "token_poll_id": poll})
}

// eventually repeats a request to the running nodes in turn, as clients do that get no answer or one that says that the
// server is not ready. Nothing else may happen before what is wanted.
func (m *method) eventually(what string, do func(*harness.Node) harness.Answer, want int) harness.Answer {
	m.t.Helper()
	var a harness.Answer
	i := 0
	harness.Await(m.t, what, patience, func() error {
		n := m.c.Nodes[i%len(m.c.Nodes)]
		if i++; !n.Running() {
			return fmt.Errorf("%s does not run", n.ID)
		}
		switch a = do(n); {
		case a.Status == want:
			return nil
		case a.Status != 0 && a.Status < 500:
			m.t.Fatalf("%s on %s: status %d: %.300s, want %d", what, n.ID, a.Status, a.Body, want)
		}
		return fmt.Errorf("%s: status %d: %.200s", n.ID, a.Status, a.Body)
	})
	return a
}

// TestSAMLSecondary: each cluster has its own URL among those of the one mount, and does the whole login by itself.
func TestSAMLSecondary(t *testing.T) {
	t.Parallel()
	primary, secondary := alone(t, "p", ""), alone(t, "s", "")
	here := ready(t, primary, "saml")
	there := *here
	there.c, there.node, there.acs = secondary, secondary.Leader(), strings.Replace(here.acs, here.node.URL, secondary.Leader().URL, 1)
	here.configure(object{"acs_urls": []string{here.acs, there.acs}})
	harness.Replicate(primary, secondary, "eu")
	there.node = secondary.Leader()

	t.Run("the whole login with its own URL", func(t *testing.T) {
		here, there := here.in(t), there.in(t)
		s := there.start(there.node, nil)
		if r, err := samltest.ParseRequest(s.url); err != nil || r.ACSURL != there.acs {
			t.Errorf("the request names %q, %v", r.ACSURL, err)
		}
		wantStatus(t, "the login at the primary", here.redeem(here.node, s.poll), 400)
		wantStatus(t, "the answer at the primary", here.post(here.node, there.idp.Answer(s.url, alice)), 400)
		wantStatus(t, "before", there.redeem(there.node, s.poll), 401)
		there.confirm(there.node, s, alice)
		got := tokenOf(t, there.redeem(there.node, s.poll))
		me := there.lookup(there.node, got.Token)
		wantData(t, me, object{"path": "auth/saml/token", "meta": object{"role": "dev"}})
		if here.lookup(here.node, got.Token) != nil {
			t.Error("its token is good at the primary")
		}
		wantStatus(t, "renewed", there.renew(got.Token, 0), 200)
		wantStatus(t, "again", there.redeem(there.node, s.poll), 400)
		if at := here.login("dev", alice); at.EntityID != got.EntityID {
			t.Errorf("one person is %s and %s", got.EntityID, at.EntityID)
		}
	})
	t.Run("a role written there goes to the primary", func(t *testing.T) {
		here, there := here.in(t), there.in(t)
		there.role("written-there", object{"token_policies": "far"})
		wantData(t, here.read("role/written-there"), object{"token_policies": []string{"far"}})
		wantData(t, there.read("role/written-there"), object{"token_policies": []string{"far"}})
		for _, m := range []*method{here, there} {
			if got := m.login("written-there", alice); fmt.Sprint(got.TokenPolicies) != "[default far]" {
				t.Errorf("token_policies %q", got.TokenPolicies)
			}
		}
		wantStatus(t, "delete", there.admin("DELETE", "role/written-there", nil), 204)
		wantStatus(t, "read", here.admin("GET", "role/written-there", nil), 404)
		wantStatus(t, "start", there.send(there.node, "POST", "sso_service_url", "", there.startBody(object{"role": "written-there"})), 400)
	})
	t.Run("a configuration written there goes to the primary", func(t *testing.T) {
		here, there := here.in(t), there.in(t)
		wantStatus(t, "config", there.admin("POST", "config", object{"default_role": "dev"}), 204)
		wantData(t, here.read("config"), object{"default_role": "dev", "acs_urls": []string{here.acs, there.acs}})
	})
	t.Run("a local method is its own", func(t *testing.T) {
		there.node.MustDo("POST", "/v1/sys/auth/own", object{"type": "saml", "local": true})
		own := there.in(t)
		own.name, own.acs = "own", there.node.URL+"/v1/auth/own/callback"
		own.configure()
		own.role("dev", nil)
		if got := own.login("dev", alice); own.lookup(own.node, got.Token) == nil {
			t.Error("its token is no good")
		}
		wantStatus(t, "the primary", send(t, here.node, "GET", "auth/own/role/dev", here.c.RootToken, nil), 404, "no mount")
	})
	t.Run("without its primary", func(t *testing.T) {
		there := there.in(t)
		there.login("dev", alice) // the entity is known there
		primary.Nodes[0].Kill9()
		got := there.login("dev", alice)
		if there.lookup(there.node, got.Token) == nil {
			t.Error("its token is no good")
		}
	})
}
