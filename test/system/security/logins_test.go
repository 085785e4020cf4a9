package security_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// lockedUser is a part of what sys/locked-users answers.
type lockedUser struct {
	Name       string   `json:"alias_identifier"`
	Everywhere bool     `json:"everywhere"`
	Sources    []string `json:"sources"`
}

// locked returns the users that are locked, by namespace and name, and checks the counts.
func (u user) locked() map[string]lockedUser {
	u.t.Helper()
	var out struct {
		Data struct {
			Total       int
			ByNamespace []struct {
				Counts         int
				Path           string `json:"namespace_path"`
				MountAccessors []struct {
					Counts           int
					AliasIdentifiers []string `json:"alias_identifiers"`
					Locks            []lockedUser
				} `json:"mount_accessors"`
			} `json:"by_namespace"`
		}
	}
	u.must("GET", "sys/locked-users", nil).Decode(u.t, &out)
	found, counted := map[string]lockedUser{}, 0
	for _, ns := range out.Data.ByNamespace {
		counted += ns.Counts
		for _, m := range ns.MountAccessors {
			if len(m.AliasIdentifiers) != m.Counts || len(m.Locks) != m.Counts {
				u.t.Errorf("%d locked users of a method are counted as %d", len(m.Locks), m.Counts)
			}
			for _, l := range m.Locks {
				found[ns.Path+l.Name] = l
			}
		}
	}
	if counted != len(found) || out.Data.Total != len(found) {
		u.t.Errorf("%d locked users are counted as %d and %d", len(found), counted, out.Data.Total)
	}
	return found
}

// try logs in to people and returns the status.
func (u user) try(name, password string) int {
	u.t.Helper()
	return u.nobody().do("POST", "auth/people/login/"+name, fields{"password": password}).Status
}

// unlock ends the locks of a user of people.
func (u user) unlock(name string) harness.Answer {
	u.t.Helper()
	accessor := dataOf(u.t, u.must("GET", "sys/auth/people", nil))["accessor"].(string)
	return u.must("POST", "sys/locked-users/"+accessor+"/unlock/"+name, nil)
}

// TestLockedUsers: strangers lock a user only where they are; locks are listed and ended in their namespace; a new password ends them.
func TestLockedUsers(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/namespaces/team", nil)
	team := root.in("team")
	for _, u := range []user{root, team} {
		u.people("bob", "default")
		u.from("127.0.0.2", func() {
			for _, name := range []string{"bob", "nobody"} {
				for range 5 {
					if status := u.try(name, "wrong"); status != 400 {
						t.Errorf("a wrong password of %s: status %d", name, status)
					}
				}
				if status := u.try(name, "bob-password-1"); status != 403 {
					t.Errorf("locked, %s gets status %d", name, status)
				}
			}
		})
		u.login("bob") // at home
	}
	got := root.locked()
	for _, name := range []string{"bob", "team/bob"} {
		if l := got[name]; len(got) != 2 || !slices.Equal(l.Sources, []string{"127.0.0.2"}) || l.Everywhere {
			t.Errorf("locked users: %+v, want %s at one address, and no name without a user", got, name)
		}
	}
	team.policy("admin", everything)
	admin := team.having("admin")
	if got := admin.locked(); len(got) != 1 {
		t.Errorf("locked users that the team sees: %+v", got)
	}
	accessor := dataOf(t, root.must("GET", "sys/auth/people", nil))["accessor"].(string)
	admin.refused("unlocking above the namespace", "POST", "sys/locked-users/"+accessor+"/unlock/bob", nil)
	root.having("default").refused("listing with an ordinary token", "GET", "sys/locked-users", nil)
	root.having("default").refused("unlocking with an ordinary token", "POST", "sys/locked-users/"+accessor+"/unlock/bob", nil)

	admin.unlock("bob")
	root.must("POST", "auth/people/users/bob/password", fields{"password": "bob-password-1"})
	for _, u := range []user{root, team} {
		u.from("127.0.0.2", func() { u.login("bob") })
	}
	if got := root.locked(); len(got) != 0 {
		t.Errorf("locked users after both were unlocked: %+v", got)
	}

	root.refused("an unknown setting", "POST", "sys/auth/people/tune", fields{"user_lockout_config": fields{"lockout_treshold": 1}})
	root.refused("a threshold out of bounds", "POST", "sys/auth/people/tune", fields{"user_lockout_config": fields{"lockout_threshold": 1001}})
	root.refused("lockouts of a mount without passwords", "POST", "sys/mounts/cubbyhole/tune", fields{"user_lockout_config": fields{"lockout_threshold": 1}})
	root.must("POST", "sys/auth/people/tune", fields{"user_lockout_config": fields{"lockout_threshold": "1", "lockout_duration": "1h"}})
	if got := dataOf(t, root.must("GET", "sys/auth/people/tune", nil)); fmt.Sprint(got["user_lockout_threshold"], got["user_lockout_duration"]) != "1 3600" {
		t.Errorf("tuned to %v", got)
	}
	if first, second := root.try("bob", "wrong"), root.try("bob", "bob-password-1"); first != 400 || second != 403 {
		t.Errorf("with a threshold of 1: status %d, then %d", first, second)
	}
	root.must("POST", "sys/auth/people/tune", fields{"user_lockout_config": fields{"lockout_disable": true}})
	root.login("bob")

	// A hash that would make each login of the mount expensive is not imported.
	hash := "$2b$13$" + strings.Repeat("a", 53)
	root.refused("an expensive hash", "POST", "auth/people/users/eve", fields{"password_hash": hash})
}

