package cloud

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

// storedRoot is the root key that is stored.
func (n *node) storedRoot() accesskey.Own {
	n.t.Helper()
	r, _, err := root.Get(n.t.Context(), n.Mount.Mount.Storage)
	if err != nil {
		n.t.Fatal(err)
	}
	return accesskey.Own{ID: r.AccessKey, Secret: r.SecretKey, CreatedAt: r.KeyCreatedAt}
}

func checkRoot(t *testing.T, n *node) {
	t.Helper()
	key := n.storedRoot()
	if !n.in.lets(key.ID, key.Secret) {
		t.Errorf("the stored root key does not work")
	}
	if ids := n.in.ids("root"); !slices.Equal(ids, []string{key.ID}) {
		t.Errorf("the root user has the keys %v, stored is %s", ids, key.ID)
	}
	if left := n.left(); left != nil {
		t.Errorf("records are left: %v", left)
	}
}

func TestRotateRoot_ReturnsTheNewAccessKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount(), nil)
		before := n.storedRoot()
		n.in.newKeys = 10 * time.Second
		time.Sleep(time.Minute)
		data := n.Data(n.Must(engines.Update, "config/rotate-root", nil))
		after := n.storedRoot()
		if data["access_key"] != after.ID || after.ID == before.ID || len(data) != 1 {
			t.Errorf("rotate-root answered %v, stored is %s, before it was %s", data, after.ID, before.ID)
		}
		if n.in.lets(before.ID, before.Secret) {
			t.Errorf("the old key still works")
		}
		if after.CreatedAt.IsZero() {
			t.Errorf("the age of the new key is not stored")
		}
		checkRoot(t, n)
	})
}

func TestRotateRoot_OnlyWithStaticCredentials(t *testing.T) {
	n := &node{Mount: testMount(t), t: t, in: newAccount()}
	n.dial()
	for range 2 {
		if text := n.Fails(engines.KindInvalid, engines.Update, "config/rotate-root", nil); !strings.Contains(text, "config/root") {
			t.Errorf("error %q does not say what to do", text)
		}
		n.Must(engines.Update, "config/root", fields{"region": "eu-west-1"})
	}
	if n := n.in.total(); n != 0 {
		t.Errorf("the provider was called %d times", n)
	}
}

func TestRotateRoot_FailsWhenTheUserHasAnotherKey(t *testing.T) {
	n := newNode(t, newAccount(), nil)
	before := n.storedRoot()
	n.in.addKey("root")
	for range 2 {
		_, err := n.Do(engines.Update, "config/rotate-root", nil)
		if kindOf(err) != engines.KindInvalid || !strings.Contains(err.Error(), "another access key") {
			t.Fatalf("rotate-root with two keys: %v", err)
		}
	}
	if ids := n.in.ids("root"); len(ids) != 2 || n.storedRoot() != before {
		t.Errorf("keys %v, stored %s: something was done", ids, n.storedRoot().ID)
	}
	if n.in.count("CreateAccessKey")+n.in.count("DeleteAccessKey") != 0 {
		t.Errorf("keys were touched: %v", n.in.calls)
	}
}

func TestRotateRoot_CrashAfterEachStep(t *testing.T) {
	for _, slow := range []time.Duration{0, 8 * time.Second} {
		for _, unlisted := range []time.Duration{0, 8 * time.Second} {
			tillItLives(t, func(t *testing.T, steps int) bool {
				n := newNode(t, newAccount(), nil)
				n.in.newKeys, n.in.unlisted = slow, unlisted
				time.Sleep(time.Hour)
				d := n.dieAfter(steps)
				_, _ = n.Do(engines.Update, "config/rotate-root", nil)
				n.in.fail = nil
				p := n.peer()
				if key := p.storedRoot(); !p.in.lets(key.ID, key.Secret) {
					t.Errorf("no working root key is stored")
				}
				p.run(5 * time.Minute)
				checkRoot(t, p)
				p.Must(engines.Update, "config/rotate-root", nil)
				checkRoot(t, p)
				return !d.alive()
			})
		}
	}
}

func TestRotateRoot_AskedAgainRightAfterACrash(t *testing.T) {
	tillItLives(t, func(t *testing.T, steps int) bool {
		n := newNode(t, newAccount(), nil)
		time.Sleep(time.Hour)
		d := n.dieAfter(steps)
		_, _ = n.Do(engines.Update, "config/rotate-root", nil)
		n.in.fail = nil
		p := n.peer()
		if _, err := p.Do(engines.Update, "config/rotate-root", nil); err != nil {
			if kindOf(err) != engines.KindUnavailable {
				t.Errorf("rotate-root: %v", err)
			}
			p.run(5 * time.Minute)
		}
		checkRoot(t, p)
		return !d.alive()
	})
}

