package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

const (
	// patience is for what an election takes on a busy machine.
	patience = time.Minute
	// settled is when what was begun has been undone: notes are looked at after five minutes.
	settled = 8 * time.Minute
	// untilSure is when it is known what a rotation that was cut short has made.
	untilSure = 4 * time.Minute
)

// point is where the active node is killed: at the n-th call of an action, before or after it is carried out.
type point struct {
	action string
	n      int
	when   awstest.Moment
}

func (p point) String() string {
	return fmt.Sprintf("%s %s %d", map[awstest.Moment]string{awstest.BeforeCommit: "before", awstest.AfterCommit: "after"}[p.when], p.action, p.n)
}

// thorough reports whether every point is wanted. Otherwise it is those that leave something else at the provider: after each
// call that changes something.
func thorough() bool { return os.Getenv("COFFER_CHAOS") == "long" }

// points are those of an operation that makes these calls.
func points(actions []string) (all []point) {
	seen := map[string]int{}
	for _, a := range actions {
		seen[a]++
		changes := !strings.HasPrefix(a, "Get") && !strings.HasPrefix(a, "List")
		if thorough() {
			all = append(all, point{a, seen[a], awstest.BeforeCommit})
		}
		if thorough() || changes {
			all = append(all, point{a, seen[a], awstest.AfterCommit})
		}
	}
	return all
}

// TestCloudCrash kills the active node of three, with -9, at the calls that it makes at the provider. Then another node is
// active: whatever is at the provider is known to a record, and what is stored works.
func TestCloudCrash(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Prefix: "crash"})
	m := ready(t, c, "cloud")
	m.aws.AddGroup(awstest.Group{Name: "staff"})
	m.users("full", object{"policy_document": document, "iam_groups": "staff"})
	m.role("session", object{"credential_type": "session_token"})
	t.Run("while a user is made", func(t *testing.T) { crashCreate(t, m) })
	t.Run("while a user is removed", func(t *testing.T) { crashRevoke(t, m) })
	t.Run("while the root key is rotated", func(t *testing.T) { crashRoot(t, m) })
	t.Run("while a static role is made", func(t *testing.T) { crashStaticCreate(t, m) })
	t.Run("while a static role is rotated", func(t *testing.T) { crashStatic(t, m) })
	t.Run("nothing is left in the end", func(t *testing.T) {
		if !thorough() {
			t.Skip("it takes the five minutes that a new user may not be seen; COFFER_CHAOS=long waits for them")
		}
		m := m.in(t)
		m.node = c.Leader()
		wantStatus(t, "the end of all leases", m.sys("POST", "leases/revoke-prefix/cloud/creds/full", object{"sync": true}), 204)
		harness.Await(t, "the rollback of all users", settled, func() error {
			if left := m.made(); len(left) > 0 {
				return fmt.Errorf("%q are left", left)
			}
			return nil
		})
		harness.Await(t, "the end of all notes", patience, func() error {
			if a := m.anywhere("LIST", "rollbacks", nil); a.Status != 404 {
				return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
			}
			return nil
		})
	})
}

// operation is something that is asked of the active node while it is killed.
type operation struct {
	verb string
	// ready sets up what is asked for under a name that has not been used, and returns the path below the mount, or below sys,
	// and the body.
	ready func(m *mount, name string) (path string, body object)
	// holds checks what has to hold when another node is active.
	holds func(m *mount, name string)
}

// each does an operation once for each of its points, with a kill there. What it calls is learnt from once without a kill.
func (m *mount) each(prefix string, o operation) {
	m.t.Helper()
	m.node = m.c.Leader()
	path, body := o.ready(m, prefix+"0")
	m.aws.Forget()
	if a := m.do(m.node, o.verb, path, body); a.Status >= 300 || a.Status == 0 {
		m.t.Fatalf("without a kill: status %d: %.300s", a.Status, a.Body)
	}
	for i, p := range points(m.aws.Actions()) {
		ok := m.t.Run(p.String(), func(t *testing.T) {
			m := *m
			m.t, m.node = t, m.c.Leader()
			name := fmt.Sprint(prefix, i+1)
			path, body := o.ready(&m, name)
			m.kill(p, func() { m.do(m.node, o.verb, path, body) })
			m.node = m.c.Leader()
			o.holds(&m, name)
		})
		if !ok {
			return
		}
	}
}

