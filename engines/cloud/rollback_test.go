package cloud

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/storage"
)

// creations are the calls that make a user of the role dev, in order.
var creations = []string{"CreateUser", "AttachUserPolicy", "PutUserPolicy", "AddUserToGroup", "CreateAccessKey"}

func TestNothingIsLeftOfWhatFails(t *testing.T) {
	faults := map[string]awstest.Fault{
		"refused":        {Code: "AccessDenied"},
		"too much":       {Code: "LimitExceeded"},
		"throttled":      {Code: "Throttling"},
		"trouble":        {Status: 503, Code: "ServiceUnavailable"},
		"not reached":    {Drop: true},
		"answer lost":    {Drop: true, When: awstest.AfterCommit},
		"trouble after":  {Status: 500, Code: "InternalFailure", When: awstest.AfterCommit},
		"throttled then": {Code: "Throttling", When: awstest.AfterCommit},
	}
	r := newRig(t, nil).withUserRole()
	for name, fault := range faults {
		for _, action := range creations {
			t.Run(name+" "+action, func(t *testing.T) {
				r.t = t
				r.aws.Fail(func(c awstest.Call) awstest.Fault {
					if c.Action == action {
						return fault
					}
					return awstest.Fault{}
				})
				resp, err := r.Do(engines.Read, "creds/dev", nil)
				if err == nil {
					t.Fatalf("%s succeeded: %+v", action, resp)
				}
				r.aws.Fail(nil)
				r.later(settleTime)
				r.work()
				r.nothingLeft("after work")
			})
		}
	}
}

// TestNothingIsLeftAfterACrash: the process ends after a call at the provider, in the request that makes a user.
func TestNothingIsLeftAfterACrash(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	for _, action := range append([]string{"answered"}, creations...) {
		t.Run(action, func(t *testing.T) {
			r.t = t
			ctx, crash := context.WithCancel(t.Context())
			var dead atomic.Bool
			r.aws.Fail(func(c awstest.Call) awstest.Fault {
				switch {
				case dead.Load():
					return awstest.Fault{Drop: true}
				case c.Action == action:
					dead.Store(true)
					return awstest.Fault{Drop: true, When: awstest.AfterCommit, Then: crash}
				}
				return awstest.Fault{}
			})
			_, err := r.Handle(ctx, r.Request(engines.Read, "creds/dev", nil))
			crash()
			if (err == nil) != (action == "answered") {
				t.Fatalf("error %v", err)
			}
			r.aws.Fail(nil)
			next := r.peer()
			next.work()
			if len(next.notes()) != 1 {
				t.Errorf("notes right after the crash: %+v", next.notes())
			}
			next.later(settleTime)
			next.work()
			next.nothingLeft("after work")
		})
	}
}

// TestUserThatIsNotSeenYetIsNotForgotten: what was made is not found at first, neither when it is taken back.
func TestUserThatIsNotSeenYetIsNotForgotten(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.aws.Propagation(10 * time.Second)
	r.aws.FailNext(1, "AttachUserPolicy", awstest.Fault{Code: "AccessDenied"})
	if _, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
		t.Fatal("it succeeded")
	}
	if len(r.users()) != 1 || len(r.notes()) != 1 {
		t.Fatalf("users %v, notes %v", r.users(), r.notes())
	}
	r.later(settleTime)
	r.work()
	r.nothingLeft("after work")
}

func TestLostAnswerMakesNoSecondUser(t *testing.T) {
	r := newRig(t, fields{"max_retries": 2}).withUserRole()
	for _, action := range creations {
		r.aws.FailNext(1, action, awstest.Fault{Drop: true, When: awstest.AfterCommit})
		data, resp := r.issue("creds/dev", nil)
		names := r.users()
		if len(names) != 1 || len(r.aws.Keys(names[0])) != 1 || r.arn(data) == "" {
			t.Errorf("%s: users %v, keys %d, the key is of %q", action, names, len(r.aws.Keys(names[0])), r.arn(data))
		}
		if err := r.revoke(r.lease(resp, 0)); err != nil {
			t.Error(err)
		}
		r.nothingLeft(action)
	}
}

func TestWorkLeavesWhatIsNotDue(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	resp := r.Must(engines.Read, "creds/dev", nil) // and its lease is still to come
	r.aws.Forget()
	r.work()
	if len(r.users()) != 1 || len(r.aws.Calls()) != 0 {
		t.Errorf("users %v, calls %v", r.users(), r.aws.Actions())
	}
	r.leased(resp)
	r.later(time.Hour)
	r.work()
	if len(r.users()) != 1 {
		t.Error("a user with a lease was rolled back")
	}
}

