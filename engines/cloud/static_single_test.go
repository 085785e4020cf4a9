package cloud

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

var singleApp = fields{"username": "app", "rotation_period": "24h", "single_key": true}

// TestStaticRole_SingleKey: the key before goes when the new one works, not before and not a period later.
func TestStaticRole_SingleKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		in.newKeys = 8 * time.Second
		n := newNode(t, in, nil)
		time.Sleep(time.Minute)
		if data := n.Data(n.Must(engines.Update, "static-roles/app", singleApp)); data["single_key"] != true {
			t.Errorf("the answer is %v", data)
		}
		time.Sleep(time.Minute)
		before, secret := n.key("app")
		in.fail = func(action, _ string, done bool) error {
			if now, _ := n.key("app"); action == "DeleteAccessKey" && !done && now == before {
				t.Errorf("the key goes before there is another one")
			}
			return nil
		}
		n.Must(engines.Update, "static-roles/app/rotate", nil)
		in.fail = nil
		if now, _ := n.key("app"); now == before || in.lets(before, secret) || !slices.Equal(in.ids("app"), []string{now}) {
			t.Errorf("the key was %s, is %s, the user has %v", before, now, in.ids("app"))
		}
		n.run(49 * time.Hour)
		if ids := in.ids("app"); len(ids) != 1 || in.count("CreateAccessKey") != 4 {
			t.Errorf("after two periods the user has %v, %d keys were made", ids, in.count("CreateAccessKey"))
		}
		checkStatic(t, n, "app", "app")
		// Told later, the key before goes at once; and not any more when told so.
		n.Must(engines.Update, "static-roles/app", fields{"single_key": false})
		time.Sleep(time.Hour)
		n.Must(engines.Update, "static-roles/app/rotate", nil)
		n.run(time.Hour)
		if ids := in.ids("app"); len(ids) != 2 {
			t.Errorf("without single_key the user has %v", ids)
		}
		n.Must(engines.Update, "static-roles/app", fields{"single_key": true})
		n.run(time.Minute)
		if ids := in.ids("app"); len(ids) != 1 || in.count("CreateAccessKey") != 5 {
			t.Errorf("with single_key again the user has %v", ids)
		}
		checkStatic(t, n, "app", "app")
	})
}

func TestStaticRole_SingleKeyIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", singleApp)
		time.Sleep(time.Hour)
		in.fail = func(action, _ string, _ bool) error {
			if action == "DeleteAccessKey" {
				return refuse(aws.Denied, action, "AccessDenied")
			}
			return nil
		}
		resp := n.Must(engines.Update, "static-roles/app/rotate", nil)
		wantWarning(t, resp, "tried again")
		n.run(10 * time.Hour)
		if tries := in.count("DeleteAccessKey"); tries < 10 || tries > 30 || in.count("CreateAccessKey") != 2 {
			t.Errorf("tried %d times in ten hours, %d keys were made", tries, in.count("CreateAccessKey"))
		}
		if data := n.static("app"); fmt.Sprint(data["rotation_failures"]) != "0" || data["next_rotation"] != n.Data(resp)["next_rotation"] {
			t.Errorf("the read shows %v", data)
		}
		in.fail = nil
		n.run(2 * time.Hour)
		if ids := in.ids("app"); len(ids) != 1 {
			t.Errorf("the user has %v", ids)
		}
		checkStatic(t, n, "app", "app")
	})
}

func TestStaticRole_SingleKeyCrashAfterEachStep(t *testing.T) {
	tillItLives(t, func(t *testing.T, steps int) bool {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", singleApp)
		time.Sleep(time.Hour)
		d := n.dieAfter(steps)
		_, _ = n.Do(engines.Update, "static-roles/app/rotate", nil)
		in.fail = nil
		p := n.peer()
		if id, secret := p.key("app"); !in.lets(id, secret) {
			t.Errorf("no working key is stored")
		}
		p.run(5 * time.Minute)
		checkStatic(t, p, "app", "app")
		if id, _ := p.key("app"); !slices.Equal(in.ids("app"), []string{id}) {
			t.Errorf("the key is %s, the user has %v", id, in.ids("app"))
		}
		return !d.alive()
	})
}
