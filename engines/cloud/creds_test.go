package cloud

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/enginetest"
)

func TestUserHasWhatTheRoleSays(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.Must(engines.Update, "config/lease", fields{"lease": "20m", "lease_max": "2h"})
	for _, path := range []string{"creds/dev", "sts/dev"} {
		for _, op := range []engines.Operation{engines.Read, engines.Update} {
			resp := r.Must(op, path, nil)
			data := r.Data(resp)
			if len(r.notes()) != 1 {
				t.Fatalf("%s: notes before the lease: %v", path, r.notes())
			}
			r.leased(resp)
			names := r.users()
			if len(names) != 1 {
				t.Fatalf("%s: users %v", path, names)
			}
			u, _ := r.aws.User(names[0])
			if got := r.arn(data); got != u.ARN || !strings.Contains(got, ":user/coffer/vault-somebody-dev-") {
				t.Errorf("%s: the credentials are of %q, the user is %q", path, got, u.ARN)
			}
			if u.Boundary != somePolicies || !reflect.DeepEqual(u.Policies, []string{somePolicies}) || !reflect.DeepEqual(u.Groups, []string{"devs"}) {
				t.Errorf("%s: the user is %+v", path, u)
			}
			if u.Tags["team"] != "x" || u.Inline["dev"] != somePolicy || len(u.Keys) != 1 {
				t.Errorf("%s: tags %v, policies %v, %d keys", path, u.Tags, u.Inline, len(u.Keys))
			}
			want := map[string]any{"access_key": u.Keys[0].ID, "secret_key": u.Keys[0].Secret, "security_token": nil, "session_token": nil}
			if !reflect.DeepEqual(data, want) {
				t.Errorf("%s: the answer has other fields or values than those of the key: %d", path, len(data))
			}
			if l := resp.Lease; l.TTL != 20*time.Minute || l.MaxTTL != 2*time.Hour || !l.Renewable || l.Kind == "" {
				t.Errorf("%s: lease %+v", path, l)
			}
			if strings.Contains(string(resp.Lease.Internal), u.Keys[0].Secret) {
				t.Error("the lease keeps the secret")
			}
			if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
				t.Error(err)
			}
			r.nothingLeft(path)
			if r.arn(data) != "" {
				t.Errorf("%s: the key works after the lease was revoked", path)
			}
		}
	}
}

func TestRenewalGoesByTheTermsOfNow(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	_, resp := r.issue("creds/dev", nil)
	r.Must(engines.Update, "config/lease", fields{"lease": "5m", "lease_max": "7m"})
	got, err := r.Engine.(engines.Leaser).RenewLease(t.Context(), r.Mount.Mount, r.lease(resp, 0))
	if err != nil || got.TTL != 5*time.Minute || got.MaxTTL != 7*time.Minute || !got.Renewable {
		t.Errorf("%+v, %v", got, err)
	}
}

// wantSession checks temporary credentials.
func (r *rig) wantSession(resp *engines.Response, ttl time.Duration, arn string) {
	r.t.Helper()
	data := r.Data(resp)
	l := resp.Lease
	if l == nil || l.Kind != "" || l.Renewable || l.TTL > ttl || l.TTL < ttl-30*time.Second {
		r.t.Errorf("lease %+v, want %v and nothing stored", l, ttl)
	}
	if got := fmt.Sprint(data["ttl"]); got != fmt.Sprint(int64(l.TTL/time.Second)) {
		r.t.Errorf("ttl %v of a lease of %v", got, l.TTL)
	}
	if data["security_token"] == "" || data["security_token"] != data["session_token"] {
		r.t.Error("security_token and session_token differ")
	}
	if got := r.arn(data); !strings.HasPrefix(got, arn) || got == "" {
		r.t.Errorf("the credentials are of %q, want %q", got, arn)
	}
	if r.notes() != nil {
		r.t.Error("something was noted")
	}
}

