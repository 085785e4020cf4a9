package cloud

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/static"
	"github.com/coffer-project/coffer/storage"
)

func isPrimaryOnly(err error) bool { return errors.Is(err, storage.ErrPrimaryOnly) }

func TestSchedule_RotatesEachPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "10m"})
		n.run(9 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 1 {
			t.Fatalf("%d keys before the first period ended, want 1", made)
		}
		n.run(22 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 4 {
			t.Errorf("%d keys after three periods, want 4", made)
		}
		checkStatic(t, n, "app", "app")
	})
}

func TestSchedule_SurvivesFailoverWithoutDoubleRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "10m"})
		nodes := []*node{n, n.peer(), n.peer()}
		for i := range 6 * 12 {
			nodes[i%3].run(10 * time.Second * 10) // each is the active one for a while, in turn
		}
		if made := in.count("CreateAccessKey"); made < 11 || made > 13 {
			t.Errorf("%d keys in two hours, want one each 10 minutes", made)
		}
		checkStatic(t, n, "app", "app")
	})
}

func TestSchedule_UpdateResetsTheNextRotationToNowPlusRotationPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "10m"})
		n.run(9 * time.Minute)
		data := n.Data(n.Must(engines.Update, "static-roles/app", fields{"rotation_period": "1h"}))
		if want := time.Now().Add(time.Hour).UTC().Format(time.RFC3339); data["next_rotation"] != want {
			t.Errorf("next_rotation is %v, want %v", data["next_rotation"], want)
		}
		n.run(59 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 1 {
			t.Errorf("%d keys, want the first only", made)
		}
		n.Must(engines.Update, "static-roles/app", fields{"rotation_period": "2m"})
		n.run(3 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 2 {
			t.Errorf("%d keys after the period became short, want 2", made)
		}
	})
}

// TestSchedule_UpdateAfterAFailureResetsTheNextRotation: also when it would be tried again in a moment.
func TestSchedule_UpdateAfterAFailureResetsTheNextRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "10m"})
		time.Sleep(11 * time.Minute)
		in.failNext(1, "GetUser", false, aws.Denied)
		n.work()
		data := n.Data(n.Must(engines.Update, "static-roles/app", fields{"rotation_period": "1h"}))
		if want := time.Now().Add(time.Hour).UTC().Format(time.RFC3339); data["next_rotation"] != want {
			t.Errorf("next_rotation is %v, want %v", data["next_rotation"], want)
		}
		n.run(59 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 1 {
			t.Errorf("%d keys, want the first only", made)
		}
	})
}

func TestSchedule_RotateNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "10m"})
		n.run(9 * time.Minute)
		data := n.Data(n.Must(engines.Update, "static-roles/app/rotate", nil))
		if want := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339); data["next_rotation"] != want {
			t.Errorf("next_rotation is %v, want %v", data["next_rotation"], want)
		}
		n.run(9 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 2 {
			t.Errorf("%d keys, want 2", made)
		}
	})
}

func TestSchedule_RetriesWithBackOffWhileTheOldKeyKeepsWorking(t *testing.T) {
	for _, action := range []string{"GetUser", "ListAccessKeys", "CreateAccessKey", "DeleteAccessKey"} {
		for _, kind := range []aws.Kind{aws.Denied, aws.Throttled, aws.Unavailable} {
			for _, after := range []bool{false, true} { // whether it is done, and the answer lost
				if after && (kind != aws.Unavailable || action == "DeleteAccessKey") {
					continue // what is deleted is deleted
				}
				synctest.Test(t, func(t *testing.T) {
					in := newAccount("app")
					n := newNode(t, in, nil)
					n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
					time.Sleep(time.Hour)
					n.Must(engines.Update, "static-roles/app/rotate", nil) // so that there are two
					id, secret := n.key("app")
					time.Sleep(24 * time.Hour)
					in.fail = func(called, _ string, done bool) error {
						if called == action && done == after {
							return refuse(kind, action, "Trouble")
						}
						return nil
					}
					before := in.count(action)
					n.run(10 * time.Hour)
					if tries := in.count(action) - before; tries < 10 || tries > 60 {
						t.Errorf("%s failed %d times in ten hours", action, tries)
					}
					data := n.static("app")
					if !strings.Contains(data["last_error"].(string), action) || fmt.Sprint(data["rotation_failures"]) < "1" {
						t.Errorf("%s: the read shows %v failures, the last %q", action, data["rotation_failures"], data["last_error"])
					}
					if got, _ := n.key("app"); got != id || !in.lets(id, secret) {
						t.Errorf("%s: the old key does not work any more", action)
					}
					if next, err := time.Parse(time.RFC3339, data["next_rotation"].(string)); err != nil || time.Until(next) > time.Hour {
						t.Errorf("%s: it is tried again at %v", action, data["next_rotation"])
					}
					in.fail = nil
					n.run(2 * time.Hour)
					checkStatic(t, n, "app", "app")
					if data := n.static("app"); data["last_error"] != "" || fmt.Sprint(data["rotation_failures"]) != "0" {
						t.Errorf("%s: after a success the read shows %v", action, data)
					}
				})
			}
		}
	}
}

