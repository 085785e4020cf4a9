package cloud

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/storage"
)

var dailyApp = fields{"username": "app", "rotation_period": "24h"}

func TestStaticRole_OnCreateTheServiceCreatesANewCredential(t *testing.T) {
	r := newRig(t, nil)
	user := r.aws.AddUser("app")
	data := r.Data(r.Must(engines.Update, "static-roles/app", fields{"username": "app", "rotation_period": 86400}))
	for field, want := range map[string]string{"name": "app", "id": user.ID, "username": "app", "rotation_period": "86400", "rotation_failures": "0", "last_error": ""} {
		if got := fmt.Sprint(data[field]); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	if got := r.Data(r.Must(engines.Read, "static-roles/app", nil)); fmt.Sprint(got) != fmt.Sprint(data) {
		t.Errorf("read answers %v, create answered %v", got, data)
	}
	creds := r.Data(r.Must(engines.Read, "static-creds/app", nil))
	if arn := r.arn(creds); !strings.HasSuffix(arn, ":user/app") {
		t.Errorf("the credential is of %q", arn)
	}
	expires, err := time.Parse(time.RFC3339, creds["expiration"].(string))
	if err != nil || creds["expiration"] != data["next_rotation"] || len(creds) != 3 {
		t.Errorf("static-creds answers %v, next_rotation is %v", creds, data["next_rotation"])
	}
	if in := time.Until(expires); in < 23*time.Hour || in > 24*time.Hour {
		t.Errorf("it expires in %v", in)
	}
	if !slices.Equal(r.Must(engines.List, "static-roles", nil).Data.(map[string]any)["keys"].([]string), []string{"app"}) {
		t.Errorf("the static role is not listed")
	}
	if strings.Contains(fmt.Sprint(data), creds["secret_key"].(string)) {
		t.Errorf("the read of the role shows the secret")
	}
}

func TestStaticRole_RotatesTheOldestWhenTheMaximumExists(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	oldest := r.aws.AddKey("app")
	r.aws.Advance(time.Minute)
	newer := r.aws.AddKey("app")
	r.aws.Advance(time.Minute)
	wantWarning(t, r.Must(engines.Update, "static-roles/app", dailyApp), "the oldest was deleted")
	first := r.Data(r.Must(engines.Read, "static-creds/app", nil))
	if keys := r.aws.Keys("app"); len(keys) != 2 || keys[0].ID == oldest.ID || keys[0].ID != newer.ID {
		t.Errorf("keys %v, want the newer one and ours", keys)
	}
	r.aws.Advance(time.Minute)
	r.Must(engines.Update, "static-roles/app/rotate", nil)
	second := r.Data(r.Must(engines.Read, "static-creds/app", nil))
	if r.arn(first) == "" || r.arn(second) == "" || first["access_key"] == second["access_key"] {
		t.Errorf("after a rotation, the new key and the one before must both work")
	}
	r.aws.Advance(time.Minute)
	r.Must(engines.Update, "static-roles/app/rotate", nil)
	if r.arn(first) != "" || r.arn(second) == "" {
		t.Errorf("after two rotations, the oldest must be gone and the one before must work")
	}
}

func TestStaticRole_LostAnswersOnTheWire(t *testing.T) {
	for _, action := range []string{"GetUser", "ListAccessKeys", "CreateAccessKey"} {
		for _, moment := range []awstest.Moment{awstest.BeforeCommit, awstest.AfterCommit} {
			r := newRig(t, nil)
			r.aws.AddUser("app")
			r.aws.FailNext(1, action, awstest.Fault{Drop: true, When: moment})
			if _, err := r.Do(engines.Update, "static-roles/app", dailyApp); kindOf(err) != engines.KindUpstream {
				t.Errorf("%s lost: %v, want a 502", action, err)
			}
			r.aws.Fail(nil)
			r.Must(engines.Update, "static-roles/app", dailyApp)
			if keys := r.aws.Keys("app"); len(keys) != 1 || r.arn(r.Data(r.Must(engines.Read, "static-creds/app", nil))) == "" {
				t.Errorf("%s lost: the user has %d keys, want the one that is stored", action, len(keys))
			}
		}
	}
}

func TestStaticRole_Errors(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp)
	r.aws.AddUser("other")
	tests := []struct {
		name, path string
		body       fields
		want       []string
	}{
		{"rotation_period minimum 1 minute", "static-roles/new", fields{"username": "other", "rotation_period": "59s"}, []string{"rotation_period", "a minute"}},
		{"rotation_period zero", "static-roles/new", fields{"username": "other", "rotation_period": 0}, []string{"rotation_period"}},
		{"username and rotation_period required", "static-roles/new", fields{}, []string{"username", "rotation_period"}},
		{"username malformed", "static-roles/new", fields{"username": "a/b", "rotation_period": 60}, []string{"username"}},
		{"all problems at once", "static-roles/new", fields{"username": "a b", "rotation_period": 1, "assume_role_arn": "x", "external_id": "x"}, []string{"username", "rotation_period", "assume_role_arn", "external_id"}},
		{"name", "static-roles/-", dailyApp, []string{"name"}},
		{"username changed", "static-roles/app", fields{"username": "other"}, []string{"username", "cannot be changed"}},
		{"period on update", "static-roles/app", fields{"rotation_period": "1s"}, []string{"rotation_period"}},
		{"role to assume changed", "static-roles/app", fields{"assume_role_arn": "arn:aws:iam::123456789012:role/x"}, []string{"assume_role_arn", "cannot be changed"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r.aws.Forget()
			text := r.Fails(engines.KindInvalid, engines.Update, test.path, test.body)
			for _, part := range test.want {
				if !strings.Contains(text, part) {
					t.Errorf("error %q says nothing of %q", text, part)
				}
			}
			if actions := r.aws.Actions(); actions != nil {
				t.Errorf("the provider was asked: %v", actions)
			}
		})
	}
	for _, path := range []string{"static-roles/none", "static-creds/none"} {
		r.Fails(engines.KindNotFound, engines.Read, path, nil)
	}
	r.Fails(engines.KindNotFound, engines.Update, "static-roles/none/rotate", nil)
}

