package cloud

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/static"
)

// failNext makes the next n calls of an action fail, before or after they are carried out.
func (a *account) failNext(n int, action string, after bool, kind aws.Kind) {
	a.fail = func(called, _ string, done bool) error {
		if called != action || done != after || n == 0 {
			return nil
		}
		n--
		return refuse(kind, action, "Trouble")
	}
}

// A failure that surely made nothing does not make us forget what one before it may have made.
func TestStaticRole_LostKeyIsKnownUntilItIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", dailyApp)
		time.Sleep(time.Hour)
		in.failNext(1, "CreateAccessKey", true, aws.Unavailable)
		_, _ = n.Do(engines.Update, "static-roles/app/rotate", nil)
		in.failNext(1, "GetUser", false, aws.Denied)
		_, _ = n.Do(engines.Update, "static-roles/app/rotate", nil)
		id, secret := n.key("app")
		in.fail = nil
		n.Must(engines.Update, "static-roles/app/rotate", nil)
		checkStatic(t, n, "app", "app")
		if !in.lets(id, secret) {
			t.Errorf("the key before is gone: it counted as the oldest beside a lost one")
		}
	})
}

// That there is no room for a key may be because of a lost one that is not listed yet: the key in use must not make room.
func TestStaticRole_LostKeyThatIsListedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", dailyApp)
		time.Sleep(24 * time.Hour)
		in.unlisted = 5 * time.Minute
		in.failNext(1, "CreateAccessKey", true, aws.Unavailable)
		id, secret := n.key("app")
		for range 6 * 20 {
			n.work()
			time.Sleep(10 * time.Second)
			if !in.lets(id, secret) {
				t.Fatalf("the key before does not work any more")
			}
		}
		if now, _ := n.key("app"); now == id {
			t.Errorf("never rotated")
		}
		checkStatic(t, n, "app", "app")
	})
}

// TestStaticRole_NotForTheUserOfTheRootKey: the oldest of a user's keys is deleted, and no key of root would be left.
func TestStaticRole_NotForTheUserOfTheRootKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		in.addKey("root")
		time.Sleep(time.Hour)
		rootKey := n.storedRoot()
		text := n.Fails(engines.KindInvalid, engines.Update, "static-roles/root", fields{"username": "root", "rotation_period": "24h"})
		if !strings.Contains(text, "rotate-root") || !in.lets(rootKey.ID, rootKey.Secret) || len(in.ids("root")) != 2 {
			t.Errorf("refused with %q, the root user has the keys %v", text, in.ids("root"))
		}
		// Or it becomes one.
		n.Must(engines.Update, "static-roles/app", dailyApp)
		id, secret := n.key("app")
		n.Must(engines.Update, "config/root", fields{"access_key": id, "secret_key": secret})
		n.run(49 * time.Hour)
		if !in.lets(id, secret) || !strings.Contains(n.static("app")["last_error"].(string), "rotate-root") {
			t.Errorf("the root key works: %v, the static role says %v", in.lets(id, secret), n.static("app")["last_error"])
		}
	})
}

// TestStaticRole_UserOfAnotherAccount: root credentials of an account with a user of that name are not told that it was made again.
func TestStaticRole_UserOfAnotherAccount(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp)
	other := r.elsewhere()
	other.AddUser("app")
	key := other.AddKey("admin")
	r.setRoot(key.ID, key.Secret)
	_, err := r.Do(engines.Update, "static-roles/app/rotate", nil)
	if kindOf(err) != engines.KindInvalid || !strings.Contains(err.Error(), "210987654321") || other.Keys("app") != nil {
		t.Errorf("refused with %v, the other user has the keys %v", err, other.Keys("app"))
	}
}

func TestStaticRole_DueNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount("app"), nil)
		n.Must(engines.Update, "static-roles/app", dailyApp)
		stored, err := static.Get(t.Context(), n.Mount.Mount.Storage, "app")
		if err != nil {
			t.Fatal(err)
		}
		due := stored.NextRotation
		time.Sleep(time.Second)
		n.Must(engines.Update, "static-roles/app/rotate", nil)
		before := n.in.total()
		r, err := n.Engine.(*engine).static.Rotate(t.Context(), n.Mount.Mount, "app", &due)
		if r != nil || err != nil || n.in.total() != before {
			t.Errorf("rotated again for a time that is over: %v, %v", r, err)
		}
	})
}

func TestMakeKey_OldestOfTwo(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	tests := []struct {
		name    string
		ages    [2]time.Duration
		current int
		want    int // which one goes
	}{
		{"oldest", [2]time.Duration{2 * time.Hour, time.Hour}, 1, 0},
		{"oldest, though it is in use", [2]time.Duration{2 * time.Hour, time.Hour}, 0, 0},
		{"as old, the second in use", [2]time.Duration{time.Hour, time.Hour}, 1, 0},
		{"as old, the first in use", [2]time.Duration{time.Hour, time.Hour}, 0, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := newAccount("app")
			newNode(t, in, nil)
			rootKey := in.users["root"].keys[0]
			in.addKey("app")
			in.addKey("app")
			var keys []aws.Key
			for i := range in.users["app"].keys {
				in.users["app"].keys[i].CreatedAt = now.Add(-test.ages[i])
				keys = append(keys, in.users["app"].keys[i].Key)
			}
			api := accountClient{in: in, options: aws.Options{AccessKey: rootKey.ID, SecretKey: engines.Sensitive(rootKey.secret)}}
			made, kept, err := accesskey.Make(t.Context(), api, "app", keys, keys[test.current].ID)
			if err != nil {
				t.Fatal(err)
			}
			stays := keys[1-test.want].ID
			if ids := in.ids("app"); !slices.Equal(ids, []string{stays, made.ID}) || len(kept) != 1 || kept[0].ID != stays {
				t.Errorf("the user has %v, reported as kept is %v, want %s and the new one", ids, kept, stays)
			}
		})
	}
}
