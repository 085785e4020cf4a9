package cloud

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// keyless is a mount whose root configuration has no key, and its provider. The role trusts tokens for sts.amazonaws.com.
func keyless(t *testing.T) *rig {
	t.Helper()
	factory := New(Options{})
	m := enginetest.New(t, func(m engines.Mount) (engines.Engine, error) {
		m.IdentityToken = func(_ context.Context, audience string, ttl time.Duration) (engines.Sensitive, error) {
			return engines.Sensitive("token-of-" + m.Accessor + "-for-" + audience + "-" + ttl.String()), nil
		}
		return factory(m)
	}, enginetest.Options{Type: "aws", Path: "aws/"})
	m.Mount.IdentityToken = func(context.Context, string, time.Duration) (engines.Sensitive, error) { return "tried", nil } // of requests
	r := &rig{Mount: m, t: t, aws: awstest.New(t)}
	hurry(r.Mount)
	return r
}

func (r *rig) webIdentityRole() string {
	want := "token-of-" + r.Mount.Mount.Accessor + "-for-sts.amazonaws.com-10m0s"
	return r.aws.AddRole(awstest.Role{Name: "coffer", WebIdentity: func(got string) (code, reason string) {
		if got != want {
			return "InvalidIdentityToken", "not the token that is trusted"
		}
		return "", ""
	}})
}

// TestIdentityToken: a token of the server takes the place of a stored key, for every kind of call.
func TestIdentityToken(t *testing.T) {
	r := keyless(t)
	config := fields{
		"identity_token_audience": "sts.amazonaws.com", "identity_token_ttl": "10m", "role_arn": r.webIdentityRole(),
		"iam_endpoint": r.aws.URL, "sts_endpoint": r.aws.URL, "max_retries": 0,
	}
	r.Must(engines.Update, "config/root", config)
	read := r.Data(r.Must(engines.Read, "config/root", nil))
	if read["role_arn"] != config["role_arn"] || read["identity_token_audience"] != "sts.amazonaws.com" || read["access_key"] != "" {
		t.Errorf("config/root reads %v", read)
	}
	r.withUserRole()
	data, resp := r.issue("creds/dev", nil)
	if r.arn(data) == "" {
		t.Error("the key of the user is not valid")
	}
	if err := r.revoke(r.lease(resp, time.Hour)); err != nil {
		t.Fatal(err)
	}
	r.nothingLeft("after the lease")
	if n := r.called("AssumeRoleWithWebIdentity"); n != 1 {
		t.Errorf("the role was assumed %d times", n)
	}
	r.Fails(engines.KindInvalid, engines.Update, "config/rotate-root", nil)

	config["identity_token_audience"] = "other"
	r.Must(engines.Update, "config/root", config)
	if text := r.Fails(engines.KindInvalid, engines.Update, "creds/dev", nil); !strings.Contains(text, "AssumeRoleWithWebIdentity") || strings.Contains(text, "token-of") {
		t.Errorf("the error is %q", text)
	}
}

func TestIdentityFields(t *testing.T) {
	r := keyless(t)
	const role = "arn:aws:iam::123456789012:role/x"
	for _, test := range []struct {
		config fields
		want   string
	}{
		{fields{"identity_token_audience": "a"}, "role_arn"},
		{fields{"role_arn": role}, "identity_token_audience"},
		{fields{"identity_token_audience": "a", "role_arn": role, "access_key": "AKIA", "secret_key": "s"}, "takes the place of access_key"},
		{fields{"identity_token_audience": "a", "role_arn": "x"}, "role_arn"},
		{fields{"identity_token_audience": "a", "role_arn": role, "identity_token_key": "mine"}, "identity_token_key"},
		{fields{"identity_token_ttl": "1h"}, "identity_token_audience"},
		{fields{"rotation_policy": "x"}, "rotation_policy"}, // a field of other versions that is not known here
	} {
		if text := r.Fails(engines.KindInvalid, engines.Update, "config/root", test.config); !strings.Contains(text, test.want) {
			t.Errorf("%v: %q, want %q", test.config, text, test.want)
		}
	}
	r.Must(engines.Update, "config/root", fields{"identity_token_audience": "a", "role_arn": role, "identity_token_key": "default"})
}