func TestAssumedRole(t *testing.T) {
	r := newRig(t, nil)
	one := r.aws.AddRole(awstest.Role{Name: "one", ExternalID: "ext-1", MaxTTL: 2 * time.Hour})
	two := r.aws.AddRole(awstest.Role{Name: "two", ExternalID: "ext-1", MaxTTL: 2 * time.Hour})
	r.role("ops", fields{"credential_type": role.AssumedRole, "role_arns": []string{one}, "external_id": "ext-1"})
	r.role("both", fields{"credential_type": role.AssumedRole, "role_arns": []string{one, two}, "external_id": "ext-1", "default_sts_ttl": "20m", "max_sts_ttl": "90m"})

	session := "arn:aws:sts::" + r.aws.ID + ":assumed-role/"
	resp := r.Must(engines.Read, "creds/ops", nil)
	r.wantSession(resp, time.Hour, session+"one/vault-somebody-ops-")
	if r.Data(resp)["arn"] != r.arn(r.Data(resp)) {
		t.Error("arn is another one")
	}
	r.wantSession(r.Must(engines.Update, "sts/ops", fields{"ttl": "2h", "role_session_name": "bob ross"}), 2*time.Hour, session+"one/bob_ross")
	r.wantSession(r.Must(engines.Read, "sts/ops?ttl=1800&role_session_name="+strings.Repeat("n", 70), nil), 30*time.Minute, session+"one/"+strings.Repeat("n", 64))
	r.wantSession(r.Must(engines.Update, "creds/both?role_arn="+two, nil), 20*time.Minute, session+"two/")
	r.wantSession(r.Must(engines.Update, "creds/both", fields{"role_arn": two, "ttl": "2h"}), 90*time.Minute, session+"two/")

	r.Fails(engines.KindInvalid, engines.Read, "creds/both", nil)
	r.Fails(engines.KindInvalid, engines.Read, "creds/ops?role_arn="+two, nil)
}

func TestFederationToken(t *testing.T) {
	r := newRig(t, nil)
	r.role("fed", fields{"credential_type": role.FederationToken, "policy_document": somePolicy, "policy_arns": somePolicies})
	r.aws.Forget()
	resp := r.Must(engines.Update, "sts/fed", fields{"ttl": "3h"})
	r.wantSession(resp, 3*time.Hour, "arn:aws:sts::"+r.aws.ID+":federated-user/vault-")
	call := r.aws.Calls()[0]
	if len(call.Params["Name"]) != 32 || call.Params["Policy"] != somePolicy || call.Params["PolicyArns.member.1.arn"] != somePolicies {
		t.Errorf("asked for %v", call.Params)
	}
}

func TestSessionToken(t *testing.T) {
	r := newRig(t, nil)
	serial, code := r.aws.AddMFADevice("root-user", "")
	r.role("me", fields{"credential_type": role.SessionToken})
	r.role("mfa", fields{"credential_type": role.SessionToken, "mfa_serial_number": serial})
	r.wantSession(r.Must(engines.Read, "creds/me", nil), time.Hour, "arn:aws:iam::"+r.aws.ID+":user/root-user")
	r.wantSession(r.Must(engines.Update, "creds/mfa", fields{"mfa_code": code}), time.Hour, "arn:aws:iam::"+r.aws.ID+":user/root-user")
	r.Fails(engines.KindInvalid, engines.Update, "creds/mfa", nil)
	text := r.Fails(engines.KindInvalid, engines.Update, "creds/mfa", fields{"mfa_code": "000000"})
	if !strings.HasPrefix(text, "GetSessionToken: ") || strings.Contains(text, "000000") {
		t.Error(text)
	}
}

func TestCredentialsThroughOtherAccounts(t *testing.T) {
	r := newRig(t, nil)
	far := r.aws.In("210987654321")
	way := far.AddRole(awstest.Role{Name: "way"})
	end := far.AddRole(awstest.Role{Name: "end"})
	r.role("user", fields{"credential_type": role.IAMUser, "policy_arns": somePolicies, "assume_role_arns": way})
	r.role("role", fields{"credential_type": role.AssumedRole, "role_arns": end, "assume_role_arns": way})

	data, resp := r.issue("creds/user", nil)
	if got := r.arn(data); !strings.HasPrefix(got, "arn:aws:iam::210987654321:user/vault-") {
		t.Errorf("the user is %q", got)
	}
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil || len(far.Users()) != 0 {
		t.Errorf("%v; users %v", err, far.Users())
	}
	r.aws.FailNext(1, "CreateAccessKey", awstest.Fault{Code: "AccessDenied"})
	r.Handle(t.Context(), r.Request(engines.Read, "creds/user", nil)) //nolint:errcheck // it fails
	r.aws.Fail(nil)
	r.later(settleTime)
	r.work()
	if len(far.Users()) != 0 || r.notes() != nil {
		t.Errorf("left: %v, %v", far.Users(), r.notes())
	}
	r.wantSession(r.Must(engines.Read, "creds/role", nil), time.Hour, "arn:aws:sts::210987654321:assumed-role/end/")
}

func TestRoleThatDoesNotExistHasNoCredentials(t *testing.T) {
	r := newRig(t, nil)
	for _, path := range []string{"creds/none", "sts/none"} {
		if text := r.Fails(engines.KindInvalid, engines.Read, path, nil); !strings.Contains(text, "not found") {
			t.Error(text)
		}
	}
}

