package cloud_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

// TestCloudRole is about roles.
func TestCloudRole(t *testing.T) {
	t.Parallel()
	m := ready(t, alone(t, "role"), "cloud")
	role := "arn:aws:iam::123456789012:role/dev"
	user := object{"credential_type": "iam_user", "policy_arns": readOnly}
	assumed := object{"credential_type": "assumed_role", "role_arns": role}
	federated := object{"credential_type": "federation_token", "policy_document": document}
	with := func(base object, name string, value any) object {
		all := maps.Clone(base)
		all[name] = value
		return all
	}
	for name, tt := range map[string]struct {
		in    object
		field string
	}{
		"credential_type is required":                           {object{"policy_arns": readOnly}, "credential_type"},
		"credential_type is a known one":                        {object{"credential_type": "other"}, "credential_type"},
		"role_arns is required for assumed_role":                {object{"credential_type": "assumed_role"}, "role_arns"},
		"role_arns is prohibited for iam_user":                  {with(user, "role_arns", role), "role_arns"},
		"role_arns is prohibited for federation_token":          {with(federated, "role_arns", role), "role_arns"},
		"iam_user needs policy_arns or policy_document":         {object{"credential_type": "iam_user"}, "policy_document"},
		"federation_token needs policy_arns or policy_document": {object{"credential_type": "federation_token"}, "policy_document"},
		"iam_groups alone is not enough":                        {object{"credential_type": "iam_user", "iam_groups": "staff"}, "policy_document"},
		"policy_document is JSON":                               {with(user, "policy_document", "{"), "policy_document"},
		"default_sts_ttl is not valid for iam_user":             {with(user, "default_sts_ttl", "1h"), "default_sts_ttl"},
		"max_sts_ttl is not valid for iam_user":                 {with(user, "max_sts_ttl", "1h"), "max_sts_ttl"},
		"default_sts_ttl is not above max_sts_ttl":              {object{"credential_type": "assumed_role", "role_arns": role, "default_sts_ttl": "2h", "max_sts_ttl": "1h"}, "default_sts_ttl"},
		"user_path is valid only for iam_user":                  {with(assumed, "user_path", "/a/"), "user_path"},
		"user_path begins and ends with a slash":                {with(user, "user_path", "a"), "user_path"},
		"permissions_boundary_arn is valid only for iam_user":   {with(assumed, "permissions_boundary_arn", readOnly), "permissions_boundary_arn"},
		"policy mixed with a current parameter":                 {object{"policy": document, "credential_type": "iam_user"}, "credential_type"},
		"arn mixed with a current parameter":                    {object{"arn": readOnly, "iam_groups": "staff"}, "iam_groups"},
		"policy and arn":                                        {object{"policy": document, "arn": readOnly}, "arn"},
		"iam_tags are key=value":                                {with(user, "iam_tags", []string{"team"}), "iam_tags"},
	} {
		t.Run(name, func(t *testing.T) {
			m := *m
			m.t = t
			m.refused("roles/refused", tt.in, `"`+tt.field+`"`)
			wantStatus(t, "read", m.admin("GET", "roles/refused", nil), 404)
		})
	}
	t.Run("all problems are named at once", func(t *testing.T) {
		m := m.in(t)
		m.refused("roles/refused", object{"credential_type": "iam_user", "role_arns": role, "max_sts_ttl": 900, "user_path": "x"},
			`"role_arns"`, `"max_sts_ttl"`, `"user_path"`, `"policy_document"`)
	})
	t.Run("read answers every field", func(t *testing.T) {
		m := m.in(t)
		m.role("full", object{
			"credential_type": "iam_user", "policy_arns": readOnly + ", arn:aws:iam::123456789012:policy/own", "policy_document": "{ \"Version\" : \"2012-10-17\" }",
			"iam_groups": []string{"staff", "admins"}, "iam_tags": []string{"team=a", "cost=b=c"}, "user_path": "/apps/", "permissions_boundary_arn": readOnly,
		})
		wantData(t, m.read("roles/full"), object{
			"credential_type": "iam_user", "credential_types": []string{"iam_user"}, "role_arns": []string{},
			"policy_arns": []string{readOnly, "arn:aws:iam::123456789012:policy/own"}, "policy_document": `{"Version":"2012-10-17"}`,
			"iam_groups": []string{"staff", "admins"}, "iam_tags": object{"team": "a", "cost": "b=c"}, "user_path": "/apps/",
			"permissions_boundary_arn": readOnly, "default_sts_ttl": 0, "max_sts_ttl": 0,
		})
		m.role("sts", object{"credential_type": "assumed_role", "role_arns": []string{role}, "default_sts_ttl": "30m", "max_sts_ttl": "7200"})
		wantData(t, m.read("roles/sts"), object{"role_arns": []string{role}, "default_sts_ttl": 1800, "max_sts_ttl": 7200, "policy_arns": []string{}})
		if _, there := m.read("roles/sts")["invalid_data"]; there {
			t.Error("a good role has invalid_data")
		}
	})
	t.Run("a write keeps what it leaves out", func(t *testing.T) {
		m := m.in(t)
		m.role("full", user)
		wantStatus(t, "update", m.admin("POST", "roles/full", object{"iam_groups": "staff"}), 204)
		wantData(t, m.read("roles/full"), object{"policy_arns": []string{readOnly}, "iam_groups": []string{"staff"}})
	})
	t.Run("legacy parameters", func(t *testing.T) {
		m := m.in(t)
		wantStatus(t, "policy", m.role("old-policy", object{"policy": document}), 200, "warnings", "backward compatibility")
		m.role("old-arn", object{"arn": readOnly})
		m.role("old-role", object{"arn": role})
		wantData(t, m.read("roles/old-policy"), object{"credential_types": []string{"iam_user", "federation_token"}, "policy_document": document})
		wantData(t, m.read("roles/old-arn"), object{"credential_types": []string{"iam_user"}, "policy_arns": []string{readOnly}})
		wantData(t, m.read("roles/old-role"), object{"credential_types": []string{"assumed_role"}, "role_arns": []string{role}})
	})
	t.Run("list and delete", func(t *testing.T) {
		m := m.in(t)
		for _, name := range []string{"full", "sts", "old-policy", "old-arn", "old-role"} {
			m.admin("DELETE", "roles/"+name, nil)
		}
		wantStatus(t, "empty list", m.admin("LIST", "roles", nil), 404)
		m.role("b", user)
		m.role("a.b@c-d", user)
		wantData(t, dataOf(t, m.admin("LIST", "roles", nil)), object{"keys": []string{"a.b@c-d", "b"}})
		wantData(t, m.read("roles?list=true"), object{"keys": []string{"a.b@c-d", "b"}})
		wantStatus(t, "delete", m.admin("DELETE", "roles/b", nil), 204)
	})
	t.Run("reading a role that does not exist is 404", func(t *testing.T) {
		wantStatus(t, "read", m.in(t).admin("GET", "roles/b", nil), 404)
	})
	t.Run("deleting a role that does not exist is 404", func(t *testing.T) {
		wantStatus(t, "delete", m.in(t).admin("DELETE", "roles/b", nil), 404)
	})
}

