package conformance_test

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// accounts is a mount of the cloud engine, as a client sees it, and the provider behind it.
type accounts struct {
	x   *tour
	c   client
	at  string // path of the mount, with its slash
	aws *awstest.Server
}

const (
	awsReadOnly = "arn:aws:iam::aws:policy/ReadOnlyAccess"
	awsDocument = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}`
)

// cloud is what the family's clients do with its engine of cloud credentials, which they call by the type "aws".
func (x *tour) cloud(t *testing.T) {
	a := &accounts{x: x, c: x.root, at: x.my("aws") + "/", aws: awstest.New(t)}
	noErr(t, x.root.mount(x.my("aws"), api.MountInput{Type: "aws", Config: api.MountConfigInput{MaxLeaseTTL: "24h"}}))
	t.Cleanup(func() {
		if err := x.root.unmount(x.my("aws")); err != nil {
			t.Errorf("disabling %s: %v", a.at, err)
		}
		for _, u := range a.aws.Users() {
			if strings.HasPrefix(u.Name, "vault-") {
				t.Errorf("the user %s outlived the mount", u.Name)
			}
		}
	})
	t.Run("config as Terraform has it", a.config)
	t.Run("lease", a.lease)
	t.Run("role as Terraform has it", a.role)
	t.Run("users", a.users)
	t.Run("sessions", a.sessions)
	t.Run("legacy roles", a.legacy)
	t.Run("static roles", a.static)
	t.Run("rotated root", a.rotated)
	t.Run("documented", a.documented)
}

// config writes everything in one body, with the empty texts and zeros that Terraform sends for fields that are not set.
func (a *accounts) config(t *testing.T) {
	c := a.c.with("X-Vault-Consistency", "linearizable")
	absent(t)(c.read(a.at + "config/root"))
	key, secret := a.aws.Root()
	put := a.x.raw(t, a.x.node(), "PUT", "/v1/"+a.at+"config/root", a.x.RootToken, map[string]any{
		"access_key": key, "secret_key": secret, "region": "eu-west-1", "iam_endpoint": a.aws.URL, "sts_endpoint": a.aws.URL, "sts_region": "",
		"sts_fallback_endpoints": []string{}, "sts_fallback_regions": []string{}, "username_template": "", "max_retries": -1,
		"role_arn": "", "identity_token_audience": "", "identity_token_ttl": 0,
		"rotation_period": 0, "rotation_schedule": "", "rotation_window": 0, "disable_automated_rotation": false,
	})
	if put.Status != 200 && put.Status != 204 {
		t.Fatalf("status %d: %s", put.Status, put.Body)
	}
	d := data(t)(c.read(a.at + "config/root"))
	fields(t, d, map[string]any{
		"access_key": key, "region": "eu-west-1", "iam_endpoint": a.aws.URL, "sts_endpoint": a.aws.URL, "sts_region": "", "max_retries": -1,
		"sts_fallback_endpoints": []string{}, "sts_fallback_regions": []string{}, "rotation_period": 0, "rotation_schedule": "",
		"rotation_window": 0, "disable_automated_rotation": false,
	})
	for name := range d {
		if strings.Contains(name, "secret") {
			t.Errorf("the answer has %s", name)
		}
	}
}

func (a *accounts) lease(t *testing.T) {
	c := a.c
	fields(t, data(t)(c.read(a.at+"config/lease")), map[string]any{"lease": "24h0m0s", "lease_max": "24h0m0s"})
	done(t)(c.write(a.at+"config/lease", map[string]any{"lease": "30m", "lease_max": "12h"}))
	fields(t, data(t)(c.read(a.at+"config/lease")), map[string]any{"lease": "30m0s", "lease_max": "12h0m0s"})
	_, err := c.write(a.at+"config/lease", map[string]any{"lease": "1d", "lease_max": "12h"})
	says(t, err, 400, "lease")
}

// role reads back as the Terraform provider compares it: lists as lists, tags as a map, the policy without white space.
func (a *accounts) role(t *testing.T) {
	c := a.c.with("X-Vault-Consistency", "linearizable")
	absent(t)(c.list(a.at + "roles"))
	absent(t)(c.read(a.at + "roles/tf"))
	put := a.x.raw(t, a.x.node(), "PUT", "/v1/"+a.at+"roles/tf", a.x.RootToken, map[string]any{
		"credential_type": "iam_user", "policy_arns": []string{awsReadOnly}, "policy_document": "{\n  \"Version\": \"2012-10-17\",\n  \"Statement\": []\n}\n",
		"iam_groups": []string{}, "iam_tags": map[string]string{"team": "a"}, "user_path": "/apps/", "permissions_boundary_arn": "",
		"role_arns": []string{}, "session_tags": map[string]string{}, "external_id": "", "default_sts_ttl": 0, "max_sts_ttl": 0,
	})
	if put.Status != 204 {
		t.Fatalf("status %d: %s", put.Status, put.Body)
	}
	got := data(t)(c.read(a.at + "roles/tf"))
	fields(t, got, map[string]any{
		"credential_type": "iam_user", "credential_types": []string{"iam_user"}, "policy_arns": []string{awsReadOnly}, "role_arns": []string{},
		"policy_document": `{"Version":"2012-10-17","Statement":[]}`, "iam_groups": []string{}, "iam_tags": map[string]any{"team": "a"},
		"session_tags": map[string]any{}, "external_id": "", "default_sts_ttl": 0, "max_sts_ttl": 0, "user_path": "/apps/",
		"permissions_boundary_arn": "", "mfa_serial_number": "",
	})
	if _, there := got["invalid_data"]; there {
		t.Error("the role has invalid_data")
	}
	same(t, "roles", texts(data(t)(c.list(a.at + "roles"))["keys"]), []string{"tf"})
	_, err := c.write(a.at+"roles/bad", map[string]any{"credential_type": "assumed_role", "user_path": "/a/"})
	says(t, err, 400, "role_arns", "user_path")
	done(t)(c.remove(a.at + "roles/tf"))
	_, err = c.remove(a.at + "roles/tf")
	refused(t, err, 404)
}

// owner is whom the provider takes the holder of credentials for; nobody, if the user is gone.
func (a *accounts) owner(key string) string {
	for _, u := range a.aws.Users() {
		if slices.ContainsFunc(u.Keys, func(k awstest.Key) bool { return k.ID == key }) {
			return u.Name
		}
	}
	return ""
}

func (a *accounts) users(t *testing.T) {
	c := a.c
	done(t)(c.write(a.at+"roles/dev", map[string]any{"credential_type": "iam_user", "policy_arns": awsReadOnly, "policy_document": awsDocument}))
	_, err := c.read(a.at + "creds/nobody")
	says(t, err, 400, "not found")
	s, err := c.read(a.at + "creds/dev")
	d := data(t)(s, err)
	same(t, "keys", slices.Sorted(maps.Keys(d)), []string{"access_key", "secret_key", "security_token", "session_token"})
	same(t, "tokens", []any{d["security_token"], d["session_token"]}, []any{nil, nil})
	same(t, "lease", []any{strings.HasPrefix(s.LeaseID, a.at+"creds/dev/"), s.LeaseDuration, s.Renewable}, []any{true, 1800, true})
	key, _ := d["access_key"].(string)
	if a.owner(key) == "" {
		t.Fatal("the key is no user's")
	}
	renewed, err := c.renewLease(s.LeaseID, 3600)
	noErr(t, err)
	same(t, "renewed", []any{renewed.LeaseID, renewed.Renewable}, []any{s.LeaseID, true})
	noErr(t, c.revokeLease(s.LeaseID))
	harness.Await(t, "the revocation", patience, func() error { return gone(a.owner(key)) })

	w := wrap(t)(c.wrapped("60s").read(a.at + "creds/dev"))
	same(t, "creation path", w.CreationPath, a.at+"creds/dev")
	inner, err := c.as("").unwrap(w.Token)
	d = data(t)(inner, err)
	if key, _ = d["access_key"].(string); a.owner(key) == "" || inner.LeaseID == "" {
		t.Errorf("unwrapped, the key is %q's, the lease %q", a.owner(key), inner.LeaseID)
	}
	noErr(t, c.revokePrefix(a.at+"creds/dev"))
	harness.Await(t, "the revocation of all", patience, func() error { return gone(a.owner(key)) })
}

// gone is an error while there is a user.
func gone(user string) error {
	if user != "" {
		return errors.New("the user is still there")
	}
	return nil
}

// sessions are what the SDKs' helpers of the family read: role_arn, ttl and role_session_name in the query or in the body, and
// how long the credentials last, although no lease is stored.
func (a *accounts) sessions(t *testing.T) {
	c := a.c
	dev := a.aws.AddRole(awstest.Role{Name: "dev", MaxTTL: 12 * time.Hour})
	ops := a.aws.AddRole(awstest.Role{Name: "ops", MaxTTL: 12 * time.Hour})
	done(t)(c.write(a.at+"roles/hop", map[string]any{"credential_type": "assumed_role", "role_arns": []string{dev, ops}, "default_sts_ttl": "1h", "max_sts_ttl": "2h"}))
	done(t)(c.write(a.at+"roles/fed", map[string]any{"credential_type": "federation_token", "policy_document": awsDocument}))
	done(t)(c.write(a.at+"roles/mine", map[string]any{"credential_type": "session_token"}))
	check := func(what string, seconds int, s *api.Secret, err error, more ...string) {
		t.Helper()
		d := data(t)(s, err)
		same(t, what+": keys", slices.Sorted(maps.Keys(d)), slices.Sorted(slices.Values(append(more, "access_key", "secret_key", "security_token", "session_token", "ttl"))))
		same(t, what+": one token", d["security_token"], d["session_token"])
		ttl := number(t, d["ttl"])
		if ttl > int64(seconds) || ttl < int64(seconds)-30 || s.LeaseDuration != int(ttl) || s.Renewable {
			t.Errorf("%s: ttl %d, lease_duration %d, renewable %v, want %d", what, ttl, s.LeaseDuration, s.Renewable, seconds)
		}
	}
	s, err := c.query(a.at+"creds/hop", url.Values{"role_arn": {dev}, "ttl": {"1800s"}, "role_session_name": {"tf"}})
	check("query", 1800, s, err, "arn")
	same(t, "arn", s.Data["arn"], "arn:aws:sts::123456789012:assumed-role/dev/tf")
	s, err = c.write(a.at+"sts/hop", map[string]any{"role_arn": ops, "ttl": "5h"})
	check("body", 7200, s, err, "arn")
	s, err = c.read(a.at + "sts/fed")
	check("federation", 3600, s, err, "arn")
	s, err = c.write(a.at+"sts/mine", nil)
	check("session", 3600, s, err)
	_, err = c.read(a.at + "sts/hop")
	says(t, err, 400, "role_arn")
}

func (a *accounts) legacy(t *testing.T) {
	c := a.c
	s, err := c.write(a.at+"roles/old", map[string]any{"arn": awsReadOnly})
	noErr(t, err)
	if s == nil || len(s.Warnings) == 0 {
		t.Error("a legacy parameter is not warned of")
	}
	fields(t, data(t)(c.read(a.at+"roles/old")), map[string]any{"credential_types": []string{"iam_user"}, "policy_arns": []string{awsReadOnly}})
	_, err = c.read(a.at + "sts/old")
	refused(t, err, 400)
	s, err = c.read(a.at + "creds/old")
	data(t)(s, err)
	noErr(t, c.revokeLease(s.LeaseID))
}

func (a *accounts) static(t *testing.T) {
	c := a.c
	a.aws.AddUser("svc")
	user, _ := a.aws.User("svc")
	absent(t)(c.read(a.at + "static-roles/app"))
	absent(t)(c.read(a.at + "static-creds/app"))
	want := map[string]any{"name": "app", "id": user.ID, "username": "svc", "rotation_period": 86400}
	fields(t, data(t)(c.write(a.at+"static-roles/app", map[string]any{"username": "svc", "rotation_period": "24h"})), want)
	fields(t, data(t)(c.read(a.at+"static-roles/app")), want)
	// Terraform writes all of it again.
	fields(t, data(t)(c.write(a.at+"static-roles/app", map[string]any{"name": "app", "username": "svc", "rotation_period": 86400})), want)
	same(t, "static roles", texts(data(t)(c.list(a.at + "static-roles"))["keys"]), []string{"app"})
	s, err := c.read(a.at + "static-creds/app")
	d := data(t)(s, err)
	same(t, "keys", slices.Sorted(maps.Keys(d)), []string{"access_key", "expiration", "secret_key"})
	key := a.aws.Keys("svc")[0]
	same(t, "key", []any{d["access_key"], d["secret_key"]}, []any{key.ID, key.Secret})
	same(t, "lease", []any{s.LeaseID, s.Renewable}, []any{"", false})
	due, err := time.Parse(time.RFC3339, d["expiration"].(string))
	if err != nil || time.Until(due) > 24*time.Hour || time.Until(due) < 23*time.Hour {
		t.Errorf("expiration %v", d["expiration"])
	}
	done(t)(c.remove(a.at + "static-roles/app"))
	done(t)(c.remove(a.at + "static-roles/app"))
	same(t, "keys of the user", len(a.aws.Keys("svc")), 0)
}

func (a *accounts) rotated(t *testing.T) {
	c := a.c
	d := data(t)(c.write(a.at+"config/rotate-root", nil))
	same(t, "keys", slices.Collect(maps.Keys(d)), []string{"access_key"})
	same(t, "key", d["access_key"], any(a.aws.Keys("root-user")[0].ID))
	fields(t, data(t)(c.read(a.at+"config/root")), map[string]any{"access_key": d["access_key"]})
	data(t)(c.read(a.at + "sts/mine"))
}

// documented looks for the paths in what the server says of itself.
func (a *accounts) documented(t *testing.T) {
	var doc struct{ Paths map[string]map[string]any }
	a.x.raw(t, a.x.node(), "GET", "/v1/sys/internal/specs/openapi", a.x.RootToken, nil).Decode(t, &doc)
	for _, path := range []string{"config/root", "config/rotate-root", "config/lease", "roles/{name}", "creds/{name}", "sts/{name}", "static-roles/{name}", "static-creds/{name}"} {
		if doc.Paths["/"+a.at+path] == nil {
			t.Errorf("%s is not documented", path)
		}
	}
}