// A key that is configured while a rotation is unfinished must not be lost, and nothing may be left behind.
func TestRotateRoot_AnotherKeyConfiguredMeanwhile(t *testing.T) {
	for _, which := range []string{"of another user", "the old one again"} {
		tillItLives(t, func(t *testing.T, steps int) bool {
			n := newNode(t, newAccount("other"), nil)
			old := n.storedRoot()
			other := n.in.addKey("other")
			time.Sleep(time.Hour)
			d := n.dieAfter(steps)
			_, _ = n.Do(engines.Update, "config/rotate-root", nil)
			n.in.fail = nil
			p := n.peer()
			if unfinished, err := getRotation(t.Context(), p.Mount.Mount.Storage); err != nil || unfinished.Pending == nil {
				return !d.alive() && err == nil
			}
			config := fields{"access_key": other.AccessKey, "secret_key": other.SecretKey.Reveal()}
			if which == "the old one again" {
				if !p.in.lets(old.ID, old.Secret) {
					return !d.alive()
				}
				config = fields{"access_key": old.ID, "secret_key": old.Secret}
			}
			p.Must(engines.Update, "config/root", config)
			p.run(5 * time.Minute)
			if which == "the old one again" { // the rotation may go on with it
				checkRoot(t, p)
				return !d.alive()
			}
			if key := p.storedRoot(); key.ID != other.AccessKey || !p.in.lets(key.ID, key.Secret) {
				t.Errorf("stored is %s, configured was %s", key.ID, other.AccessKey)
			}
			if ids := p.in.ids("root"); len(ids) > 1 || len(ids) == 1 && ids[0] != old.ID {
				t.Errorf("the user has the keys %v", ids)
			}
			left, err := getRotation(t.Context(), p.Mount.Mount.Storage)
			if err != nil || left.Pending != nil || left.New != (accesskey.Own{}) {
				t.Errorf("the rotation is not over: %v", err)
			}
			return !d.alive()
		})
	}
}

// An endpoint that is configured without a key must not receive requests signed with earlier keys, and an
// unfinished rotation is undone where it began.
func TestRotateRoot_KeysGoToNoOtherEndpoint(t *testing.T) {
	for _, config := range []fields{
		{"iam_endpoint": "https://elsewhere.example", "sts_endpoint": "https://elsewhere.example"},
		{"iam_endpoint": "https://elsewhere.example", "sts_endpoint": "https://elsewhere.example", "access_key": "", "secret_key": "of-nobody"},
	} {
		tillItLives(t, func(t *testing.T, steps int) bool {
			n := newNode(t, newAccount(), nil)
			old := n.storedRoot()
			time.Sleep(time.Hour)
			d := n.dieAfter(steps)
			_, _ = n.Do(engines.Update, "config/rotate-root", nil)
			n.in.fail = nil
			p := n.peer()
			if unfinished, err := getRotation(t.Context(), p.Mount.Mount.Storage); err != nil || unfinished.Pending == nil {
				return !d.alive() && err == nil
			}
			if config["secret_key"] != nil {
				config["access_key"] = old.ID
			}
			p.Must(engines.Update, "config/root", config)
			p.Engine.(*engine).clients.Dial = func(_ context.Context, o aws.Options) (aws.API, error) {
				if o.IAMEndpoint != "" && o.AccessKey != "" && o.SecretKey.Reveal() != "of-nobody" {
					t.Errorf("a key is used at %s", o.IAMEndpoint)
				}
				return accountClient{in: p.in, options: o}, nil
			}
			p.run(5 * time.Minute)
			if ids := p.in.ids("root"); config["secret_key"] == nil && (len(ids) > 1 || len(ids) == 1 && ids[0] != old.ID) {
				t.Errorf("the user has the keys %v", ids)
			}
			return !d.alive()
		})
	}
}

func TestRotateRoot_OldKeyStaysUntilTheNewOneWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount(), nil)
		before := n.storedRoot()
		time.Sleep(time.Hour)
		n.in.newKeys = 2 * time.Minute
		_, err := n.Do(engines.Update, "config/rotate-root", nil)
		if kindOf(err) != engines.KindUpstream || !strings.Contains(err.Error(), "stored") {
			t.Errorf("a key that does not work yet: %v", err)
		}
		if n.storedRoot() != before || !n.in.lets(before.ID, before.Secret) {
			t.Errorf("the old key is gone")
		}
		n.run(10 * time.Minute)
		if n.storedRoot().ID == before.ID {
			t.Errorf("the new key never came into use")
		}
		checkRoot(t, n)
	})
}