// lockedEverywhere: wrong passwords count whichever node they come through, and a lock outlives the node that set it.
func lockedEverywhere(t *testing.T, c *harness.Cluster) {
	root := user{t, c.Leader(), c.RootToken, ""}
	root.people("bob", "default")
	for i := range 5 {
		if status := root.at(c.Nodes[i%len(c.Nodes)]).try("bob", "wrong"); status != 400 {
			t.Errorf("wrong password %d: status %d", i, status)
		}
	}
	old := c.Leader()
	root.at(old).must("PUT", "sys/step-down", nil)
	c.WaitServing()
	for _, n := range c.Nodes {
		if status := root.at(n).try("bob", "bob-password-1"); status != 403 {
			t.Errorf("with another active node, through %s: status %d, want 403", n.ID, status)
		}
	}
	root = root.at(c.Leader())
	if got := root.locked(); len(got) != 1 || len(got["bob"].Sources) != 1 {
		t.Errorf("locked users: %+v", got)
	}
	root.at(c.Standbys()[0]).unlock("bob")
	for _, n := range c.Nodes {
		root.at(n).login("bob")
	}
}

// TestRightLoginAmongWrongOnes: a right login does not wait for the very many wrong ones that were sent before it, from
// another address or from its own.
func TestRightLoginAmongWrongOnes(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "default")
	for _, attacker := range []string{"127.0.0.2", "127.0.0.1"} {
		t.Run("from "+attacker, func(t *testing.T) { amongWrongOnes(t, root, attacker) })
	}
}

func amongWrongOnes(t *testing.T, root user, attacker string) {
	const many = 150
	ctx, cancel := context.WithCancel(t.Context())
	transport := root.n.HTTP.Transport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attacker)}}).DialContext
	transport.MaxConnsPerHost = 0
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var all, sent sync.WaitGroup
	var rejected atomic.Int64 // hashed, and found wrong
	defer all.Wait()
	defer cancel()
	sent.Add(many)
	for i := range many {
		all.Go(func() {
			once := sync.OnceFunc(sent.Done)
			defer once()
			trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { once() }}
			url := fmt.Sprintf("%s/v1/auth/people/login/name%d", root.n.URL, i)
			req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), "POST", url, strings.NewReader(`{"password":"wrong"}`))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				return // the test is over
			}
			defer resp.Body.Close()
			switch {
			case resp.StatusCode == http.StatusBadRequest:
				rejected.Add(1)
			case resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "":
				t.Errorf("a wrong login gets status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
			}
		})
	}
	sent.Wait()
	before := rejected.Load()
	root.t = t
	root.login("bob")
	if n := rejected.Load() - before; n > many/3 {
		t.Errorf("%d wrong logins of %d were answered before the right one, which came last", n, many)
	}
}