// kill kills the active node at a point of what it is asked, waits for another one, and starts it again.
func (m *mount) kill(p point, request func()) {
	m.t.Helper()
	var mu sync.Mutex
	n, killed := 0, false
	node := m.node
	m.aws.Fail(func(c awstest.Call) awstest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Action != p.action || killed {
			return awstest.Fault{}
		}
		if n++; n < p.n {
			return awstest.Fault{}
		}
		killed = true
		return awstest.Fault{When: p.when, Drop: true, Then: node.Kill9}
	})
	request()
	m.aws.Fail(nil)
	mu.Lock()
	defer mu.Unlock()
	if !killed {
		m.t.Fatalf("%v was never reached: %q", p, m.aws.Actions())
	}
	m.c.Leader()
	node.Start()
	m.c.WaitServing()
	m.c.WaitVoters(len(m.c.Nodes))
}

// do sends a request of the operator. The status is 0 when there is no answer.
func (m *mount) do(n *harness.Node, verb, path string, body any) harness.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, err := n.Do(ctx, verb, "/v1/"+path, m.c.RootToken, body, "X-Vault-Consistency", "linearizable")
	if err != nil {
		return harness.Answer{}
	}
	return a
}

// anywhere repeats a request until somebody has decided about it.
func (m *mount) anywhere(verb, path string, body any) (a harness.Answer) {
	m.t.Helper()
	harness.Await(m.t, verb+" "+path, patience, func() error {
		for _, n := range m.c.Nodes {
			if a = m.do(n, verb, m.name+"/"+path, body); a.Status != 0 && a.Status < 500 {
				return nil
			}
		}
		return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	})
	return a
}

// noted returns the users of the rollbacks that are stored.
func (m *mount) noted() (users []string) {
	m.t.Helper()
	a := m.anywhere("LIST", "rollbacks", nil)
	if a.Status == 404 {
		return nil
	}
	info, _ := dataOf(m.t, a)["key_info"].(object)
	for _, about := range info {
		name, _ := about.(object)["user"].(string)
		users = append(users, name)
	}
	return users
}

// worksAsRoot wants the stored root key to work.
func (m *mount) worksAsRoot() {
	m.t.Helper()
	if a := m.anywhere("POST", "sts/session", nil); a.Status != 200 {
		m.t.Errorf("the stored root key does not work: status %d: %.300s", a.Status, a.Body)
	}
}