func TestRollbackBacksOff(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, nil).withUserRole()
	e := r.Engine.(*engine)
	e.log = slog.New(slog.NewTextHandler(&log, nil))
	r.aws.FailNext(1, "AttachUserPolicy", awstest.Fault{Code: "Throttling"})
	if _, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
		t.Fatal("it succeeded")
	}
	r.later(settleTime)
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		if c.Action == "DeleteUser" {
			return awstest.Fault{Code: "AccessDenied", Message: "no"}
		}
		return awstest.Fault{}
	})
	for attempt := 1; attempt <= patience+3; attempt++ {
		r.work()
		n := r.notes()[0]
		wait := time.Until(n.Next)
		least, most := min(minBack<<min(attempt-1, 10), maxBack)*4/5-time.Second, min(minBack<<min(attempt-1, 10), maxBack)
		if n.Attempts != attempt || wait < least || wait > most {
			t.Fatalf("attempt %d: %d attempts, next in %v, want %v to %v", attempt, n.Attempts, wait, least, most)
		}
		r.work()
		if r.notes()[0].Attempts != attempt {
			t.Fatal("tried again before its time")
		}
		r.later(wait)
	}
	if got := strings.Count(log.String(), "level=ERROR"); got != 1 {
		t.Errorf("%d errors in the log, want one a day", got)
	}
	r.later(dailyNews)
	r.work()
	if got := strings.Count(log.String(), "level=ERROR"); got != 2 {
		t.Errorf("%d errors in the log on the second day", got)
	}
	info := r.Data(r.Must(engines.List, "rollbacks", nil))
	id := info["keys"].([]any)[0].(string)
	one := r.Data(r.Must(engines.Read, "rollbacks/"+id, nil))
	if fmt.Sprint(info["key_info"].(map[string]any)[id]) != fmt.Sprint(one) {
		t.Errorf("list %v, read %v", info, one)
	}
	if one["kind"] != kindUser || one["user"] != r.users()[0] || fmt.Sprint(one["attempts"]) != fmt.Sprint(patience+4) || !strings.HasPrefix(one["last_error"].(string), "DeleteUser: AccessDenied") {
		t.Errorf("read %v", one)
	}
	r.aws.Fail(nil)
	r.later(maxBack)
	r.work()
	r.nothingLeft("when it may be removed at last")
	if _, err := r.Do(engines.List, "rollbacks", nil); err == nil {
		t.Error("an empty list is not a 404")
	}
	if e.counts.RolledBack.Load() != 1 {
		t.Errorf("counted %d", e.counts.RolledBack.Load())
	}
}

