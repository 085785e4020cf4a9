//go:build e2e

package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/coffer-project/coffer/test/harness"
)

const (
	account  = "123456789012" // the emulator's own
	another  = "222222222222"
	iamReads = "arn:aws:iam::aws:policy/IAMReadOnlyAccess"
)

// documented returns the actions that docs/cloud.md wants the provider to allow.
func documented(t *testing.T) []string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "cloud.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n## What the provider has to allow\n")
	_, after, _ = strings.Cut(after, "```json\n")
	policy, _, found := strings.Cut(after, "```")
	actions := regexp.MustCompile(`\b(?:iam|sts):[A-Za-z]+\b`).FindAllString(policy, -1)
	if !found || actions == nil {
		t.Fatal("docs/cloud.md does not say what the provider has to allow")
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

// TestEmulator drives a server with an emulator of the provider that others wrote, which checks signatures and policies:
// issued credentials work, and may do what the role says, until they are revoked.
func TestEmulator(t *testing.T) {
	e := emulate(t)
	listed := documented(t)
	engineMay := append(slices.Clone(listed), "sts:GetSessionToken") // which everybody may at the provider
	root := e.addUser("coffer", allow(engineMay...))
	environment := e.addUser("environment", allow(engineMay...))
	rotated := e.addUser("rotated", allow(engineMay...))
	powerless := e.addUser("powerless", allow("iam:GetUser"))
	e.addUser("app", allow("iam:ListRoles"))
	e.addUser("full", allow("iam:ListRoles"))
	e.addKey("full")
	e.addGroup("devs", allow("iam:DeleteGroup"))
	e.addRole(e.admin, "reader", trust("", e.userARN("coffer")), allow("iam:ListUsers"))
	e.addRole(e.admin, "partner", trust("contract:7/4", e.userARN("coffer")), allow("iam:ListUsers"))
	e.addRole(e.admin, "closed", trust("", e.userARN("admin")), allow("iam:ListUsers"))
	e.addRole(e.elsewhere(another), "gate", trust("", e.userARN("coffer")), allow(engineMay...))
	e.lock()

	t.Setenv("AWS_ACCESS_KEY_ID", environment.id)
	t.Setenv("AWS_SECRET_ACCESS_KEY", environment.secret)
	t.Setenv("AWS_SESSION_TOKEN", "")
	t.Setenv("AWS_REGION", "eu-central-1")
	s := &site{emulator: e, c: alone(t, "emulated"), seen: new([]string)}
	cloud := s.mounted("cloud", keysOf(root))
	cloud.write("config/lease", object{"lease": "30m", "lease_max": "2h"})
	for _, flow := range []struct {
		name string
		run  func(*site)
	}{
		{"a user may do what the role says", userMay},
		{"a user in another account", userElsewhere},
		{"a revoked user is gone with all it has", revoked},
		{"revoking a prefix removes all users", revokedTogether},
		{"what cannot be finished leaves nothing", unfinished},
		{"an assumed role may do what the role says", assumed},
		{"federated users", federated},
		{"session tokens", session},
		{"roles with legacy parameters", legacy},
		{"static roles", static},
		{"a static role of a user with two keys", staticFull},
		{"names that are too long", tooLong},
		{"a role that is not there", missing},
	} {
		t.Run(flow.name, func(t *testing.T) { flow.run(cloud.in(t)) })
	}
	t.Run("an expired user is gone", func(t *testing.T) { expired(s.in(t).mounted("brief", keysOf(root))) })
	t.Run("rotating the root key", func(t *testing.T) { rootRotated(s.in(t).mounted("rotating", keysOf(rotated)), rotated) })
	t.Run("root credentials of the environment", func(t *testing.T) {
		fromEnvironment(s.in(t).mounted("machine", object{}), environment, powerless)
	})
	t.Run("root credentials that are wrong", func(t *testing.T) { wrongRoot(s.in(t).mounted("wrong", object{}), root) })
	t.Run("what the page wants to be allowed is needed", func(t *testing.T) { needed(s.in(t), listed) })
	t.Run("nothing is left", func(t *testing.T) { nothingLeft(s.in(t)) })
}

func userMay(s *site) {
	s.write("roles/dev", object{
		"credential_type": "iam_user", "policy_arns": iamReads, "policy_document": allow("iam:CreateGroup"), "iam_groups": "devs",
		"iam_tags": []string{"team=payments"}, "user_path": "/coffer/", "wait_until_valid": "10s",
		"permissions_boundary_arn": readOnly,
	})
	c := s.issue("creds/dev", nil)
	if got := s.sent("CreateUser", "PermissionsBoundary"); got != readOnly {
		s.t.Errorf("the boundary is %q", got)
	}
	if c.Seconds != 1800 || !c.Renewable || c.Lease == "" || c.Data.SessionToken != nil || c.Data.SecurityToken != nil {
		s.t.Errorf("a lease %q of %d s, renewable %v; session token: %v", c.Lease, c.Seconds, c.Renewable, c.Data.SessionToken != nil)
	}
	if !slices.ContainsFunc(c.Warnings, func(w string) bool { return strings.Contains(w, "is valid") }) {
		s.t.Errorf("warnings: %q", c.Warnings)
	}
	name, arn := s.nameOf(c.keys())
	if !strings.HasPrefix(name, "vault-root-dev-") || len(name) > 64 || arn != "arn:aws:iam::"+account+":user/coffer/"+name {
		s.t.Errorf("the user is %q", arn)
	}
	s.may(c.keys(), "ListUsers", true)   // as the managed policy says
	s.may(c.keys(), "CreateGroup", true) // as the inline policy says
	s.may(c.keys(), "DeleteGroup", true) // as the group's policy says
	s.may(c.keys(), "CreateUser", false)
	if _, code := s.identity(keys{id: c.Data.AccessKey, secret: c.Data.SecretKey + "x"}); code != "SignatureDoesNotMatch" {
		s.t.Errorf("with another secret: %q", code)
	}
	user := did(s.t, func(ctx context.Context) (*iam.GetUserOutput, error) {
		return s.iam(s.admin).GetUser(ctx, &iam.GetUserInput{UserName: &name})
	}).User
	tags := map[string]string{}
	for _, tag := range user.Tags {
		tags[*tag.Key] = *tag.Value
	}
	if *user.Path != "/coffer/" || tags["team"] != "payments" {
		s.t.Errorf("path %q, tags %v", *user.Path, tags)
	}
	inline := did(s.t, func(ctx context.Context) (*iam.ListUserPoliciesOutput, error) {
		return s.iam(s.admin).ListUserPolicies(ctx, &iam.ListUserPoliciesInput{UserName: &name})
	})
	if !slices.Equal(inline.PolicyNames, []string{"dev"}) {
		s.t.Errorf("inline policies %q", inline.PolicyNames)
	}
	wantStatus(s.t, "renew", s.sys("POST", "leases/renew", object{"lease_id": c.Lease, "increment": 3600}), 200)
	s.revoke(c)
	s.out("after the revocation", c.keys())
	s.gone(name)
}

func userElsewhere(s *site) {
	s.write("roles/elsewhere", object{
		"credential_type": "iam_user", "policy_document": allow("iam:ListRoles"), "assume_role_arns": "arn:aws:iam::" + another + ":role/gate",
	})
	c := s.issue("creds/elsewhere", nil)
	if name, arn := s.nameOf(c.keys()); arn != "arn:aws:iam::"+another+":user/"+name {
		s.t.Errorf("the user is %q", arn)
	}
	s.may(c.keys(), "ListRoles", true)
	s.may(c.keys(), "ListUsers", false)
	s.revoke(c)
	s.out("after the revocation", c.keys())
}

// revoked: others have added to the user whatever there is.
func revoked(s *site) {
	s.write("roles/plain", object{"credential_type": "iam_user", "policy_arns": iamReads})
	c := s.issue("creds/plain", nil)
	name, _ := s.nameOf(c.keys())
	device := s.burden(name)
	second := s.addKey(name)
	s.revoke(c)
	s.out("the key", c.keys())
	s.out("the key that another client has added", second)
	s.gone(name)
	devices := did(s.t, func(ctx context.Context) (*iam.ListVirtualMFADevicesOutput, error) {
		return s.iam(s.admin).ListVirtualMFADevices(ctx, &iam.ListVirtualMFADevicesInput{})
	})
	for _, d := range devices.VirtualMFADevices {
		if *d.SerialNumber == device {
			s.t.Error("the virtual device is still there")
		}
	}
}

func revokedTogether(s *site) {
	s.write("roles/many", object{"credential_type": "iam_user", "policy_arns": iamReads})
	s.write("roles/other", object{"credential_type": "iam_user", "policy_arns": iamReads})
	before := len(s.made())
	stays := s.issue("creds/other", nil)
	var all []issued
	for range 20 {
		all = append(all, s.issue("creds/many", nil))
	}
	if n := len(s.made()) - before; n != 21 {
		s.t.Errorf("%d users were made", n)
	}
	wantStatus(s.t, "revoke-prefix", s.sys("POST", "leases/revoke-prefix/"+s.name+"/creds/many", object{"sync": true}), 204)
	for _, c := range all {
		s.out("after the revocation", c.keys())
	}
	if n := len(s.made()) - before; n != 1 {
		s.t.Errorf("%d users are left, want the one of the other role", n)
	}
	s.nameOf(stays.keys())
	s.revoke(stays)
}

func expired(s *site) {
	s.write("config/lease", object{"lease": "1s", "lease_max": "1s"})
	s.write("roles/brief", object{"credential_type": "iam_user", "policy_arns": iamReads})
	k := s.issue("creds/brief", nil).keys()
	harness.Await(s.t, "the key to be refused", time.Minute, func() error {
		if _, code := s.identity(k); code != "InvalidClientTokenId" {
			return fmt.Errorf("the provider says %q", code)
		}
		return nil
	})
	harness.Await(s.t, "the user to be gone", time.Minute, func() error {
		if slices.ContainsFunc(s.made(), func(name string) bool { return strings.Contains(name, "-brief-") }) {
			return errors.New("it is still there")
		}
		return nil
	})
}

// unfinished: the provider refuses a step when the user is there already.
func unfinished(s *site) {
	for what, role := range map[string]object{
		"NoSuchEntity":            {"policy_arns": "arn:aws:iam::" + account + ":policy/nowhere"},
		"MalformedPolicyDocument": {"policy_document": `{"Version":"2012-10-17","Statement":[{"Effect":"Perhaps","Action":"*","Resource":"*"}]}`},
	} {
		role["credential_type"] = "iam_user"
		s.write("roles/unfinished", role)
		before := s.made()
		wantStatus(s.t, what, s.do("GET", "creds/unfinished", nil), 400, what)
		if after := s.made(); len(after) != len(before) {
			s.t.Errorf("%s: users are left: %v", what, after)
		}
		wantStatus(s.t, "delete", s.do("DELETE", "roles/unfinished", nil), 204)
	}
}

func assumed(s *site) {
	reader, partner, closed := "arn:aws:iam::"+account+":role/reader", "arn:aws:iam::"+account+":role/partner", "arn:aws:iam::"+account+":role/closed"
	s.write("roles/reader", object{"credential_type": "assumed_role", "role_arns": reader, "policy_document": allow("iam:ListUsers"), "default_sts_ttl": "20m"})
	c := s.issue("sts/reader", object{"role_session_name": strings.Repeat("long", 20)})
	session := strings.Repeat("long", 16)
	name, arn := s.nameOf(c.keys())
	if name != session || arn != "arn:aws:sts::"+account+":assumed-role/reader/"+session || c.Data.ARN != arn {
		s.t.Errorf("they are of %q, and said to be of %q", arn, c.Data.ARN)
	}
	wantSession(s.t, c, 1200)
	if got := s.sent("AssumeRole", "Policy"); got != allow("iam:ListUsers") {
		s.t.Errorf("the session is limited by %q", got)
	}
	s.may(c.keys(), "ListUsers", true)
	s.may(c.keys(), "CreateGroup", false)
	wrong := c.keys()
	wrong.token += "x"
	s.out("with another session token", wrong)
	wantSession(s.t, s.issue("creds/reader", object{"ttl": "900s"}), 900)

	s.write("roles/several", object{"credential_type": "assumed_role", "role_arns": []string{reader, partner, closed}})
	wantStatus(s.t, "none chosen", s.do("GET", "creds/several", nil), 400, "role_arn")
	wantStatus(s.t, "another one", s.do("GET", "creds/several?role_arn=arn:aws:iam::"+account+":role/other", nil), 400, "role_arn")
	wantStatus(s.t, "one that trusts others", s.do("POST", "creds/several", object{"role_arn": closed}), 400, "AssumeRole", "AccessDenied")
	s.write("roles/partner", object{"credential_type": "assumed_role", "role_arns": partner, "external_id": "contract:7/5"})
	wantStatus(s.t, "another external id", s.do("GET", "creds/partner", nil), 400, "AssumeRole", "AccessDenied")
	s.write("roles/partner", object{"external_id": "contract:7/4"})
	s.may(s.issue("sts/partner", nil).keys(), "ListUsers", true)
	if name, _ := s.nameOf(s.issue("sts/several", object{"role_arn": reader}).keys()); !strings.HasPrefix(name, "vault-root-several-") {
		s.t.Errorf("a session of the name %q", name)
	}
}

// federated: the emulator gives all of them the same keys, which do not work.
func federated(s *site) {
	s.write("roles/federated", object{"credential_type": "federation_token", "policy_document": allow("iam:ListUsers"), "iam_groups": "devs"})
	c := s.issue("sts/federated", object{"ttl": "15m"})
	wantSession(s.t, c, 900)
	_, name, ok := strings.Cut(c.Data.ARN, "arn:aws:sts::"+account+":federated-user/vault-")
	if !ok || len("vault-"+name) > 32 {
		s.t.Errorf("a federated user %q", c.Data.ARN)
	}
	for _, action := range []string{"iam:ListUsers", "iam:DeleteGroup"} { // the role's and the group's
		if got := s.sent("GetFederationToken", "Policy"); !strings.Contains(got, action) {
			s.t.Errorf("the session is limited by %q", got)
		}
	}
}

func session(s *site) {
	s.write("roles/session", object{"credential_type": "session_token", "max_sts_ttl": "30m"})
	wantSession(s.t, s.issue("creds/session", nil), 1800)
}

func legacy(s *site) {
	old := func(role object) { // with a warning, so it is not 204
		s.t.Helper()
		wantStatus(s.t, "write", s.do("POST", "roles/old", role), 200)
	}
	old(object{"policy": allow("iam:ListRoles")})
	c := s.issue("creds/old", nil)
	s.may(c.keys(), "ListRoles", true)
	s.may(c.keys(), "ListUsers", false)
	s.revoke(c)
	wantSession(s.t, s.issue("sts/old", nil), 3600)

	old(object{"arn": iamReads})
	c = s.issue("creds/old", nil)
	s.may(c.keys(), "ListUsers", true)
	s.revoke(c)
	wantStatus(s.t, "sts", s.do("GET", "sts/old", nil), 400)

	old(object{"arn": "arn:aws:iam::" + account + ":role/reader"})
	s.may(s.issue("sts/old", nil).keys(), "ListUsers", true)
	wantStatus(s.t, "creds", s.do("GET", "creds/old", nil), 400)
}

func static(s *site) {
	wantStatus(s.t, "no such user", s.do("POST", "static-roles/app", object{"username": "nobody", "rotation_period": "24h"}), 400, "username")
	wantStatus(s.t, "no such static role", s.do("GET", "static-creds/app", nil), 404)
	given := s.keyIDs("app")
	wantStatus(s.t, "create", s.do("POST", "static-roles/app", object{"username": "app", "rotation_period": "24h"}), 200)
	first, _ := s.current("app")
	if name, _ := s.nameOf(first); name != "app" {
		s.t.Errorf("they are of %q", name)
	}
	s.may(first, "ListRoles", true)
	s.may(first, "ListUsers", false)
	data := dataOf(s.t, s.do("GET", "static-roles/app", nil))
	if data["username"] != "app" || data["rotation_period"] != 86400.0 || data["name"] != "app" || data["id"] == "" {
		s.t.Errorf("%v", data)
	}
	wantStatus(s.t, "a shorter period", s.do("POST", "static-roles/app", object{"rotation_period": 60}), 200)
	same, soon := s.current("app")
	if left := time.Until(soon); same != first || left > time.Minute || left < 30*time.Second {
		s.t.Errorf("the same key: %v, %v before it is replaced", same == first, left)
	}
	wantStatus(s.t, "a longer period", s.do("POST", "static-roles/app", object{"rotation_period": "24h"}), 200)

	// There are two keys by now, so each rotation deletes the older one.
	wantStatus(s.t, "rotate", s.do("POST", "static-roles/app/rotate", nil), 200)
	second, _ := s.current("app")
	s.may(first, "ListRoles", true)
	s.may(second, "ListRoles", true)
	if ids := s.keyIDs("app"); len(ids) != 2 || slices.Contains(ids, given[0]) {
		s.t.Errorf("%d keys, the given one among them: %v", len(ids), slices.Contains(ids, given[0]))
	}
	wantStatus(s.t, "rotate", s.do("POST", "static-roles/app/rotate", nil), 200)
	third, _ := s.current("app")
	s.out("the oldest", first)
	s.may(second, "ListRoles", true)
	s.may(third, "ListRoles", true)

	wantStatus(s.t, "delete", s.do("DELETE", "static-roles/app", nil), 200, "still there")
	s.out("after the deletion", third)
	did(s.t, func(ctx context.Context) (*iam.GetUserOutput, error) {
		return s.iam(s.admin).GetUser(ctx, &iam.GetUserInput{UserName: aws.String("app")})
	})
}

func staticFull(s *site) {
	given := s.keyIDs("full")
	wantStatus(s.t, "create", s.do("POST", "static-roles/full", object{"username": "full", "rotation_period": "24h"}), 200)
	k, _ := s.current("full")
	s.may(k, "ListRoles", true)
	if ids := s.keyIDs("full"); !slices.Equal(ids, []string{given[1], k.id}) {
		s.t.Errorf("the oldest key is there: %v; keys: %d", slices.Contains(ids, given[0]), len(ids))
	}
}

func tooLong(s *site) {
	before := len(s.made())
	long := s.in(s.t).mounted("long", object{
		"username_template": `{{ if eq .Type "IAM" }}` + strings.Repeat("i", 65) + `{{ else }}` + strings.Repeat("s", 33) + `{{ end }}`,
	})
	long.write("roles/user", object{"credential_type": "iam_user", "policy_arns": iamReads})
	long.write("roles/federated", object{"credential_type": "federation_token", "policy_arns": iamReads})
	wantStatus(s.t, "IAM", long.do("GET", "creds/user", nil), 500, "64")
	wantStatus(s.t, "STS", long.do("GET", "sts/federated", nil), 500, "32")
	if n := len(s.made()); n != before {
		s.t.Errorf("%d users more", n-before)
	}
}

func missing(s *site) {
	wantStatus(s.t, "creds", s.do("GET", "creds/nowhere", nil), 400, "not found")
	wantStatus(s.t, "sts", s.do("POST", "sts/nowhere", nil), 400, "not found")
	wantStatus(s.t, "read", s.do("GET", "roles/nowhere", nil), 404)
	wantStatus(s.t, "delete", s.do("DELETE", "roles/nowhere", nil), 404)
}

// rootRotated: the old key works until the new one does, and only if there is no other.
func rootRotated(s *site, old keys) {
	s.write("roles/dev", object{"credential_type": "iam_user", "policy_arns": iamReads})
	a := s.do("POST", "config/rotate-root", nil)
	id := dataOf(s.t, a)["access_key"]
	if ids := s.keyIDs("rotated"); id == old.id || !slices.Equal(ids, []string{id.(string)}) {
		s.t.Errorf("the user has %d keys", len(ids))
	}
	if strings.Contains(string(a.Body), "secret") {
		s.t.Error("the answer has a secret")
	}
	s.out("the old key", old)
	s.revoke(s.issue("creds/dev", nil))

	extra := s.addKey("rotated")
	wantStatus(s.t, "with another key", s.do("POST", "config/rotate-root", nil), 400, "another access key")
	if got := dataOf(s.t, s.do("GET", "config/root", nil))["access_key"]; got != id {
		s.t.Error("the key has changed")
	}
	s.revoke(s.issue("creds/dev", nil))
	did(s.t, func(ctx context.Context) (*iam.DeleteAccessKeyOutput, error) {
		return s.iam(s.admin).DeleteAccessKey(ctx, &iam.DeleteAccessKeyInput{UserName: aws.String("rotated"), AccessKeyId: &extra.id})
	})
	if again := dataOf(s.t, s.do("POST", "config/rotate-root", nil))["access_key"]; again == id {
		s.t.Error("the key has not changed")
	}
	s.revoke(s.issue("creds/dev", nil))
}

// fromEnvironment: what the configuration does not say comes from the environment, and what it says goes before.
func fromEnvironment(s *site, environment, powerless keys) {
	if data := dataOf(s.t, s.do("GET", "config/root", nil)); data["access_key"] != "" {
		s.t.Error("the configuration shows a key")
	}
	s.write("roles/dev", object{"credential_type": "iam_user", "policy_arns": iamReads})
	s.write("roles/session", object{"credential_type": "session_token"})
	c := s.issue("creds/dev", nil)
	s.may(c.keys(), "ListUsers", true)
	s.issue("creds/session", nil)
	s.revoke(c)
	wantStatus(s.t, "rotate-root", s.do("POST", "config/rotate-root", nil), 400, "no key to rotate")
	s.configure(object{"access_key": powerless.id, "secret_key": powerless.secret, "region": "us-west-2"})
	wantStatus(s.t, "a user who may not", s.do("GET", "creds/dev", nil), 400, "CreateUser", "AccessDenied")
	wantStatus(s.t, "a session that it may not have", s.do("GET", "creds/session", nil), 400, "GetSessionToken", "AccessDenied")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range []string{
		environment.id + "/eu-central-1/iam", environment.id + "/eu-central-1/sts", powerless.id + "/us-west-2/iam", powerless.id + "/us-west-2/sts",
	} {
		if !s.scopes[scope] {
			s.t.Errorf("nothing was signed for %s", scope[strings.IndexByte(scope, '/')+1:])
		}
	}
}

func wrongRoot(s *site, root keys) {
	s.write("roles/dev", object{"credential_type": "iam_user", "policy_arns": iamReads})
	wrong := strings.Repeat("w", 40)
	for code, as := range map[string]keys{
		"SignatureDoesNotMatch": {id: root.id, secret: wrong},
		"InvalidClientTokenId":  {id: "AKIANOBODYNOBODY0000", secret: wrong},
	} {
		s.configure(keysOf(as)) // which does not ask the provider
		a := s.do("GET", "creds/dev", nil)
		wantStatus(s.t, code, a, 400, code)
		if text := string(a.Body); strings.Contains(text, wrong) || strings.Contains(text, as.id) {
			s.t.Errorf("%s: the answer has a key in it", code)
		}
		wantStatus(s.t, "rotate-root", s.do("POST", "config/rotate-root", nil), 400, code)
	}
}

// needed: the flows before have been made with what is listed, so it is enough. It is not too much either, for all of it was
// asked for, but for what tags need.
func needed(s *site, listed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, action := range listed {
		_, name, _ := strings.Cut(action, ":")
		if s.last[name] == nil && name != "TagUser" && name != "TagSession" {
			s.t.Errorf("no test has asked for %s", action)
		}
	}
}

// nothingLeft: each lease was revoked, and no secret is in the log.
func nothingLeft(s *site) {
	if left := s.made(); left != nil {
		s.t.Errorf("users that no lease stands for: %v", left)
	}
	if log := s.c.Nodes[0].Log(); slices.ContainsFunc(*s.seen, func(secret string) bool { return strings.Contains(log, secret) }) {
		s.t.Error("a secret key is in the log")
	}
}
