package cloud

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/static"
	"github.com/coffer-project/coffer/storage"
)

// leave is what the server does before the mount goes, again and again until it may.
func (n *node) leave() {
	n.t.Helper()
	for range 30 {
		err := n.Engine.(engines.Leaver).Leave(n.t.Context(), n.Mount.Mount)
		if err == nil {
			return
		}
		if kindOf(err) != engines.KindUnavailable {
			n.t.Errorf("leaving: %v", err)
			return
		}
		time.Sleep(engines.WorkInterval)
	}
	n.t.Errorf("the mount never goes")
}

// stored are the ids of the keys of a static role that its record knows, the one in use first.
func (n *node) stored(name string) []string {
	n.t.Helper()
	r, err := static.Get(n.t.Context(), n.Mount.Mount.Storage, name)
	if err != nil {
		n.t.Fatal(err)
	}
	if r == nil {
		return nil
	}
	return []string{r.Key.ID, r.Previous}
}

// TestDisablingAMountInTheMiddleOfAKeyLeavesNone: whatever a static role is about, after each step of it.
func TestDisablingAMountInTheMiddleOfAKeyLeavesNone(t *testing.T) {
	for _, what := range []string{"create", "rotate", "delete"} {
		for _, unlisted := range []time.Duration{0, 10 * time.Second} {
			tillItLives(t, func(t *testing.T, steps int) bool {
				in := newAccount("app")
				in.unlisted = unlisted
				n := newNode(t, in, nil)
				if what != "create" {
					n.Must(engines.Update, "static-roles/app", dailyApp)
					time.Sleep(time.Hour)
				}
				d := n.dieAfter(steps)
				switch what {
				case "create":
					_, _ = n.Do(engines.Update, "static-roles/app", dailyApp)
				case "rotate":
					_, _ = n.Do(engines.Update, "static-roles/app/rotate", nil)
				case "delete":
					_, _ = n.Do(engines.Delete, "static-roles/app", nil)
				}
				in.fail = nil
				p := n.peer()
				before := p.stored("app")
				p.leave()
				if after := p.stored("app"); !slices.Equal(before, after) {
					t.Errorf("%s: the static role had the keys %v and has %v", what, before, after)
				}
				if before != nil && !slices.Contains(in.ids("app"), before[0]) {
					t.Errorf("%s: the key in use is gone", what)
				}
				for _, id := range in.ids("app") {
					if !slices.Contains(before, id) {
						t.Errorf("%s: key %s is left and no record knows it", what, id)
					}
				}
				if left := p.left(); left != nil {
					t.Errorf("%s: records are left: %v", what, left)
				}
				return !d.alive()
			})
		}
	}
}

// TestDisablingAMountInTheMiddleOfARootRotation: of two keys the one stays that is in use, as the administrator who configured the old one
// may go on with it.
func TestDisablingAMountInTheMiddleOfARootRotation(t *testing.T) {
	for _, slow := range []time.Duration{0, 20 * time.Second} {
		tillItLives(t, func(t *testing.T, steps int) bool {
			n := newNode(t, newAccount(), nil)
			time.Sleep(2 * time.Hour)
			n.in.newKeys, n.in.unlisted = slow, slow/2
			d := n.dieAfter(steps)
			_, _ = n.Do(engines.Update, "config/rotate-root", nil)
			n.in.fail = nil
			p := n.peer()
			before := p.storedRoot()
			p.leave()
			if after := p.storedRoot(); after != before {
				t.Errorf("the root key was %s and is %s", before.ID, after.ID)
			}
			checkRoot(t, p)
			return !d.alive()
		})
	}
}

// TestDisablingAMountWhileAKeyIsMade: it waits for the request that creates it.
func TestDisablingAMountWhileAKeyIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		time.Sleep(time.Hour)
		in.fail = func(action, _ string, done bool) error {
			if action == "CreateAccessKey" && done {
				time.Sleep(20 * time.Second)
			}
			return nil
		}
		asked := make(chan struct{}) // closed when the request is over
		go func() {
			defer close(asked)
			_, _ = n.Do(engines.Update, "static-roles/app", dailyApp)
		}()
		time.Sleep(time.Second)
		n.leave()
		synctest.Wait() // for the request to return
		select {
		case <-asked:
		default:
			t.Error("the mount may go while a key is being made")
		}
		checkStatic(t, n, "app", "app")
	})
}

