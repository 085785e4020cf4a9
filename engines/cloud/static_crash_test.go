package cloud

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/static"
)

// tillItLives runs fn, which lets a process die after a number of steps, with ever more steps until it lives.
func tillItLives(t *testing.T, fn func(t *testing.T, steps int) (died bool)) {
	t.Helper()
	const most = 40
	for steps := 1; steps <= most; steps++ {
		died := false
		synctest.Test(t, func(t *testing.T) { died = fn(t, steps) })
		if t.Failed() {
			t.Fatalf("the process died after step %d", steps)
		}
		if !died {
			if steps < 5 {
				t.Fatalf("there were only %d steps", steps)
			}
			return
		}
	}
	t.Fatalf("it did not end in %d steps", most)
}

// checkStatic checks that the credential of a static role works, and that the user has no key that no record knows.
func checkStatic(t *testing.T, n *node, name, user string, foreign ...string) {
	t.Helper()
	r, err := static.Get(t.Context(), n.Mount.Mount.Storage, name)
	if err != nil || r == nil {
		t.Fatalf("the static role is not there: %v", err)
	}
	if !n.in.lets(r.Key.ID, r.Key.Secret) {
		t.Errorf("the stored key does not work")
	}
	for _, id := range n.in.ids(user) {
		if id != r.Key.ID && id != r.Previous && !slices.Contains(foreign, id) {
			t.Errorf("key %s of %s is in no record", id, user)
		}
	}
	if left := n.left(); left != nil {
		t.Errorf("records are left: %v", left)
	}
	if r.Pending != nil || r.Failures != 0 {
		t.Errorf("the rotation is not finished: %+v, %d failures", r.Pending, r.Failures)
	}
}

func TestStaticRole_CrashAfterEachStepOfCreate(t *testing.T) {
	for _, unlisted := range []time.Duration{0, 10 * time.Second} {
		tillItLives(t, func(t *testing.T, steps int) bool {
			in := newAccount("app")
			in.unlisted = unlisted
			n := newNode(t, in, nil)
			d := n.dieAfter(steps)
			_, err := n.Do(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
			if died := err != nil; died == d.alive() {
				t.Fatalf("error %v of a running process: %v", err, d.alive())
			}
			in.fail = nil
			p := n.peer()
			p.run(10 * time.Minute)
			if r, err := static.Get(t.Context(), p.Mount.Mount.Storage, "app"); err != nil {
				t.Fatal(err)
			} else if r == nil {
				if ids := in.ids("app"); ids != nil {
					t.Errorf("keys %v are left of a static role that was not made", ids)
				}
				if left := p.left(); left != nil {
					t.Errorf("records are left: %v", left)
				}
				p.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
			}
			checkStatic(t, p, "app", "app")
			return !d.alive()
		})
	}
}

func TestStaticRole_CreateAgainRightAfterACrash(t *testing.T) {
	tillItLives(t, func(t *testing.T, steps int) bool {
		in := newAccount("app")
		n := newNode(t, in, nil)
		d := n.dieAfter(steps)
		_, _ = n.Do(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
		in.fail = nil
		p := n.peer()
		p.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
		checkStatic(t, p, "app", "app")
		return !d.alive()
	})
}

func TestStaticRole_CrashAfterEachStepOfRotate(t *testing.T) {
	for _, second := range []bool{false, true} { // whether there is a key from before already
		for _, path := range []string{"work", "request"} {
			tillItLives(t, func(t *testing.T, steps int) bool {
				in := newAccount("app")
				n := newNode(t, in, nil)
				n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
				if second {
					time.Sleep(time.Hour)
					n.Must(engines.Update, "static-roles/app/rotate", nil)
				}
				before, _ := n.key("app")
				time.Sleep(24 * time.Hour)
				d := n.dieAfter(steps)
				if path == "work" {
					_ = n.Engine.(*engine).Work(t.Context(), n.Mount.Mount, true)
				} else {
					_, _ = n.Do(engines.Update, "static-roles/app/rotate", nil)
				}
				in.fail = nil
				p := n.peer()
				id, secret := p.key("app")
				if !in.lets(id, secret) {
					t.Errorf("no working key is stored")
				}
				p.run(5 * time.Minute)
				checkStatic(t, p, "app", "app")
				if id, _ := p.key("app"); id == before {
					t.Errorf("it was never rotated")
				}
				return !d.alive()
			})
		}
	}
}

func TestStaticRole_CrashAfterEachStepOfDelete(t *testing.T) {
	tillItLives(t, func(t *testing.T, steps int) bool {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
		d := n.dieAfter(steps)
		_, _ = n.Do(engines.Delete, "static-roles/app", nil)
		in.fail = nil
		p := n.peer()
		p.Must(engines.Delete, "static-roles/app", nil)
		p.run(5 * time.Minute)
		if ids := in.ids("app"); ids != nil {
			t.Errorf("keys %v are left", ids)
		}
		if left := p.left(); left != nil {
			t.Errorf("records are left: %v", left)
		}
		if in.users["app"] == nil {
			t.Errorf("the user is gone")
		}
		return !d.alive()
	})
}
