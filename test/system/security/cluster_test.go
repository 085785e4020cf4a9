package security_test

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestOneUnwraps: of many who redeem a wrapping token at once on all nodes, one gets what is in it.
func TestOneUnwraps(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{ListenerConfig: "redact_addresses = true\n  redact_version = true"})
	root := user{t, c.Leader(), c.RootToken, ""}
	helper := root.having("default")
	for round := range 3 {
		token := root.wrapped()
		answers := make([]harness.Answer, 20)
		var all sync.WaitGroup
		for i := range answers {
			u := root.at(c.Nodes[i%len(c.Nodes)])
			all.Go(func() {
				switch {
				case i%2 == 0:
					answers[i] = u.with(token).do("POST", "sys/wrapping/unwrap", nil)
				case round < 2 || i%3 > 0:
					answers[i] = u.with(helper.token).do("POST", "sys/wrapping/unwrap", fields{"token": token})
				default: // it uses the token up, too, and has nothing to show
					answers[i] = u.with(token).do("GET", "cubbyhole/response", nil)
				}
			})
		}
		all.Wait()
		got := 0
		for _, a := range answers {
			switch {
			case strings.Contains(string(a.Body), hidden):
				got++
			case a.Status < 400 || a.Status >= 500:
				t.Errorf("status %d: %.200s", a.Status, a.Body)
			}
		}
		if got > 1 || got == 0 && round < 2 {
			t.Errorf("round %d: %d of 20 have got what was wrapped", round, got)
		}
		root.with(token).refused("later", "POST", "sys/wrapping/unwrap", nil)
	}
	token := root.wrapped() // and without a crowd it works, on a standby
	if a := root.at(c.Standbys()[0]).with(token).must("POST", "sys/wrapping/unwrap", nil); !strings.Contains(string(a.Body), hidden) {
		t.Errorf("unwrapping on a standby: %.200s", a.Body)
	}
	t.Run("limited uses", func(t *testing.T) { limitedUses(t, c) })
	t.Run("pretended addresses", func(t *testing.T) { pretendedAddresses(t, c) })
	t.Run("stored on standbys", func(t *testing.T) { revokedEverywhere(t, c) })
	t.Run("locked users", func(t *testing.T) { lockedEverywhere(t, c) })
	t.Run("redaction", func(t *testing.T) { redactedByStandbys(t, c) })
}

// limitedUses: a token with three uses is good for three requests, on whichever nodes.
func limitedUses(t *testing.T, c *harness.Cluster) {
	root := user{t, c.Leader(), c.RootToken, ""}
	token := root.newToken(fields{"num_uses": 3, "policies": "default"}).Token
	var mu sync.Mutex
	var all sync.WaitGroup
	served := 0
	for i := range 15 {
		u := root.at(c.Nodes[i%len(c.Nodes)]).with(token)
		all.Go(func() {
			if a := u.do("GET", "auth/token/lookup-self", nil); a.Status == 200 {
				mu.Lock()
				defer mu.Unlock()
				served++
			}
		})
	}
	all.Wait()
	if served != 3 {
		t.Errorf("a token with 3 uses served %d requests", served)
	}
}

// pretendedAddresses: a token is bound to a network by the address of the connection, on the active node and
// through a standby, whatever a client writes into headers.
func pretendedAddresses(t *testing.T, c *harness.Cluster) {
	root := user{t, c.Leader(), c.RootToken, ""}
	root.must("POST", "auth/token/roles/far", fields{"allowed_policies": "default", "token_bound_cidrs": "10.1.2.3/32"})
	bound := authOf(t, root.must("POST", "auth/token/create/far", nil)).Token
	for _, n := range c.Nodes {
		for _, name := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "X-Client-Ip", "X-Remote-Addr", "Remote-Addr", "X-Coffer-Remote-Addr", "X-Vault-Forwarded-For", "True-Client-Ip", "Coffer-Accepted", "Coffer-Forwarded"} {
			value := "10.1.2.3"
			if name == "Forwarded" {
				value = "for=10.1.2.3"
			}
			u := root.at(n).with(bound)
			u.refused(name, "GET", "auth/token/lookup-self", nil, name, value)
			u.refused(name, "POST", "auth/token/renew-self", nil, name, value)
		}
		for _, header := range [][]string{{"Connection", "X-Vault-Token"}, {"X-Vault-Forward", "active-node"}, {"X-Vault-No-Request-Forwarding", "1"}} {
			root.at(n).with("hvs.wrong").do("POST", "sys/seal", nil, header...)
		}
	}
	if c.Leader().Health() != http.StatusOK {
		t.Error("somebody has sealed the leader")
	}
}