// TestCloudCreds is about creds and sts.
func TestCloudCreds(t *testing.T) {
	t.Parallel()
	c := alone(t, "creds")
	m := ready(t, c, "cloud")
	t.Run("iam_user", func(t *testing.T) {
		m := m.in(t)
		m.aws.AddGroup(awstest.Group{Name: "staff"})
		m.users("full", object{
			"policy_document": document, "iam_groups": "staff", "iam_tags": "team=a", "user_path": "/apps/", "permissions_boundary_arn": readOnly,
		})
		got := m.creds("full")
		u := m.user(got.Data.AccessKey)
		if m.owner(got) != u.ARN {
			t.Error("the credentials do not work")
		}
		if got.Data.SessionToken != nil || got.Data.SecurityToken != nil || got.Lease == "" {
			t.Errorf("the answer has a token, or no lease %q", got.Lease)
		}
		if u.Path != "/apps/" || u.Boundary != readOnly || u.Tags["team"] != "a" || u.Inline["full"] != document ||
			!slices.Equal(u.Groups, []string{"staff"}) || !slices.Equal(u.Policies, []string{readOnly}) {
			t.Errorf("the user is %+v", u)
		}
		m.users("plain", nil)
		if u := m.user(m.creds("plain").Data.AccessKey); u.Path != "/" || u.Boundary != "" {
			t.Errorf("the user has the path %q and the boundary %q", u.Path, u.Boundary)
		}
	})
	t.Run("assumed_role", func(t *testing.T) {
		m := m.in(t)
		m.aws.AddGroup(awstest.Group{Name: "limits", Policies: []string{"arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"}})
		m.assumes("limited", []string{"dev"}, object{"policy_document": document, "policy_arns": readOnly, "iam_groups": "limits"})
		got := m.creds("limited")
		temporary(t, m, got, 3600)
		call := m.sole("AssumeRole")
		if p := call.Params; !strings.Contains(p["Policy"], "s3:GetObject") || !strings.Contains(fmt.Sprint(p), readOnly) || !strings.Contains(fmt.Sprint(p), "AmazonS3ReadOnlyAccess") {
			t.Errorf("the session is limited by %v", p)
		}
		if who := m.owner(got); who != got.Data.ARN || !strings.Contains(who, ":assumed-role/dev/vault-") {
			t.Errorf("the credentials are those of %q, the answer has the ARN %q", who, got.Data.ARN)
		}
	})
	t.Run("federation_token", func(t *testing.T) {
		m := m.in(t)
		m.role("federation", object{"credential_type": "federation_token", "policy_document": document, "policy_arns": readOnly})
		got := m.creds("federation")
		temporary(t, m, got, 3600)
		if p := m.sole("GetFederationToken").Params; p["Policy"] != document || len(p["Name"]) > 32 || !strings.Contains(fmt.Sprint(p), readOnly) {
			t.Errorf("asked for %v", p)
		}
		if who := m.owner(got); !strings.Contains(who, ":federated-user/vault-") {
			t.Errorf("the credentials are those of %q", who)
		}
	})
	t.Run("session_token", func(t *testing.T) {
		m := m.in(t)
		m.role("session", object{"credential_type": "session_token"})
		got := m.creds("session")
		temporary(t, m, got, 3600)
		if who := m.owner(got); !strings.HasSuffix(who, ":user/root-user") {
			t.Errorf("the credentials are those of %q", who)
		}
	})
	t.Run("creds and sts are almost identical", func(t *testing.T) {
		m := m.in(t)
		m.assumes("same", []string{"dev"}, nil)
		m.users("dev", nil)
		for _, path := range []string{"creds/same", "sts/same", "creds/dev", "sts/dev"} {
			for _, verb := range []string{"GET", "POST", "PUT"} {
				if got := issuedOf(t, m.admin(verb, path, nil)); m.owner(got) == "" {
					t.Errorf("%s %s: the credentials do not work", verb, path)
				}
			}
		}
	})
	t.Run("legacy roles: sts gives temporary credentials and creds gives users", func(t *testing.T) {
		m := m.in(t)
		m.role("old-policy", object{"policy": document})
		m.role("old-arn", object{"arn": readOnly})
		m.role("old-role", object{"arn": m.aws.AddRole(awstest.Role{Name: "dev"})})
		if got := m.creds("old-policy"); !strings.Contains(m.owner(got), ":user/") {
			t.Error("creds gives no user")
		}
		if got := issuedOf(t, m.admin("POST", "sts/old-policy", nil)); !strings.Contains(m.owner(got), ":federated-user/") {
			t.Error("sts gives no federation token")
		}
		if got := issuedOf(t, m.admin("POST", "sts/old-role", nil)); !strings.Contains(m.owner(got), ":assumed-role/") {
			t.Error("sts gives no role")
		}
		wantStatus(t, "a policy's ARN at sts", m.admin("POST", "sts/old-arn", nil), 400, "assumed_role or federation_token")
		wantStatus(t, "a role's ARN at creds", m.admin("GET", "creds/old-role", nil), 400, "iam_user")
	})
	t.Run("the role must exist", func(t *testing.T) {
		m := m.in(t)
		for _, path := range []string{"creds/nobody", "sts/nobody"} {
			wantStatus(t, path, m.admin("GET", path, nil), 400, "not found")
		}
	})
	t.Run("role_arn", func(t *testing.T) {
		m := m.in(t)
		one := m.assumes("one", []string{"dev"}, nil)
		m.assumes("two", []string{"dev", "ops"}, nil)
		m.creds("one")
		issuedOf(t, m.admin("GET", "creds/one?role_arn="+one[0], nil))
		m.refused("sts/two", nil, `"role_arn"`, "required")
		m.refused("sts/two", object{"role_arn": m.aws.AddRole(awstest.Role{Name: "else"})}, `"role_arn"`, "allows")
		got := issuedOf(t, m.admin("POST", "sts/two", object{"role_arn": "arn:aws:iam::123456789012:role/ops"}))
		if who := m.owner(got); !strings.Contains(who, ":assumed-role/ops/") {
			t.Errorf("the credentials are those of %q", who)
		}
	})
	t.Run("role_session_name", func(t *testing.T) {
		m := m.in(t)
		m.assumes("one", []string{"dev"}, nil)
		for given, want := range map[string]string{"ci-run_7": "ci-run_7", strings.Repeat("x", 70): strings.Repeat("x", 64), strings.Repeat("y", 64): strings.Repeat("y", 64)} {
			if got := issuedOf(t, m.admin("POST", "sts/one", object{"role_session_name": given})); !strings.HasSuffix(got.Data.ARN, "/"+want) {
				t.Errorf("the session %q is %q", given, got.Data.ARN)
			}
		}
		a, b := m.creds("one").Data.ARN, m.creds("one").Data.ARN
		if a == b {
			t.Errorf("two sessions without a name are both %q", a)
		}
	})
	t.Run("ttl", func(t *testing.T) {
		m := m.in(t)
		m.assumes("plain", []string{"dev"}, nil)
		m.assumes("hours", []string{"dev"}, object{"default_sts_ttl": "2h", "max_sts_ttl": "3h"})
		for _, tt := range []struct {
			role, ttl string
			want      int
		}{{"plain", "", 3600}, {"plain", "30m", 1800}, {"plain", "1800", 1800}, {"hours", "", 7200}, {"hours", "900s", 900}, {"hours", "9h", 10800}} {
			var in object
			if tt.ttl != "" {
				in = object{"ttl": tt.ttl}
			}
			temporary(t, m, issuedOf(t, m.admin("POST", "sts/"+tt.role, in)), tt.want)
		}
		m.refused("sts/plain", object{"ttl": "14m"}, `"ttl"`)
		// The provider limits the maximum, each role by itself.
		m.aws.AddRole(awstest.Role{Name: "short", MaxTTL: time.Hour})
		m.role("short", object{"credential_type": "assumed_role", "role_arns": "arn:aws:iam::123456789012:role/short"})
		m.refused("sts/short", object{"ttl": "2h"}, "AssumeRole")
	})
	t.Run("ttl is not for users", func(t *testing.T) {
		m := m.in(t)
		m.users("dev", nil)
		wantStatus(t, "creds", m.admin("POST", "creds/dev", object{"ttl": "1h"}), 200, "config/lease")
	})
	t.Run("what the provider says", func(t *testing.T) {
		m := m.in(t)
		m.users("dev", nil)
		for code, status := range map[string]int{"Throttling": 502, "AccessDenied": 400, "ServiceFailure": 502} {
			m.aws.FailNext(100, "CreateUser", awstest.Fault{Code: code})
			wantStatus(t, code, m.admin("GET", "creds/dev", nil), status, "CreateUser")
		}
	})
	t.Run("mounted at any location", func(t *testing.T) {
		for _, at := range []string{"aws", "team/accounts"} {
			m := ready(t, c, at)
			m.users("dev", nil)
			if got := m.creds("dev"); !strings.HasPrefix(got.Lease, at+"/creds/dev/") || m.owner(got) == "" {
				t.Errorf("%s: the lease is %q", at, got.Lease)
			}
			if got := dataOf(t, m.bare("GET", at+"/roles/dev")); got["credential_type"] != "iam_user" {
				t.Errorf("without the prefix v1: %v", got)
			}
		}
	})
	t.Run("a token and a policy are needed", func(t *testing.T) {
		m := m.in(t)
		m.users("dev", nil)
		for _, path := range []string{"config/root", "config/lease", "roles/dev", "creds/dev", "sts/dev", "static-roles/x", "static-creds/x", "rollbacks/x"} {
			wantStatus(t, path, send(t, m.node, "GET", m.name+"/"+path, "", nil), 403)
		}
		wantStatus(t, "rotate-root", send(t, m.node, "POST", m.name+"/config/rotate-root", "", nil), 403)
		wantStatus(t, "static role", send(t, m.node, "POST", m.name+"/static-roles/x", "", nil), 403)
		if called := m.aws.Actions(); len(called) > 0 {
			t.Errorf("the provider was asked: %q", called)
		}
	})
}

// temporary wants temporary credentials, which no lease is stored for.
func temporary(t *testing.T, m *mount, got issued, seconds int) {
	t.Helper()
	if got.Data.SessionToken == nil || got.Data.SecurityToken == nil || *got.Data.SessionToken != *got.Data.SecurityToken {
		t.Fatal("the answer has no session_token, or another security_token")
	}
	if m.owner(got) == "" {
		t.Error("the credentials do not work")
	}
	near := func(n int) bool { return n <= seconds && n > seconds-30 }
	if !near(got.Data.TTL) || !near(got.Seconds) || got.Renewable || got.Lease == "" {
		t.Errorf("ttl %d, lease_duration %d, renewable %v, lease_id %q; want %d seconds", got.Data.TTL, got.Seconds, got.Renewable, got.Lease, seconds)
	}
	if a := m.do(m.node, "PUT", "sys/leases/lookup", object{"lease_id": got.Lease}); a.Status != 400 {
		t.Errorf("the lease_id leads to a lease: %d", a.Status)
	}
}