func TestRotateRoot_OldKeyThatCannotBeDeletedIsDeletedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount(), nil)
		time.Sleep(time.Hour)
		n.in.fail = func(action, _ string, _ bool) error {
			if action == "DeleteAccessKey" {
				return refuse(aws.Throttled, action, "Throttling")
			}
			return nil
		}
		resp := n.Must(engines.Update, "config/rotate-root", nil)
		if n.Data(resp)["access_key"] != n.storedRoot().ID || len(resp.Warnings) != 1 {
			t.Errorf("answer %v, warnings %q", n.Data(resp), resp.Warnings)
		}
		n.in.fail = nil
		n.run(5 * time.Minute)
		checkRoot(t, n)
	})
}

func TestRotateRoot_ByItself(t *testing.T) {
	tests := []struct {
		name   string
		config fields
		after  time.Duration
		want   int // rotations
	}{
		{"period, before", fields{"rotation_period": "24h"}, 23 * time.Hour, 0},
		{"period", fields{"rotation_period": "24h"}, 49 * time.Hour, 2},
		{"schedule, before", fields{"rotation_schedule": "0 3 * * *"}, 2 * time.Hour, 0},
		{"schedule", fields{"rotation_schedule": "0 3 * * *", "rotation_window": "1h"}, 4 * time.Hour, 1},
		{"disabled", fields{"rotation_period": "24h", "disable_automated_rotation": true}, 49 * time.Hour, 0},
		{"never", nil, 49 * time.Hour, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // begins at midnight
				n := newNode(t, newAccount(), test.config)
				seen := map[string]bool{n.storedRoot().ID: true}
				for range int(test.after / time.Hour) {
					n.work()
					seen[n.storedRoot().ID] = true
					time.Sleep(time.Hour)
				}
				n.work()
				seen[n.storedRoot().ID] = true
				if len(seen)-1 != test.want {
					t.Errorf("%d rotations, want %d", len(seen)-1, test.want)
				}
				checkRoot(t, n)
			})
		})
	}
}

func TestRotateRoot_WindowThatWasMissedIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount(), fields{"rotation_schedule": "0 3 * * *", "rotation_window": "1h"})
		before := n.storedRoot()
		time.Sleep(5 * time.Hour) // no node was running at three
		n.run(time.Minute)
		if n.storedRoot() != before {
			t.Errorf("rotated outside of the window")
		}
		time.Sleep(22*time.Hour + time.Minute)
		n.run(time.Minute)
		if n.storedRoot() == before {
			t.Errorf("not rotated in the next window")
		}
	})
}

func TestRotateRoot_FailuresAreTriedAgainAndTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newAccount(), fields{"rotation_period": "24h"})
		before := n.storedRoot()
		time.Sleep(24 * time.Hour)
		n.in.fail = func(action, _ string, _ bool) error { return refuse(aws.Denied, action, "AccessDenied") }
		n.run(3 * time.Hour)
		if calls := n.in.total(); calls < 4 || calls > 20 {
			t.Errorf("the provider was called %d times in three hours", calls)
		}
		failed, err := getRotation(t.Context(), n.Mount.Mount.Storage)
		if err != nil || failed.Failures < 4 || !strings.Contains(failed.LastError, "AccessDenied") {
			t.Errorf("stored are %d failures, the last %q: %v", failed.Failures, failed.LastError, err)
		}
		if data := n.Data(n.Must(engines.Read, "config/root", nil)); !strings.Contains(data["rotation_last_error"].(string), "AccessDenied") || data["rotation_failures"] == json.Number("0") {
			t.Errorf("config/root shows the failures %v, the last %q", data["rotation_failures"], data["rotation_last_error"])
		}
		n.in.fail = nil
		n.run(2 * time.Hour)
		if n.storedRoot() == before {
			t.Errorf("never rotated")
		}
		checkRoot(t, n)
	})
}