// revokedEverywhere: what the active node has revoked no standby serves to a client that has seen it.
func revokedEverywhere(t *testing.T, c *harness.Cluster) {
	root := user{t, c.Leader(), c.RootToken, ""}
	victim := root.having("default")
	for _, n := range c.Nodes {
		if !victim.at(n).valid() {
			t.Fatalf("%s does not know a new token", n.ID)
		}
	}
	a := root.do("POST", "auth/token/revoke", fields{"token": victim.token})
	index := a.Header.Get("X-Vault-Index")
	for _, n := range c.Nodes {
		a := victim.at(n).do("GET", "auth/token/lookup-self", nil, "X-Vault-Index", index)
		if a.Status != 403 {
			t.Errorf("%s, told of the revocation's index, answers a revoked token with %d", n.ID, a.Status)
		}
		victim.at(n).refused("on a linearizable read", "GET", "auth/token/lookup-self", nil, "X-Vault-Consistency", "linearizable")
	}
}

// TestStrangersDoNotJoin: without the seal's key nobody enters the cluster, and what is said in trying tells nothing.
func TestStrangersDoNotJoin(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{})
	stranger := root.nobody()
	var challenges []string
	for range 5 {
		data := dataOf(t, stranger.must("POST", "sys/storage/raft/bootstrap/challenge", fields{"server_id": "evil"}))
		challenges = append(challenges, data["challenge"].(string))
	}
	for i, a := range challenges {
		for _, b := range challenges[i+1:] {
			if a == b {
				t.Error("a challenge came twice")
			}
		}
	}
	random := make([]byte, 64)
	rand.Read(random)
	for what, body := range map[string]fields{
		"the challenge itself": {"answer": challenges[0]}, "noise": {"answer": base64.StdEncoding.EncodeToString(random)}, "nothing": {}, "an empty one": {"answer": ""},
		"a leader's id": {"server_id": "n1", "answer": challenges[1]}, "another address": {"cluster_addr": root.n.ClusterAddr(), "answer": challenges[2]},
		"a list": {"answer": []string{"x"}}, "no base64": {"answer": "%%%"},
	} {
		body["server_id"], body["cluster_addr"] = valueOr(body["server_id"], "evil"), valueOr(body["cluster_addr"], "127.0.0.1:1")
		a := stranger.refused(what, "POST", "sys/storage/raft/bootstrap/answer", body)
		if strings.Contains(string(a.Body), "BEGIN") {
			t.Errorf("%s: the answer holds a certificate or key", what)
		}
	}
	// A node that has another key of the seal is turned away, too.
	other := harness.NewCluster(t, 1, harness.Options{Bare: true, NoRetryJoin: true})
	pem := root.certificate(c)
	newcomer := user{t: t, n: other.Nodes[0]}
	if a := newcomer.do("POST", "sys/storage/raft/join", fields{"leader_api_addr": root.n.URL, "leader_ca_cert": pem}); a.Status < 300 && strings.Contains(string(a.Body), `"joined":true`) {
		t.Errorf("a node with another seal key has joined: %.200s", a.Body)
	}
	if text := string(root.must("GET", "sys/storage/raft/configuration", nil).Body); strings.Count(text, `"node_id"`) != 1 || strings.Contains(text, "evil") {
		t.Errorf("the cluster has grown: %.300s", text)
	}
	c.Leader()
}

func valueOr(v any, otherwise string) any {
	if v == nil {
		return otherwise
	}
	return v
}

// certificate returns the CA certificate of the cluster's API.
func (u user) certificate(c *harness.Cluster) string {
	u.t.Helper()
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		u.t.Fatal(err)
	}
	return string(pem)
}