func TestStaticRole_WhatTheProviderRefusesLeavesNothing(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp)
	tests := []struct {
		name, user string
		fault      awstest.Fault
		action     string
		kind       engines.Kind
		want       string
	}{
		{"user missing", "nobody", awstest.Fault{}, "", engines.KindInvalid, "no IAM user"},
		{"user of another static role", "app", awstest.Fault{}, "", engines.KindInvalid, `static role "app"`},
		{"denied", "free", awstest.Fault{Code: "AccessDenied", Status: 403}, "CreateAccessKey", engines.KindInvalid, "CreateAccessKey"},
		{"throttled", "free", awstest.Fault{Code: "Throttling"}, "CreateAccessKey", engines.KindUpstream, "CreateAccessKey"},
		{"throttled early", "free", awstest.Fault{Code: "Throttling"}, "GetUser", engines.KindUpstream, "GetUser"},
	}
	r.aws.AddUser("free")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r.aws.FailNext(-1, test.action, test.fault)
			defer r.aws.Fail(nil)
			text := r.Fails(test.kind, engines.Update, "static-roles/new", fields{"username": test.user, "rotation_period": 60})
			if !strings.Contains(text, test.want) {
				t.Errorf("error %q says nothing of %q", text, test.want)
			}
			r.Fails(engines.KindNotFound, engines.Read, "static-roles/new", nil)
		})
	}
	if keys := r.aws.Keys("free"); keys != nil {
		t.Errorf("keys %v were made", keys)
	}
}

func TestStaticRole_DeleteRemovesTheKeyAndNotTheUser(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	foreign := r.aws.AddKey("app")
	r.aws.Advance(time.Minute)
	r.Must(engines.Update, "static-roles/app", dailyApp)
	wantWarning(t, r.Must(engines.Delete, "static-roles/app", nil), `the IAM user "app" is still there`)
	if keys := r.aws.Keys("app"); len(keys) != 1 || keys[0].ID != foreign.ID {
		t.Errorf("keys %v are left, want only the one that is not ours", keys)
	}
	r.Fails(engines.KindNotFound, engines.Read, "static-creds/app", nil)
	if resp := r.Must(engines.Delete, "static-roles/app", nil); resp != nil {
		t.Errorf("deleting what is not there answers %+v, want 204", resp)
	}
	r.Must(engines.Update, "static-roles/again", dailyApp)
}

func TestStaticRole_DeleteWhileTheProviderIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", dailyApp)
		in.fail = func(action, _ string, _ bool) error { return refuse(aws.Unavailable, action, "") }
		wantWarning(t, n.Must(engines.Delete, "static-roles/app", nil), "tried again")
		n.Fails(engines.KindNotFound, engines.Read, "static-roles/app", nil)
		n.run(3 * time.Hour)
		if calls := in.total(); calls > 40 {
			t.Errorf("the provider was called %d times in three hours", calls)
		}
		in.fail = nil
		n.run(2 * time.Hour)
		if ids := in.ids("app"); ids != nil || n.left() != nil {
			t.Errorf("left are the keys %v and the records %v", ids, n.left())
		}
	})
}

// Another static role may have the user as soon as the first one's key is gone, which it sees to itself.
func TestStaticRole_UserOfOneThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newAccount("app")
		n := newNode(t, in, nil)
		n.Must(engines.Update, "static-roles/app", dailyApp)
		in.fail = func(action, _ string, _ bool) error { return refuse(aws.Unavailable, action, "") }
		n.Must(engines.Delete, "static-roles/app", nil)
		in.fail = nil
		n.Must(engines.Update, "static-roles/new", dailyApp)
		n.run(time.Hour)
		checkStatic(t, n, "new", "app")
		if ids := in.ids("app"); len(ids) != 1 {
			t.Errorf("the user has the keys %v", ids)
		}
	})
}