// TestLegacyRolesTieCredsToUsersAndSTSToSessions: for a role made with the legacy arn or policy parameter, credentials via
// sts must be of type assumed_role or federation_token, and via creds must be of type iam_user.
func TestLegacyRolesTieCredsToUsersAndSTSToSessions(t *testing.T) {
	r := newRig(t, nil)
	arn := r.aws.AddRole(awstest.Role{Name: "one"})
	r.role("policy", fields{"policy": somePolicy})
	r.role("managed", fields{"arn": somePolicies})
	r.role("role", fields{"arn": arn})

	data, _ := r.issue("creds/policy", nil)
	if !strings.Contains(r.arn(data), ":user/") {
		t.Errorf("creds of a policy: %q", r.arn(data))
	}
	r.wantSession(r.Must(engines.Read, "sts/policy", nil), time.Hour, "arn:aws:sts::"+r.aws.ID+":federated-user/")
	data, _ = r.issue("creds/managed", nil)
	if !strings.Contains(r.arn(data), ":user/") {
		t.Errorf("creds of a managed policy: %q", r.arn(data))
	}
	r.wantSession(r.Must(engines.Read, "sts/role", nil), time.Hour, "arn:aws:sts::"+r.aws.ID+":assumed-role/one/")
	r.Fails(engines.KindInvalid, engines.Read, "sts/managed", nil)
	r.Fails(engines.KindInvalid, engines.Read, "creds/role", nil)
}

func TestWaitUntilValid(t *testing.T) {
	r := newRig(t, nil)
	r.role("wait", fields{"credential_type": role.IAMUser, "policy_arns": somePolicies, "wait_until_valid": "30s"})
	_, resp := r.issue("creds/wait", nil)
	wantWarning(t, resp, "is valid")

	r.aws.KeyPropagation(time.Hour)
	r.role("wait", fields{"wait_until_valid": "1s"})
	_, resp = r.issue("creds/wait", nil)
	wantWarning(t, resp, "not valid yet")
	if r.called("GetCallerIdentity") < 3 {
		t.Error("it was asked once only")
	}
}

func TestNewUserMayNotBeSeenYet(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.aws.Propagation(200 * time.Millisecond)
	_, resp := r.issue("creds/dev", nil)
	if got := r.users(); len(got) != 1 || len(r.aws.Keys(got[0])) != 1 {
		t.Fatalf("users %v", got)
	}
	// A lease that ends before its user is seen: the user must not be forgotten.
	r.aws.Propagation(time.Minute)
	u := r.users()[0]
	r.aws.DropUser(u)
	r.aws.AddUser("bystander")
	if err := r.revoke(r.lease(resp, 0)); err != nil {
		t.Fatal(err)
	}
	if len(r.notes()) != 1 {
		t.Errorf("notes %+v, want one to look again", r.notes())
	}
	r.later(settleTime)
	r.work()
	r.nothingLeft("after another look")
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil || r.notes() != nil {
		t.Errorf("a user that is gone for long: %v, notes %v", err, r.notes())
	}
}

func TestErrorsOfTheProvider(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	_, secret := r.aws.Root()
	tests := []struct {
		fault awstest.Fault
		kind  engines.Kind
	}{
		{awstest.Fault{Code: "Throttling"}, engines.KindUpstream},
		{awstest.Fault{Status: 500, Code: "InternalFailure"}, engines.KindUpstream},
		{awstest.Fault{Drop: true}, engines.KindUpstream},
		{awstest.Fault{Code: "AccessDenied"}, engines.KindInvalid},
		{awstest.Fault{Code: "LimitExceeded"}, engines.KindInvalid},
		{awstest.Fault{Code: "EntityAlreadyExists"}, engines.KindInvalid},
		{awstest.Fault{Code: "InvalidInput"}, engines.KindInvalid},
	}
	for _, tt := range tests {
		r.aws.FailNext(1, "CreateUser", tt.fault)
		_, err := r.Do(engines.Read, "creds/dev", nil)
		e, ok := err.(*engines.Error)
		if !ok || e.Kind != tt.kind || !strings.HasPrefix(e.Detail, "CreateUser: ") || strings.Contains(err.Error(), secret) {
			t.Errorf("%+v: %v", tt.fault, err)
		}
		r.later(settleTime)
		r.work()
		r.nothingLeft(tt.fault.Code)
	}
}

