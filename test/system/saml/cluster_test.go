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
			harness.Await(t, "a login", patience, func() error { return m.across(n[order[0]], n[order[1]], n[order[2]]) })
		}
	})
	t.Run("one answer and one redemption on all nodes", func(t *testing.T) {
		m := m.in(t)
		harness.Await(t, "an answer that is accepted", patience, m.onlyOnce)
	})
	t.Run("the leader is killed after the start", func(t *testing.T) {
		m := m.in(t)
		s := m.begun()
		form := m.idp.Answer(s.url, alice)
		restart := killLeader(t, c)
		wantStatus(t, "callback", m.anywhere(func(n *harness.Node) harness.Answer { return m.tryPost(n, form) }), 200)
		tokenOf(t, m.anywhere(func(n *harness.Node) harness.Answer { return m.tryRedeem(n, s.poll) }))
		restart()
	})
	t.Run("the leader is killed after the callback", func(t *testing.T) {
		m := m.in(t)
		s := m.begun()
		form := m.idp.Answer(s.url, alice)
		wantStatus(t, "callback", m.anywhere(func(n *harness.Node) harness.Answer { return m.tryPost(n, form) }), 200)
		restart := killLeader(t, c)
		got := tokenOf(t, m.anywhere(func(n *harness.Node) harness.Answer { return m.tryRedeem(n, s.poll) }))
		restart()
		// A used login stays used: on every node, also on the one that was away.
		r, err := samltest.ParseRequest(m.begun().url)
		if err != nil {
			t.Fatal(err)
		}
		again := url.Values{"SAMLResponse": form["SAMLResponse"], "RelayState": {r.RelayState}}
		for _, n := range c.Nodes {
			for what, do := range map[string]func() harness.Answer{
				"the poll id again":            func() harness.Answer { return m.tryRedeem(n, s.poll) },
				"the answer again":             func() harness.Answer { return m.tryPost(n, form) },
				"the answer for another login": func() harness.Answer { return m.tryPost(n, again) },
			} {
				wantStatus(t, what+" on "+n.ID, m.steadily(do), 400)
			}
		}
		m.everywhere(got.Token)
	})
}

// across does each step of a login on another node. The error is that the cluster was not there all the time, which on a busy
// machine may be.
func (m *method) across(start, confirm, redeem *harness.Node) error {
	m.t.Helper()
	a := m.tryStart(start)
	if away(a) {
		return unanswered("start", a)
	}
	s := startedOf(m.t, a)
	form := m.idp.Answer(s.url, alice)
	for _, step := range []struct {
		what string
		do   func() harness.Answer
		want int
	}{
		{"before", func() harness.Answer { return m.tryRedeem(redeem, s.poll) }, 401},
		{"callback", func() harness.Answer { return m.tryPost(confirm, form) }, 200},
		{"token", func() harness.Answer { return m.tryRedeem(redeem, s.poll) }, 200},
	} {
		if a = step.do(); away(a) {
			return unanswered(step.what, a)
		}
		if wantStatus(m.t, step.what, a, step.want); step.what == "token" {
			m.everywhere(tokenOf(m.t, a).Token)
		}
	}
	return nil
}

// away reports whether, by its response, no node has decided about a request.
func away(a harness.Answer) bool { return a.Status == 0 || a.Status >= 500 }

func unanswered(what string, a harness.Answer) error {
	return fmt.Errorf("%s: status %d: %.200s", what, a.Status, a.Body)
}

// everywhere wants every node to know a token.
func (m *method) everywhere(token string) {
	m.t.Helper()
	for _, n := range m.c.Nodes {
		a := m.steadily(func() harness.Answer {
			return send(m.t, n, "GET", "auth/token/lookup-self", token, nil)
		})
		wantStatus(m.t, "lookup on "+n.ID, a, 200)
	}
}

// steadily repeats a request that may be repeated until a node decides about it.
func (m *method) steadily(do func() harness.Answer) (a harness.Answer) {
	m.t.Helper()
	harness.Await(m.t, "an answer", patience, func() error {
		if a = do(); away(a) {
			return unanswered("request", a)
		}
		return nil
	})
	return a
}

// onlyOnce posts an answer to all nodes at once, and redeems on all at once. The error is that of across.
func (m *method) onlyOnce() error {
	m.t.Helper()
	s := m.begun()
	form := m.idp.Answer(s.url, alice)
	atOnce := func(what string, do func(n *harness.Node) harness.Answer) error {
		var won, lost atomic.Int64
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				switch a := do(m.c.Nodes[i%3]); {
				case a.Status == 200:
					won.Add(1)
				case away(a):
					lost.Add(1)
				case a.Status != 400:
					m.t.Errorf("%s: status %d: %.200s", what, a.Status, a.Body)
				}
			})
		}
		all.Wait()
		switch n := won.Load(); {
		case n > 1 || n == 0 && lost.Load() == 0:
			m.t.Errorf("%s: %d of them were accepted", what, n)
		case n == 0:
			return fmt.Errorf("%s: %d got no answer", what, lost.Load())
		}
		return nil
	}
	if err := atOnce("callback", func(n *harness.Node) harness.Answer { return m.tryPost(n, form) }); err != nil {
		return err
	}
	return atOnce("token", func(n *harness.Node) harness.Answer { return m.tryRedeem(n, s.poll) })
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

func (m *method) tryStart(n *harness.Node) harness.Answer {
	return try(n, "auth/"+m.name+"/sso_service_url", m.startBody(nil))
}

// begun is a login that was started at any node.
func (m *method) begun() started {
	m.t.Helper()
	return startedOf(m.t, m.anywhere(m.tryStart))
}

// anywhere asks the running nodes in turn until one of them decides, as clients do that get no answer or one that says that
// the server is not ready.
func (m *method) anywhere(do func(*harness.Node) harness.Answer) harness.Answer {
	m.t.Helper()
	i := 0
	return m.steadily(func() harness.Answer {
		n := m.c.Nodes[i%len(m.c.Nodes)]
		if i++; !n.Running() {
			return harness.Answer{}
		}
		return do(n)
	})
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
		wantStatus(t, "the primary", send(t, here.node, "GET", "auth/own/role/dev", here.c.RootToken, nil), 404, "no handler for route")
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