func TestRotateRoot_WithTheProvidersOwnWords(t *testing.T) {
	r := newRig(t, nil)
	key, secret := r.aws.Root()
	r.aws.Forget()
	data := r.Data(r.Must(engines.Update, "config/rotate-root", nil))
	keys := r.aws.Keys("root-user")
	if len(keys) != 1 || keys[0].ID == key || data["access_key"] != keys[0].ID {
		t.Errorf("rotate-root answered %v, the user has %d keys", data, len(keys))
	}
	if read := r.Data(r.Must(engines.Read, "config/root", nil)); read["access_key"] != keys[0].ID || read["key_created_at"] == nil {
		t.Errorf("config/root reads %v", read)
	}
	want := []string{"GetUser", "ListAccessKeys", "CreateAccessKey", "GetCallerIdentity", "DeleteAccessKey"}
	if got := r.aws.Actions(); !slices.Equal(got, want) {
		t.Errorf("calls are %v, want %v", got, want)
	}
	if r.arn(map[string]any{"access_key": key, "secret_key": secret}) != "" {
		t.Errorf("the old key still works")
	}
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp) // with the new key
}

func TestRotateRoot_LostAnswersOnTheWire(t *testing.T) {
	for _, action := range []string{"GetUser", "ListAccessKeys", "CreateAccessKey", "GetCallerIdentity", "DeleteAccessKey"} {
		for _, moment := range []awstest.Moment{awstest.BeforeCommit, awstest.AfterCommit} {
			r := newRig(t, nil)
			r.aws.FailNext(1, action, awstest.Fault{Drop: true, When: moment})
			_, err := r.Do(engines.Update, "config/rotate-root", nil)
			if action == "GetCallerIdentity" || action == "DeleteAccessKey" { // which are tried again at once
				if err != nil {
					t.Errorf("%s lost: %v", action, err)
				}
			} else if kindOf(err) != engines.KindUpstream {
				t.Errorf("%s lost: %v, want a 502", action, err)
			}
			r.aws.Fail(nil)
			if err != nil {
				// Later, when it is certain what there is.
				_, err := storage.Update(t.Context(), r.Mount.Mount.Storage, func(txn *storage.Txn) error {
					n, err := getRotation(t.Context(), txn)
					if err != nil {
						return err
					}
					if (n.Pending != nil) != (action == "CreateAccessKey") {
						t.Errorf("%s lost: unfinished is %v", action, n.Pending != nil)
					}
					if n.Pending != nil {
						n.Pending.Until = n.Pending.Until.Add(-accesskey.SurelyListed)
					}
					return engines.PutRecord(txn, rotationKey, n)
				})
				if err != nil {
					t.Fatal(err)
				}
				r.Must(engines.Update, "config/rotate-root", nil)
			}
			read := r.Data(r.Must(engines.Read, "config/root", nil))
			if keys := r.aws.Keys("root-user"); len(keys) != 1 || keys[0].ID != read["access_key"] {
				t.Errorf("%s lost: the user has %d keys, want the one that is stored", action, len(keys))
			}
		}
	}
}

// TestRootKeyThatOnlyTheServerKnewIsWarnedOf: a write that leaves it out, or is of another one, forgets it.
func TestRootKeyThatOnlyTheServerKnewIsWarnedOf(t *testing.T) {
	for name, config := range map[string]fields{
		"another key": {"access_key": "AKIAOTHEROTHEROTHERO", "secret_key": "x"}, "only the region": {"region": "eu-west-1"},
	} {
		n := newNode(t, newAccount(), nil)
		n.Must(engines.Update, "config/rotate-root", nil)
		wantWarning(t, n.Must(engines.Update, "config/root", config), "delete it at the provider ("+n.in.ids("root")[0]+")")
		if resp := n.Must(engines.Update, "config/root", config); resp != nil && strings.Contains(strings.Join(resp.Warnings, ""), "rotation made") {
			t.Errorf("%s: warned again: %q", name, resp.Warnings)
		}
	}
}

// A key that is configured while the new one is being verified takes precedence.
func TestRotateRoot_AnotherKeyConfiguredAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("other")
		n := newNode(t, in, nil)
		old := n.storedRoot()
		other := in.addKey("other")
		time.Sleep(time.Hour)
		in.fail = func(action, _ string, done bool) error {
			if action == "GetCallerIdentity" && done {
				n.Must(engines.Update, "config/root", fields{"access_key": other.AccessKey, "secret_key": other.SecretKey.Reveal()})
			}
			return nil
		}
		if _, err := n.Do(engines.Update, "config/rotate-root", nil); err == nil {
			t.Errorf("rotate-root answers a key that is not in use")
		}
		in.fail = nil
		n.run(5 * time.Minute)
		if got := n.storedRoot().ID; got != other.AccessKey {
			t.Errorf("stored is %s, configured was %s", got, other.AccessKey)
		}
		if ids := in.ids("root"); !slices.Equal(ids, []string{old.ID}) || n.left() != nil {
			t.Errorf("the user has the keys %v, and there are the records %v", ids, n.left())
		}
	})
}