// TestRequestsThatComeWhileAMountLeavesMakeNothing: its records may be gone before theirs are there.
func TestRequestsThatComeWhileAMountLeavesMakeNothing(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp)
	r.aws.FailNext(1, "AttachUserPolicy", awstest.Fault{Code: "Throttling"})
	if _, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
		t.Fatal("it succeeded")
	}
	requests := []struct {
		op   engines.Operation
		path string
	}{{engines.Read, "creds/dev"}, {engines.Update, "static-roles/app/rotate"}, {engines.Update, "config/rotate-root"}}
	var once sync.Once
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		once.Do(func() {
			for _, q := range requests {
				if _, err := r.Do(q.op, q.path, nil); kindOf(err) != engines.KindUnavailable {
					t.Errorf("%s: %v", q.path, err)
				}
			}
		})
		if c.Action == "CreateUser" || c.Action == "CreateAccessKey" {
			t.Errorf("%s was called", c.Action)
		}
		return awstest.Fault{}
	})
	if err := r.leave(); err != nil {
		t.Error(err)
	}
	r.aws.Fail(nil)
	r.issue("creds/dev", nil) // the mount was only moved
}

// TestMountWithAKeyThatCannotBeDeletedStays: for a day, and then it goes with an error in the log.
func TestMountWithAKeyThatCannotBeDeletedStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		in := newAccount("app", "other")
		n := newNode(t, in, nil)
		n.Engine.(*engine).log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		n.Must(engines.Update, "static-roles/other", fields{"username": "other", "rotation_period": "24h"})
		n.Must(engines.Update, "static-roles/app", dailyApp)
		in.fail = func(action, user string, _ bool) error {
			if user == "app" || user == "other" && action == "CreateAccessKey" {
				return refuse(aws.Unavailable, action, "")
			}
			return nil
		}
		_, _ = n.Do(engines.Update, "static-roles/other/rotate", nil)
		n.Must(engines.Delete, "static-roles/app", nil)
		time.Sleep(time.Minute)
		leave := func() error { return n.Engine.(engines.Leaver).Leave(t.Context(), n.Mount.Mount) }
		err := leave()
		if kindOf(err) != engines.KindUpstream || !strings.Contains(err.Error(), "app") || log.Len() > 0 {
			t.Errorf("leaving: %v, log %q", err, log.String())
		}
		if r, err := static.Get(t.Context(), n.Mount.Mount.Storage, "other"); err != nil || r.Pending != nil {
			t.Errorf("the other one was not settled: %v", err)
		}
		time.Sleep(accesskey.KeepTime)
		if err := leave(); err != nil || !strings.Contains(log.String(), "remove it there") {
			t.Errorf("leaving after a day: %v, log %q", err, log.String())
		}
	})
}

// TestDisablingASharedMountOnASecondaryAsksNobody: its keys are the primary's.
func TestDisablingASharedMountOnASecondaryAsksNobody(t *testing.T) {
	for _, what := range []string{"static-roles/app/rotate", "config/rotate-root"} {
		synctest.Test(t, func(t *testing.T) {
			in := newAccount("app")
			n := newNode(t, in, nil)
			n.Must(engines.Update, "static-roles/app", dailyApp)
			in.failNext(1, "CreateAccessKey", true, aws.Unavailable)
			_, _ = n.Do(engines.Update, what, nil)
			p := n.peer()
			p.Mount.Mount.Storage = secondary{p.Mount.Mount.Storage}
			before := in.total()
			p.leave()
			if calls := in.total() - before; calls != 0 {
				t.Errorf("%s: the provider was called %d times", what, calls)
			}
		})
	}
}

// TestNewRootKeyThatMayNotBeDeletedIsNotForgotten: another key is configured while a rotation is unfinished, and the keys of
// the rotation may do everything but that.
func TestNewRootKeyThatMayNotBeDeletedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("other")
		n := newNode(t, in, nil)
		old, other := n.storedRoot(), in.addKey("other")
		time.Sleep(time.Hour)
		in.newKeys = 2 * time.Minute
		_, _ = n.Do(engines.Update, "config/rotate-root", nil)
		in.newKeys = 0
		in.fail = func(action, _ string, _ bool) error {
			if action == "DeleteAccessKey" {
				return refuse(aws.Denied, action, "AccessDenied")
			}
			return nil
		}
		n.Must(engines.Update, "config/root", fields{"access_key": other.AccessKey, "secret_key": other.SecretKey.Reveal()})
		n.run(3 * time.Hour)
		if left := n.left(); !slices.Equal(left, []storage.Key{rotationKey}) {
			t.Errorf("the records are %v", left)
		}
		in.fail = nil
		n.run(2 * time.Hour)
		if ids := in.ids("root"); !slices.Equal(ids, []string{old.ID}) || n.left() != nil {
			t.Errorf("left are the keys %v and the records %v", ids, n.left())
		}
	})
}