func TestThrottlingEndsTheRound(t *testing.T) {
	r := newRig(t, nil)
	for i := range 5 {
		if _, err := note(t.Context(), r.Mount.Mount, made{Name: fmt.Sprint("vault-", i)}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r.aws.Fail(func(awstest.Call) awstest.Fault { return awstest.Fault{Code: "Throttling"} })
	r.aws.Forget()
	r.work()
	if n := len(r.aws.Calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
	r.aws.Fail(nil)
	r.later(time.Hour)
	r.work()
	r.nothingLeft("users that never were")
}

func TestWorkGoesOnAfterANoteOfAnotherVersion(t *testing.T) {
	r := newRig(t, nil)
	_, err := r.Mount.Mount.ClusterStorage.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: rollbackPrefix + "0", Value: []byte(`{"format":2}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := note(t.Context(), r.Mount.Mount, made{Name: "vault-1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.work()
	if notes := r.notes(); len(notes) != 1 || notes[0].Format != 2 {
		t.Errorf("notes %+v", notes)
	}
}

// primaryElsewhere is the Storage of a mount that another cluster writes.
type primaryElsewhere struct{ storage.Store }

func (primaryElsewhere) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrPrimaryOnly
}

// TestSecondaryIssuesByItself: a performance secondary reads the roles and writes only what is its own.
func TestSecondaryIssuesByItself(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.Mount.Mount.Storage = primaryElsewhere{r.Mount.Mount.Storage}
	data, resp := r.issue("creds/dev", nil)
	if r.arn(data) == "" {
		t.Error("the credentials are not good for anything")
	}
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Error(err)
	}
	r.aws.FailNext(1, "CreateAccessKey", awstest.Fault{Code: "Throttling"})
	if _, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
		t.Error("it succeeded")
	}
	r.later(settleTime)
	if err := r.Engine.(engines.Worker).Work(t.Context(), r.Mount.Mount, false); err != nil {
		t.Error(err)
	}
	r.nothingLeft("on the secondary")
	for _, route := range r.Engine.Router().Routes() {
		if strings.HasPrefix(route.Pattern, "creds/") || strings.HasPrefix(route.Pattern, "sts/") {
			if !route.Flags.Has(engines.ClusterLocal | engines.Active) {
				t.Errorf("%s %s leaves the cluster", route.Op, route.Pattern)
			}
		}
	}
}

func TestRevocationRemovesEverything(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	data, resp := r.issue("creds/dev", nil)
	name := r.users()[0]
	r.aws.AddKey(name)
	r.aws.AddLoginProfile(name)
	r.aws.AddMFADevice(name, "")
	r.aws.AddCertificate(name)
	r.aws.AddSSHKey(name)
	r.aws.AddServiceCredential(name)
	r.aws.AddGroup(awstest.Group{Name: "more"})
	r.aws.Attach(name, "arn:aws:iam::aws:policy/job-function/Billing")
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Fatal(err)
	}
	r.nothingLeft("revoked")
	if r.arn(data) != "" || len(r.aws.VirtualDevices()) != 0 {
		t.Errorf("the key is of %q, devices %v", r.arn(data), r.aws.VirtualDevices())
	}
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Errorf("again: %v", err)
	}
	if n := r.Engine.(*engine).counts.Revoked.Load(); n != 1 {
		t.Errorf("counted %d", n)
	}
}

// TestRevocationThatFailsSaysWhy: the reason goes into the list of irrevocable leases.
func TestRevocationThatFailsSaysWhy(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	_, resp := r.issue("creds/dev", nil)
	for _, tt := range []struct {
		fault awstest.Fault
		kind  engines.Kind
		text  string
	}{
		{awstest.Fault{Code: "AccessDenied", Message: "not you"}, engines.KindInvalid, "DeleteUser: AccessDenied: not you"},
		{awstest.Fault{Code: "Throttling", Message: "slowly"}, engines.KindUpstream, "Throttling"},
	} {
		r.aws.FailNext(1, "DeleteUser", tt.fault)
		err := r.revoke(r.lease(resp, time.Hour))
		if e, ok := err.(*engines.Error); !ok || e.Kind != tt.kind || !strings.Contains(e.Detail, tt.text) {
			t.Errorf("%v", err)
		}
	}
	r.aws.Fail(nil)
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Error(err)
	}
	r.nothingLeft("revoked")
	bad := []engines.LeaseRecord{{Kind: kindUser}, {Kind: "other", Internal: resp.Lease.Internal}, {Kind: kindUser, Internal: []byte(`{"format":2,"user":"x"}`)}}
	if slices.ContainsFunc(bad, func(l engines.LeaseRecord) bool { return r.revoke(l) == nil }) {
		t.Error("a lease of another engine or version was revoked")
	}
}

// TestUserOfAnotherAccountIsNotTakenForGone: root credentials of another account are configured meanwhile.
func TestUserOfAnotherAccountIsNotTakenForGone(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	_, resp := r.issue("creds/dev", nil)
	other := r.elsewhere()
	key := other.AddKey("admin")
	was, secret := r.aws.Root()
	r.setRoot(key.ID, key.Secret)
	err := r.revoke(r.lease(resp, time.Hour))
	if e, ok := err.(*engines.Error); !ok || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, "210987654321") {
		t.Errorf("%v", err)
	}
	r.setRoot(was, secret)
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Error(err)
	}
	r.nothingLeft("revoked")
}

// TestUserOfACrashIsUndoneInItsAccountOnly: root credentials of another account are configured after the crash, where another
// client's user has the name.
func TestUserOfACrashIsUndoneInItsAccountOnly(t *testing.T) {
	for _, taken := range []bool{false, true} {
		r := newRig(t, nil).withUserRole()
		other := r.elsewhere()
		key := other.AddKey("admin")
		was, secret := r.aws.Root()
		ctx, crash := context.WithCancel(t.Context())
		r.aws.Fail(func(c awstest.Call) awstest.Fault {
			if c.Action != "CreateUser" {
				return awstest.Fault{}
			}
			return awstest.Fault{Drop: true, When: awstest.AfterCommit, Then: crash}
		})
		if _, err := r.Handle(ctx, r.Request(engines.Read, "creds/dev", nil)); err == nil {
			t.Fatal("it succeeded")
		}
		r.aws.Fail(nil)
		name := r.users()[0]
		if taken {
			other.AddUser(name)
		}
		next := r.peer()
		r.setRoot(key.ID, key.Secret)
		next.later(settleTime)
		next.work()
		if notes := next.notes(); len(notes) != 1 || !strings.Contains(notes[0].LastError, "210987654321") {
			t.Errorf("taken %v: notes %+v", taken, notes)
		}
		if _, there := other.User(name); there != taken {
			t.Errorf("taken %v: the other account's user is there: %v", taken, there)
		}
		r.setRoot(was, secret)
		next.later(maxBack)
		next.work()
		next.nothingLeft("with the former root credentials")
	}
}

// TestUserOfAnotherAccountIsNotRemovedUnseen: root credentials that may not look at users, but may remove them.
func TestUserOfAnotherAccountIsNotRemovedUnseen(t *testing.T) {
	r := newRig(t, nil)
	r.aws.AddUser("bob")
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		if c.Action == "GetUser" {
			return awstest.Fault{Code: "AccessDenied"}
		}
		return awstest.Fault{}
	})
	elsewhere := made{Name: "bob", ID: "AIDAOURS", Account: "210987654321", Since: time.Now()}
	if _, err := note(t.Context(), r.Mount.Mount, elsewhere, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.work()
	if _, there := r.aws.User("bob"); !there || len(r.notes()) != 1 {
		t.Errorf("the user is there: %v, notes %+v", there, r.notes())
	}
}

// TestUsersAreMadeAlthoughNobodyKnowsTheAccount: STS is not needed for users.
func TestUsersAreMadeAlthoughNobodyKnowsTheAccount(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		if c.Action == "GetCallerIdentity" {
			return awstest.Fault{Drop: true}
		}
		return awstest.Fault{}
	})
	r.aws.Forget()
	for range 2 {
		r.issue("creds/dev", nil)
	}
	if n := r.called("GetCallerIdentity"); n != 1 {
		t.Errorf("the provider was asked %d times who we are", n)
	}
}

// TestAnyFaultsLeaveNothing: whatever fails, in the end the users are those that leases stand for.
func TestAnyFaultsLeaveNothing(t *testing.T) {
	r := newRig(t, fields{"max_retries": 1}).withUserRole()
	kinds := []awstest.Fault{
		{Code: "Throttling"}, {Status: 503, Code: "ServiceUnavailable"}, {Drop: true},
		{Drop: true, When: awstest.AfterCommit}, {Status: 500, Code: "InternalFailure", When: awstest.AfterCommit},
	}
	for seed := range uint64(8) {
		var mu sync.Mutex
		dice := rand.New(rand.NewPCG(seed, 0))
		r.aws.Fail(func(awstest.Call) awstest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if dice.IntN(4) > 0 {
				return awstest.Fault{}
			}
			return kinds[dice.IntN(len(kinds))]
		})
		var leases []engines.LeaseRecord
		for range 3 {
			if resp, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
				r.leased(resp)
				leases = append(leases, r.lease(resp, time.Hour))
			}
		}
		r.later(settleTime)
		r.work()
		r.aws.Fail(nil)
		r.later(2 * maxBack)
		r.work()
		if got := r.users(); len(got) != len(leases) || r.notes() != nil {
			t.Fatalf("seed %d: %d leases, users %v, notes %+v", seed, len(leases), got, r.notes())
		}
		for _, name := range r.users() {
			if n := len(r.aws.Keys(name)); n != 1 {
				t.Errorf("seed %d: a user has %d keys", seed, n)
			}
		}
		for _, l := range leases {
			if err := r.revoke(l); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
		r.nothingLeft(fmt.Sprint("seed ", seed))
	}
}

// leave is what the server does before the mount goes.
func (r *rig) leave() error {
	return r.Engine.(engines.Leaver).Leave(r.t.Context(), r.Mount.Mount)
}

func TestMountTakesItsRollbacksAlong(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	for _, action := range creations {
		r.aws.FailNext(1, action, awstest.Fault{Code: "Throttling", When: awstest.AfterCommit})
		if _, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
			t.Fatalf("%s succeeded", action)
		}
	}
	r.aws.Fail(nil)
	if len(r.users()) != len(creations) || len(r.notes()) != len(creations) {
		t.Fatalf("users %v, notes %v", r.users(), r.notes())
	}
	// One cannot be removed: the others are, and the mount stays.
	stuck := r.notes()[0].Name
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		if c.Action == "DeleteUser" && c.Params["UserName"] == stuck {
			return awstest.Fault{Code: "AccessDenied"}
		}
		return awstest.Fault{}
	})
	err := r.leave()
	if e, ok := err.(*engines.Error); !ok || e.Kind != engines.KindUpstream || !strings.Contains(e.Detail, stuck) {
		t.Errorf("%v", err)
	}
	if users, notes := r.users(), r.notes(); len(users) != 1 || len(notes) != 1 || notes[0].Attempts != 1 {
		t.Errorf("users %v, notes %+v", users, notes)
	}
	r.aws.Fail(nil)
	if err := r.leave(); err != nil {
		t.Error(err)
	}
	r.nothingLeft("left")
}

func TestMountIsNotKeptForEver(t *testing.T) {
	r := newRig(t, nil)
	if _, err := note(t.Context(), r.Mount.Mount, made{Name: "vault-1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.aws.Fail(func(awstest.Call) awstest.Fault { return awstest.Fault{Code: "InvalidClientTokenId"} })
	if r.leave() == nil {
		t.Error("a user was left behind")
	}
	var log bytes.Buffer
	r.Engine.(*engine).log = slog.New(slog.NewTextHandler(&log, nil))
	r.later(accesskey.KeepTime + time.Minute)
	if err := r.leave(); err != nil || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("after a day: %v, log %q", err, log.String())
	}
}

// TestMountWaitsForAUserThatMayComeToBeSeen: a note that is young says of a user that is not found nothing yet.
func TestMountWaitsForAUserThatMayComeToBeSeen(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.aws.Propagation(time.Hour)
	r.aws.FailNext(1, "AttachUserPolicy", awstest.Fault{Code: "AccessDenied"})
	if _, err := r.Do(engines.Read, "creds/dev", nil); err == nil {
		t.Fatal("it succeeded")
	}
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		if c.Action == "GetUser" { // not seen this time, but the next
			return awstest.Fault{When: awstest.AfterCommit, Code: "NoSuchEntity", Then: func() { r.aws.Fail(nil); r.aws.Advance(time.Hour) }}
		}
		return awstest.Fault{}
	})
	r.change(func(n *rollback) { n.CreatedAt = time.Now().Add(time.Second - accesskey.SeenTime) })
	if err := r.leave(); err != nil {
		t.Error(err)
	}
	r.nothingLeft("left")
}

// TestUsersOfOthersSurviveRollbacks: without a look at a user, or a tag of ours on it, the name alone proves nothing.
func TestUsersOfOthersSurviveRollbacks(t *testing.T) {
	begun := time.Now()
	tests := []struct {
		name   string
		note   made
		denied bool // to look
		stays  bool
	}{
		{"not to be looked at", made{Tag: "ours", Since: begun}, true, true},
		{"known to be ours, not to be looked at", made{ID: "AIDAOURS", Tag: "ours", Since: begun}, true, false},
		{"made before ours, without tags", made{Since: begun.Add(time.Hour)}, false, true},
		{"made after ours, without tags", made{Since: begun.Add(-time.Hour)}, false, true},
		{"made with ours, without tags", made{Since: begun}, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.aws.AddUser("bob")
			if tt.denied {
				r.aws.FailNext(1, "GetUser", awstest.Fault{Code: "AccessDenied"})
			}
			tt.note.Name = "bob"
			if _, err := note(t.Context(), r.Mount.Mount, tt.note, time.Now()); err != nil {
				t.Fatal(err)
			}
			r.work()
			if _, ok := r.aws.User("bob"); ok != tt.stays {
				t.Errorf("the user is there: %v, want %v", ok, tt.stays)
			}
			if pending := len(r.notes()) == 1; pending != (tt.denied && tt.stays) {
				t.Errorf("notes: %+v", r.notes())
			}
		})
	}
}

// TestLeaveWaitsForWhoIsMakingAUser: the server waits for requests too, but for less than they may take.
func TestLeaveWaitsForWhoIsMakingAUser(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	begun, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.aws.Fail(func(c awstest.Call) awstest.Fault {
		if c.Action == "CreateUser" {
			once.Do(func() {
				close(begun)
				time.Sleep(4 * leavePause)
			})
		}
		return awstest.Fault{}
	})
	go func() {
		defer close(ended)
		_, _ = r.Do(engines.Read, "creds/dev", nil)
	}()
	<-begun
	// The note is so old that NotFound would be accepted.
	r.change(func(n *rollback) { n.CreatedAt = n.CreatedAt.Add(-accesskey.SeenTime) })
	if err := r.leave(); err != nil {
		t.Fatal(err)
	}
	<-ended
	r.nothingLeft("left")
}