// eventually repeats a request until it succeeds.
func (m *mount) eventually(verb, path string, body any) object {
	m.t.Helper()
	var a harness.Answer
	harness.Await(m.t, verb+" "+path, untilSure, func() error {
		if a = m.do(m.c.Leader(), verb, m.name+"/"+path, body); a.Status != 200 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
	return dataOf(m.t, a)
}

func crashCreate(t *testing.T, parent *mount) {
	m := parent.in(t)
	var before, leases []string
	m.each("", operation{
		verb: "GET",
		ready: func(m *mount, _ string) (string, object) {
			before, leases = m.made(), m.leases()
			return m.name + "/creds/full", nil
		},
		holds: func(m *mount, _ string) {
			m.worksAsRoot()
			noted := m.noted()
			for _, name := range m.made() {
				if !slices.Contains(before, name) && !slices.Contains(noted, name) {
					m.t.Errorf("no record knows the user %s", name)
				}
			}
			if now := m.leases(); len(now) != len(leases) {
				m.t.Errorf("%d leases more, of credentials that nobody has got", len(now)-len(leases))
			}
		},
	})
	if len(m.noted()) == 0 || len(m.made()) == 0 {
		t.Error("no kill left anything behind")
	}
}

// leases returns those of the role full.
func (m *mount) leases() []string {
	m.t.Helper()
	var out struct{ Data struct{ Keys []string } }
	harness.Await(m.t, "the list of leases", patience, func() error {
		a := m.do(m.c.Leader(), "LIST", "sys/leases/lookup/"+m.name+"/creds/full/", nil)
		if a.Status == 200 {
			a.Decode(m.t, &out)
		} else if a.Status != 404 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
	return out.Data.Keys
}

func crashRevoke(t *testing.T, parent *mount) {
	m := parent.in(t)
	users, leases := map[string]string{}, map[string]string{}
	m.each("", operation{
		verb: "POST",
		ready: func(m *mount, name string) (string, object) {
			c := m.creds("full")
			u := m.user(c.Data.AccessKey).Name
			m.aws.AddLoginProfile(u)
			m.aws.AddMFADevice(u, "")
			users[name], leases[name] = u, c.Lease
			return "sys/leases/revoke", object{"lease_id": c.Lease, "sync": true}
		},
		holds: func(m *mount, name string) {
			m.worksAsRoot()
			lookup := func() harness.Answer {
				return m.do(m.c.Leader(), "POST", "sys/leases/lookup", object{"lease_id": leases[name]})
			}
			if _, there := m.aws.User(users[name]); there && lookup().Status != 200 {
				m.t.Errorf("no lease knows the user %s", users[name])
			}
			harness.Await(m.t, "the revocation", patience, func() error {
				m.do(m.c.Leader(), "POST", "sys/leases/revoke", object{"lease_id": leases[name], "sync": true})
				if _, there := m.aws.User(users[name]); there {
					return errors.New("the user is still there")
				}
				if a := lookup(); a.Status != 400 {
					return fmt.Errorf("the lease is still there: status %d: %.300s", a.Status, a.Body)
				}
				return nil
			})
		},
	})
}

func crashRoot(t *testing.T, parent *mount) {
	m := parent.in(t)
	m.each("", operation{
		verb: "POST",
		ready: func(m *mount, _ string) (string, object) {
			m.eventually("POST", "config/rotate-root", nil)
			return m.name + "/config/rotate-root", nil
		},
		holds: func(m *mount, _ string) {
			m.worksAsRoot()
			// By itself the new active node brings it to an end: there is one key, the stored one.
			harness.Await(m.t, "the end of the rotation", untilSure, func() error {
				stored := m.eventually("GET", "config/root", nil)["access_key"]
				if keys := m.aws.Keys("root-user"); len(keys) != 1 || keys[0].ID != stored {
					return fmt.Errorf("the user has %d keys", len(keys))
				}
				return nil
			})
			m.worksAsRoot()
		},
	})
}

func crashStaticCreate(t *testing.T, parent *mount) {
	m := parent.in(t)
	body := func(name string) object { return object{"username": name, "rotation_period": "24h"} }
	m.each("make", operation{
		verb: "POST",
		ready: func(m *mount, name string) (string, object) {
			m.aws.AddUser(name)
			return m.name + "/static-roles/" + name, body(name)
		},
		holds: func(m *mount, name string) {
			m.eventually("POST", "static-roles/"+name, body(name))
			if ours := m.current(name, name); len(m.aws.Keys(name)) != 1 {
				m.t.Errorf("besides %s the user has a key that no record knows: %d keys", ours.ID, len(m.aws.Keys(name)))
			}
		},
	})
}

func crashStatic(t *testing.T, parent *mount) {
	m := parent.in(t)
	m.each("rotate", operation{
		verb: "POST",
		ready: func(m *mount, name string) (string, object) {
			m.aws.AddUser(name)
			m.aws.AddKey(name) // so that there is no room for a third
			m.later()
			m.eventually("POST", "static-roles/"+name, object{"username": name, "rotation_period": "24h"})
			m.later()
			return m.name + "/static-roles/" + name + "/rotate", nil
		},
		holds: func(m *mount, name string) {
			before := m.current(name, name)
			m.eventually("POST", "static-roles/"+name+"/rotate", nil)
			after := m.current(name, name)
			var want []string
			if before.ID == after.ID {
				m.t.Fatal("the key was not rotated")
			}
			for _, k := range m.aws.Keys(name) {
				want = append(want, k.ID)
			}
			if !slices.Equal(want, []string{before.ID, after.ID}) {
				m.t.Errorf("the user has the keys %q, known are %s and %s", want, before.ID, after.ID)
			}
		},
	})
}