// TestMaxUsers: users count from before they are made until they are removed, of a role and of the mount.
func TestMaxUsers(t *testing.T) {
	r := newRig(t, fields{"max_users": 3}).withUserRole()
	r.role("dev", fields{"max_users": 2})
	r.role("ops", fields{"credential_type": "iam_user", "policy_arns": somePolicies})
	_, first := r.issue("creds/dev", nil)
	r.issue("creds/dev", nil)
	full := func(path, want string) {
		t.Helper()
		if text := r.Fails(engines.KindInvalid, engines.Update, path, nil); !strings.Contains(text, want) || !strings.Contains(text, "max_users") {
			t.Errorf("%s: %q, want %q", path, text, want)
		}
	}
	full("creds/dev", "the role has 2 users")
	r.issue("creds/ops", nil)
	full("creds/ops", "the mount has 3 users")
	if n := len(r.users()); n != 3 {
		t.Errorf("there are %d users", n)
	}
	if err := r.revoke(r.lease(first, time.Hour)); err != nil {
		t.Fatal(err)
	}
	// One that fails counts no longer.
	r.aws.FailNext(1, "AttachUserPolicy", awstest.Fault{Code: "AccessDenied"})
	r.Fails(engines.KindInvalid, engines.Update, "creds/dev", nil)
	r.issue("creds/dev", nil)
	full("creds/dev", "max_users")
	r.peer().Fails(engines.KindInvalid, engines.Update, "creds/dev", nil) // also after a restart
}

// TestMaxUsersCountsRenewedLeases: a user counts for as long as its lease can last, also after lease_max was raised.
func TestMaxUsersCountsRenewedLeases(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.role("dev", fields{"max_users": 1})
	_, resp := r.issue("creds/dev", nil)
	var u userLease
	if err := json.Unmarshal(resp.Lease.Internal, &u); err != nil {
		t.Fatal(err)
	}
	// The lease was to end an hour ago, but was renewed with other terms.
	_, err := storage.Update(t.Context(), r.Mount.Mount.ClusterStorage, func(tx *storage.Txn) error {
		return engines.PutRecord(tx, u.issuedKey(), &issued{Ends: time.Now().Add(-time.Hour)})
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Must(engines.Update, "config/lease", fields{"lease": "1h", "lease_max": "24h"})
	l := r.lease(resp, 2*time.Hour)
	if _, err := r.Engine.(engines.Leaser).RenewLease(t.Context(), r.Mount.Mount, l); err != nil {
		t.Fatal(err)
	}
	r.Fails(engines.KindInvalid, engines.Update, "creds/dev", nil)

	// A renewal that comes after the revocation counts nothing.
	if err := r.revoke(l); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Engine.(engines.Leaser).RenewLease(t.Context(), r.Mount.Mount, l); err != nil {
		t.Fatal(err)
	}
	r.issue("creds/dev", nil)
}

// TestFailedUserIsRemovedAtOnce: when the user is known to be gone, nothing is left to be removed.
func TestFailedUserIsRemovedAtOnce(t *testing.T) {
	r := newRig(t, nil).withUserRole()
	r.aws.FailNext(1, "AttachUserPolicy", awstest.Fault{Code: "AccessDenied"})
	r.Fails(engines.KindInvalid, engines.Update, "creds/dev", nil)
	r.nothingLeft("after a policy could not be attached")
}

// TestSourceIdentity: the session carries who asked for it.
func TestSourceIdentity(t *testing.T) {
	r := newRig(t, nil)
	arn := r.aws.AddRole(awstest.Role{Name: "deploy"})
	r.role("deploy", fields{"credential_type": "assumed_role", "role_arns": arn, "source_identity": "{{identity.entity.name}}@coffer"})
	r.issue("sts/deploy", nil)
	calls := r.aws.Calls()
	if got := calls[len(calls)-1].Params["SourceIdentity"]; got != "bob@coffer" {
		t.Errorf("the source identity is %q", got)
	}
	r.role("deploy", fields{"source_identity": "x-{{identity.entity.metadata.wild}}"})
	if text := r.Fails(engines.KindInvalid, engines.Update, "sts/deploy", nil); !strings.Contains(text, "source_identity") {
		t.Errorf("the error is %q", text)
	}
	for _, bad := range []string{"a", "a b", strings.Repeat("a", 65), "{{x}}"} {
		r.Fails(engines.KindInvalid, engines.Update, "roles/deploy", fields{"source_identity": bad})
	}
}

// TestChangeOfType: what the role has from before is named with the way to clear it, and unknown fields are rejected.
func TestChangeOfType(t *testing.T) {
	r := newRig(t, nil)
	r.role("pa", fields{"credential_type": "iam_user", "policy_arns": somePolicies})
	if got := r.Data(r.Must(engines.Read, "roles/pa", nil))["user_path"]; got != "" { // Terraform takes "/" for a change
		t.Errorf("user_path reads %q", got)
	}
	r.role("pa", fields{"user_path": "/apps/"})
	change := fields{"credential_type": "assumed_role", "role_arns": "arn:aws:iam::123456789012:role/x"}
	if text := r.Fails(engines.KindInvalid, engines.Update, "roles/pa", change); !strings.Contains(text, `clear it with user_path=""`) {
		t.Errorf("the error is %q", text)
	}
	change["user_path"] = ""
	r.role("pa", change)
	if text := r.Fails(engines.KindInvalid, engines.Update, "roles/pa", fields{"transitive_tag_keys": "team"}); !strings.Contains(text, "transitive_tag_keys") {
		t.Errorf("the error is %q", text)
	}
}