// TestGeneratedNameThatIsTakenIsNotTaken: a user of another client stays as it is, whatever names the template makes.
func TestGeneratedNameThatIsTakenIsNotTaken(t *testing.T) {
	r := newRig(t, fields{"username_template": "{{.DisplayName}}"})
	r.role("dev", fields{"credential_type": role.IAMUser, "policy_arns": somePolicies})
	r.aws.AddUser("somebody")
	r.Fails(engines.KindInvalid, engines.Read, "creds/dev", nil)
	r.later(settleTime)
	r.work()
	if _, ok := r.aws.User("somebody"); !ok || r.notes() != nil {
		t.Errorf("the user is there: %v, notes %v", ok, r.notes())
	}
	// After a crash before it was known that the name is taken.
	if _, err := note(t.Context(), r.Mount.Mount, made{Name: "somebody", Tag: "ours"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.work()
	if _, ok := r.aws.User("somebody"); !ok || r.notes() != nil {
		t.Errorf("the user is there: %v, notes %v", ok, r.notes())
	}
	// After our own user was removed by hand, and another client took its name.
	r.Caller.DisplayName = "bob"
	_, resp := r.issue("creds/dev", nil)
	r.aws.DropUser("bob")
	r.aws.AddUser("bob")
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Error(err)
	}
	if _, ok := r.aws.User("bob"); !ok {
		t.Error("a user that was not ours was removed")
	}
}

func TestManyTagsLeaveNoRoomForOurs(t *testing.T) {
	r := newRig(t, nil)
	tags := map[string]string{}
	for i := range role.MaxTags {
		tags[fmt.Sprint("tag-", i)] = "x"
	}
	r.role("dev", fields{"credential_type": role.IAMUser, "policy_arns": somePolicies, "iam_tags": tags})
	_, resp := r.issue("creds/dev", nil)
	if u, _ := r.aws.User(r.users()[0]); len(u.Tags) != role.MaxTags {
		t.Errorf("%d tags", len(u.Tags))
	}
	if err := r.revoke(r.lease(resp, 0)); err != nil {
		t.Error(err)
	}
	r.nothingLeft("revoked")
}

func TestTTLOfUsersIsThatOfConfigLease(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	_, resp := r.issue("creds/dev", fields{"ttl": "10h"})
	if resp.Lease.TTL != r.Mount.Mount.DefaultLeaseTTL {
		t.Errorf("lease %v", resp.Lease.TTL)
	}
	wantWarning(t, resp, "ttl")
}

// TestCredsTakeHostileRequests: also of a role that there is; the other routes have their own.
func TestCredsTakeHostileRequests(t *testing.T) {
	r := newRig(t, nil)
	r.role("x", fields{"credential_type": role.SessionToken})
	e := r.Engine.(*engine)
	e.router = engines.NewRouter()
	engines.On(e.router, engines.Read, "creds/{name}", "Get credentials.", 0, e.issue("creds"))
	engines.On(e.router, engines.Update, "sts/{name}", "Get credentials.", 0, e.issue("sts"))
	enginetest.Hostile(t, r.Mount)
}

// TestGeneratedUsernameExceeds64CharactersOr32ForSTS: 500, and nothing has been made.
func TestGeneratedUsernameExceeds64CharactersOr32ForSTS(t *testing.T) {
	r := newRig(t, fields{"username_template": `{{if eq .Type "STS"}}{{random 33}}{{else}}{{random 65}}{{end}}`})
	r.role("user", fields{"credential_type": role.IAMUser, "policy_arns": somePolicies})
	r.role("fed", fields{"credential_type": role.FederationToken, "policy_arns": somePolicies})
	r.aws.Forget()
	for name, limit := range map[string]string{"user": "64", "fed": "32"} {
		if text := r.Fails(engines.KindFailed, engines.Read, "creds/"+name, nil); !strings.Contains(text, limit) {
			t.Error(text)
		}
	}
	if calls := r.aws.Actions(); calls != nil {
		t.Errorf("called %v", calls)
	}
}

func BenchmarkUserIssuedAndRevoked(b *testing.B) {
	r := newRig(b, nil).withUserRole()
	for b.Loop() {
		_, resp := r.issue("creds/dev", nil)
		if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestUserIsNotMadeTooLate: by then the note may have been looked at.
func TestUserIsNotMadeTooLate(t *testing.T) {
	r := newRig(t, nil)
	api, err := r.Engine.(*engine).clients.API(t.Context(), r.Mount.Mount)
	if err != nil {
		t.Fatal(err)
	}
	r.aws.Forget()
	if _, err := makeUser(t.Context(), api, &role.Role{}, &made{Name: "vault-late"}, time.Now().Add(-makeTime-time.Second)); err == nil || r.aws.Calls() != nil {
		t.Errorf("%v, called %v", err, r.aws.Actions())
	}
}