func TestStaticRole_UserRemovedAndMadeAgain(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp)
	r.aws.DropUser("app")
	r.aws.AddUser("app")
	if _, err := r.Do(engines.Update, "static-roles/app/rotate", nil); kindOf(err) != engines.KindInvalid || !strings.Contains(err.Error(), "made again") {
		t.Errorf("rotating the key of another user of the same name: %v", err)
	}
	if keys := r.aws.Keys("app"); keys != nil {
		t.Errorf("the other user got the keys %v", keys)
	}
	r.Must(engines.Delete, "static-roles/app", nil)
	r.Must(engines.Update, "static-roles/app", dailyApp)
}

func TestStaticRole_InAnotherAccount(t *testing.T) {
	r := newRig(t, nil)
	elsewhere := r.aws.In("210987654321")
	elsewhere.AddUser("app")
	arn := elsewhere.AddRole(awstest.Role{Name: "rotator", ExternalID: "ours"})
	in := fields{"username": "app", "rotation_period": "24h", "assume_role_arn": arn, "assume_role_session_name": "coffer", "external_id": "ours"}
	data := r.Data(r.Must(engines.Update, "static-roles/app", in))
	if data["assume_role_arn"] != arn || data["assume_role_session_name"] != "coffer" || data["external_id"] != "ours" {
		t.Errorf("the answer is %v", data)
	}
	if got := r.arn(r.Data(r.Must(engines.Read, "static-creds/app", nil))); !strings.Contains(got, "210987654321:user/app") {
		t.Errorf("the credential is of %q", got)
	}
	r.Must(engines.Update, "static-roles/app/rotate", nil)
	r.Must(engines.Delete, "static-roles/app", nil)
	if keys := elsewhere.Keys("app"); keys != nil {
		t.Errorf("keys %v are left", keys)
	}
}

// secondary is a store of shared data on a cluster that follows another.
type secondary struct{ storage.Store }

func (secondary) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrPrimaryOnly
}

func TestStaticRole_WritesOnASecondaryGoToThePrimaryBeforeAnyCall(t *testing.T) {
	n := newNode(t, newAccount("app", "other"), nil)
	n.Must(engines.Update, "static-roles/app", dailyApp)
	p := n.peer()
	p.Mount.Mount.Storage = secondary{p.Mount.Mount.Storage}
	before := n.in.total()
	for _, test := range []struct {
		op   engines.Operation
		path string
		body any
	}{
		{engines.Update, "static-roles/app", dailyApp},
		{engines.Update, "static-roles/new", fields{"username": "other", "rotation_period": 60}},
		{engines.Update, "static-roles/app/rotate", nil},
		{engines.Delete, "static-roles/app", nil},
		{engines.Update, "config/rotate-root", nil},
	} {
		if _, err := p.Do(test.op, test.path, test.body); !isPrimaryOnly(err) {
			t.Errorf("%s %s on a secondary: %v", test.op, test.path, err)
		}
		route, _, err := p.Engine.Router().Match(test.op, test.path)
		if err != nil || !route.Flags.Has(engines.Primary) {
			t.Errorf("%s %s is not declared as the primary's: %v", test.op, test.path, err)
		}
	}
	if err := p.Engine.(*engine).Work(t.Context(), p.Mount.Mount, false); err != nil {
		t.Errorf("Work: %v", err)
	}
	if calls := n.in.total() - before; calls != 0 {
		t.Errorf("the provider was called %d times", calls)
	}
	id, _ := n.key("app")
	if got, _ := p.key("app"); got != id {
		t.Errorf("the secondary reads the key %s, the primary %s", got, id)
	}
}

// TestStaticRole_KeyInAnotherAccountIsNotTakenForGone: root credentials of another account are configured meanwhile.
func TestStaticRole_KeyInAnotherAccountIsNotTakenForGone(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("app")
	r.Must(engines.Update, "static-roles/app", dailyApp)
	other := r.elsewhere()
	for _, taken := range []bool{false, true} {
		if taken {
			other.AddUser("app")
		}
		key := other.AddKey("admin")
		was, secret := r.aws.Root()
		r.setRoot(key.ID, key.Secret)
		wantWarning(t, r.Must(engines.Delete, "static-roles/app", nil), "210987654321")
		r.setRoot(was, secret)
		r.Must(engines.Update, "static-roles/app", dailyApp) // which removes what is left first
		if n := len(r.aws.Keys("app")); n != 1 {
			t.Errorf("the name is taken elsewhere: %v: the user has %d keys", taken, n)
		}
	}
}