func TestSchedule_ClockThatJumpsForwardRotatesEachOnceAndInNoStorm(t *testing.T) {
	const roles = 3*static.PerTurn + 5
	synctest.Test(t, func(t *testing.T) {
		in := newAccount()
		for i := range roles {
			in.addUser(fmt.Sprint("app", i))
		}
		n := newNode(t, in, nil)
		for i := range roles {
			n.Must(engines.Update, fmt.Sprint("static-roles/app", i), fields{"username": fmt.Sprint("app", i), "rotation_period": "24h"})
		}
		n.work()
		made := in.count("CreateAccessKey")
		time.Sleep(5 * 24 * time.Hour)
		n.work()
		if got := in.count("CreateAccessKey") - made; got != static.PerTurn {
			t.Errorf("%d rotations in the first turn, want %d", got, static.PerTurn)
		}
		n.run(5 * time.Minute)
		if got := in.count("CreateAccessKey") - made; got != roles {
			t.Errorf("%d rotations, want each of the %d once", got, roles)
		}
	})
}

func TestSchedule_ClockThatGoesBackNeitherRotatesTwiceNorNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "10m"})
		n.work()
		// It was rotated by a clock that was a year ahead, and now is right again.
		_, err := storage.Update(t.Context(), n.Mount.Mount.Storage, func(txn *storage.Txn) error {
			r, err := static.Get(t.Context(), txn, "app")
			if err != nil {
				return err
			}
			r.Key.CreatedAt, r.NextRotation = r.Key.CreatedAt.AddDate(1, 0, 0), r.NextRotation.AddDate(1, 0, 0)
			return r.Put(txn)
		})
		if err != nil {
			t.Fatal(err)
		}
		n.run(9 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 1 {
			t.Errorf("%d keys, want no second one yet", made)
		}
		n.run(3 * time.Minute)
		if made := in.count("CreateAccessKey"); made != 2 {
			t.Errorf("%d keys, want the second a period later", made)
		}
	})
}

func TestSchedule_StopsWhenTheProviderHasEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount()
		n := newNode(t, in, nil)
		for i := range static.PerTurn {
			in.addUser(fmt.Sprint("app", i))
			n.Must(engines.Update, fmt.Sprint("static-roles/app", i), fields{"username": fmt.Sprint("app", i), "rotation_period": "24h"})
		}
		time.Sleep(24 * time.Hour)
		before := in.total()
		in.fail = func(action, _ string, _ bool) error { return refuse(aws.Throttled, action, "Throttling") }
		n.work()
		if calls := in.total() - before; calls < 1 || calls > 2*static.AtOnce {
			t.Errorf("%d calls at a provider that has enough", calls)
		}
		in.fail = nil
		n.run(5 * time.Minute)
		for i := range static.PerTurn {
			checkStatic(t, n, fmt.Sprint("app", i), fmt.Sprint("app", i))
		}
	})
}

// Two nodes that both believe to be the active one make one key between them, or know all that they made.
func TestSchedule_TwoNodesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": "24h"})
		p := n.peer()
		in.fail = func(string, string, bool) error { time.Sleep(3 * time.Second); return nil }
		for range 5 {
			time.Sleep(24 * time.Hour)
			done := make(chan struct{}) // closed when the peer is through
			go func() {
				defer close(done)
				time.Sleep(5 * time.Second)
				_, _ = p.Do(engines.Update, "static-roles/app/rotate", nil)
			}()
			_, _ = n.Do(engines.Update, "static-roles/app/rotate", nil)
			<-done
			id, secret := n.key("app")
			if !in.lets(id, secret) {
				t.Errorf("the stored key does not work")
			}
		}
		in.fail = nil
		n.run(10 * time.Minute)
		checkStatic(t, n, "app", "app")
	})
}

// TestPanicsOfRotationsAreErrors: they run in goroutines of their own, where a panic would end the process.
func TestPanicsOfRotationsAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount("app"), fields{"rotation_period": "1h"})
		n.Must(engines.Update, "static-roles/app", dailyApp)
		time.Sleep(25 * time.Hour)
		e := n.Engine.(*engine)
		e.clients.Dial = func(context.Context, aws.Options) (aws.API, error) { panic("secret") }
		if err := e.Work(t.Context(), n.Mount.Mount, true); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Work: %v", err)
		}
	})
}
