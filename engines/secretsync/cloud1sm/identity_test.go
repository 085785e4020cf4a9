package cloud1sm_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// trusting adds a role that the given token may assume.
func trusting(s *cloud1smtest.Server, token string) (roleARN string) {
	return s.STS.AddRole(awstest.Role{Name: "sync", WebIdentity: func(got string) (code, reason string) {
		if got != token {
			return "InvalidIdentityToken", "the token " + got + " is another one"
		}
		return "", ""
	}})
}

// issuing is an issuer whose tokens say what they are for.
func issuing(_ context.Context, audience string, ttl time.Duration) (string, error) {
	return "token-for-" + audience + "-" + ttl.String(), nil
}

// TestIdentityToken: a token of the server takes the place of a stored key.
func TestIdentityToken(t *testing.T) {
	s := cloud1smtest.New(t)
	role := trusting(s, "token-for-sts.amazonaws.com-10m0s")
	change := func(c *cloud1sm.Config) {
		c.AccessKeyID, c.SecretAccessKey, c.RoleARN = "", "", role
		c.IdentityAudience, c.IdentityTTL = " sts.amazonaws.com ", engines.Duration(10*time.Minute)
	}
	d := open(t, s, destination.Env{IdentityToken: issuing}, change)
	write(t, d, item("value"))
	holds(t, s, "value")
	did(t, s, "AssumeRoleWithWebIdentity", "DescribeSecret", "CreateSecret")

	// A token that the role does not trust says what to look at, and not what was sent.
	other := open(t, s, destination.Env{IdentityToken: issuing}, func(c *cloud1sm.Config) { change(c); c.IdentityAudience = "other" })
	_, err := other.Read(t.Context(), name)
	if e := failed(t, err, destination.Client, destination.Denied, false); !strings.Contains(e.Text, "identity provider in IAM") || strings.Contains(e.Text, "token-for") {
		t.Errorf("the error is %q", e.Text)
	}
	_, err = open(t, s, destination.Env{}, change).Read(t.Context(), name)
	failed(t, err, destination.Client, destination.Denied, false)
}

// TestEnvironmentWebIdentity: the token file and the role of the server's environment, as EKS gives them to service accounts.
func TestEnvironmentWebIdentity(t *testing.T) {
	s := cloud1smtest.New(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("token-of-the-pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_ROLE_ARN": trusting(s, "token-of-the-pod"), "AWS_WEB_IDENTITY_TOKEN_FILE": file, "AWS_ENDPOINT_URL_STS": s.URL, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"),
	} {
		t.Setenv(name, value)
	}
	d := open(t, s, destination.Env{Getenv: os.Getenv}, func(c *cloud1sm.Config) { c.AccessKeyID, c.SecretAccessKey = "", "" })
	write(t, d, item("value"))
	holds(t, s, "value")
	did(t, s, "AssumeRoleWithWebIdentity", "DescribeSecret", "CreateSecret")
}

func TestIdentityFieldsAreChecked(t *testing.T) {
	const role = "arn:aws:iam::123456789012:role/sync"
	for _, test := range []struct {
		c    cloud1sm.Config
		want string
	}{
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a"}}, "role_arn: is missing"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a", RoleARN: role, AccessKeyID: "AKIAX", SecretAccessKey: "s"}}, "takes the place of access_key_id"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a", RoleARN: role, ExternalID: "id"}}, "external_id: a role that is assumed with an identity token asks for none"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a", RoleARN: role, IdentityTTL: engines.Duration(time.Second)}}, "identity_token_ttl: must be between"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityTTL: engines.Duration(time.Hour)}}, "identity_token_ttl: is for identity tokens"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityKey: "default"}}, "identity_token_key: is for identity tokens"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a", RoleARN: role, IdentityKey: "mine"}}, "identity_token_key"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a b", RoleARN: role}}, "identity_token_audience"},
		{cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a", RoleARN: role, IdentityKey: "default"}}, ""},
	} {
		problems := strings.Join(test.c.Check(), "; ")
		if test.want == "" && problems != "" || !strings.Contains(problems, test.want) {
			t.Errorf("%q, want %q", problems, test.want)
		}
	}
	c := &cloud1sm.Config{Account: cloud1.Account{IdentityAudience: "a", RoleARN: role, IdentityTTL: engines.Duration(time.Hour)}}
	c.Check()
	if shown := c.Shown(); shown["identity_token_audience"] != destination.Mask || shown["identity_token_ttl"] != int64(3600) || c.Location() != "cloud1-sm/123456789012/environment" {
		t.Errorf("shown as %v, at %s", shown, c.Location())
	}
}
