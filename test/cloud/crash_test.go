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
	// atOnce is how many requests one kill cuts short.
	atOnce = 10
)

// operation is something that is asked of the active node while it is killed.
type operation struct {
	name, verb string
	// ready sets it up at a mount where nothing has been asked for yet.
	ready func(m *mount) trial
}

// trial is what is asked for at one mount, and what has to hold when another node is active, and in the end.
type trial struct {
	path        string // below v1
	body        object
	holds, ends func(m *mount)
}

var operations = []operation{
	{"while a user is made", "GET", crashCreate},
	{"while a user is removed", "POST", crashRevoke},
	{"while the root key is rotated", "POST", crashRoot},
	{"while a static role is made", "POST", crashStaticCreate},
	{"while a static role is rotated", "POST", crashStatic},
}

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

// attempt is an operation that a kill cuts short, at a mount and a provider of its own.
type attempt struct {
	operation
	trial
	point
	m *mount
}

// TestCloudCrash kills the active node of three, with -9, at the calls that it makes at the provider. Then another node is
// active: whatever is at the provider is known to a record, and what is stored works. Each kill is at many points at once,
// because requests to different mounts wait at theirs for one another.
func TestCloudCrash(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Prefix: "crash"})
	all := attempts(t, c)
	for round := range slices.Chunk(all, atOnce) {
		kill(t, c, round)
		each(t, round, func(a *attempt) func(*mount) { return a.holds })
	}
	t.Run("nothing is left in the end", func(t *testing.T) {
		each(t, all, func(a *attempt) func(*mount) { return a.ends })
	})
}

// attempts sets up all of them. What an operation calls is learnt from once without a kill.
func attempts(t *testing.T, c *harness.Cluster) (all []*attempt) {
	t.Helper()
	for _, o := range operations {
		m, is := o.mount(t, c, "")
		if a := m.do(m.node, o.verb, is.path, is.body); a.Status >= 300 || a.Status == 0 {
			t.Fatalf("%s, but no kill: status %d: %.300s", o.name, a.Status, a.Body)
		}
		for _, p := range points(m.aws.Actions()) {
			m, is := o.mount(t, c, p.String())
			all = append(all, &attempt{operation: o, trial: is, point: p, m: m})
		}
	}
	return all
}

// mount sets the operation up at a mount with a provider of its own.
func (o operation) mount(t *testing.T, c *harness.Cluster, about string) (*mount, trial) {
	t.Helper()
	m := ready(t, c, strings.ReplaceAll(strings.TrimSpace(o.name+" "+about), " ", "-"))
	m.later()
	is := o.ready(m)
	m.aws.Forget()
	return m, is
}

// kill asks for everything, kills the active node when each request is at its point, waits for another active node, and starts
// the killed one again.
func kill(t *testing.T, c *harness.Cluster, round []*attempt) {
	t.Helper()
	node := c.Leader()
	dead, died := context.WithCancel(context.Background())
	defer died()
	there, ended := make(chan *attempt, len(round)), make(chan *attempt, len(round))
	var requests sync.WaitGroup
	for _, a := range round {
		a.m.aws.Fail(a.wait(there, dead.Done()))
		requests.Go(func() {
			a.m.do(node, a.verb, a.path, a.body)
			ended <- a
		})
	}
	for range round {
		select {
		case <-there:
		case a := <-ended:
			t.Errorf("%s: %v was never reached: %q", a.name, a.point, a.m.aws.Actions())
		}
	}
	node.Kill9()
	died()
	requests.Wait()
	c.Leader()
	node.Start()
	c.WaitServing()
	c.WaitVoters(len(c.Nodes))
}

// wait returns what holds the call at the attempt's point until the node is dead, which then has no answer.
func (a *attempt) wait(there chan<- *attempt, dead <-chan struct{}) func(awstest.Call) awstest.Fault {
	var mu sync.Mutex
	n := 0
	return func(c awstest.Call) awstest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Action != a.action {
			return awstest.Fault{}
		}
		if n++; n != a.n {
			return awstest.Fault{}
		}
		return awstest.Fault{When: a.when, Drop: true, Then: func() { there <- a; <-dead }}
	}
}

