package cloud_test

import (
	"context"
	"errors"
	"fmt"
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

// points are those of an operation that makes these calls: with harness.Long every one, otherwise those that leave something else at
// the provider, after each call that changes something.
func points(actions []string) (all []point) {
	seen := map[string]int{}
	for _, a := range actions {
		seen[a]++
		changes := !strings.HasPrefix(a, "Get") && !strings.HasPrefix(a, "List")
		if harness.Long {
			all = append(all, point{a, seen[a], awstest.BeforeCommit})
		}
		if harness.Long || changes {
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
	m   *mount
	hit bool // the node was killed at the point
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
	if missed := slices.DeleteFunc(slices.Clone(all), func(a *attempt) bool { return a.hit }); len(missed) > len(all)/2 {
		t.Errorf("%d of %d points were missed", len(missed), len(all))
	}
}

// attempts sets up all of them.
func attempts(t *testing.T, c *harness.Cluster) (all []*attempt) {
	t.Helper()
	for _, o := range operations {
		for _, p := range points(o.calls(t, c)) {
			m, is := o.mount(t, c, p.String())
			all = append(all, &attempt{operation: o, trial: is, point: p, m: m})
		}
	}
	return all
}

// calls does the operation once without a kill, and returns what it calls.
func (o operation) calls(t *testing.T, c *harness.Cluster) (actions []string) {
	t.Helper()
	try := 0
	harness.Await(t, o.name+", without a kill", patience, func() error {
		try++
		m, is := o.mount(t, c, fmt.Sprint("without a kill ", try))
		if a := m.do(c.Leader(), o.verb, is.path, is.body); a.Status >= 300 || a.Status == 0 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		actions = m.aws.Actions()
		return nil
	})
	return actions
}

// mount sets the operation up at a mount with a provider of its own.
func (o operation) mount(t *testing.T, c *harness.Cluster, about string) (*mount, trial) {
	t.Helper()
	m := &mount{t: t, c: c, name: strings.ReplaceAll(o.name+" "+about, " ", "-"), aws: awstest.New(t)}
	m.put("sys/mounts/"+m.name, object{"type": "cloud"})
	m.put(m.name+"/config/root", m.settings(nil))
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
	there, ended := make(chan *attempt, len(round)), make(chan ending, len(round))
	var requests sync.WaitGroup
	for _, a := range round {
		a.m.aws.Fail(a.wait(there, dead.Done()))
		requests.Go(func() {
			ended <- ending{a, a.m.do(node, a.verb, a.path, a.body)}
		})
	}
	for range round {
		select {
		case a := <-there:
			a.hit = true
		case e := <-ended:
			e.missed(t)
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

// ending is how a request ended.
type ending struct {
	*attempt
	answer harness.Answer
}

// missed is about a request that ended before its point. On a busy machine that is by an election that the test did not cause.
func (e ending) missed(t *testing.T) {
	t.Helper()
	said := t.Logf
	switch status := e.answer.Status; {
	case status == 0 || status >= 500: // what has to hold is the same
	case status < 300:
		e.trial = trial{} // it has just succeeded
	default:
		said = t.Errorf
	}
	said("%s: %v was never reached: status %d: %q", e.name, e.point, e.answer.Status, e.m.aws.Actions())
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

func crashCreate(m *mount) trial {
	m.hasUsers()
	m.hasSession()
	is := trial{path: m.name + "/creds/full", holds: (*mount).wantNoted}
	if harness.Long { // it takes the five minutes in which a new user may not be seen
		is.ends = (*mount).wantRolledBack
	}
	return is
}

// wantNoted wants the users that were made to be known, and no lease of credentials that no client received.
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
		m.t.Errorf("there are the leases %q, of credentials that no client received", got)
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
	c := issuedOf(m.t, m.answered("GET", m.name+"/creds/full", nil))
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
	before := m.stored("app", "svc")
	return trial{
		path: m.name + "/static-roles/app/rotate",
		holds: func(m *mount) {
			// By itself the new active node does it, once.
			m.wantRotated(before)
			m.later()
			now := m.stored("app", "svc")
			harness.Await(m.t, "another rotation", patience, func() error {
				if m.stored("app", "svc").ID != now.ID {
					return nil // also if the answer was lost
				}
				a := m.do(m.c.Leader(), "POST", m.name+"/static-roles/app/rotate", nil)
				return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
			})
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