// each runs a check of each attempt, as a subtest of its operation. They have no need to be parallel: what they wait for is.
func each(t *testing.T, all []*attempt, check func(*attempt) func(*mount)) {
	for _, o := range operations {
		mine := slices.DeleteFunc(slices.Clone(all), func(a *attempt) bool { return a.name != o.name || check(a) == nil })
		if len(mine) == 0 {
			continue
		}
		t.Run(o.name, func(t *testing.T) {
			for _, a := range mine {
				t.Run(a.point.String(), func(t *testing.T) {
					m := *a.m
					m.t, m.node = t, m.c.Leader()
					check(a)(&m)
				})
			}
		})
	}
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

// has makes a role that is not there yet.
func (m *mount) has(role string, is object) {
	m.t.Helper()
	m.node.MustDo("POST", "/v1/"+m.name+"/roles/"+role, is)
}

// hasUsers makes the role full.
func (m *mount) hasUsers() {
	m.t.Helper()
	m.aws.AddGroup(awstest.Group{Name: "staff"})
	m.has("full", object{"credential_type": "iam_user", "policy_arns": readOnly, "policy_document": document, "iam_groups": "staff"})
}

// hasSession makes the role that worksAsRoot needs.
func (m *mount) hasSession() {
	m.t.Helper()
	m.has("session", object{"credential_type": "session_token"})
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

// stored is current, also after an election.
func (m *mount) stored(role, user string) awstest.Key {
	m.t.Helper()
	return m.working(m.eventually("GET", "static-creds/"+role, nil), user)
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

func crashCreate(m *mount) trial {
	m.hasUsers()
	m.hasSession()
	is := trial{path: m.name + "/creds/full", holds: (*mount).wantNoted}
	if thorough() { // it takes the five minutes in which a new user may not be seen
		is.ends = (*mount).wantRolledBack
	}
	return is
}

// wantNoted wants the users that were made to be known, and no lease of credentials that nobody has got.
func (m *mount) wantNoted() {
	m.t.Helper()
	m.worksAsRoot()
	noted := m.noted()
	for _, name := range m.made() {
		if !slices.Contains(noted, name) {
			m.t.Errorf("no record knows the user %s", name)
		}
	}
	if len(noted) == 0 && slices.Contains(m.aws.Actions(), "CreateUser") {
		m.t.Error("there is no record of what was begun")
	}
	if got := m.leases(); len(got) > 0 {
		m.t.Errorf("there are the leases %q, of credentials that nobody has got", got)
	}
}

// wantRolledBack waits until nothing is left of what was begun.
func (m *mount) wantRolledBack() {
	m.t.Helper()
	harness.Await(m.t, "the rollback", settled, func() error {
		if left := m.made(); len(left) > 0 {
			return fmt.Errorf("%q are left", left)
		}
		if a := m.anywhere("LIST", "rollbacks", nil); a.Status != 404 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
}

func crashRevoke(m *mount) trial {
	m.hasUsers()
	m.hasSession()
	c := m.creds("full")
	user := m.user(c.Data.AccessKey).Name
	m.aws.AddLoginProfile(user)
	m.aws.AddMFADevice(user, "")
	lease := object{"lease_id": c.Lease, "sync": true}
	return trial{
		path: "sys/leases/revoke", body: lease,
		holds: func(m *mount) {
			m.worksAsRoot()
			// The lease goes last. The new active node may be about it already.
			noLease := func() bool {
				return m.do(m.c.Leader(), "POST", "sys/leases/lookup", object{"lease_id": c.Lease}).Status == 400
			}
			left := func() bool { _, there := m.aws.User(user); return there }
			if noLease() && left() {
				m.t.Fatalf("no lease knows the user %s", user)
			}
			harness.Await(m.t, "the revocation", patience, func() error {
				m.do(m.c.Leader(), "POST", "sys/leases/revoke", lease)
				if !noLease() {
					return errors.New("the lease is still there")
				}
				return nil
			})
			if left() {
				m.t.Errorf("the user %s is still there", user)
			}
		},
	}
}

func crashRoot(m *mount) trial {
	m.hasSession()
	return trial{
		path:  m.name + "/config/rotate-root",
		holds: (*mount).worksAsRoot,
		ends: func(m *mount) {
			// By itself the new active node brings it to an end: there is one key, the stored one.
			sole := func() error {
				stored := m.eventually("GET", "config/root", nil)["access_key"]
				if keys := m.aws.Keys("root-user"); len(keys) != 1 || keys[0].ID != stored {
					return fmt.Errorf("the user has %d keys", len(keys))
				}
				return nil
			}
			harness.Await(m.t, "the end of the rotation", untilSure, sole)
			m.worksAsRoot()
			m.eventually("POST", "config/rotate-root", nil)
			if err := sole(); err != nil {
				m.t.Errorf("after another rotation: %v", err)
			}
			m.worksAsRoot()
		},
	}
}

func crashStaticCreate(m *mount) trial {
	m.aws.AddUser("svc")
	body := object{"username": "svc", "rotation_period": "24h"}
	return trial{
		path: m.name + "/static-roles/app", body: body,
		holds: func(m *mount) {
			m.eventually("POST", "static-roles/app", body)
			if ours := m.stored("app", "svc"); len(m.aws.Keys("svc")) != 1 {
				m.t.Errorf("besides %s the user has a key that no record knows: %d keys", ours.ID, len(m.aws.Keys("svc")))
			}
		},
	}
}

func crashStatic(m *mount) trial {
	m.aws.AddUser("svc")
	m.aws.AddKey("svc") // so that there is no room for a third
	m.later()
	m.eventually("POST", "static-roles/app", object{"username": "svc", "rotation_period": "24h"})
	m.later()
	before := m.current("app", "svc")
	return trial{
		path: m.name + "/static-roles/app/rotate",
		holds: func(m *mount) {
			// By itself the new active node does it, once.
			m.wantRotated(before)
			m.later()
			now := m.stored("app", "svc")
			m.eventually("POST", "static-roles/app/rotate", nil)
			m.wantRotated(now)
		},
	}
}

// wantRotated waits until the static role has another key, and wants the user to have just the two of them.
func (m *mount) wantRotated(before awstest.Key) {
	m.t.Helper()
	want := []string{before.ID, ""}
	harness.Await(m.t, "the rotation", untilSure, func() error {
		if want[1] = m.stored("app", "svc").ID; want[1] == before.ID {
			return errNotYet
		}
		return nil
	})
	var got []string
	for _, k := range m.aws.Keys("svc") {
		got = append(got, k.ID)
	}
	if !slices.Equal(got, want) {
		m.t.Errorf("the user has the keys %q, known are %q", got, want)
	}
}
